"""From GPU time to money in `rate_card` mode (domain.md section 8).

A line's amount is its exact month quantity times its price, rounded half-even to the micro unit once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from billing.core.rating_credits import LentPair, lend_credits
from billing.core.rating_idle import PLATFORM_BEARS, idle_shares
from billing.core.rating_lines import CONVERSION, GPU_US, PLATFORM, Line, Quantity, is_tenant
from billing.core.rating_prices import PriceBook
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

OWNER = "owner"
PURPOSE_PAYERS = {"warmup": OWNER, "load_test": PLATFORM, "drill": PLATFORM}
BORROWER_PAID = "borrower_paid"
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class RatingPolicy:
    """lend_credit_share: a fixed share of the reserved rate; None: what the borrowers paid, at most that rate."""

    valid_from_ms: int
    unreserved_idle: str = PLATFORM_BEARS
    lend_credit_share: Fraction | None = None
    purpose_payers: Mapping[str, str] = field(default_factory=dict)

    def payer_of_purpose(self, purpose: str) -> str:
        return self.purpose_payers.get(purpose, PURPOSE_PAYERS.get(purpose, OWNER))


DEFAULT_POLICY = RatingPolicy(valid_from_ms=0)


@dataclass(frozen=True)
class Terms:
    """What a month is rated by.

    policies: in order of valid_from. ramp_percent: account -> the percentage of reserved_idle charged this month.
    token_accounts: accounts whose shared-service time is charged by tokens instead.
    """

    prices: PriceBook
    policies: Sequence[RatingPolicy] = (DEFAULT_POLICY,)
    ramp_percent: Mapping[str, int] = field(default_factory=dict)
    token_accounts: frozenset[str] = frozenset()

    def policy_at(self, instant_ms: int) -> RatingPolicy:
        in_force = (policy for policy in reversed(self.policies) if policy.valid_from_ms <= instant_ms)
        return next(in_force, DEFAULT_POLICY)


def rate_gpu_time(
    quantities: Sequence[Quantity],
    unreserved_idle: Mapping[tuple[str, int], int],
    pairs: Iterable[LentPair],
    terms: Terms,
) -> list[Line]:
    """All lines of a month's GPU time, in order of account and key.

    unreserved_idle: (pool, version_from_ms) -> gpu_us. pairs: who lent to whom, in the versions of the quantities.
    """
    lines = [line for quantity in quantities if quantity.gpu_us for line in _lines_of(quantity, terms)]
    lines += lend_credits(quantities, pairs, terms.prices, lambda at: terms.policy_at(at).lend_credit_share)
    for (pool, version_ms), gpu_us in unreserved_idle.items():
        shares = idle_shares(terms.policy_at(version_ms).unreserved_idle, pool, gpu_us, quantities)
        lines += [_idle_line(account, pool, version_ms, part, terms) for account, part in shares.items()]
    return sorted(lines, key=lambda line: (line.account, line.key))


def _lines_of(quantity: Quantity, terms: Terms) -> list[Line]:
    """The owner's line, and, where somebody else pays, the payer's."""
    price = terms.prices.price(
        quantity.pool, quantity.category, quantity.service_class, quantity.version_from_ms
    )
    percent = terms.ramp_percent.get(quantity.account, 100) if quantity.category == "reserved_idle" else 100
    line = gpu_line(quantity, price, percent)
    return with_payer(line, payer_of(quantity, terms))


def payer_of(quantity: Quantity, terms: Terms) -> str:
    """Whose account the amount goes to; NOBODY for capacity that was not there."""
    if quantity.category == "oversold":
        return NOBODY
    if quantity.category == "undelivered":
        return PLATFORM
    policy = terms.policy_at(quantity.version_from_ms)
    if policy.payer_of_purpose(quantity.purpose) == PLATFORM:
        return PLATFORM
    by_tokens = quantity.service and not quantity.service_idle and quantity.account in terms.token_accounts
    return CONVERSION if by_tokens and quantity.category != "lent" else quantity.account


def gpu_line(quantity: Quantity, price_micro: int | None, percent: int = 100) -> Line:
    """quantity x price x percent, rounded once; the full amount beside it where a ramp lowers it."""
    full = amount = None
    if price_micro is not None:
        full = round_half_even(quantity.gpu_us * price_micro, GPU_US_PER_GPU_HOUR)
        amount = round_half_even(quantity.gpu_us * price_micro * percent, 100 * GPU_US_PER_GPU_HOUR)
    return Line(
        account=quantity.account,
        kind="shared" if quantity.service else "usage",
        category=quantity.category,
        quantity=quantity.gpu_us,
        unit=GPU_US,
        version_from_ms=quantity.version_from_ms,
        unit_price_micro=price_micro,
        amount_micro=amount,
        full_amount_micro=full,
        pool=quantity.pool,
        service=quantity.service,
        service_class=quantity.service_class,
        purpose=quantity.purpose,
        service_idle=quantity.service_idle,
    )


def with_payer(line: Line, payer: str) -> list[Line]:
    """The line as its owner sees it (free where another pays) and as the payer does."""
    if payer == line.account:
        return [line]
    return [_free(line)] if payer == NOBODY else [_free(line), line.moved_to(payer)]


def _free(line: Line) -> Line:
    """Shown with its quantity, charged nothing; the full amount says what another account bears."""
    return replace(line, unit_price_micro=0, amount_micro=0, full_amount_micro=line.amount_micro)


def _idle_line(account: str, pool: str, version_ms: int, gpu_us: int, terms: Terms) -> Line:
    price = terms.prices.price(pool, "unreserved_idle", "", version_ms)
    return Line(
        account=account,
        kind="shared" if is_tenant(account) else "usage",
        category="unreserved_idle",
        quantity=gpu_us,
        unit=GPU_US,
        version_from_ms=version_ms,
        unit_price_micro=price,
        amount_micro=None if price is None else round_half_even(gpu_us * price, GPU_US_PER_GPU_HOUR),
        pool=pool,
    )


def ramp_percent(ramp: Sequence[int], months_since_start: int) -> int:
    """The percentage of reserved_idle charged in a contract's month; all of it once the ramp is over."""
    return ramp[months_since_start] if 0 <= months_since_start < len(ramp) else 100


# Invariants of a rated month; each returns findings, none when all is well.


def every_gpu_second_has_one_payer(quantities: Sequence[Quantity], lines: Sequence[Line]) -> list[str]:
    """Each quantity appears once on its owner's account, and never costs more than once."""
    owned = {(line.account, line.key): line.quantity for line in lines if not line.on_behalf_of}
    problems = []
    for quantity in quantities:
        line = gpu_line(quantity, 0)
        if quantity.gpu_us and owned.get((line.account, line.key)) != quantity.gpu_us:
            problems.append(f"{quantity.account} {line.key}: not billed with its {quantity.gpu_us} gpu_us")
    return problems


def keys_are_unique(quantities: Sequence[Quantity], lines: Sequence[Line]) -> list[str]:
    seen: set[tuple[str, str]] = set()
    repeated = []
    for line in lines:
        if (line.account, line.key) in seen:
            repeated.append(f"{line.account} {line.key}: two lines")
        seen.add((line.account, line.key))
    return repeated


def a_credit_never_exceeds_the_charge(quantities: Sequence[Quantity], lines: Sequence[Line]) -> list[str]:
    """Lending earns at most the reserved rate of what was lent."""
    lent: dict[str, int] = {}
    credited: dict[str, int] = {}
    for line in lines:
        if line.category == "lent":
            lent[line.account] = lent.get(line.account, 0) + (line.amount_micro or 0)
        elif line.category == "lend_credit":
            credited[line.account] = credited.get(line.account, 0) - (line.amount_micro or 0)
    return [
        f"{account}: credited {amount} for lending charged {lent.get(account, 0)}"
        for account, amount in credited.items()
        if amount > lent.get(account, 0)
    ]


Invariant = Callable[[Sequence[Quantity], Sequence[Line]], list[str]]
INVARIANTS: tuple[Invariant, ...] = (
    every_gpu_second_has_one_payer,
    keys_are_unique,
    a_credit_never_exceeds_the_charge,
)
