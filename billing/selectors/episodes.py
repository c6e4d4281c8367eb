"""A month's preemption episodes and balance (domain.md section 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from django.db.models import QuerySet, Sum

from billing.core.episodes import Balance, Episode, Measured, balance, episodes
from billing.core.preemption import Known, Measures
from billing.core.preemption_charges import price_parts
from billing.models import PoolSlot, PreemptionRecord
from billing.services.allocation_facts import void_events
from billing.services.preemption_facts import workload_histories
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemption_records import preemption_of
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import round_half_even
from ledger.models import Ledger


@dataclass(frozen=True)
class MonthOfPreempting:
    """episodes: in order of their start. balances: pool slug -> what preempting there bought and cost."""

    episodes: list[Episode]
    balances: dict[str, Balance]


def preempting(span: Span) -> MonthOfPreempting:
    """Episodes whose preemptions were decided in the span, and the balance of each pool; span ends at the horizon.

    Four queries and one more for the preemptors' occupancy.
    """
    records = list(_records(span))
    measured = [_measured(record) for record in records]
    preemptors = {(one.key[0], one.preemptor_workload) for one, _ in measured if one.preemptor_workload}
    histories = workload_histories(preemptors, void_events()) if preemptors else {}
    found = episodes(measured, histories, span.end_ms)
    return MonthOfPreempting(found, _balances(measured, found, span))


def worst_first(found: Sequence[Episode]) -> list[Episode]:
    """Those whose preemptor never ran, then by GPU time that nobody used, then by GPUs taken beyond the need."""
    return sorted(
        found, key=lambda one: (one.ran, -one.unused_gpu_us, -(one.overshoot_milli_gpus or 0), one.starts_ms)
    )


PARTS = ("gained", "lost", "recomputed", "drained", "unused", "undelivered", "net")


@dataclass(frozen=True)
class PoolBalance:
    """price: micro units per GPU-hour of reserved time in the pool as the window starts; None: there is none.

    One price for all parts, so that the balance in money has the sign of the balance in time.
    """

    pool: str
    balance: Balance
    price: Fraction | None

    @property
    def price_micro(self) -> int | None:
        return None if self.price is None else round_half_even(self.price.numerator, self.price.denominator)

    def amount_micro(self, gpu_us: int) -> int | None:
        return price_parts({"reserved_used": gpu_us}, {"reserved_used": self.price})

    @property
    def net_micro(self) -> int | None:
        return self.amount_micro(self.balance.net)


def pool_balances(span: Span, ledger: Ledger, month: MonthOfPreempting | None = None) -> list[PoolBalance]:
    """By pool slug; `month`: what `preempting` said of the span, where it was asked already."""
    prices = PreemptionPrices.load(ledger)
    found = []
    for pool, one in (month or preempting(span)).balances.items():
        price = prices.at(pool, span.start_ms).get("reserved_used")
        found.append(PoolBalance(pool, one, None if price is None else Fraction(price)))
    return found


def _records(span: Span) -> QuerySet[PreemptionRecord]:
    return (
        PreemptionRecord.objects.filter(
            decided_at__gte=to_datetime(span.start_ms), decided_at__lt=to_datetime(span.end_ms)
        )
        .select_related("pool", "victim", "preemptor")
        .order_by("decided_at", "preemption", "cluster")
    )


def _measured(record: PreemptionRecord) -> Measured:
    measures = Measures(
        released_at_ms=to_ms(record.released_at or record.decided_at),
        drain_gpu_us=record.drain_gpu_us or 0,
        wait=None,
        lost=Known(record.lost_gpu_us, record.lost_evidence),
        recompute=Known(record.recompute_gpu_us, record.recompute_evidence),
        resumed_at_ms=to_ms(record.resumed_at) if record.resumed_at else None,
        resumed_pool=None,
    )
    return preemption_of(record), measures


def _balances(measured: Sequence[Measured], found: Sequence[Episode], span: Span) -> dict[str, Balance]:
    pool_of = {preemption.key: preemption.pool for preemption, _ in measured}
    ran: defaultdict[str, int] = defaultdict(int)
    unused: defaultdict[str, int] = defaultdict(int)
    for episode in found:
        # An episode is one workload's, and a workload takes GPUs of one pool.
        pool = pool_of[episode.preemptions[0]]
        ran[pool] += episode.ran_gpu_us
        unused[pool] += episode.unused_gpu_us
    slots = (
        PoolSlot.objects.filter(
            starts_at__gte=to_datetime(span.start_ms), starts_at__lt=to_datetime(span.end_ms)
        )
        .values("pool__slug")
        .annotate(borrowed=Sum("borrowed_gpu_us"), undelivered=Sum("undelivered_gpu_us"))
        .order_by("pool__slug")
    )
    return {
        row["pool__slug"]: balance(
            [one for one in measured if one[0].pool == row["pool__slug"]],
            ran[row["pool__slug"]] + int(row["borrowed"]),
            unused[row["pool__slug"]],
            int(row["undelivered"]),
        )
        for row in slots
    }
