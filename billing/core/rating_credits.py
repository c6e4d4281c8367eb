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

Place = tuple[str, int]
"""(pool, version_from_ms)"""


@dataclass(frozen=True, slots=True)
class LentPair:
    """GPU time that `borrower` ran on the idle reservation of `lender` (holder slugs), in one version of the terms."""

    pool: str
    version_from_ms: int
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
    paid = _paid_by_borrowers(quantities, pairs, prices)
    lines = []
    for quantity in quantities:
        if quantity.category == "lent" and quantity.gpu_us:
            share = credit_share_at(quantity.version_from_ms)
            lines.append(_credit_line(quantity, share, paid, prices))
    return [line for line in lines if line.amount_micro != 0]


def _credit_line(
    quantity: Quantity, share: Fraction | None, paid: dict[tuple[Place, str], Fraction], prices: PriceBook
) -> Line:
    place = (quantity.pool, quantity.version_from_ms)
    reserved = prices.price(quantity.pool, "lent", quantity.service_class, quantity.version_from_ms)
    amount = None
    if reserved is not None:
        in_full, by_policy = quantity.waiting_gpu_us, quantity.gpu_us - quantity.waiting_gpu_us
        if share is None:
            earned = paid.get((place, quantity.holder), Fraction(0)) * by_policy / quantity.gpu_us
        else:
            earned = share * reserved * by_policy
        credit = reserved * in_full + earned
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
) -> dict[tuple[Place, str], Fraction]:
    """(place, lender) -> sum of gpu_us x what its borrowers paid per GPU-hour, each at most the reserved rate.

    A borrower's classes may cost differently; its lenders all get its average.
    """
    products: defaultdict[tuple[Place, str], int] = defaultdict(int)
    borrowed: defaultdict[tuple[Place, str], int] = defaultdict(int)
    for quantity in quantities:
        if quantity.category == "borrowed" and quantity.gpu_us:
            at = quantity.version_from_ms
            price = prices.price(quantity.pool, "borrowed", quantity.service_class, at) or 0
            reserved = prices.price(quantity.pool, "lent", "", at) or 0
            name = ((quantity.pool, at), quantity.holder)
            products[name] += quantity.gpu_us * min(price, reserved)
            borrowed[name] += quantity.gpu_us
    earned: defaultdict[tuple[Place, str], Fraction] = defaultdict(Fraction)
    for pair in pairs:
        place = (pair.pool, pair.version_from_ms)
        total = borrowed.get((place, pair.borrower), 0)
        if total:
            earned[place, pair.lender] += Fraction(products[place, pair.borrower] * pair.gpu_us, total)
    return dict(earned)
