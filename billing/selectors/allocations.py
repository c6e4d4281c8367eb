"""Reads of whose GPU time it was, for the API and the pages (interfaces.md, `GET allocations/`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from billing.selectors.prices import PriceSegment, price_parameters
from billing.sql.details import DETAILS
from billing.sql.reports import ALLOCATIONS, REQUEUED, REQUEUED_OF_TENANTS
from ledger.core.periods import Span, to_datetime
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

DIMENSIONS = ("pool", "cluster", "gpu_model", "tenant", "service", "category", "service_class")
# Below the slot's holder: of own workloads, and of the requests that shared services served.
OF_WORKLOADS = ("workload", "user", "label")
OF_REQUESTS = ("model", "api_key")
DETAILS_OF = ("model", "workload", "user", "api_key", "label")
STEPS = ("minute", "hour", "day", "month", "all")
FILTERS = (*DIMENSIONS, *(name for name in DETAILS_OF if name != "label"))


@dataclass(frozen=True)
class AllocationQuestion:
    """What is asked: a window in UTC ms, dimensions, a step, and wanted values per dimension."""

    window: Span
    zone: str
    by: tuple[str, ...] = ("tenant",)
    step: str = "all"
    filters: dict[str, list[str]] = field(default_factory=dict)
    include_idle: bool = False
    tenant_ids: frozenset[int] | None = None  # None: every tenant
    label: str = ""  # which label the dimension "label" is

    @property
    def is_by_workload(self) -> bool:
        """Whether it asks for what is kept by the day only."""
        return bool(set(OF_WORKLOADS) & {*self.by, *self.filters})

    @property
    def is_by_request(self) -> bool:
        return bool(set(OF_REQUESTS) & {*self.by, *self.filters})


@dataclass(frozen=True)
class AllocationRow:
    """One answer row. `amount_micro` is at the rate card and None where a price is missing; credits, transfers and
    token contracts are on statements. Whose time it was owes nothing for what is undelivered (the platform bears it) or
    oversold (nobody does); unreserved idle time has its price, whoever the policy lets pay it."""

    starts_at: datetime
    dimensions: dict[str, Any]
    gpu_us: int
    capacity_gpu_us: int | None
    amount_micro: int | None


def allocations(
    question: AllocationQuestion, prices: Iterable[PriceSegment], *, offset: int = 0, limit: int | None = None
) -> list[AllocationRow]:
    """Rows in a stable order: by bucket, then by the asked-for dimensions. One query.

    Rows by workload, user or label are of whole UTC days: the window must begin and end with one, or with a month.
    A tenant's time of a shared service is divided over models and keys by the measured GPU time of its requests of the
    hour (else their tokens, else their number).
    """
    segments = list(prices)
    parameters: dict[str, Any] = {
        "from": to_datetime(question.window.start_ms),
        "to": to_datetime(question.window.end_ms),
        "zone": question.zone,
        "by": list(question.by),
        "step": question.step,
        "include_idle": question.include_idle,
        "tenant_ids": None if question.tenant_ids is None else sorted(question.tenant_ids),
        "limit": limit,
        "offset": offset,
        **price_parameters(segments),
        **{name: question.filters.get(name) for name in FILTERS},
    }
    names: tuple[str, ...] = DIMENSIONS
    statement = ALLOCATIONS
    if question.is_by_workload or question.is_by_request:
        statement, names = DETAILS, (*DIMENSIONS, *DETAILS_OF)
        parameters["by_workload"], parameters["by_request"] = question.is_by_workload, question.is_by_request
        parameters["label"], parameters["label_values"] = question.label, question.filters.get("label")
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return [_row(question, names, values) for values in cursor.fetchall()]


def _row(question: AllocationQuestion, names: Sequence[str], values: Sequence[Any]) -> AllocationRow:
    bucket, *dimensions, gpu_us, capacity, product, unpriced = values
    named = dict(zip(names, dimensions, strict=True))
    amount = None
    if not unpriced:
        amount = round_half_even(int(product or 0), GPU_US_PER_GPU_HOUR)
    return AllocationRow(
        starts_at=bucket,
        dimensions={name: named[name] for name in question.by},
        gpu_us=int(gpu_us),
        capacity_gpu_us=None if capacity is None else int(capacity),
        amount_micro=amount,
    )


@dataclass(frozen=True)
class RequeuedRow:
    """A tenant's re-queued GPU time in a window; `partial` where a part of it is unknown."""

    tenant: str
    preemptions: int
    deferrals: int
    stopped: int
    lost_gpu_us: int
    recompute_gpu_us: int
    waiting_gpu_us: int
    partial: bool

    @property
    def requeued_gpu_us(self) -> int:
        return self.lost_gpu_us + self.recompute_gpu_us


def requeued(
    window: Span,
    horizon: datetime,
    *,
    tenant_ids: frozenset[int] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> list[RequeuedRow]:
    """Lost, recomputed and waited GPU time per tenant, ordered by tenant. One query."""
    parameters = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "horizon": horizon,
        "tenant_ids": None if tenant_ids is None else sorted(tenant_ids),
        "limit": limit,
        "offset": offset,
    }
    with connection.cursor() as cursor:
        cursor.execute(REQUEUED if tenant_ids is None else REQUEUED_OF_TENANTS, parameters)
        return [
            RequeuedRow(tenant, hits, deferrals, stopped, int(lost), int(redone), int(waited), bool(partial))
            for tenant, hits, deferrals, stopped, lost, redone, waited, partial in cursor.fetchall()
        ]
