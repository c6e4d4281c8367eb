"""What an adapter makes of native records, as lines for the inbox and findings for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ingest.core.adapters import load
from ingest.core.adapters.base import Notice, Outcome, Refused, SourceConfig, State
from ingest.core.parse import Rejected, refused_line
from ledger.core.periods import to_datetime
from ledger.models import FactFinding, Source, SourceTotal


def adapted_lines(
    config: SourceConfig, native: Iterable[bytes], notices: list[Notice], memory: State
) -> Iterator[bytes]:
    """Canonical events of a whole native input, one per line; each record that is refused is a line of its own.

    Fills `notices` as it goes, and `memory` with what the adapter remembers, if its records need it.
    Raises what the adapter raises for a wrong table (`ConfigError`, `ValueError`).
    """
    for outcome in _outcomes(config, native, memory):
        if isinstance(outcome, Notice):
            notices.append(outcome)
        elif isinstance(outcome, Refused):
            yield refused_record(config, outcome)
        else:
            yield msgspec.json.encode(outcome)


def _outcomes(config: SourceConfig, native: Iterable[bytes], memory: State) -> Iterator[Outcome]:
    adapter = load(config.adapter)
    if not adapter.remembers:
        yield from adapter.adapt(native, config, None)
        return
    yield from adapter.adapt(native, config, memory)
    yield from adapter.flush(config, memory, None)


def refused_record(config: SourceConfig, refused: Refused) -> bytes:
    """The line that stands for a native record its adapter refused; a retry gives it to the adapter again."""
    return refused_line(
        Rejected(
            refused.position,
            refused.reason,
            refused.detail,
            refused.record,
            source=config.uri,
            adapter=config.adapter,
        )
    )


def keep_notices(source: SourceConfig, notices: list[Notice]) -> None:
    """Gaps and resets become findings, what the source adds up to becomes a total to reconcile with. A remark that
    speaks of no span is only shown."""
    keep_totals(source, [notice for notice in notices if notice.total is not None])
    FactFinding.objects.bulk_create(
        [
            FactFinding(
                code=notice.reason,
                occurred_at=to_datetime(notice.starts_ms),
                subject=f"{source.name}: {notice.subject}",
                detail={
                    "source": source.uri,
                    "detail": notice.detail,
                    "starts_ms": notice.starts_ms,
                    "ends_ms": notice.ends_ms,
                },
                blocks_close=False,
            )
            for notice in notices
            if notice.starts_ms is not None and notice.reason != "source_total"
        ],
        ignore_conflicts=True,
    )


def keep_totals(config: SourceConfig, notices: list[Notice]) -> None:
    """One row per total, unless the newest of its subject and span says the same already."""
    if not notices:
        return
    source, _ = Source.objects.get_or_create(uri=config.uri)
    known = {
        (measure, subject, starts_at, ends_at): quantity
        for measure, subject, starts_at, ends_at, quantity in SourceTotal.objects.filter(source=source)
        .order_by("pk")
        .values_list("measure", "subject", "starts_at", "ends_at", "quantity")
    }
    rows = []
    for notice in notices:
        total = notice.total
        if total is None or notice.ends_ms is None:
            continue
        starts_at = None if notice.starts_ms is None else to_datetime(notice.starts_ms)
        key = (total.measure, notice.subject, starts_at, to_datetime(notice.ends_ms))
        if known.get(key) == total.quantity:
            continue
        known[key] = total.quantity
        rows.append(
            SourceTotal(
                source=source,
                measure=total.measure,
                unit=total.unit,
                subject=notice.subject,
                starts_at=starts_at,
                ends_at=key[3],
                quantity=total.quantity,
                detail=notice.detail,
            )
        )
    SourceTotal.objects.bulk_create(rows)
