"""Who is charged for re-queued GPU time, and how much (domain.md section 6, last part).

GPU time stays where it was spent: a GPU-second that is lost was charged as occupancy already. Only its money moves,
from the victim's account to the payer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from billing.core.preemption import Measures
from billing.core.preemption_merge import Key, Preemption
from billing.core.preemption_standing import Standing
from ledger.core.apportion import largest_remainder
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

PLATFORM = "platform"
LOST = "lost"
RECOMPUTE = "recompute"
Price = int | Fraction | None
"""Micro units per GPU-hour; derived prices of cost recovery are fractions, a missing one is None."""
CAUSES_OF_PLATFORM = frozenset({"capacity_lost", "maintenance"})
BEYOND = ("on_demand", "borrowed", "excess")


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """charged_to: entitlement, victim, preemptor or platform. min_confidence_ppm: of an inferred preemptor."""

    charged_to: str = "entitlement"
    min_confidence_ppm: int = 1_000_000


class Part(NamedTuple):
    """Which part of a whole a share is: weights up to it, without and with its own, and of all shares.

    Waiting is cut by months; by this each stretch is divided alike, however long it is known to have been in all.
    """

    before: int = 0
    through: int = 1
    total: int = 1

    def of(self, whole: int) -> int:
        """The part of a whole >= 0; those of all shares add up to it (`apportion`, domain.md section 4)."""
        return whole * self.through // self.total - whole * self.before // self.total


WHOLE = Part()


def parts_of(weights: Sequence[int]) -> list[Part]:
    """One for each weight > 0, in their order."""
    ends = list(accumulate(weights))
    return [Part(end - weight, end, ends[-1]) for weight, end in zip(weights, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's part of a preemption: all of it for its own workload, a split where a shared service was hit.

    account: a tenant's slug or another account's name; lost and recompute in gpu_us, None where unknown. part: of what
    was waited.
    """

    account: str
    milli_gpus: int
    entitled_milli_gpus: int
    waiting_gpu_us: int
    lost_gpu_us: int | None
    recompute_gpu_us: int | None
    part: Part = WHOLE


@dataclass(frozen=True, slots=True)
class Charge:
    """Money that moves from `victim` to `payer`: the victim owes that much less, the payer that much more.

    measure: lost or recompute, which may belong to different months. amount_micro is None where a price is missing.
    """

    preemption: Key
    victim: str
    payer: str
    measure: str
    gpu_us: int
    amount_micro: int | None


def sole_share(
    account: str, preemption: Preemption, measures: Measures, entitled: int, waiting: int
) -> Share:
    """The share of a victim that is a tenant."""
    return Share(
        account,
        preemption.milli_gpus,
        entitled,
        waiting,
        measures.lost.gpu_us,
        measures.recompute.gpu_us,
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What tenants of a shared service are entitled to in it, and what they had of it just before; milli-GPU.

    quota_milli: account -> its serving quota, None where no calibration converts it. held_milli: of the service's GPUs
    by each account's share of the slot.
    """

    quota_milli: Mapping[str, int | None] = field(default_factory=dict)
    held_milli: Mapping[str, int] = field(default_factory=dict)

    def entitled(self, account: str, milli_gpus: int, of_reservation: int, owner: str) -> int:
        """The part of an account's `milli_gpus` inside its serving quota: what it had beyond goes first.

        of_reservation: its part of what the service's own reservation covers, which counts where no quota can be
        applied, and for the service's owner. Others without a quota where some have one are entitled to nothing.
        """
        quota = self.quota_milli.get(account)
        if quota is None:
            by_reservation = not self.quota_milli or account in self.quota_milli or account == owner
            return of_reservation if by_reservation else 0
        # It had at least what it lost, however little the slot before says.
        held = max(self.held_milli.get(account, 0), milli_gpus)
        return milli_gpus - min(milli_gpus, max(held - quota, 0))


def split_share(whole: Share, weights: Mapping[str, int], served: Served | None = None) -> list[Share]:
    """Divide a shared service's preemption over tenants, by largest remainder; its waiting, which is cut by months, by
    `Part` (domain.md section 6).

    weights: account -> GPU time of its voided requests, else its share of the slot; where all are 0 the whole stays
    with `whole.account`, the service's owner. served: its tenants' serving quotas; without any, the service's entitled
    part is divided like the rest.
    """
    accounts = sorted(account for account, weight in weights.items() if weight > 0)
    if not accounts:
        return [whole]
    by = [weights[account] for account in accounts]

    def divided(total: int | None) -> Sequence[int | None]:
        return [None] * len(by) if total is None else largest_remainder(total, by, accounts)

    gpus = largest_remainder(whole.milli_gpus, by, accounts)
    reserved = _within(gpus, largest_remainder(whole.entitled_milli_gpus, by, accounts))
    entitled = [
        (served or Served()).entitled(account, milli, covered, whole.account)
        for account, milli, covered in zip(accounts, gpus, reserved, strict=True)
    ]
    parts = parts_of(by)
    waiting = [part.of(whole.waiting_gpu_us) for part in parts]
    lost, recompute = divided(whole.lost_gpu_us), divided(whole.recompute_gpu_us)
    return [
        Share(*row) for row in zip(accounts, gpus, entitled, waiting, lost, recompute, parts, strict=True)
    ]


def _within(limits: Sequence[int], values: Sequence[int]) -> list[int]:
    return [min(limit, value) for limit, value in zip(limits, values, strict=True)]


def standing_in_for(preemption: Preemption, preemptor_account: str | None, policy: PreemptionPolicy) -> str:
    """The account that answers for the preemptor: its own, or the platform where nobody can be held to it.

    preemptor_account: the tenant, a service's owner, or None where the preemptor is unknown or nobody's.
    """
    if preemptor_account is None or preemption.cause in CAUSES_OF_PLATFORM:
        return PLATFORM
    inferred = preemption.preemptor_source in ("inferred", "none")
    if inferred and (preemption.confidence_ppm or 0) < policy.min_confidence_ppm:
        return PLATFORM
    return preemptor_account


def payer_of(
    preemption: Preemption,
    preemptor_account: str | None,
    preemptor_inside_reservation: bool,
    policy: PreemptionPolicy,
) -> str | None:
    """Who is charged for what does not stay with the victim; None: everything stays."""
    if preemption.queued_only or policy.charged_to == "victim":
        return None
    if policy.charged_to == "platform":
        return PLATFORM
    if policy.charged_to == "entitlement" and preemptor_inside_reservation:
        # Both sides were entitled: more was sold than there was, which is the platform's doing.
        return PLATFORM
    return standing_in_for(preemption, preemptor_account, policy)


def charges(
    preemption: Preemption,
    share: Share,
    payer: str | None,
    policy: PreemptionPolicy,
    standing: Standing,
    lost_prices: Mapping[str, Price],
    recompute_prices: Mapping[str, Price],
    bearer: str = "",
) -> list[Charge]:
    """What moves from the share's account to the payer, per measure; nothing where the victim pays itself.

    bearer: who paid for the victim's occupancy, where that was not the share's account (a load test is the
    platform's). standing: of the victim just before decided_at. lost_prices: category -> micro units per GPU-hour at
    decided_at in the pool; recompute_prices: at resumed_at in the pool where it resumed.
    """
    victim = bearer or share.account
    if payer is None or payer == victim:
        return []
    found = []
    for measure, gpu_us, prices in (
        (LOST, share.lost_gpu_us, lost_prices),
        (RECOMPUTE, share.recompute_gpu_us, recompute_prices),
    ):
        parts = charged_parts(gpu_us or 0, share, policy, standing)
        charged_gpu_us = sum(parts.values())
        if charged_gpu_us:
            amount = price_parts(parts, prices)
            found.append(Charge(preemption.key, victim, payer, measure, charged_gpu_us, amount))
    return found


def charged_parts(gpu_us: int, share: Share, policy: PreemptionPolicy, standing: Standing) -> dict[str, int]:
    """The GPU time that is charged to the payer, by the category whose price it carries.

    By entitlement only the entitled fraction is; by the other policies all of it, the rest in the victim's ratio
    on_demand : borrowed : excess just before the decision.
    """
    rest_milli = share.milli_gpus - share.entitled_milli_gpus
    entitled, rest = largest_remainder(gpu_us, [share.entitled_milli_gpus, rest_milli])
    if share.milli_gpus == 0:
        # A request inside an engine takes no GPUs, so none of them was inside a reservation.
        rest = gpu_us
    parts = {"reserved_used": entitled}
    if policy.charged_to != "entitlement":
        ratio = [getattr(standing, name) for name in BEYOND]
        if not any(ratio):
            ratio = [1, 0, 0]
        parts |= dict(zip(BEYOND, largest_remainder(rest, ratio), strict=True))
    return {category: part for category, part in parts.items() if part}


def price_parts(parts: Mapping[str, int], prices: Mapping[str, Price]) -> int | None:
    """Sum of gpu_us x price, rounded half-even once; None where a price that is needed is missing."""
    product = Fraction(0)
    for category, gpu_us in parts.items():
        price = prices.get(category)
        if price is None:
            return None
        product += gpu_us * price
    return round_half_even(product.numerator, product.denominator * GPU_US_PER_GPU_HOUR)


def delay_credit_micro(
    shares: Sequence[Share], waiting_gpu_us: Sequence[int], credit_micro_per_gpu_hour: int
) -> int:
    """The credit of one tenant and day for entitled GPU time that waited or was lost; rounded once.

    shares: the tenant's preemptions decided that day or waiting in it, with `lost_gpu_us` None where the loss
    belongs to another day; waiting_gpu_us: of each of them, the part inside the day.
    """
    entitled_gpu_us = 0
    for share, waited in zip(shares, waiting_gpu_us, strict=True):
        if share.milli_gpus:
            hurt = waited + (share.lost_gpu_us or 0)
            rest_milli = share.milli_gpus - share.entitled_milli_gpus
            entitled_gpu_us += largest_remainder(hurt, [share.entitled_milli_gpus, rest_milli])[0]
    return round_half_even(entitled_gpu_us * credit_micro_per_gpu_hour, GPU_US_PER_GPU_HOUR)


# Invariants: what must hold for any preemption's charges; each returns findings.


def shares_add_up(whole: Share, parts: Sequence[Share]) -> list[str]:
    """A split loses nothing and invents nothing."""
    problems = []
    for name in ("milli_gpus", "waiting_gpu_us", "lost_gpu_us", "recompute_gpu_us"):
        expected = getattr(whole, name) or 0
        total = sum(getattr(part, name) or 0 for part in parts)
        if total != expected:
            problems.append(f"{name}: parts sum to {total}, not {expected}")
    return problems


def nothing_charged_twice(share: Share, made: Sequence[Charge]) -> list[str]:
    """No more time is charged to others than was re-queued."""
    problems = []
    for measure, gpu_us in ((LOST, share.lost_gpu_us or 0), (RECOMPUTE, share.recompute_gpu_us or 0)):
        charged = sum(charge.gpu_us for charge in made if charge.measure == measure)
        if charged > gpu_us:
            problems.append(f"{measure}: {charged} gpu_us charged of {gpu_us}")
    return problems
