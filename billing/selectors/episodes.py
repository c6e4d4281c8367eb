"""A month's preemption episodes and balance (domain.md section 6)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from django.db import connection
from django.db.models import Sum

from billing.core.episodes import Balance, Episode, Measured, balance, episodes, releasing_from
from billing.core.preemption import Known, Measures
from billing.core.preemption_charges import price_parts
from billing.core.preemption_merge import Preemption
from billing.core.released import PoolUse
from billing.models import PoolSlot, PreemptionRecord
from billing.services.allocation_facts import read_levels, void_events
from billing.services.preemption_facts import workload_histories
from billing.services.preemption_prices import PreemptionPrices
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.core.units import round_half_even
from ledger.models import Ledger, Period, PeriodState, Pool


@dataclass(frozen=True)
class MonthOfPreempting:
    """episodes: in order of their start. balances: pool slug -> what preempting there bought and cost."""

    episodes: list[Episode]
    balances: dict[str, Balance]


def preempting(span: Span) -> MonthOfPreempting:
    """Episodes whose preemptions were decided in the span, and the balance of each pool; span ends at the horizon.

    Four queries, two more for the preemptors' occupancy and the pools', and one for each pool that they took GPUs in.
    """
    measured = list(_measured_in(span))
    preemptors = {(one.key[0], one.preemptor_workload) for one, _ in measured if one.preemptor_workload}
    if not preemptors:
        return MonthOfPreempting([], _balances(measured, [], span))
    void = void_events()
    uses = _uses(releasing_from(measured), span.end_ms, void)
    found = episodes(measured, workload_histories(preemptors, void), uses, span.end_ms)
    return MonthOfPreempting(found, _balances(measured, found, span))


def _uses(releasing: Mapping[str, int], horizon_ms: int, void: list[int]) -> dict[str, PoolUse]:
    """Pools from their first release on; what stands then is read as of just before it."""
    pools = dict(Pool.objects.filter(slug__in=releasing).values_list("slug", "pk"))
    return {
        slug: PoolUse.of(
            read_levels(pools[slug], Span(from_ms - 1, max(from_ms, horizon_ms)), void).effective.levels
        )
        for slug, from_ms in releasing.items()
    }


_REMEMBERED: OrderedDict[tuple[str, str, str, str, datetime], MonthOfPreempting] = OrderedDict()
_MOST_REMEMBERED = 12


def preempting_of(period: Period) -> MonthOfPreempting:
    """The same of a month up to its horizon. Nothing of a closed month changes but by computing it again: what was
    read of one is remembered until then. For those who see all tenants: it is everybody's."""
    span = Span(to_ms(period.starts_at), to_ms(period.horizon_at or period.starts_at))
    if period.state != PeriodState.CLOSED or period.computed_at is None:
        return preempting(span)
    # One process may look into several databases; names are only theirs on one server.
    host, port, name = (str(connection.settings_dict[part]) for part in ("HOST", "PORT", "NAME"))
    key = (host, port, name, period.month, period.computed_at)
    found = _REMEMBERED.pop(key, None) or preempting(span)
    _REMEMBERED[key] = found
    while len(_REMEMBERED) > _MOST_REMEMBERED:
        _REMEMBERED.popitem(last=False)
    return found


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


# What episodes read of a record, in order: of thousands a month, building whole records would take longest.
_READ = (
    "cluster",
    "preemption",
    "decided_at",
    "released_at",
    "resumed_at",
    "pool__slug",
    "milli_gpus",
    "cause",
    "victim__slug",
    "victim_workload",
    "victim_request",
    "preemptor__slug",
    "preemptor_workload",
    "preemptor_source",
    "confidence_ppm",
    "disposition",
    "queued_only",
    "drain_gpu_us",
    "lost_gpu_us",
    "lost_evidence",
    "recompute_gpu_us",
    "recompute_evidence",
)


def _measured_in(span: Span) -> Iterator[Measured]:
    rows = (
        PreemptionRecord.objects.filter(
            decided_at__gte=to_datetime(span.start_ms), decided_at__lt=to_datetime(span.end_ms)
        )
        .order_by("decided_at", "preemption", "cluster")
        .values_list(*_READ)
    )
    for (
        cluster, name, decided_at, released_at, resumed_at, pool, milli_gpus, cause, victim, victim_workload,
        victim_request, preemptor, preemptor_workload, preemptor_source, confidence_ppm, disposition, queued_only,
        drain, lost, lost_evidence, recompute, recompute_evidence,
    ) in rows:  # fmt: skip
        decided_at_ms = to_ms(decided_at)
        preemption = Preemption(
            key=(cluster, name),
            refs=(),
            decided_at_ms=decided_at_ms,
            pool=pool,
            milli_gpus=milli_gpus,
            cause=cause,
            victim=victim,
            victim_workload=victim_workload,
            victim_request=victim_request,
            preemptor=preemptor,
            preemptor_workload=preemptor_workload,
            preemptor_source=preemptor_source,
            confidence_ppm=confidence_ppm,
            disposition=disposition,
            queued_only=queued_only,
        )
        yield (
            preemption,
            Measures(
                released_at_ms=to_ms(released_at) if released_at else decided_at_ms,
                drain_gpu_us=drain or 0,
                wait=None,
                lost=Known(lost, lost_evidence),
                recompute=Known(recompute, recompute_evidence),
                resumed_at_ms=to_ms(resumed_at) if resumed_at else None,
                resumed_pool=None,
            ),
        )


def _balances(measured: Sequence[Measured], found: Sequence[Episode], span: Span) -> dict[str, Balance]:
    pool_of = {preemption.key: preemption.pool for preemption, _ in measured}
    of_pool: defaultdict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        of_pool[one[0].pool].append(one)
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
            of_pool[row["pool__slug"]],
            ran[row["pool__slug"]] + int(row["borrowed"]),
            unused[row["pool__slug"]],
            int(row["undelivered"]),
        )
        for row in slots
    }
