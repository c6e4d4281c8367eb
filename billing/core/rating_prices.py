"""Rate cards: which price is in force for a category, a class and a pool (domain.md section 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# What stands in for a price that the card does not name.
FALLBACK = {
    "reserved_idle": "reserved_used",
    "unreserved_idle": "reserved_idle",
    "borrowed": "on_demand",
    "excess": "on_demand",
    # lent is charged at the reserved rate; undelivered is what the tenant would have paid for leaving it idle.
    "lent": "reserved_used",
    "undelivered": "reserved_idle",
}
UNCLASSED = ""


@dataclass(frozen=True, slots=True)
class RateCard:
    """One version, in force from valid_from_ms until the next version or ended_ms.

    pool_hour, model_hour: (pool slug or GPU model, category, class or "") -> micro units per GPU-hour. tokens: (model,
    kind) -> micro units per million tokens.
    """

    valid_from_ms: int
    ended_ms: int | None = None
    pool_hour: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    model_hour: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    tokens: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def price(self, pool: str, gpu_model: str, category: str, service_class: str = UNCLASSED) -> int | None:
        """The pool's price, else its GPU model's; the class's, else the general one; else what stands in."""
        for prices, scope in ((self.pool_hour, pool), (self.model_hour, gpu_model)):
            for klass in (service_class, UNCLASSED):
                found = prices.get((scope, category, klass))
                if found is not None:
                    return found
        stand_in = FALLBACK.get(category)
        return None if stand_in is None else self.price(pool, gpu_model, stand_in, service_class)


@dataclass(frozen=True)
class PriceBook:
    """All versions of the rate card in order of valid_from, and the GPU model of each pool."""

    cards: Sequence[RateCard]
    gpu_models: Mapping[str, str]

    def card_at(self, instant_ms: int) -> RateCard | None:
        """The latest version with valid_from at or before the instant, unless it was ended."""
        card = next((card for card in reversed(self.cards) if card.valid_from_ms <= instant_ms), None)
        ended = card is not None and card.ended_ms is not None and card.ended_ms <= instant_ms
        return None if ended else card

    def stretch_ms(self, instant_ms: int) -> int:
        """Start of the stretch of constant prices that holds the instant; the same for all instants of it."""
        cuts = [cut for card in self.cards for cut in (card.valid_from_ms, card.ended_ms) if cut is not None]
        return max((cut for cut in cuts if cut <= instant_ms), default=-1)

    def card_or_empty(self, instant_ms: int) -> RateCard:
        """The card in force, or one without any price."""
        return self.card_at(instant_ms) or RateCard(instant_ms)

    def price(self, pool: str, category: str, service_class: str, instant_ms: int) -> int | None:
        card = self.card_at(instant_ms)
        return None if card is None else card.price(pool, self.gpu_models[pool], category, service_class)

    def prices(self, pool: str, service_class: str, instant_ms: int) -> dict[str, int | None]:
        """category -> price of the categories a workload can be in."""
        occupied = ("reserved_used", "on_demand", "borrowed", "excess")
        return {category: self.price(pool, category, service_class, instant_ms) for category in occupied}
