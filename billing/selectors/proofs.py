"""A statement's proofs as equations: both sides, and whether they are equal (domain.md section 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet, Sum

from billing.core.statement import GENESIS, seal
from billing.models import AnnexName, PoolSlot, Statement, StatementAnnex, StatementState
from billing.selectors.annexes import annex_rows, annex_sha256
from billing.selectors.pages_proofs import net_by_tenant
from billing.selectors.usage_rows import COLUMNS, usage_rows

_PARTS = ("reserved_used", "on_demand", "borrowed", "reserved_idle", "undelivered", "unreserved_idle")
_CATEGORY, _GPU_US = COLUMNS.index("category"), COLUMNS.index("gpu_us")


@dataclass(frozen=True)
class Equation:
    """left = right, in `unit`; subject: the pool, category or file it is about."""

    proof: str
    subject: str
    left_is: str
    left: str
    right_is: str
    right: str
    unit: str

    @property
    def holds(self) -> bool:
        return self.left == self.right


def statement_equations(statement: Statement) -> list[Equation]:
    """`statement` with its content. Reads the statement's lines and slots once."""
    return [*_sums(statement), *_time(statement), *_conservation(statement), *_hashes(statement)]


def _sums(statement: Statement) -> Iterator[Equation]:
    sums = statement.lines.aggregate(micro=Sum("amount_micro"), minor=Sum("amount_minor"))
    total, posted = statement.total_micro, net_by_tenant(statement.period).get(statement.tenant_id, 0)
    exact = ("amount_micro", "sum of lines", str(int(sums["micro"] or 0)), "total", str(total))
    printed = (
        "minor units",
        "sum of lines",
        str(int(sums["minor"] or 0)),
        "total",
        str(statement.total_minor),
    )
    transfers = ("amount_micro", "transfers posted in the month", str(posted), "total", str(total))
    for proof, (unit, left_is, left, right_is, right) in (
        ("lines_add_up", exact),
        ("printed_lines_add_up", printed),
        ("total_is_posted", transfers),
    ):
        yield Equation(proof, "", left_is, left, right_is, right, unit)


def allocated_gpu_us(statement: Statement) -> dict[str, int]:
    """Category -> GPU time of the tenant's slots: of an issued statement those it was issued with."""
    annex = StatementAnnex.objects.filter(statement=statement, name=AnnexName.USAGE).first()
    frozen = annex is not None and statement.state == StatementState.ISSUED
    rows = (
        annex_rows(annex) if annex is not None and frozen else usage_rows(statement.tenant, statement.period)
    )
    sums: Counter[str] = Counter()
    for row in rows:
        sums[str(row[_CATEGORY])] += int(str(row[_GPU_US]))
    return dict(sums)


def _time(statement: Statement) -> Iterator[Equation]:
    allocated = allocated_gpu_us(statement)
    lines = statement.lines.filter(unit="gpu_us", kind__in=("usage", "shared"))
    billed = dict(lines.values_list("category").annotate(sum=Sum("quantity")).order_by())
    for category in sorted({*allocated, *billed}):
        left, right = str(int(billed.get(category, 0))), str(allocated.get(category, 0))
        yield Equation("time_is_billed", category, "sum of lines", left, "sum of slots", right, "gpu_us")


def _conservation(statement: Statement) -> Iterator[Equation]:
    period = statement.period
    slots = PoolSlot.objects.filter(
        pool__slug__in=statement.lines.exclude(pool="").values("pool"),
        starts_at__gte=period.starts_at,
        starts_at__lt=period.ends_at,
    )
    fields = {name: Sum(f"{name}_gpu_us") for name in (*_PARTS, "capacity", "over_reserved")}
    rows: Any = slots.values(slug=F("pool__slug")).annotate(**fields).order_by("slug")
    for row in rows:
        parts = sum(int(row[name]) for name in _PARTS) - int(row["over_reserved"])
        capacity = str(int(row["capacity"]))
        yield Equation(
            "capacity_is_conserved",
            row["slug"],
            "sum of its parts",
            str(parts),
            "capacity",
            capacity,
            "gpu_us",
        )


def _hashes(statement: Statement) -> Iterator[Equation]:
    computed = seal(statement.content, statement.previous_of_tenant, statement.previous_of_ledger)
    content_is = "hash of the content and of both statements before"
    yield Equation("hash_recomputes", "", content_is, computed, "hash", statement.sha256, "sha256")
    if statement.state != StatementState.ISSUED:
        return
    issued = Statement.objects.filter(state=StatementState.ISSUED)
    month, slug = statement.period_id, statement.tenant.slug
    before = issued.filter(period=month, tenant__holder__slug__lt=slug).order_by("-tenant__holder__slug")
    earlier = issued.filter(period__lt=month).order_by("-period", "-tenant__holder__slug")
    of_ledger = _first_hash(before) or _first_hash(earlier) or GENESIS
    of_tenant = _first_hash(earlier.filter(tenant=statement.tenant_id)) or GENESIS
    for chain, kept, found in (
        ("tenant", statement.previous_of_tenant, of_tenant),
        ("ledger", statement.previous_of_ledger, of_ledger),
    ):
        yield Equation("chain_holds", chain, "hash it follows", kept, "hash before it", found, "sha256")
    said = statement.content.get("annexes", {})
    for annex in StatementAnnex.objects.filter(statement=statement).order_by("name"):
        sealed = said.get(annex.name, {}).get("sha256", "")
        yield Equation(
            "file_is_sealed",
            annex.name,
            "hash of the file",
            annex_sha256(annex),
            "sealed hash",
            sealed,
            "sha256",
        )


def _first_hash(rows: QuerySet[Statement]) -> str | None:
    return rows.values_list("sha256", flat=True).first()
