"""Proofs as people read them: what is compared with what, and the difference, which is 0 (domain.md section 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import F, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from billing.core.statement import seal
from billing.models import PoolSlot, Statement, StatementLine, StatementState
from billing.selectors.pages_months import PoolMonth, TenantMonth
from ledger.core.figures import set_digits
from ledger.core.units import gpu_hours_fixed, micro_text
from ledger.models import AccountKind, Period, Transfer, Unit

# Held by somebody and counted again in the pool's own row, so both must say the same.
COUNTED_TWICE = (
    "reserved_used",
    "on_demand",
    "borrowed",
    "reserved_idle",
    "undelivered",
    "excess",
    "oversold",
)


@dataclass(frozen=True)
class Proof:
    """One sentence. `holds` is the comparison of integers, not of printed figures."""

    text: str
    holds: bool


def hours(gpu_us: int) -> str:
    return set_digits(gpu_hours_fixed(gpu_us))


def month_proofs(
    period: Period,
    pools: Sequence[PoolMonth],
    tenants: Sequence[TenantMonth],
    held: Mapping[int | None, Mapping[str, int]],
) -> list[Proof]:
    """A constant number of queries (four). held: of gpu_us_by_tenant, for somebody who sees all tenants."""
    return [
        _capacity_is_conserved(pools),
        *_holders_add_up(period, held),
        _lines_add_up(period, tenants),
        _transfers_are_the_totals(period, tenants),
    ]


def _capacity_is_conserved(pools: Iterable[PoolMonth]) -> Proof:
    rows = list(pools)
    capacity = sum(row.capacity_gpu_us for row in rows)
    off = sum(abs(row.difference_gpu_us) for row in rows)
    filled = capacity - sum(row.difference_gpu_us for row in rows)
    text = _("Capacity: the parts add up to %(filled)s of %(capacity)s GPU-hours, in every pool and slot.")
    return Proof(text % {"filled": hours(filled), "capacity": hours(capacity)}, off == 0)


def _holders_add_up(period: Period, held_by: Mapping[int | None, Mapping[str, int]]) -> list[Proof]:
    during = {"starts_at__gte": period.starts_at, "starts_at__lt": period.ends_at}
    of_pools = PoolSlot.objects.filter(**during).aggregate(
        **{name: Coalesce(Sum(f"{name}_gpu_us"), 0) for name in COUNTED_TWICE}
    )
    of_holders = {name: sum(parts[name] for parts in held_by.values()) for name in (*COUNTED_TWICE, "lent")}
    held = sum(of_holders[name] for name in COUNTED_TWICE)
    wanted = sum(int(of_pools[name]) for name in COUNTED_TWICE)
    agree = all(of_holders[name] == int(of_pools[name]) for name in COUNTED_TWICE)
    lent, borrowed = of_holders["lent"], of_holders["borrowed"]
    tenants = _("Tenants and services: theirs add up to %(held)s of %(wanted)s GPU-hours of the pools.")
    lending = _("Lending: %(lent)s GPU-hours lent, %(borrowed)s borrowed.")
    return [
        Proof(tenants % {"held": hours(held), "wanted": hours(wanted)}, agree),
        Proof(lending % {"lent": hours(lent), "borrowed": hours(borrowed)}, lent == borrowed),
    ]


def _lines_add_up(period: Period, tenants: Sequence[TenantMonth]) -> Proof:
    # Those that differ are looked for: of hundreds there is none.
    sums = Statement.objects.filter(period=period).annotate(
        micro=Coalesce(Sum("lines__amount_micro"), 0), minor=Coalesce(Sum("lines__amount_minor"), 0)
    )
    differing = set(
        sums.exclude(micro=F("total_micro"), minor=F("total_minor")).order_by().values_list("pk", flat=True)
    )
    agreeing = sum(one.statement_id not in differing for one in tenants)
    text = _("Statements: the lines of %(agreeing)s of %(all)s add up to their total.")
    return Proof(text % {"agreeing": agreeing, "all": len(tenants)}, agreeing == len(tenants))


def net_by_tenant(period: Period) -> dict[int, int]:
    """Tenant id -> micro units its account owes by the transfers that stand posted in the month. Two queries."""
    posted = Transfer.objects.filter(posted_in=period, unit=Unit.AMOUNT_MICRO)
    net: dict[int, int] = {}
    for side, sign in (("debit", 1), ("credit", -1)):
        rows = (
            posted.filter(**{f"{side}__kind": AccountKind.TENANT})
            .values(tenant=F(f"{side}__tenant"))
            .annotate(sum=Sum("quantity"))
            .order_by()
        )
        for row in rows:
            net[row["tenant"]] = net.get(row["tenant"], 0) + sign * int(row["sum"])
    return net


def _transfers_are_the_totals(period: Period, tenants: Sequence[TenantMonth]) -> Proof:
    net = net_by_tenant(period)
    agreeing = sum(net.get(one.tenant_id, 0) == one.total_micro for one in tenants)
    text = _("Transfers: what %(agreeing)s of %(all)s tenants are charged is what stands posted.")
    return Proof(text % {"agreeing": agreeing, "all": len(tenants)}, agreeing == len(tenants))


def statement_proofs(
    statement: Statement,
    lines: Sequence[StatementLine],
    allocated: dict[str, int],
) -> list[Proof]:
    """allocated: category -> gpu_us of the tenant's slots. Two queries; `statement` must have its content loaded."""
    return [
        _time_is_billed(lines, allocated),
        _amounts_add_up(statement, lines),
        _is_posted(statement),
        _is_sealed(statement),
    ]


def proofs_of_itself(statement: Statement, lines: Sequence[StatementLine]) -> list[Proof]:
    """Those that need nothing but the statement, and so never change once it is issued. `statement` must have its
    content loaded."""
    return [_amounts_add_up(statement, lines), _is_sealed(statement)]


def _time_is_billed(lines: Sequence[StatementLine], allocated: dict[str, int]) -> Proof:
    billed: dict[str, int] = dict.fromkeys(allocated, 0)
    for line in lines:
        if line.unit == "gpu_us" and line.kind in ("usage", "shared") and line.category in billed:
            billed[line.category] += int(line.quantity)
    text = _("The parts add up to %(billed)s of %(allocated)s GPU-hours.")
    values = {
        "billed": hours(sum(billed.values())),
        "allocated": hours(sum(allocated.values())),
    }
    return Proof(text % values, billed == allocated)


def _amounts_add_up(statement: Statement, lines: Sequence[StatementLine]) -> Proof:
    micro = sum(line.amount_micro or 0 for line in lines)
    minor = sum(line.amount_minor or 0 for line in lines)
    text = _("The lines add up to %(sum)s of %(total)s.")
    values = {
        "sum": set_digits(micro_text(micro)),
        "total": set_digits(micro_text(statement.total_micro)),
    }
    return Proof(text % values, (micro, minor) == (statement.total_micro, statement.total_minor))


def _is_posted(statement: Statement) -> Proof:
    net = net_by_tenant(statement.period).get(statement.tenant_id, 0)
    values = {
        "posted": set_digits(micro_text(net)),
        "total": set_digits(micro_text(statement.total_micro)),
    }
    return Proof(_("Posted: %(posted)s of %(total)s.") % values, net == statement.total_micro)


def _is_sealed(statement: Statement) -> Proof:
    """A draft has no predecessors yet; issuing it puts it into both chains."""
    computed = seal(statement.content, statement.previous_of_tenant, statement.previous_of_ledger)
    text = (
        _("The draft's hash follows from its content.")
        if statement.state == StatementState.DRAFT
        else _("Chain verified: the hash follows from the content and from the statements before.")
    )
    return Proof(text, computed == statement.sha256)
