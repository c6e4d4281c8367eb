"""What a preemption does in another month than the one that measured it (domain.md section 6).

Lost time moves in the month of the decision, recomputed time in that of the resume, and work may wait through several.
Whichever month is computed measures a preemption for all of them; where it differs from before, the others are marked
like for any other late fact: open months compute it, closed ones become adjustments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.db.models import Q

from billing.models import PreemptionRecord, PreemptionShare
from ledger.core.periods import Span, to_datetime
from ledger.models import DirtySpan


class Move(NamedTuple):
    """what: everything that amounts and counts follow from. ends_at: None while work still waits; an instant's own
    start where it is one."""

    pool_id: int
    starts_at: datetime
    ends_at: datetime | None
    what: tuple[Any, ...]

    def outside(self, month: Span) -> Iterator[DirtySpan]:
        """Its time before and after the month."""
        first, last = to_datetime(month.start_ms), to_datetime(month.end_ms)
        if self.starts_at == self.ends_at:
            if not first <= self.starts_at < last:
                yield self._dirty(self.starts_at, self.ends_at, "[]")
            return
        if self.starts_at < first:
            yield self._dirty(self.starts_at, first if self.ends_at is None else min(self.ends_at, first))
        if self.ends_at is None or self.ends_at > last:
            yield self._dirty(max(self.starts_at, last), self.ends_at)

    def _dirty(self, starts_at: datetime, ends_at: datetime | None, bounds: str = "[)") -> DirtySpan:
        return DirtySpan(pool_id=self.pool_id, span=DateTimeTZRange(starts_at, ends_at, bounds))


_DECIDES = (
    "queued_only", "disposition", "charged_to", "preemptor_id", "service_class", "purpose", "on_demand_milli_gpus",
    "borrowed_milli_gpus", "excess_milli_gpus",
)  # fmt: skip
_OF_RECORD = ("pool_id", "decided_at", "resumed_at", "resumed_pool_id")


def moves_beyond(ids: Collection[UUID], month: Span) -> frozenset[Move]:
    """What these records move, of those that are not wholly inside the month. Two queries more where there are any."""
    first, last = to_datetime(month.start_ms), to_datetime(month.end_ms)
    beyond = Q(waits_until=None)
    for name in ("decided_at", "released_at", "resumed_at", "waits_until"):
        beyond |= Q(**{f"{name}__lt": first}) | Q(**{f"{name}__gte": last})
    records = list(
        PreemptionRecord.objects.filter(beyond, pk__in=ids)
        .only("pk", *_OF_RECORD, *_DECIDES)
        .prefetch_related("shares", "waits")
    )
    return frozenset(move for record in records for move in _moves_of(record))


def _moves_of(record: PreemptionRecord) -> Iterator[Move]:
    decides = tuple(getattr(record, name) for name in _DECIDES)
    shares = sorted(record.shares.all(), key=lambda share: share.account_id)

    def what(measure: str, *more: object) -> tuple[Any, ...]:
        parts = tuple(_part(share, measure) for share in shares)
        return (record.pk, measure, *more, *decides, *parts)

    yield Move(record.pool_id, record.decided_at, record.decided_at, what("lost_gpu_us"))
    if record.resumed_at is not None:
        recomputed = what("recompute_gpu_us", record.resumed_pool_id)
        yield Move(record.pool_id, record.resumed_at, record.resumed_at, recomputed)
    for wait in record.waits.all():
        yield Move(wait.pool_id, wait.starts_at, wait.ends_at, what("", wait.milli_gpus))


def _part(share: PreemptionShare, measure: str) -> tuple[Any, ...]:
    measured = getattr(share, measure) if measure else None
    part = (share.weight_before, share.weight_through, share.weight_total)
    return (share.account_id, share.milli_gpus, share.entitled_milli_gpus, part, measured)


def mark_other_months(before: frozenset[Move], ids: Collection[UUID], month: Span) -> None:
    """Mark as dirty, outside of the month, where these records move something else than before.

    before: `moves_beyond` of the same records, asked before they were written again. Runs once they are shared out.
    """
    changed = before ^ moves_beyond(ids, month)
    DirtySpan.objects.bulk_create(dirty for move in changed for dirty in move.outside(month))
