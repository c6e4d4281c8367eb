"""A statement and its lines as the FOCUS core takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTransform

from billing.core.focus import DEFAULT_ISSUER, BilledLine, Invoice
from billing.core.statement import micro_per_minor
from billing.models import Statement, StatementLine
from ledger.core.currency import minor_places
from ledger.core.periods import to_ms
from ledger.core.units import round_half_even

# What a statement says of its tenant and issuer, frozen with it.
_SAID = ("name", "issuer", "cost_center", "gl_code", "parent", "tags", "informational")


def with_heading(statements: QuerySet[Statement]) -> QuerySet[Statement]:
    """The statements with what their content says in its heading, without the content itself."""
    said: dict[str, Any] = {f"said_{name}": KeyTransform(name, "content") for name in _SAID}
    return statements.annotate(**said)


def invoice_of(statement: Statement) -> Invoice:
    """The invoice of a statement read through `with_heading`."""
    said = {name: getattr(statement, f"said_{name}") for name in _SAID}
    tags = dict(said["tags"] or {})
    for name in ("cost_center", "gl_code", "parent"):
        if said[name]:
            tags[name] = said[name]
    return Invoice(
        number=statement.number,
        tenant=statement.tenant.slug,
        tenant_name=said["name"] or statement.tenant.slug,
        issuer=said["issuer"] or DEFAULT_ISSUER,
        currency=statement.currency,
        starts_ms=to_ms(statement.period.starts_at),
        ends_ms=to_ms(statement.period.ends_at),
        tags=tags,
    )


def billed_lines(statement: Statement) -> list[BilledLine]:
    """The lines in the order they are printed. One query."""
    return lines_of_statements([statement])[statement.pk]


def lines_of_statements(statements: Sequence[Statement]) -> defaultdict[UUID, list[BilledLine]]:
    """Statement -> its lines in the order they are printed. One query."""
    units = {statement.pk: micro_per_minor(minor_places(statement.currency)) for statement in statements}
    found: defaultdict[UUID, list[BilledLine]] = defaultdict(list)
    for row in StatementLine.objects.filter(statement__in=list(units)).order_by("statement", "position"):
        found[row.statement_id].append(_line(row, units[row.statement_id]))
    return found


def _line(row: StatementLine, micro_per_unit: int) -> BilledLine:
    return BilledLine(
        position=row.position,
        kind=row.kind,
        category=row.category,
        quantity=int(row.quantity),
        unit=row.unit,
        version_from_ms=to_ms(row.version_from),
        unit_price_micro=row.unit_price_micro,
        billed_micro=None if row.amount_minor is None else row.amount_minor * micro_per_unit,
        percent=_percent(row),
        pool=row.pool,
        cluster=row.cluster,
        gpu_model=row.gpu_model,
        service=row.service,
        model=row.model,
        service_class=row.service_class,
        purpose=row.purpose,
        service_idle=row.service_idle,
        description=row.description,
        concerns_month=row.concerns_month,
        preemptions=tuple(row.preemptions),
    )


def _percent(row: StatementLine) -> int:
    """Of the full amount that a ramp charges; steps of a ramp are whole percentages."""
    if row.category != "reserved_idle" or not row.full_amount_micro or row.amount_micro is None:
        return 100
    return round_half_even(100 * row.amount_micro, row.full_amount_micro)
