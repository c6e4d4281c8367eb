"""What changed since a statement was issued, or since its draft was approved: lines, and what brought it about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet, Sum

from billing.core.adjustments import line_of_key
from billing.core.line_text import description
from billing.core.rating_lines import MONEY
from billing.models import Statement, StatementApproval, StatementState
from billing.selectors.accounts import accounts
from billing.selectors.adjustments import CREDIT_CATEGORIES
from billing.sql.months import POSTED_LATER
from ledger.access import Access
from ledger.models import AuditEntry, Event, IdentityMapping, Period, PeriodState, Transfer, Unit
from ledger.querysets import visible_to

SHOWN_EVENTS = 50
# Deeds that change amounts without a fact.
_TERMS = ("identity", "configuration", "credit", "dispute", "approval", "rate_card", "policy", "contract")


@dataclass(frozen=True)
class ChangedLine:
    """Quantity and exact amount of one line, before and after. Amounts are None where a price is missing."""

    key: str
    kind: str
    pool: str
    category: str
    description: str
    unit: str
    quantity_before: int
    quantity_after: int
    amount_micro_before: int | None
    amount_micro_after: int | None


@dataclass(frozen=True)
class Cause:
    """An event that became known since, with the batch it came in. is_open: whether the reader may look at it; some
    name a tenant beside others."""

    source_id: int
    source: str
    event_id: str
    type: str
    occurred_at: datetime
    batch: int
    booked_at: datetime | None
    is_open: bool = True


@dataclass(frozen=True)
class Deed:
    """A change of masters or terms that somebody made since."""

    action: str
    object_type: str
    object_id: str
    by: str
    recorded_at: datetime
    reason: str


@dataclass(frozen=True)
class Changes:
    """since: "issued" or "approved"; at: when. others: events about other tenants, which are not shown. posted_in: the
    months whose statements have the differences of an issued one as adjustments, in order."""

    since: str
    at: datetime | None
    lines: list[ChangedLine]
    events: list[Cause]
    more_events: int
    others: int
    deeds: list[Deed]
    posted_in: Sequence[str] = ()


def changes_since(statement: Statement, access: Access) -> Changes | None:
    """None for a draft that nobody has approved: there is nothing to compare it with. `statement` with its content."""
    if statement.state == StatementState.ISSUED:
        period = statement.period
        late = Q(booking__sequence__gt=period.cut_sequence or 0)
        lines, posted_in = _adjusted(statement)
        changes = _changes("issued", period.closed_at, lines, late, statement, access)
        return replace(changes, posted_in=posted_in)
    approval = StatementApproval.objects.filter(statement=statement).order_by("-pk").first()
    if approval is None or approval.content is None:
        return None
    lines = _compared(approval.content.get("lines", ()), statement.content.get("lines", ()))
    late = Q(booking__booked_at__gt=approval.approved_at)
    return _changes("approved", approval.approved_at, lines, late, statement, access)


def _changes(
    since: str, at: datetime | None, lines: list[ChangedLine], late: Q, statement: Statement, access: Access
) -> Changes:
    if not lines:
        return Changes(since, at, [], [], 0, 0, [])
    events = _events(statement, {line.pool for line in lines if line.pool}, late)
    mine = (
        events
        if access.sees_all_tenants
        else events.filter(_about(statement.tenant_id, statement.tenant.slug))
    )
    shown = list(
        mine.select_related("source", "booking").order_by("booking__sequence", "line")[:SHOWN_EVENTS]
    )
    count = mine.count() if len(shown) == SHOWN_EVENTS else len(shown)
    opens = _open_to(shown, access)
    causes = [
        Cause(
            event.source_id,
            event.source.uri,
            event.event_id,
            event.get_type_display(),
            event.occurred_at,
            event.booking.batch,
            event.booking.booked_at,
            event.pk in opens,
        )
        for event in shown
    ]
    others = 0 if access.sees_all_tenants else events.count() - count
    deeds = _deeds(at) if access.sees_all_tenants else []
    return Changes(since, at, lines, causes, count - len(shown), others, deeds)


def _adjusted(statement: Statement) -> tuple[list[ChangedLine], list[str]]:
    """The frozen lines with what was posted later for the month under their keys; and the months it was posted in."""
    moved: dict[str, list[int]] = {}
    months: dict[str, set[str]] = {}
    account = f"tenant:{statement.tenant.slug}"
    names = accounts().names
    with connection.cursor() as cursor:
        cursor.execute(POSTED_LATER, {"month": statement.period_id, "account": accounts().ids[account]})
        for target_key, unit, debit, posted_in, quantity in cursor.fetchall():
            key = _own_key(target_key, account)
            is_money = str(Unit(unit).label) == MONEY
            sign = (1 if names[debit] == account else -1) * (1 if is_money else -1)
            moved.setdefault(key, [0, 0])[is_money] += sign * int(quantity)
            months.setdefault(key, set()).add(posted_in)
    frozen = {line.key: line for line in statement.lines.filter(key__in=moved)}
    found = []
    for key, (quantity, amount) in sorted(moved.items()):
        before = frozen.get(key)
        was = line_of_key(f"||{key}")
        held = int(before.quantity) if before is not None and before.unit == "gpu_us" else 0
        owed = int(before.amount_micro or 0) if before is not None else 0
        if quantity or amount:
            text = before.description if before is not None else description(was)
            figures = (held, held + quantity, owed, owed + amount)
            found.append(ChangedLine(key, was.kind, was.pool, was.category, text, "gpu_us", *figures))
    return found, sorted({month for line in found for month in months[line.key]})


def changed_since_close(period: Period, access: Access) -> frozenset[int] | None:
    """Ids of the tenants of whose closed month something became known since; None where nothing did, and of a month
    that is open. To a tenant only its own. Credits that people grant are no facts. One query of a closed month."""
    if period.state != PeriodState.CLOSED:
        return None
    later = Transfer.objects.filter(concerns=period).exclude(posted_in=period)
    mine = access.tenant_ids
    if not access.sees_all_tenants:
        later = later.filter(Q(debit__tenant__in=mine) | Q(credit__tenant__in=mine))
    sums = (
        later.order_by()
        .values_list("target_key", "unit", "debit", "credit", "debit__tenant", "credit__tenant")
        .annotate(quantity=Sum("quantity"))
    )
    moved: Counter[tuple[str, int, frozenset[tuple[int, int | None]]]] = Counter()
    for key, unit, debit, credit, from_tenant, to_tenant, quantity in sums:
        between = frozenset({(debit, from_tenant), (credit, to_tenant)})
        moved[key, unit, between] += int(quantity) * (1 if debit < credit else -1)
    still = [between for (key, _unit, between), net in moved.items() if net and not _is_granted(key)]
    if not still:
        return None
    tenants = frozenset(tenant for between in still for _account, tenant in between if tenant is not None)
    return tenants if access.sees_all_tenants else tenants & mine


def _is_granted(target_key: str) -> bool:
    line = line_of_key(target_key)
    return line.kind == "credit" and line.category in CREDIT_CATEGORIES.values()


def _own_key(target_key: str, account: str) -> str:
    """The key of the account's own line; what was posted under the other side's key is its mirror."""
    line = line_of_key(target_key)
    return line.key if line.account == account else replace(line, counter_account=line.account).key


def _compared(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[ChangedLine]:
    """Lines of two contents that differ in quantity or amount, in order of their keys."""
    was, stands = {line["key"]: line for line in before}, {line["key"]: line for line in after}
    found = []
    for key in sorted({*was, *stands}):
        one, other = was.get(key), stands.get(key)
        line = other or one or {}
        figures = (_figure(one, "quantity") or 0, _figure(other, "quantity") or 0)
        amounts = (_figure(one, "amount_micro"), _figure(other, "amount_micro"))
        if figures[0] != figures[1] or amounts[0] != amounts[1]:
            text = description(line_of_key(f"||{key}"))
            found.append(
                ChangedLine(
                    key, line["kind"], line["pool"], line["category"], text, line["unit"], *figures, *amounts
                )
            )
    return found


def _figure(line: Mapping[str, Any] | None, name: str) -> int | None:
    if line is None:
        return 0
    return None if line[name] is None else int(line[name])


def _events(statement: Statement, pools: set[str], late: Q) -> QuerySet[Event]:
    """Events of the lines' pools booked since that touch the month. Leans on the bookings, which are few and late."""
    ends_at = statement.period.ends_at
    of_pools = (
        Q(levels__pool__slug__in=pools, levels__starts_at__lt=ends_at)
        | Q(preemption_report__pool__slug__in=pools, preemption_report__decided_at__lt=ends_at)
        | Q(resume_report__pool__slug__in=pools, resume_report__resumed_at__lt=ends_at)
        | Q(correction__isnull=False)
    )
    return Event.objects.filter(pk__in=Event.objects.filter(late).filter(of_pools).values("pk"))


def _open_to(events: Sequence[Event], access: Access) -> set[int]:
    ids = {event.pk for event in events}
    if access.sees_all_tenants or not ids:
        return ids
    return set(visible_to(Event.objects.filter(pk__in=ids), access).values_list("pk", flat=True))


def _about(tenant_id: int, slug: str) -> Q:
    """Events that name an identity of the tenant's."""
    mapped = IdentityMapping.objects.filter(tenant=tenant_id).values("identity")
    names = (
        "levels__identity",
        "preemption_report__victim_identity",
        "preemption_report__preemptor_identity",
    )
    found = Q()
    for name in names:
        found |= Q(**{f"{name}__in": mapped}) | Q(**{f"{name}__kind": "tenant", f"{name}__value": slug})
    return found


def _deeds(at: datetime | None) -> list[Deed]:
    if at is None:
        return []
    entries = AuditEntry.objects.filter(recorded_at__gt=at, object_type__in=_TERMS).order_by("pk")
    return [
        Deed(entry.action, entry.object_type, entry.object_id, entry.actor, entry.recorded_at, entry.reason)
        for entry in entries[:SHOWN_EVENTS]
    ]
