"""Reads of a month's reconciliation, and of what it is made from (domain.md section 9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from billing.core.reconciliation import (
    Compared,
    Sold,
    engine_against_requests,
    sold_lines,
    sold_of_pool,
    tokens_against_bill,
)
from billing.core.sentences import Sentence, sentence
from billing.models import DifferenceExplanation, ReconciliationLine
from billing.selectors.residuals import residuals
from billing.sql.reconciliation import BILLED_TOKENS, COUNTED_TOKENS, HELD, PREEMPTIONS_OF, SOLD
from ledger.core.periods import Span, to_ms
from ledger.core.units import gpu_hours_text
from ledger.models import LevelKind, Period, Pool, Source, SourceTotal
from ledger.selectors.corrections import void_facts
from ledger.selectors.settings import ledger_settings

GATEWAYS = frozenset(
    {
        "litellm-spendlogs",
        "litellm-payload",
        "openai-usage",
        "anthropic-usage",
        "envoy-ai-gateway",
        "llm-d",
    }
)
ENGINES = frozenset(
    {"vllm-otel", "vllm-metrics", "sglang-log", "sglang-metrics", "dynamo-trace", "dynamo-fpm"}
)


@dataclass(frozen=True)
class Line:
    """A stored comparison with what a person said about exactly this difference, if anybody did."""

    row: ReconciliationLine
    explanation: DifferenceExplanation | None

    @property
    def difference(self) -> int:
        return self.row.difference

    @property
    def is_unexplained(self) -> bool:
        return bool(self.difference) and not self.row.cause and self.explanation is None

    @property
    def cause(self) -> str:
        """`explained` by a person, a cause that the ledger knows, `unexplained`, or nothing to explain."""
        if not self.difference:
            return ""
        if self.explanation is not None:
            return "explained"
        return self.row.cause or "unexplained"


def month_lines(period: Period) -> list[Line]:
    """Every comparison of the month as reconciled last, in a stable order. Two queries."""
    said: dict[tuple[str, int], DifferenceExplanation] = {}
    for one in DifferenceExplanation.objects.filter(period=period).order_by("pk"):
        said[one.key, int(one.difference)] = one
    rows = ReconciliationLine.objects.filter(period=period).order_by("kind", "key")
    return [Line(row, said.get((row.key, row.difference))) for row in rows]


def unexplained_differences(period: Period) -> list[Sentence]:
    """For the closing checklist: one per difference that nothing and nobody explains."""
    return [_sentence(line) for line in month_lines(period) if line.is_unexplained]


def _sentence(line: Line) -> Sentence:
    row = line.row
    what = " ".join(part for part in (row.source, row.pool, row.tenant, row.subject) if part)
    if row.unit == "gpu_us":
        hours = gpu_hours_text(line.difference)
        return sentence("differs_by_hours", what=what, measure=row.measure, hours=hours)
    return sentence("differs", what=what, measure=row.measure, amount=line.difference, unit=row.unit)


def sold_of_month(period: Period) -> list[Sold]:
    """Per pool: what was sold against capacity and guardrail (setting `oversell_guardrail_ppm`). One query."""
    options = ledger_settings().options
    guardrail = int(options.get("oversell_guardrail_ppm", 1_000_000))
    parameters = {"from": period.starts_at, "to": period.ends_at, "void": void_facts().events}
    return [
        sold_of_pool(pool, int(capacity), int(reserved), int(quota), guardrail)
        for pool, capacity, reserved, quota in _rows(SOLD, parameters)
    ]


def compared(period: Period) -> list[Compared]:
    """Everything of the month that somebody else counted too, beside what the ledger booked."""
    void = void_facts()
    found = [
        *_source_totals(period, void.events),
        *_engines(period),
        *_tokens(period),
        *(line for sold in sold_of_month(period) for line in sold_lines(sold)),
    ]
    by_key = {one.key: one for one in found}
    return [by_key[key] for key in sorted(by_key)]


def _rows(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


# --- sources' own totals --------------------------------------------------------------------------------------


def _source_totals(period: Period, void: list[int]) -> Iterator[Compared]:
    """The newest row of each source, measure, subject and span whose end lies in the month."""
    newest: dict[tuple[Any, ...], SourceTotal] = {}
    totals = SourceTotal.objects.filter(ends_at__gt=period.starts_at, ends_at__lte=period.ends_at)
    for total in totals.select_related("source").order_by("ends_at", "pk"):
        # A count over a whole life is one series: its last value of the month is the one to compare.
        span = None if total.starts_at is None else (total.starts_at, total.ends_at)
        newest[total.source_id, total.measure, total.subject, span] = total
    counts = [total for total in newest.values() if total.measure == "preemptions"]
    yield from _preemptions(counts, void)
    for total in newest.values():
        if total.starts_at is not None:
            yield from _held(total, void)


def _preemptions(totals: list[SourceTotal], void: list[int]) -> Iterator[Compared]:
    by_end: dict[datetime, list[SourceTotal]] = defaultdict(list)
    for total in totals:
        by_end[total.ends_at].append(total)
    for ends_at, group in by_end.items():
        parameters = {"workloads": [one.subject for one in group], "to": ends_at, "void": void}
        booked = dict(_rows(PREEMPTIONS_OF, parameters))
        for total in group:
            yield Compared(
                kind="source_total",
                measure=total.measure,
                unit=total.unit,
                stated=total.quantity,
                booked=booked.get(total.subject, 0),
                source=str(total.source),
                subject=total.subject,
            )


_LEVELS = {
    "occupied": LevelKind.OCCUPANCY,
    "occupied_by_account": LevelKind.OCCUPANCY,
    "capacity": LevelKind.CAPACITY,
}


def _held(total: SourceTotal, void: list[int]) -> Iterator[Compared]:
    kind = _LEVELS.get(total.measure)
    if kind is None or total.starts_at is None:
        return
    parameters = {
        "pools": _pools_of(total.source),
        "kind": int(kind),
        "from": total.starts_at,
        "to": total.ends_at,
        "void": void,
        "account": total.subject.partition("/")[2] if total.measure == "occupied_by_account" else None,
    }
    yield Compared(
        kind="source_total",
        measure=total.measure,
        unit=total.unit,
        stated=total.quantity,
        booked=int(_rows(HELD, parameters)[0][0]),
        source=str(total.source),
        subject=f"{total.subject} {total.starts_at:%Y-%m-%dT%H:%M}/{total.ends_at:%Y-%m-%dT%H:%M}",
    )


def _pools_of(source: Source) -> list[str]:
    """The pools that a source's configuration names, else those of its cluster."""
    config = source.config
    named = {*(config.get("pools") or {}).values(), *filter(None, [config.get("pool")])}
    if named:
        return sorted(named)
    return list(Pool.objects.filter(cluster=config.get("cluster", "")).values_list("slug", flat=True))


# --- engines, gateways, bill ----------------------------------------------------------------------------------


def _engines(period: Period) -> Iterator[Compared]:
    sums: dict[tuple[str, str, str, str], list[Any]] = {}
    for row in residuals(Span(to_ms(period.starts_at), to_ms(period.ends_at))):
        total = sums.setdefault((row.pool, row.model, row.kind, row.unit), [0, 0, False])
        total[0] += row.engine
        total[1] += row.explained
        total[2] = total[2] or row.incomplete
    for (pool, model, kind, unit), (engine, explained, has_gaps) in sums.items():
        yield engine_against_requests(
            pool=pool,
            model=model,
            kind=kind,
            unit=unit,
            engine=engine,
            explained=explained,
            has_gaps=has_gaps,
        )


def _tokens(period: Period) -> Iterator[Compared]:
    """Compared only where a tenant's tokens were counted at both sides: then the bill counts them twice."""
    sides = sides_that_count()
    span = {"from": period.starts_at, "to": period.ends_at}
    parameters = {**span, "sources": sorted(sides)}
    counted: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for source, tenant, input_tokens, output_tokens in _rows(COUNTED_TOKENS, parameters):
        kinds = counted[tenant].setdefault(sides[source], {"input_tokens": 0, "output_tokens": 0})
        kinds["input_tokens"] += int(input_tokens)
        kinds["output_tokens"] += int(output_tokens)
    for tenant, billed_input, billed_output in _rows(BILLED_TOKENS, span):
        if counted.get(tenant):
            billed = {"input_tokens": int(billed_input), "output_tokens": int(billed_output)}
            yield from tokens_against_bill(tenant, billed, counted[tenant])


def sides_that_count() -> dict[int, str]:
    """Source id -> `gateway` or `engine`, by its adapter, or as its options say (`counts_as`); empty where only one
    side counts, and there is nothing to compare."""
    found = {}
    for source in Source.objects.all():
        said = (source.config.get("options") or {}).get("counts_as")
        if said in ("gateway", "engine"):
            found[source.pk] = said
        elif source.adapter in GATEWAYS:
            found[source.pk] = "gateway"
        elif source.adapter in ENGINES:
            found[source.pk] = "engine"
    return found if len(set(found.values())) > 1 else {}
