"""What lending earns (domain.md section 4, row `lent`).

Lent time is charged to its owner at the reserved rate and credited: by default with what the borrowers paid for it,
at most that rate; or with a fixed share of it. What was lent while the owner's own work waited is credited in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from billing.core.rating_lines import GPU_US, Line, Quantity
from billing.core.rating_prices import PriceBook
from ledger.core.units import GPU_US_PER_GPU_HOUR, round_half_even

Lender = tuple[str, int, str]
"""(pool, start of a stretch of constant prices, holder): what a borrower pays depends on nothing finer."""


@dataclass(frozen=True, slots=True)
class LentPair:
    """GPU time that `borrower` ran on the idle reservation of `lender` (holder slugs), at one version of the prices.

    at_ms: any instant of that version.
    """

    pool: str
    at_ms: int
    lender: str
    borrower: str
    gpu_us: int


def lend_credits(
    quantities: Sequence[Quantity],
    pairs: Iterable[LentPair],
    prices: PriceBook,
    credit_share_at: Callable[[int], Fraction | None],
) -> list[Line]:
    """One credit line per quantity of `lent` that earns anything.

    credit_share_at: instant -> the policy's fixed share of the reserved rate, or None for what the borrowers paid.
    """
    lent: defaultdict[Lender, int] = defaultdict(int)
    for quantity in quantities:
        if quantity.category == "lent":
            lent[_lender(quantity, prices)] += quantity.gpu_us
    paid = _paid_by_borrowers(quantities, pairs, prices)
    lines = []
    for quantity in quantities:
        if quantity.category == "lent" and quantity.gpu_us:
            lender = _lender(quantity, prices)
            per_gpu_us = paid.get(lender, Fraction(0)) / lent[lender]
            share = credit_share_at(quantity.version_from_ms)
            lines.append(_credit_line(quantity, share, per_gpu_us, prices))
    return [line for line in lines if line.amount_micro != 0]


def _lender(quantity: Quantity, prices: PriceBook) -> Lender:
    return (quantity.pool, prices.stretch_ms(quantity.version_from_ms), quantity.holder)


def _credit_line(
    quantity: Quantity, share: Fraction | None, paid_per_hour: Fraction, prices: PriceBook
) -> Line:
    """paid_per_hour: what its borrowers paid per GPU-hour, on average."""
    reserved = prices.price(quantity.pool, "lent", quantity.service_class, quantity.version_from_ms)
    amount = None
    if reserved is not None:
        in_full, by_policy = quantity.waiting_gpu_us, quantity.gpu_us - quantity.waiting_gpu_us
        rate = paid_per_hour if share is None else share * reserved
        credit = reserved * in_full + rate * by_policy
        amount = -round_half_even(credit.numerator, credit.denominator * GPU_US_PER_GPU_HOUR)
    return Line(
        account=quantity.account,
        kind="credit",
        category="lend_credit",
        quantity=quantity.gpu_us,
        unit=GPU_US,
        version_from_ms=quantity.version_from_ms,
        amount_micro=amount,
        pool=quantity.pool,
        service=quantity.service,
        service_class=quantity.service_class,
        purpose=quantity.purpose,
    )


def _paid_by_borrowers(
    quantities: Sequence[Quantity], pairs: Iterable[LentPair], prices: PriceBook
) -> dict[Lender, Fraction]:
    """lender -> sum of gpu_us x what its borrowers paid per GPU-hour, each at most the reserved rate.

    A borrower's classes may cost differently; its lenders all get its average.
    """
    products: defaultdict[Lender, int] = defaultdict(int)
    borrowed: defaultdict[Lender, int] = defaultdict(int)
    for quantity in quantities:
        if quantity.category == "borrowed" and quantity.gpu_us:
            at = quantity.version_from_ms
            price = prices.price(quantity.pool, "borrowed", quantity.service_class, at) or 0
            reserved = prices.price(quantity.pool, "lent", "", at) or 0
            products[_lender(quantity, prices)] += quantity.gpu_us * min(price, reserved)
            borrowed[_lender(quantity, prices)] += quantity.gpu_us
    earned: defaultdict[Lender, Fraction] = defaultdict(Fraction)
    for pair in pairs:
        stretch_ms = prices.stretch_ms(pair.at_ms)
        borrower = (pair.pool, stretch_ms, pair.borrower)
        if borrowed.get(borrower):
            earned[pair.pool, stretch_ms, pair.lender] += Fraction(
                products[borrower] * pair.gpu_us, borrowed[borrower]
            )
    return dict(earned)
