"""Draft statements: the bill of every tenant with an account, from the month's lines (domain.md sections 8, 10)."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from billing.core.line_text import description
from billing.core.rating_lines import GPU_US, Line, tenant_account
from billing.core.statement import Bill, PrintedLine, bill, seal
from billing.models import Statement, StatementLine, StatementState
from billing.selectors.allocations import RequeuedRow, requeued
from billing.selectors.quantities import TOKEN_COUNTS, tenant_tokens
from billing.services.line_columns import columns_of
from billing.sql.months import DRAFTS
from ledger.core.currency import minor_places
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Ledger, Period, Pool, Tenant

# Fixed for ever: a statement keeps its id from the first draft on.
NAMESPACE = uuid.UUID("5f2d9e5a-7c35-5a39-9d0a-0d0a64c2b6a1")
_BATCH = 2000
_OF_DRAFT = ["number", "currency", "total_micro", "total_minor", "totals", "content", "sha256", "computed_at"]


def statement_id(month: str, tenant: str) -> uuid.UUID:
    return uuid.uuid5(NAMESPACE, f"{month}\n{tenant}")


@dataclass(frozen=True)
class _Month:
    """What all statements of a month share, read once."""

    ledger: Ledger
    period: Period
    horizon: datetime
    pools: Mapping[str, Pool]
    requeued: Mapping[str, RequeuedRow]
    tokens: Mapping[str, Mapping[str, int]]

    @classmethod
    def load(cls, ledger: Ledger, period: Period, horizon: datetime) -> _Month:
        span = Span(to_ms(period.starts_at), to_ms(horizon))
        return cls(
            ledger,
            period,
            horizon,
            {pool.slug: pool for pool in Pool.objects.all()},
            {row.tenant: row for row in requeued(span, horizon)},
            tenant_tokens(span),
        )


def draft_statements(
    ledger: Ledger,
    period: Period,
    horizon: datetime,
    lines_of: Callable[[Collection[str]], Iterable[Line]],
    now: datetime,
    only: Collection[str] | None = None,
) -> int:
    """Bring the drafts of a month up to date; returns how many changed. Issued statements are never touched.

    lines_of: gives the lines of the accounts it is asked for, and maybe more; called once.
    only: accounts whose lines may have changed; others are drafted where there is no draft yet or where their
    re-queued time or tokens differ from what it says.
    """
    month = _Month.load(ledger, period, horizon)
    drafted = _to_draft(period, month, only)
    of_account: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines_of([tenant_account(tenant.slug) for tenant, _ in drafted]) if drafted else ():
        of_account[line.account].append(line)
    changed, rows = [], []
    for tenant, before in drafted:
        printed = bill(of_account[tenant_account(tenant.slug)], minor_places(ledger.currency))
        statement = _draft(tenant, printed, month, now)
        if before is None or before.sha256 != statement.sha256:
            changed.append(statement)
            rows += [_line(statement, place, one, month) for place, one in enumerate(printed.lines, start=1)]
    # Rows are kept and overwritten: approvals and disputes refer to them.
    Statement.objects.bulk_create(
        changed, batch_size=_BATCH, update_conflicts=True, unique_fields=["id"], update_fields=_OF_DRAFT
    )
    StatementLine.objects.filter(statement__in=[statement.pk for statement in changed]).delete()
    StatementLine.objects.bulk_create(rows, batch_size=_BATCH)
    return len(changed)


class _Billed(NamedTuple):
    """What a bill says of its tenant. parent: a slug, or None."""

    pk: int
    slug: str
    name: str
    parent: str | None
    cost_center: str
    gl_code: str
    tags: dict[str, Any]
    showback: bool


class _Draft(NamedTuple):
    """A statement of the month as it stands. said: its content, but for lines and totals."""

    state: int
    sha256: str
    totals: dict[str, str]
    said: dict[str, Any]


def _to_draft(
    period: Period, month: _Month, only: Collection[str] | None
) -> list[tuple[_Billed, _Draft | None]]:
    """Whose drafts may say something else by now, each with the draft before. Two queries; no content is read."""
    existing = _drafts_before(period)
    found: list[tuple[_Billed, _Draft | None]] = []
    for tenant in _billed():
        before = existing.get(tenant.pk)
        if before is None or (
            before.state == StatementState.DRAFT
            and (
                only is None or tenant_account(tenant.slug) in only or not _still_says(before, tenant, month)
            )
        ):
            found.append((tenant, before))
    return found


def _billed() -> list[_Billed]:
    """Every tenant with an account, in order of slugs."""
    tenants = Tenant.objects.filter(account__isnull=False).order_by("holder__slug")
    names = ("pk", "holder__slug", "name", "parent__holder__slug", *_Billed._fields[4:])
    return [_Billed(*row) for row in tenants.values_list(*names)]


def _draft(tenant: _Billed, printed: Bill, month: _Month, now: datetime) -> Statement:
    content = statement_content(tenant, printed, month)
    return Statement(
        id=statement_id(month.period.month, tenant.slug),
        tenant_id=tenant.pk,
        period=month.period,
        number=content["number"],
        currency=month.ledger.currency,
        total_micro=printed.total_micro,
        total_minor=printed.total_minor,
        totals=content["totals"],
        content=content,
        # A draft is sealed without predecessors: nothing may follow it yet.
        sha256=seal(content, "", ""),
        computed_at=now,
    )


def _heading(tenant: _Billed, month: _Month) -> dict[str, Any]:
    return {
        "number": f"{month.period.month}-{tenant.slug}",
        "tenant": tenant.slug,
        "name": tenant.name,
        "issuer": str(month.ledger.options.get("organization", "")),
        "parent": tenant.parent or "",
        "cost_center": tenant.cost_center,
        "gl_code": tenant.gl_code,
        "tags": {str(name): str(value) for name, value in tenant.tags.items()},
        "month": month.period.month,
        "time_zone": month.ledger.billing_time_zone,
        "starts_at": month.period.starts_at.isoformat(),
        "ends_at": month.period.ends_at.isoformat(),
        "computed_up_to": month.horizon.isoformat(),
        "currency": month.ledger.currency,
        "informational": tenant.showback or bool(month.ledger.options.get("showback")),
    }


def statement_content(tenant: _Billed, printed: Bill, month: _Month) -> dict[str, Any]:
    """Everything the statement prints, as its hash is taken of it: strings, so that no number can be misread."""
    return {
        **_heading(tenant, month),
        "total_micro": str(printed.total_micro),
        "total_minor": str(printed.total_minor),
        "totals": _totals(tenant.slug, printed, month),
        "lines": [_line_content(one, month) for one in printed.lines],
    }


def _totals(slug: str, printed: Bill, month: _Month) -> dict[str, str]:
    """GPU time by category, re-queued and waiting time, tokens: what the summary of the bill shows."""
    gpu_us: Counter[str] = Counter()
    for one in printed.lines:
        if one.line.unit == GPU_US and one.line.kind in ("usage", "shared"):
            gpu_us[one.line.category] += one.line.quantity
    totals = {f"{category}_gpu_us": str(value) for category, value in sorted(gpu_us.items())}
    return totals | _measured(slug, month)


def _drafts_before(period: Period) -> dict[int, _Draft]:
    """Tenant -> its statement of the month."""
    with connection.cursor() as cursor:
        cursor.execute(DRAFTS, {"month": period.month})
        return {
            tenant: _Draft(state, sha256, json.loads(totals), json.loads(said))
            for tenant, state, sha256, totals, said in cursor.fetchall()
        }


def _still_says(draft: _Draft, tenant: _Billed, month: _Month) -> bool:
    """Whether what the draft says beside its lines is still so."""
    if any(draft.said.get(name) != value for name, value in _heading(tenant, month).items()):
        return False
    said = {name: value for name, value in draft.totals.items() if name in _MEASURED}
    return said == _measured(tenant.slug, month)


_MEASURED = frozenset(
    {
        *TOKEN_COUNTS,
        "preemptions",
        "deferrals",
        "stopped",
        "lost_gpu_us",
        "recompute_gpu_us",
        "requeued_gpu_us",
        "waiting_gpu_us",
        "requeued_is_partial",
    }
)


def _measured(slug: str, month: _Month) -> dict[str, str]:
    """Re-queued and waiting time, and tokens: measured, whatever they cost."""
    totals: dict[str, str] = {}
    hit = month.requeued.get(slug)
    if hit is not None:
        totals |= {
            "preemptions": str(hit.preemptions),
            "deferrals": str(hit.deferrals),
            "stopped": str(hit.stopped),
            "lost_gpu_us": str(hit.lost_gpu_us),
            "recompute_gpu_us": str(hit.recompute_gpu_us),
            "requeued_gpu_us": str(hit.requeued_gpu_us),
            "waiting_gpu_us": str(hit.waiting_gpu_us),
            "requeued_is_partial": "true" if hit.partial else "false",
        }
    return totals | {name: str(count) for name, count in month.tokens.get(slug, {}).items()}


def _line_content(one: PrintedLine, month: _Month) -> dict[str, Any]:
    line = one.line
    return {
        "key": line.key,
        "kind": line.kind,
        "pool": line.pool,
        "service": line.service,
        "model": line.model,
        "service_class": line.service_class,
        "purpose": line.purpose,
        "category": line.category,
        "service_idle": line.service_idle,
        "version_from": to_datetime(line.version_from_ms).isoformat(),
        "quantity": str(line.quantity),
        "unit": line.unit,
        "unit_price_micro": _text(line.unit_price_micro),
        "amount_micro": _text(line.amount_micro),
        "full_amount_micro": _text(line.full_amount_micro),
        "amount_minor": _text(one.amount_minor),
        "rounding_micro": str(one.rounding_micro),
        "concerns_month": line.concerns_month,
        "preemptions": list(line.preemptions),
    }


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _line(statement: Statement, position: int, one: PrintedLine, month: _Month) -> StatementLine:
    line = one.line
    return StatementLine(
        **columns_of(line, month.pools),
        statement=statement,
        position=position,
        description=line.description or description(line),
        amount_minor=one.amount_minor,
        rounding_micro=one.rounding_micro,
        concerns_month=line.concerns_month,
    )
