"""Alerts in words, in the language that is active: titles, evidence with its units, and the message for receivers."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

from django.utils.translation import gettext as _

from billing.core.alert_messages import Message
from billing.models import Alert, AlertState, Severity
from ledger.core import figures
from ledger.core.currency import minor_places
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, money_fixed
from ledger.wording import ALERT_FIGURES, ALERT_KINDS, ALERT_UNITS, QUOTA_LAYERS, SEVERITIES, TIME_UNITS

_MS_OF = {"s": MS_PER_SECOND, "min": MS_PER_MINUTE, "h": MS_PER_HOUR}

SEVERITY_ORDER: dict[str, int] = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


def alert_path(alert: Alert) -> str:
    """Where its page is; messages put the ledger's address before it."""
    return f"/alerts/{alert.pk}/"


def alert_title(alert: Alert) -> str:
    """What happened, and to what: 'Shortage: bj-h100'."""
    return f"{ALERT_KINDS[alert.kind]}: {subject_words(alert)}"


def subject_words(alert: Alert) -> str:
    """The subject as people name it: tenant and pool, else what the subject key says."""
    parts = [alert.tenant.slug if alert.tenant else "", alert.pool.slug if alert.pool else ""]
    named = " · ".join(part for part in parts if part)
    detail = alert.subject.partition("#")[2]
    return " · ".join(part for part in (named, detail) if part) or str(_("the whole ledger"))


def figures_of(alert: Alert) -> list[tuple[str, str]]:
    """The evidence: (name, value with its unit), in the order of ALERT_FIGURES (the database keeps none)."""
    rows = []
    places = {name: place for place, name in enumerate(ALERT_FIGURES)}
    for name, figure in sorted(alert.evidence.items(), key=lambda one: places.get(one[0], len(places))):
        rows.append((str(ALERT_FIGURES.get(name, name)), _in_words(figure["value"], figure["unit"])))
    return rows


def _in_words(value: str, unit: str) -> str:
    """A figure with its unit: spans of time in their two largest units, amounts as money is printed."""
    if unit in _MS_OF:
        parts = figures.duration_parts(int(value) * _MS_OF[unit])
        return " ".join(f"{number} {TIME_UNITS[size]}" for number, size in parts)
    if unit == "layer":
        return str(QUOTA_LAYERS.get(value, value))
    if unit not in ALERT_UNITS and unit != "%":
        value = money_fixed(int(Decimal(value).scaleb(6)), minor_places(unit))
    return f"{figures.set_digits(value)} {ALERT_UNITS.get(unit, unit)}".strip()


def message_of(alert: Alert, *, is_resolved: bool, base_url: str) -> Message:
    """What chat, mail and Alertmanager are told. Instants are UTC and say so: readers sit in several zones."""
    title = alert_title(alert)
    if is_resolved:
        title = _("Resolved: %(title)s") % {"title": title}
    lines = [(str(_("Severity")), str(SEVERITIES[alert.severity])), (str(_("Rule")), alert.rule.name)]
    lines.append((str(_("Since")), f"{alert.started_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"))
    if is_resolved and alert.state == AlertState.RESOLVED and alert.resolved_at is not None:
        lines.append((str(_("Resolved at")), f"{alert.resolved_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"))
    lines += figures_of(alert)
    url = f"{base_url}{alert_path(alert)}" if base_url else ""
    return Message(title, alert.severity, is_resolved, lines, url, str(_("Open in the ledger")))


def threshold_text(threshold_micro: int) -> str:
    """A threshold as its shortest decimal."""
    return f"{(Decimal(threshold_micro) / 1_000_000).normalize():f}"
