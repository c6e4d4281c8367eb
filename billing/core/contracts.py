"""Token contracts: quota, overage, commitment, reserved throughput (domain.md section 7).

A token contract replaces only the charges for time from shared services. Their rated value goes to the conversion
account, less the token revenue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from billing.core.calibration import TokenCost
from billing.core.rating_lines import CONVERSION, TOKENS, Line
from billing.core.rating_prices import RateCard
from ledger.core.apportion import largest_remainder
from ledger.core.units import MS_PER_MINUTE, round_half_even

TOKENS_PER_PRICE = 1_000_000
GPU_US_PER_GPU_MINUTE = 1_000 * MS_PER_MINUTE


@dataclass(frozen=True, slots=True)
class TokenContract:
    """quota, committed: input + output tokens of a month over all models; overage price per million tokens."""

    account: str
    quota: int | None = None
    committed: int | None = None
    overage_price_micro: int | None = None


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens of one account and model in one version of the prices.

    Cached tokens are part of the input and reasoning tokens part of the output.
    """

    account: str
    model: str
    version_from_ms: int
    input: int = 0
    cached_input: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class _KindUse:
    model: str
    version_from_ms: int
    kind: str
    tokens: int
    price_micro: int | None


def token_lines(contract: TokenContract, use: Sequence[TokenUse], cards: dict[int, RateCard]) -> list[Line]:
    """The tenant's token lines, and the conversion account's with the revenue taken off.

    cards: version_from_ms -> the rate card in force. Every (model, kind, version) has one line for what is within
    the quota and one for the overage.
    """
    kinds = [part for one in use for part in _by_kind(one, cards[one.version_from_ms])]
    kinds.sort(key=lambda part: (part.model, part.kind, part.version_from_ms))
    over = overage(contract, [part.tokens for part in kinds])
    lines = []
    for part, beyond in zip(kinds, over, strict=True):
        lines.append(_token_line(contract.account, part, part.tokens - beyond, part.price_micro, part.kind))
        price = part.price_micro if contract.overage_price_micro is None else contract.overage_price_micro
        lines.append(_token_line(contract.account, part, beyond, price, f"{part.kind}_overage"))
    lines = [line for line in lines if line.quantity]
    unused = _unused_commitment(contract, lines, min(cards, default=0))
    return lines + unused


def overage(contract: TokenContract, tokens: Sequence[int]) -> list[int]:
    """max(0, total - quota), spread over the lines by largest remainder of their tokens."""
    if contract.quota is None:
        return [0] * len(tokens)
    return largest_remainder(max(0, sum(tokens) - contract.quota), tokens)


def _by_kind(use: TokenUse, card: RateCard) -> list[_KindUse]:
    """Cached and reasoning tokens apart where the card prices them, else with the tokens they are part of."""
    counts = {"input": use.input, "output": use.output}
    for part, whole in (("cached_input", "input"), ("reasoning", "output")):
        if (use.model, part) in card.tokens:
            counts[part] = min(getattr(use, part), counts[whole])
            counts[whole] -= counts[part]
    return [
        _KindUse(use.model, use.version_from_ms, kind, tokens, card.tokens.get((use.model, kind)))
        for kind, tokens in counts.items()
        if tokens
    ]


def _token_line(account: str, part: _KindUse, tokens: int, price_micro: int | None, category: str) -> Line:
    amount = None if price_micro is None else round_half_even(tokens * price_micro, TOKENS_PER_PRICE)
    return Line(
        account=account,
        kind="tokens",
        category=category,
        quantity=tokens,
        unit=TOKENS,
        version_from_ms=part.version_from_ms,
        unit_price_micro=price_micro,
        amount_micro=amount,
        model=part.model,
    )


def _unused_commitment(contract: TokenContract, lines: Sequence[Line], month_ms: int) -> list[Line]:
    """Take-or-pay: tokens committed and not used, at the average price of those used.

    Without any use there is no price to take, so the amount stays empty and a person has to settle it.
    """
    used = sum(line.quantity for line in lines)
    unused = max((contract.committed or 0) - used, 0)
    if not unused:
        return []
    amounts = [line.amount_micro for line in lines]
    amount = None
    if used and None not in amounts:
        average = Fraction(sum(amount for amount in amounts if amount is not None), used)
        amount = round_half_even((average * unused).numerator, (average * unused).denominator)
    line = Line(
        account=contract.account,
        kind="tokens",
        category="committed_unused",
        quantity=unused,
        unit=TOKENS,
        version_from_ms=month_ms,
        amount_micro=amount,
    )
    return [line]


def conversion_lines(tenant_lines: Sequence[Line]) -> list[Line]:
    """The revenue of token lines, taken off the conversion account: it keeps replaced GPU value less revenue."""
    return [
        Line(
            account=CONVERSION,
            kind="tokens",
            category=line.category,
            quantity=line.quantity,
            unit=TOKENS,
            version_from_ms=line.version_from_ms,
            unit_price_micro=line.unit_price_micro,
            amount_micro=None if line.amount_micro is None else -line.amount_micro,
            model=line.model,
            on_behalf_of=line.account,
        )
        for line in tenant_lines
    ]


def reserved_throughput_milli_gpus(
    input_per_minute: int, cached_input_per_minute: int, output_per_minute: int, cost: TokenCost
) -> int:
    """The reservation that a reserved throughput (tokens per minute) becomes by the calibration at its start.

    Rounded up: less would not carry what was promised.
    """
    per_minute = cost.gpu_us_times_1000(input_per_minute, cached_input_per_minute, output_per_minute)
    return -(-per_minute * 1_000 // (1_000 * GPU_US_PER_GPU_MINUTE))


# Invariants; each returns findings.


def overage_is_what_exceeds_the_quota(contract: TokenContract, lines: Sequence[Line]) -> list[str]:
    used = sum(line.quantity for line in lines if line.category != "committed_unused")
    beyond = sum(line.quantity for line in lines if line.category.endswith("_overage"))
    expected = 0 if contract.quota is None else max(0, used - contract.quota)
    return [] if beyond == expected else [f"{contract.account}: overage {beyond}, not {expected}"]


def conversion_takes_the_revenue(tenant_lines: Sequence[Line], conversion: Sequence[Line]) -> list[str]:
    revenue = sum(line.amount_micro or 0 for line in tenant_lines)
    taken = -sum(line.amount_micro or 0 for line in conversion)
    return [] if revenue == taken else [f"conversion takes {taken} of a revenue of {revenue}"]
