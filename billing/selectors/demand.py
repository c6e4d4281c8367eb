"""What tenants asked for and what became of it: the funnel, and refusals (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connection
from django.db.models import F, Sum
from django.db.models.functions import Coalesce

from billing.core.demand import (
    COMPLETED,
    Declined,
    Funnel,
    Killing,
    KillingCost,
    Worth,
    declined,
    funnel,
    killing_cost,
    token_product,
    worth,
)
from billing.core.rating_prices import PriceBook
from billing.models import PreemptionRecord
from billing.selectors.prices import price_book
from billing.selectors.statements import preemption_records
from billing.services.allocation_facts import void_events
from billing.sql.demand import ATTEMPTS, REFUSED, REJECTIONS, SUPERSEDED
from ledger.access import Access
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Outcome, PrunedDay

_OUTCOMES = {
    Outcome.OK: COMPLETED,
    Outcome.AGGREGATED: COMPLETED,
    Outcome.ABORTED: "aborted",
    Outcome.ERROR: "failed",
    Outcome.TIMEOUT: "timed_out",
    Outcome.PREEMPTED: "preempted",
}
_KINDS = ("input", "cached_input", "output", "reasoning")


@dataclass(frozen=True)
class DemandRow:
    """A tenant's demand for a model ('' where refusals named none) in a window."""

    tenant: str
    model: str
    funnel: Funnel
    worth: Worth
    declined: Declined
    killing: KillingCost | None


Key = tuple[str, str]
"""(tenant, model)"""


def retries_known(window: Span) -> bool:
    """Whether the raw requests of the window, and of the two days in which they may have been tried again, are all
    there. Where some are pruned, a request that was tried again counts as often as it was tried."""
    first, last = to_datetime(window.start_ms).date(), to_datetime(window.end_ms).date() + timedelta(days=2)
    return not PrunedDay.objects.filter(day__gte=first, day__lte=last).exists()


def demand(
    window: Span,
    access: Access,
    *,
    tenants: Collection[str] | None = None,
    models: Collection[str] | None = None,
) -> list[DemandRow]:
    """The funnel per tenant and model, by tenant and model. Six queries, over hourly roll-ups, refusals and retries.

    A refused request is measured by the tenant's completed requests of that model, else by everybody's that the asker
    sees, else by all models'.
    """
    book = price_book()
    parameters = _parameters(window, access, book, tenants, models)
    attempts, worths = _attempts(parameters, book)
    superseded = _superseded(parameters)
    refused = _refused(parameters)
    killing = _killing(window, access)
    of_model: defaultdict[str, list[Worth]] = defaultdict(list)
    for (_, model), one in worths.items():
        of_model[model].append(one)
    rows = []
    for key in sorted({*attempts, *refused}):
        count, explicit, stated, unstated = refused.get(key, (0, 0, 0, 0))
        measures = (worths.get(key, Worth()), worth(of_model[key[1]]), worth(worths.values()))
        by = next((one for one in measures if one.requests), Worth())
        lost = declined(count, stated, unstated, by)
        made = funnel(attempts.get(key, {}), superseded.get(key, {}), count, explicit)
        own = worths.get(key, Worth())
        rows.append(DemandRow(*key, made, own, lost, killing_cost(lost, by, killing) if count else None))
    return rows


def _parameters(
    window: Span,
    access: Access,
    book: PriceBook,
    tenants: Collection[str] | None,
    models: Collection[str] | None,
) -> dict[str, Any]:
    cuts = {cut for card in book.cards for cut in (card.valid_from_ms, card.ended_ms) if cut is not None}
    edges = [
        window.start_ms,
        *sorted(cut for cut in cuts if window.start_ms < cut < window.end_ms),
        window.end_ms,
    ]
    return {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "starts": [to_datetime(start) for start, _ in pairwise(edges)],
        "ends": [to_datetime(end) for _, end in pairwise(edges)],
        "tenant_ids": None if access.sees_all_tenants else sorted(access.tenant_ids),
        "tenant": None if tenants is None else list(tenants),
        "model": None if models is None else list(models),
        "void": void_events(),
    }


def _attempts(
    parameters: Mapping[str, Any], book: PriceBook
) -> tuple[dict[Key, dict[str, int]], dict[Key, Worth]]:
    """(attempts by outcome, what the completed ones were worth)"""
    attempts: defaultdict[Key, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    worths: defaultdict[Key, Worth] = defaultdict(Worth)
    with connection.cursor() as cursor:
        cursor.execute(ATTEMPTS, parameters)
        rows = cursor.fetchall()
    for tenant, model, pool, version_from, outcome, *sums in rows:
        requests, tokens, cached, output, reasoning, gpu_us = (int(value) for value in sums)
        name = _OUTCOMES[Outcome(outcome)]
        attempts[tenant, model][name] += requests
        if name == COMPLETED:
            card = book.card_or_empty(to_ms(version_from))
            prices = {kind: card.tokens.get((model, kind)) for kind in _KINDS}
            price = book.price(pool, "on_demand", "", to_ms(version_from))
            worths[tenant, model] = worths[tenant, model].plus(
                Worth(
                    requests,
                    tokens + output,
                    token_product(prices, tokens, cached, output, reasoning),
                    gpu_us,
                    None if price is None else gpu_us * price,
                )
            )
    return {key: dict(of) for key, of in attempts.items()}, dict(worths)


def _superseded(parameters: Mapping[str, Any]) -> dict[Key, dict[str, int]]:
    found: defaultdict[Key, dict[str, int]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(SUPERSEDED, parameters)
        for tenant, model, outcome, count in cursor.fetchall():
            found[tenant, model][_OUTCOMES[Outcome(outcome)]] = count
    return dict(found)


def _refused(parameters: Mapping[str, Any]) -> dict[Key, tuple[int, int, int, int]]:
    """(tenant, model) -> refused, explicit, tokens stated, refused without stating tokens"""
    with connection.cursor() as cursor:
        cursor.execute(REFUSED, parameters)
        return {
            (tenant, model): (int(count), int(explicit), int(stated), int(unstated))
            for tenant, model, count, explicit, stated, unstated in cursor.fetchall()
        }


def _killing(window: Span, access: Access) -> Killing:
    """The window's preemptions that the asker sees and whose lost work is known."""
    ids = (
        preemption_records(access)
        .filter(
            decided_at__gte=to_datetime(window.start_ms),
            decided_at__lt=to_datetime(window.end_ms),
            queued_only=False,
            lost_gpu_us__isnull=False,
        )
        .order_by()
        .values("pk")
    )
    sums = PreemptionRecord.objects.filter(pk__in=ids).aggregate(
        milli=Sum("milli_gpus"), requeued=Sum(F("lost_gpu_us") + Coalesce("recompute_gpu_us", 0))
    )
    return Killing(int(sums["milli"] or 0), int(sums["requeued"] or 0))


REJECTION_DIMENSIONS = ("tenant", "pool", "model", "layer", "reason", "status", "origin", "service_class")


@dataclass(frozen=True)
class RejectionRow:
    """Refusals as reported (a retried one counts each time). requested_*: sums of what was stated."""

    starts_at: datetime
    dimensions: dict[str, str]
    count: int
    explicit: int
    requested_tokens: int
    requested_milli_gpus: int
    least_retry_after_us: int | None
    greatest_retry_after_us: int | None
    first_at: datetime
    last_at: datetime


def rejections(
    window: Span,
    zone: str,
    access: Access,
    *,
    by: tuple[str, ...] = ("tenant", "layer", "reason", "status"),
    step: str = "all",
    filters: Mapping[str, list[str]] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> list[RejectionRow]:
    """Refusals in a stable order: by step, then by the dimensions asked for. One query."""
    parameters: dict[str, Any] = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "zone": zone,
        "by": list(by),
        "step": step,
        "tenant_ids": None if access.sees_all_tenants else sorted(access.tenant_ids),
        "void": void_events(),
        "offset": offset,
        "limit": limit,
        **{name: (filters or {}).get(name) for name in REJECTION_DIMENSIONS},
    }
    with connection.cursor() as cursor:
        cursor.execute(REJECTIONS, parameters)
        rows = cursor.fetchall()
    return [_rejection_row(row, by) for row in rows]


def _rejection_row(row: tuple[Any, ...], by: tuple[str, ...]) -> RejectionRow:
    bucket, values, sums, rest = row[0], row[1:9], row[9:13], row[13:]
    named = dict(zip(REJECTION_DIMENSIONS, values, strict=True))
    count, explicit, tokens, milli = (int(value) for value in sums)
    return RejectionRow(bucket, {name: named[name] for name in by}, count, explicit, tokens, milli, *rest)
