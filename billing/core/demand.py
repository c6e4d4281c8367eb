"""What was asked for and what became of it; what refusing it cost, beside killing work for it (domain.md section 9).

asked = completed + rejected + preempted + timed out + aborted + failed, retries counted once: of the attempts of one
request the last one's outcome is the request's, and of refusals of one request the last counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledger.core.units import GPU_US_PER_GPU_HOUR, MS_PER_HOUR, round_half_even

COMPLETED, REJECTED, PREEMPTED, TIMED_OUT, ABORTED, FAILED = OUTCOMES = (
    "completed",
    "rejected",
    "preempted",
    "timed_out",
    "aborted",
    "failed",
)
TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True)
class Funnel:
    """Requests by outcome. explicit: refusals with a 4xx and a Retry-After."""

    completed: int = 0
    rejected: int = 0
    preempted: int = 0
    timed_out: int = 0
    aborted: int = 0
    failed: int = 0
    explicit: int = 0

    @property
    def asked(self) -> int:
        return sum(getattr(self, outcome) for outcome in OUTCOMES)

    @property
    def failures(self) -> int:
        return self.asked - self.completed

    @property
    def explicit_ppm(self) -> int | None:
        """The explicit share of all failures, in millionths; None where nothing failed."""
        return round_half_even(self.explicit * 1_000_000, self.failures) if self.failures else None


def funnel(
    attempts: Mapping[str, int], superseded: Mapping[str, int], rejected: int = 0, explicit: int = 0
) -> Funnel:
    """attempts: outcome -> requests as reported, one per attempt. superseded: those of them that a later attempt of
    the same request followed. rejected, explicit: refusals, each request once."""
    counts = {
        outcome: max(attempts.get(outcome, 0) - superseded.get(outcome, 0), 0)
        for outcome in OUTCOMES
        if outcome != REJECTED
    }
    return Funnel(rejected=rejected, explicit=explicit, **counts)


@dataclass(frozen=True, slots=True)
class Worth:
    """What completed requests were worth: the measure for those that were refused.

    token_product: sum of tokens x price per million (micro), None where a price is missing. gpu_product: sum of gpu_us
    x on-demand price per GPU-hour (micro).
    """

    requests: int = 0
    tokens: int = 0
    token_product: int | None = None
    gpu_us: int = 0
    gpu_product: int | None = None

    def plus(self, other: Worth) -> Worth:
        return Worth(
            self.requests + other.requests,
            self.tokens + other.tokens,
            _sum(self.token_product, other.token_product, self.tokens, other.tokens),
            self.gpu_us + other.gpu_us,
            _sum(self.gpu_product, other.gpu_product, self.gpu_us, other.gpu_us),
        )


def _sum(a: int | None, b: int | None, a_quantity: int, b_quantity: int) -> int | None:
    """A missing price only matters where there was something to price."""
    if (a is None and a_quantity) or (b is None and b_quantity):
        return None
    return None if a is None and b is None else (a or 0) + (b or 0)


def worth(parts: Iterable[Worth]) -> Worth:
    total = Worth()
    for part in parts:
        total = total.plus(part)
    return total


@dataclass(frozen=True, slots=True)
class Declined:
    """Refused demand. tokens and gpu_us: stated, else those of as many mean completed requests; None where nothing
    completed to measure by. amount_micro: revenue declined, by `basis` (`token_price`, `gpu_time`, '' unknown)."""

    requests: int
    tokens: int | None
    gpu_us: int | None
    amount_micro: int | None
    basis: str


_PART_OF = {"cached_input": "input", "reasoning": "output"}


def token_product(
    prices: Mapping[str, int | None], tokens: int, cached: int, output: int, reasoning: int
) -> int | None:
    """Tokens x price per million of their kinds; None where a kind in use has no price. Cached tokens are part of
    the input (`tokens`), reasoning tokens of the output; priced apart only where they have a price of their own."""
    counts = {
        "input": tokens - cached,
        "cached_input": cached,
        "output": output - reasoning,
        "reasoning": reasoning,
    }
    total = 0
    for kind, count in counts.items():
        price = prices.get(kind)
        if price is None and kind in _PART_OF:
            price = prices.get(_PART_OF[kind])
        if count and price is None:
            return None
        total += count * (price or 0)
    return total


def declined(requests: int, stated_tokens: int, unstated: int, by: Worth) -> Declined:
    """requests refused, of which `unstated` stated no tokens and the rest `stated_tokens` together."""
    if not requests:
        return Declined(0, 0, 0, 0, "")
    tokens: int | None = None
    if not unstated:
        tokens = stated_tokens
    elif by.requests and by.tokens:
        tokens = stated_tokens + round_half_even(unstated * by.tokens, by.requests)
    gpu_us = _scaled(by.gpu_us, tokens, by.tokens)
    if gpu_us is None and by.requests and by.gpu_us:
        gpu_us = round_half_even(requests * by.gpu_us, by.requests)
    if tokens is not None and by.tokens and by.token_product is not None:
        amount = round_half_even(tokens * by.token_product, by.tokens * TOKENS_PER_PRICE)
        return Declined(requests, tokens, gpu_us, amount, "token_price")
    if gpu_us is not None and by.gpu_us and by.gpu_product is not None:
        amount = round_half_even(gpu_us * by.gpu_product, by.gpu_us * GPU_US_PER_GPU_HOUR)
        return Declined(requests, tokens, gpu_us, amount, "gpu_time")
    return Declined(requests, tokens, gpu_us, None, "")


def _scaled(value: int, part: int | None, whole: int) -> int | None:
    return round_half_even(value * part, whole) if part is not None and whole and value else None


@dataclass(frozen=True, slots=True)
class Killing:
    """What preempting ran up: GPU time re-queued by preemptions that took so many milli-GPU."""

    milli_gpus: int = 0
    requeued_gpu_us: int = 0


@dataclass(frozen=True, slots=True)
class KillingCost:
    gpu_us: int
    amount_micro: int | None


def killing_cost(refused: Declined, by: Worth, killing: Killing) -> KillingCost | None:
    """What making room for the refused demand by preemption would have re-queued: every GPU-hour of it taken from
    running work by one preemption of one GPU, at the re-queued time per GPU of the preemptions there were. None where
    the demand cannot be measured or nothing was preempted to measure by."""
    if refused.gpu_us is None or not killing.milli_gpus:
        return None
    gpu_us = round_half_even(refused.gpu_us * killing.requeued_gpu_us, killing.milli_gpus * MS_PER_HOUR)
    if not by.gpu_us or by.gpu_product is None:
        return KillingCost(gpu_us, None)
    return KillingCost(gpu_us, round_half_even(gpu_us * by.gpu_product, by.gpu_us * GPU_US_PER_GPU_HOUR))
