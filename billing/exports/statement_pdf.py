"""`statement.pdf`: the bill as an A4 document, in the reader's language, with an embedded font.

Everything on it is frozen with the statement, so an issued one gives the same bytes every time (per language). The
layout is in statement.typ; here everything becomes text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pylopdf_fonts_zh_cn
import typst
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from billing.core.focus import DEFAULT_ISSUER
from billing.models import PreemptionRecord, Statement, StatementLine
from billing.selectors.detail import CAUSE, VICTIM, Hit, hits_of
from billing.selectors.names import Names
from billing.selectors.pages_proofs import proofs_of_itself
from billing.selectors.pages_statements import OF_TIME, RESERVED, LineGroup, lines_by_group
from ledger.access import Access
from ledger.core.currency import minor_places
from ledger.core.figures import DASH, is_zero, set_digits
from ledger.core.periods import to_datetime
from ledger.core.units import fixed_decimal, gpu_hours_fixed, micro_text, milli_gpus_text
from ledger.templatetags.figures import month_name
from ledger.wording import (
    CAUSES,
    LINE_KINDS,
    STATEMENT_STATES,
    apart_from_neighbours,
    category_name,
)

LAYOUT = Path(__file__).with_name("statement.typ")
# The statement's page shows fewer; all of them are in preemptions.csv.
PREEMPTIONS_A_SIDE = 40
OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")
_MEMO = ("lent", "oversold")
_CHINESE = "zh"
Decided = Mapping[str, datetime]  # preemption -> when it was decided


def statement_pdf(statement: Statement, access: Access) -> bytes:
    """The document in the language that is active. `statement` must have its content loaded."""
    inputs = {"statement": json.dumps(_document(statement, access), ensure_ascii=False)}
    instant = (statement.issued_at or statement.computed_at).replace(microsecond=0)
    document = typst.compile(
        LAYOUT.read_bytes(), font_paths=_fonts(), sys_inputs=inputs, format="pdf", timestamp=instant
    )
    assert isinstance(document, bytes)
    return document


@cache
def _fonts() -> typst.Fonts:
    """Fonts of packages alone: a system's would make other bytes."""
    return typst.Fonts(
        font_paths=[pylopdf_fonts_zh_cn.sans_path().parent],
        include_system_fonts=False,
        include_embedded_fonts=True,
    )


def pdf_name(statement: Statement) -> str:
    return f"{statement.tenant.slug}-{statement.period_id}-statement.pdf"


def _document(statement: Statement, access: Access) -> dict[str, Any]:
    said = statement.content
    lines = list(statement.lines.order_by("position"))
    chinese = (get_language() or "").startswith(_CHINESE)
    names = Names(access, at=statement.period.starts_at)
    zone = ZoneInfo(said["time_zone"])
    unpriced = any(line.amount_minor is None for line in lines)
    hits = hits_of(statement)
    decided = _decided(lines, hits)
    return {
        "lang": _CHINESE if chinese else "en",
        "region": "CN" if chinese else "US",
        "title": f"{said['name']} {statement.number}",
        "issuer": said.get("issuer") or DEFAULT_ISSUER,
        "tenant": said["name"],
        "number": statement.number,
        "month": month_name(statement.period_id),
        "state": str(STATEMENT_STATES.get(statement.state, statement.state)),
        "period": f"{_day_and_time(statement.period.starts_at, zone)} – "
        f"{_day_and_time(statement.period.ends_at, zone)} {said['time_zone']}",
        "cost_center": said.get("cost_center", ""),
        "informational": _("for information, not billed") if said["informational"] else "",
        "total": _minor(statement.total_minor, statement.currency),
        "currency": statement.currency,
        "sha256": statement.sha256,
        "proof": " ".join(
            proof.text if proof.holds else f"{_('Not proved:')} {proof.text}"
            for proof in proofs_of_itself(statement, lines)
        ),
        "unpriced": _(
            "A line has no price, so its amount is missing from the total. The month cannot close until the rate "
            "card has it."
        )
        if unpriced
        else "",
        "labels": _labels(statement),
        "figures": _figures(statement.totals),
        "groups": [_group(group, statement, zone, decided) for group in lines_by_group(lines).groups],
        "preemptions": _sides(hits, names, zone),
        "facts": _facts(statement, zone),
    }


def _decided(lines: Iterable[StatementLine], hits: Iterable[Hit]) -> Decided:
    """Of the statement's own preemptions as it was issued; one of an earlier month, that ran again in this one or is
    corrected here, by its record. A line of recomputed time itself begins when the work ran again."""
    found = {hit.preemption: to_datetime(hit.decided_ms) for hit in hits}
    missing = {name for line in lines for name in line.preemptions[:1]} - found.keys()
    if missing:
        records = PreemptionRecord.objects.filter(pk__in=missing).values_list("pk", "decided_at")
        found |= {str(pk): decided_at for pk, decided_at in records}
    return found


def _labels(statement: Statement) -> dict[str, str]:
    hours, currency = _("GPU-hours"), statement.currency
    return {
        "statement": _("Statement"),
        "cost_center": _("cost center"),
        "total": _("Total"),
        "lines": _("Lines"),
        "number": _("Line"),
        "what": _("What"),
        "details": _("Details"),
        "quantity": f"{_('Quantity')} {hours}",
        "unit_price": f"{_('Unit price')} {currency}",
        "amount": f"{_('Amount')} {currency}",
        "subtotal": _("Subtotal"),
        "nothing": _("Nothing was held, reserved or used in this month."),
        "proof": _("Proof"),
        "sha256": "SHA-256",
    }


def _figures(totals: dict[str, str]) -> list[dict[str, str]]:
    def hours(names: Iterable[str]) -> str:
        return _hours(sum(int(totals.get(f"{name}_gpu_us", 0)) for name in names))

    partial = f" {_('(known part)')}" if totals.get("requeued_is_partial") == "true" else ""
    unit = _("GPU-hours")
    return [
        {"label": _("Occupied"), "value": hours(OCCUPIED), "unit": unit},
        {"label": _("Reserved"), "value": hours(RESERVED), "unit": unit},
        {"label": _("Reserved-but-idle"), "value": hours(["reserved_idle"]), "unit": unit},
        {"label": _("Re-queued"), "value": hours(["requeued"]), "unit": unit + partial},
        {"label": _("Waiting"), "value": hours(["waiting"]), "unit": unit},
    ]


def _group(group: LineGroup, statement: Statement, zone: ZoneInfo, decided: Decided) -> dict[str, Any]:
    amount = group.amount_minor
    return {
        "name": group.pool or str(LINE_KINDS.get(group.name, group.name)),
        "detail": f"{group.gpu_model} · {group.cluster}" if group.pool else "",
        "lines": [_line(line, statement, zone, decided) for line in group.lines],
        "hours": _hours(group.gpu_us) if group.gpu_us else "",
        "amount": _unknown() if amount is None else _minor(amount, statement.currency),
    }


def _line(line: StatementLine, statement: Statement, zone: ZoneInfo, decided: Decided) -> dict[str, str]:
    amount = line.amount_minor
    return {
        "number": str(line.position),
        "what": category_name(line.category),
        "details": _details(line, statement, zone, decided),
        "quantity": _quantity(line),
        "price": _price(line),
        "amount": _unknown() if amount is None else _minor(amount, statement.currency),
        "memo": "memo" if line.category in _MEMO else "",
    }


def _details(line: StatementLine, statement: Statement, zone: ZoneInfo, decided: Decided) -> str:
    parts = []
    if line.service:
        parts.append(_("service %(service)s") % {"service": line.service})
    parts += [line.model, apart_from_neighbours(line.service_class, line.purpose, line.service_idle)]
    if line.concerns_month:
        parts.append(_("concerns %(month)s") % {"month": month_name(line.concerns_month)})
    if line.preemptions:
        at = decided.get(line.preemptions[0], line.version_from)
        parts.append(f"{_('preemption of')} {_day_and_time(at, zone)}")
    elif line.version_from > statement.period.starts_at:
        parts.append(f"{_('from')} {_day_and_time(line.version_from, zone)}")
    if line.category in ("goodwill", "dispute_adjustment"):
        parts.append(line.description)
    return " · ".join(part for part in parts if part)


def _quantity(line: StatementLine) -> str:
    if line.unit == "gpu_us":
        return _hours(int(line.quantity))
    if line.unit == "tokens":
        return f"{set_digits(fixed_decimal(int(line.quantity), 6))} {_('M tokens')}"
    return ""


def _price(line: StatementLine) -> str:
    if line.unit_price_micro is not None:
        return (
            DASH if line.unit_price_micro == 0 else set_digits(_with_cents(micro_text(line.unit_price_micro)))
        )
    return _unknown() if line.kind in (*OF_TIME, "tokens") and line.amount_minor is None else ""


def _with_cents(text: str) -> str:
    whole, _point, fraction = text.partition(".")
    return f"{whole}.{fraction:0<2}"


def _sides(found: list[Hit], names: Names, zone: ZoneInfo) -> list[dict[str, Any]]:
    suffered = [hit for hit in found if hit.role == VICTIM]
    caused = [hit for hit in found if hit.role == CAUSE]
    return [
        _side(_("Preemptions as victim"), _("Preemptor"), suffered, names, zone),
        _side(_("Preemptions as cause"), _("Victim"), caused, names, zone),
    ]


def _side(title: str, other: str, found: list[Hit], names: Names, zone: ZoneInfo) -> dict[str, Any]:
    """The ones that cost most, in order of decision."""
    worst = sorted(found, key=lambda hit: (-(hit.requeued_gpu_us or 0), -hit.waiting_gpu_us, hit.decided_ms))
    shown = sorted(worst[:PREEMPTIONS_A_SIDE], key=lambda hit: (hit.decided_ms, hit.preemption))
    more = _("The %(shown)s of %(all)s that cost most; all of them are in preemptions.csv.")
    unit = _("GPU-hours")
    return {
        "title": title,
        "none": _("None."),
        "heads": [
            _("Decided"),
            _("Pool"),
            _("GPUs"),
            f"{other} · {_('Cause')}",
            f"{_('Re-queued')} {unit}",
            f"{_('Waiting')} {unit}",
        ],
        "rows": [_hit_row(hit, names, zone) for hit in shown],
        "more": more % {"shown": len(shown), "all": len(found)} if len(found) > len(shown) else "",
    }


def _hit_row(hit: Hit, names: Names, zone: ZoneInfo) -> list[str]:
    who = names.shown_slug(hit.other) if hit.other else _("unknown or the platform")
    return [
        _day_and_time(to_datetime(hit.decided_ms), zone),
        hit.pool,
        set_digits(milli_gpus_text(hit.milli_gpus)),
        f"{who} · {CAUSES.get(hit.cause, hit.cause)}",
        _unknown() if hit.requeued_gpu_us is None else _hours(hit.requeued_gpu_us),
        _hours(hit.waiting_gpu_us),
    ]


def _facts(statement: Statement, zone: ZoneInfo) -> list[dict[str, str]]:
    facts = [
        (_("SHA-256 of this statement"), statement.sha256),
        (_("Before it, of this tenant"), statement.previous_of_tenant or DASH),
        (_("Before it, of the ledger"), statement.previous_of_ledger or DASH),
        (_("Computed"), _day_and_time(statement.computed_at, zone)),
    ]
    if statement.issued_at:
        facts.append((_("Issued"), _day_and_time(statement.issued_at, zone)))
    return [{"label": label, "value": value} for label, value in facts]


def _day_and_time(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M}"


def _hours(gpu_us: int) -> str:
    text = gpu_hours_fixed(gpu_us)
    return DASH if is_zero(text) and gpu_us == 0 else set_digits(text)


def _minor(amount_minor: int, currency: str) -> str:
    return set_digits(fixed_decimal(amount_minor, minor_places(currency)))


def _unknown() -> str:
    return _("unknown")
