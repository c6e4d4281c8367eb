"""Which price held when, for every pool, category and service class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from billing.models import RateCard
from ledger.core.periods import Span, to_datetime
from ledger.models import Pool, ServiceClass

# domain.md section 8: what stands in for a price that is not there.
FALLBACK = {
    "reserved_idle": "reserved_used",
    "unreserved_idle": "reserved_idle",
    "borrowed": "on_demand",
    "excess": "on_demand",
    "lent": "reserved_used",
}
PRICED = ("reserved_used", "on_demand", "borrowed", "lent", "reserved_idle", "excess")
_FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PriceSegment:
    """Micro currency units per GPU-hour of (pool, category, class) during [starts_at, ends_at)."""

    pool_id: int
    category: str
    service_class: int
    starts_at: datetime
    ends_at: datetime
    price_micro: int


@dataclass(frozen=True)
class _Card:
    """One version's prices by (pool id or GPU model, category, class)."""

    starts_at: datetime
    prices: dict[tuple[int | str, str, int], int]

    def price(self, pool: Pool, category: str, service_class: int) -> int | None:
        """The pool's price, else its GPU model's; the class's, else the general one; else what stands in."""
        for scope in (pool.pk, pool.gpu_model):
            for klass in dict.fromkeys((service_class, int(ServiceClass.NONE))):
                found = self.prices.get((scope, category, klass))
                if found is not None:
                    return found
        stand_in = FALLBACK.get(category)
        return None if stand_in is None else self.price(pool, stand_in, service_class)


def _cards() -> list[_Card]:
    cards = []
    for card in RateCard.objects.prefetch_related("gpu_prices").order_by("valid_from"):
        prices: dict[tuple[int | str, str, int], int] = {
            (price.pool_id or price.gpu_model, price.category, price.service_class): price.price_micro
            for price in card.gpu_prices.all()
        }
        cards.append(_Card(card.valid_from, prices))
    return cards


def price_segments(window: Span) -> list[PriceSegment]:
    """Every price in force in the window, per pool, priced category and service class. Three queries."""
    return list(_segments(window))


def _segments(window: Span) -> Iterator[PriceSegment]:
    starts_at, ends_at = to_datetime(window.start_ms), to_datetime(window.end_ms)
    cards = _cards()
    pools = list(Pool.objects.all())
    for card, following in zip(cards, [*cards[1:], None], strict=True):
        until = following.starts_at if following else _FOR_EVER
        if until <= starts_at or card.starts_at >= ends_at:
            continue
        for pool in pools:
            for category in PRICED:
                for service_class in ServiceClass.values:
                    price = card.price(pool, category, service_class)
                    if price is not None:
                        yield PriceSegment(pool.pk, category, service_class, card.starts_at, until, price)
