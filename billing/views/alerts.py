"""Alerts: what is open, what is looked for, who is told, what was; and one alert with what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from billing.core.alerts import KINDS
from billing.models import Alert, AlertRule, AlertState, AlertSubscription, Channel, Severity
from billing.selectors.alert_words import alert_path, alert_title, figures_of, subject_words, threshold_text
from billing.selectors.alerts import (
    UNRESOLVED,
    AlertKind,
    alerts_by_kind,
    alerts_for,
    may_act_on,
    may_change_rules,
    rules_for,
    subscription_row,
    subscriptions_for,
)
from billing.services.alert_settings import change_rule, change_subscription, create_subscription
from billing.services.alerts import AlertError, acknowledge_alert, resolve_alert
from ledger.core.sentences import in_english
from ledger.core.units import MS_PER_SECOND, parse_micro
from ledger.models import Tenant
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, text_of
from ledger.views.page import Page
from ledger.views.tables import COUNT, DURATION, INSTANT, TEXT_FILTER, Column, Filter, Table, words
from ledger.wording import (
    ALERT_CHANNELS,
    ALERT_KINDS,
    ALERT_OCCASIONS,
    ALERT_PROBLEMS,
    ALERT_STATES,
    ALERT_UNITS,
    DELIVERY_STATES,
    SEVERITIES,
    THRESHOLDS_ELSEWHERE,
)
from ledger.wording_sentences import kept_in_words


def _severity(alert: Alert) -> Any:
    css = "state alarm" if alert.severity == Severity.CRITICAL and alert.state == AlertState.OPEN else "state"
    return format_html('<span class="{}">{}</span>', css, SEVERITIES[alert.severity])


def _evidence(alert: Alert) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures_of(alert))


def _alert_columns() -> list[Column]:
    return [
        Column(
            "kind",
            _("Alert"),
            replace(words(ALERT_KINDS.__getitem__), css="nowrap"),
            field="kind",
            link=alert_path,
        ),
        Column("subject", _("About"), of=subject_words, field="subject", filter=TEXT_FILTER),
        Column("severity", _("Severity"), field="severity", html=_severity),
        Column("opened_at", _("Opened"), INSTANT, field="opened_at"),
        Column("evidence", _("Evidence"), of=_evidence, can_sort=False, css=lambda row: "wide"),
        Column("state", _("State"), words(ALERT_STATES.__getitem__), field="state"),
    ]


class _ActingPage(ActingPage):
    refused = (AlertError,)

    def may_act(self) -> bool:
        return True  # each alert, rule and subscription asks for its own right

    def words_for(self, error: Exception) -> str:
        return str(ALERT_PROBLEMS.get(getattr(error, "code", ""), error))


class AlertsPage(_ActingPage):
    """Open alerts first; then rules and subscriptions, with forms for who may change them; then history."""

    template = "billing/alerts.html"

    def tables(self) -> list[Table]:
        kind = Filter(choices=lambda: ALERT_KINDS.items(), exact=True)
        resolved = Column("resolved_at", _("Resolved at"), INSTANT, field="resolved_at")
        columns = _alert_columns()
        history = [replace(columns[0], filter=kind), *columns[1:5], resolved]
        return [
            Table(
                "open",
                lambda: alerts_for(self.access).filter(state__in=UNRESOLVED),
                columns,
                label=_("Open alerts"),
                empty=_("Nothing is open."),
            ),
            by_kind_table(lambda: alerts_by_kind(self.access)),
            Table("rules", lambda: list(rules_for(self.access)), self._rule_columns(), label=_("Rules")),
            Table(
                "history",
                lambda: alerts_for(self.access).filter(state=AlertState.RESOLVED),
                history,
                label=_("History"),
                rows_a_page=25,
            ),
            *([self._subscriptions()] if self.may_subscribe or self.access.sees_all_tenants else []),
        ]

    @property
    def may_subscribe(self) -> bool:
        return may_change_rules(self.access) or bool(self.access.admin_of)

    @staticmethod
    def _rule_columns() -> list[Column]:
        return [
            Column("name", _("Rule")),
            Column("kind", _("Kind"), words(ALERT_KINDS.__getitem__)),
            Column("pool", _("Pool"), of="pool.slug"),
            Column("tenant", _("Tenant"), of="tenant.slug"),
            Column("threshold", _("Threshold"), of=_threshold, can_sort=False),
            Column("lasting", _("Lasting or measured over"), DURATION, of=_lasting_ms),
            Column("severity", _("Severity"), words(SEVERITIES.__getitem__)),
            Column("enabled", _("State"), of=lambda row: _("on") if row.enabled else _("off")),
        ]

    def _subscriptions(self) -> Table:
        columns = [
            Column("name", _("Name")),
            Column("tenant", _("Tenant")),
            Column("channel", _("Channel"), words(ALERT_CHANNELS.__getitem__)),
            Column("reaches", _("Reaches"), of=lambda row: row["host"] or ", ".join(row["addresses"])),
            Column("min_severity", _("From severity"), words(SEVERITIES.__getitem__)),
            Column("enabled", _("State"), of=lambda row: _("on") if row["enabled"] else _("off")),
        ]
        rows = lambda: [subscription_row(one) for one in subscriptions_for(self.access)]  # noqa: E731
        return Table("subscriptions", rows, columns, label=_("Who is told"), empty=_("Nobody is told."))

    def context(self) -> dict[str, Any]:
        tenants = Tenant.objects.select_related("holder").order_by("holder__slug")
        if not may_change_rules(self.access):
            tenants = tenants.filter(pk__in=self.access.admin_of)
        return {
            "may_change_rules": may_change_rules(self.access),
            "may_subscribe": self.may_subscribe,
            "rules": list(rules_for(self.access)) if may_change_rules(self.access) else [],
            "subscriptions": list(subscriptions_for(self.access)) if self.may_subscribe else [],
            "tenants": [tenant.slug for tenant in tenants] if self.may_subscribe else [],
            "channels": ALERT_CHANNELS.items(),
            "severities": SEVERITIES.items(),
        }

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str:
        if form.get("deed") == "rule" and may_change_rules(self.access):
            return self._change_rule(form, by)
        if form.get("deed") == "subscribe" and self.may_subscribe:
            return self._subscribe(form, by)
        if form.get("deed") == "switch" and self.may_subscribe:
            return self._switch(form, by)
        raise PermissionDenied

    def _change_rule(self, form: QueryDict, by: Actor) -> str:
        rule: AlertRule | None = rules_for(self.access).filter(name=text_of(form, "rule")).first()
        if rule is None:
            raise Http404
        values: dict[str, Any] = {"enabled": form.get("enabled") == "1"}
        try:
            if text_of(form, "threshold"):
                values["threshold_micro"] = parse_micro(text_of(form, "threshold"))
        except ValueError:
            raise AlertError("bad_threshold", "") from None
        if form.get("severity") in Severity.values:
            values["severity"] = form["severity"]
        change_rule(rule, values, by)
        return _("The rule %(name)s is changed.") % {"name": rule.name}

    def _subscribe(self, form: QueryDict, by: Actor) -> str:
        rows = Tenant.objects.filter(holder__slug=text_of(form, "tenant"))
        if not may_change_rules(self.access):
            rows = rows.filter(pk__in=self.access.admin_of)
        tenant = rows.first()
        if tenant is None and (text_of(form, "tenant") or not may_change_rules(self.access)):
            raise Http404
        channel, name = form.get("channel", ""), text_of(form, "name")[:100]
        if channel not in Channel.values or not name:
            raise AlertError("bad_url", "")
        reach = text_of(form, "reach")[:500]
        is_mail = channel == Channel.EMAIL
        values = {
            "name": name,
            "tenant": tenant,
            "channel": channel,
            "url": "" if is_mail else reach,
            "addresses": reach.replace(",", " ").split() if is_mail else [],
            "secret": text_of(form, "secret")[:200],
            "min_severity": form["severity"] if form.get("severity") in Severity.values else Severity.INFO,
            "language": "zh-hans" if form.get("language") == "zh-hans" else "en",
        }
        create_subscription(values, by)
        return _("%(name)s will be told.") % {"name": name}

    def _switch(self, form: QueryDict, by: Actor) -> str:
        try:
            wanted = UUID(form.get("subscription", ""))
        except ValueError:
            raise Http404 from None
        one: AlertSubscription | None = subscriptions_for(self.access).filter(pk=wanted).first()
        if one is None:
            raise Http404
        change_subscription(one, {"enabled": not one.enabled}, by)
        return (
            _("Switched on: %(name)s") % {"name": one.name}
            if one.enabled
            else _("Switched off: %(name)s") % {"name": one.name}
        )


def by_kind_table(rows: Callable[[], list[AlertKind]]) -> Table:
    """What comes and goes often as one line, which leads to its alerts."""

    def to_history(row: AlertKind) -> str:
        asked = {"history.kind": row.kind, **({"history.subject": row.pool} if row.pool else {})}
        return f"?{urlencode(asked)}#table-history"

    return Table(
        "by_kind",
        rows,
        [
            Column("kind", _("Alert"), words(ALERT_KINDS.__getitem__), link=to_history),
            Column("pool", _("Pool")),
            Column("count", _("Count"), COUNT),
            Column("unresolved", _("of them open"), COUNT),
            Column("lasted", _("Lasted together"), DURATION, of="lasted_ms"),
            Column("longest", _("Longest"), DURATION, of="longest_ms"),
            Column("last_at", _("Last opened"), INSTANT),
        ],
        label=_("By kind and pool"),
        caption=_("All alerts so far; how long is said of those that are resolved."),
        empty=_("Nothing has happened yet."),
    )


def _threshold(rule: AlertRule) -> str:
    if not rule.threshold_micro and rule.kind in THRESHOLDS_ELSEWHERE:
        return str(THRESHOLDS_ELSEWHERE[rule.kind])
    unit = KINDS[rule.kind].unit
    return f"{threshold_text(rule.threshold_micro)} {ALERT_UNITS.get(unit, unit)}".strip()


def _lasting_ms(rule: AlertRule) -> int:
    return rule.lasting_s * MS_PER_SECOND


class AlertPage(_ActingPage):
    """One alert: its figures, who was told, where to look, and the forms to acknowledge and resolve it."""

    template = "billing/alert.html"

    def tables(self, alert_id: UUID) -> list[Table]:
        self.alert = _alert_or_404(self, alert_id)
        if not self.access.sees_all_tenants:
            return []
        columns = [
            Column("subscription", _("Subscription"), of="subscription.name"),
            Column("occasion", _("Occasion"), words(ALERT_OCCASIONS.__getitem__)),
            Column("state", _("State"), words(DELIVERY_STATES.__getitem__)),
            Column("attempts", _("Attempts"), COUNT),
            Column("next_attempt_at", _("Next attempt"), INSTANT),
            Column(
                "last_answer",
                _("Last answer"),
                of=lambda row: in_english(row.last_answer),
                html=lambda row: kept_in_words(row.last_answer),
            ),
        ]
        rows = self.alert.deliveries.select_related("subscription").order_by("created_at", "pk")
        return [Table("deliveries", lambda: list(rows), columns, label=_("Who was told"))]

    def context(self, alert_id: UUID) -> dict[str, Any]:
        alert = self.alert
        return {
            "alert": alert,
            "title": alert_title(alert),
            "figures": figures_of(alert),
            "place": self._place(alert),
            "may_act": may_act_on(alert, self.access) and alert.state != AlertState.RESOLVED,
        }

    def _place(self, alert: Alert) -> str:
        """Where the matter itself can be looked at, where there is such a page for the reader."""
        if not self.access.sees_all_tenants:
            return ""
        if alert.kind in ("ingest_lag", "silent_source", "unattributed"):
            return reverse("ingest:overview")
        return reverse("billing:pool", args=[alert.pool.slug]) if alert.pool else ""

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        alert = _alert_or_404(self, kwargs["alert_id"])
        if not may_act_on(alert, self.access):
            raise PermissionDenied
        if form.get("deed") == "acknowledge":
            acknowledge_alert(alert.pk, text_of(form, "reason"), by, timezone.now())
            return _("The alert is acknowledged.")
        resolve_alert(alert.pk, text_of(form, "reason"), by, timezone.now())
        return _("The alert is resolved.")


def _alert_or_404(page: Page, alert_id: UUID) -> Alert:
    alert = alerts_for(page.access).filter(pk=alert_id).first()
    if alert is None:
        raise Http404
    return alert
