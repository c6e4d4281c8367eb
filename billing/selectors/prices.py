"""Rate cards from the database, and which price held when for every pool, category and service class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from billing.core.rating_prices import PriceBook
from billing.core.rating_prices import RateCard as Card
from billing.models import RateCard
from ledger.core.periods import Span, to_datetime, to_ms
from ledger.models import Pool, ServiceClass

PRICED = ("reserved_used", "on_demand", "borrowed", "lent", "reserved_idle", "excess", "unreserved_idle")
_FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)
_CLASSES = [(choice.value, str(choice.label)) for choice in ServiceClass]


@dataclass(frozen=True)
class PriceSegment:
    """Micro currency units per GPU-hour of (pool, category, class) during [starts_at, ends_at)."""

    pool_id: int
    category: str
    service_class: int
    starts_at: datetime
    ends_at: datetime
    price_micro: int


def price_book() -> PriceBook:
    """All versions of the rate card and the GPU model of every pool. Four queries."""
    cards = RateCard.objects.order_by("valid_from").prefetch_related(
        "gpu_prices__pool", "token_prices__model"
    )
    return PriceBook([_card(card) for card in cards], dict(Pool.objects.values_list("slug", "gpu_model")))


def _card(card: RateCard) -> Card:
    pool_hour: dict[tuple[str, str, str], int] = {}
    model_hour: dict[tuple[str, str, str], int] = {}
    for price in card.gpu_prices.all():
        klass = price.get_service_class_display()
        if price.pool is not None:
            pool_hour[price.pool.slug, price.category, klass] = price.price_micro
        else:
            model_hour[price.gpu_model, price.category, klass] = price.price_micro
    return Card(
        valid_from_ms=to_ms(card.valid_from),
        ended_ms=None if card.ended_at is None else to_ms(card.ended_at),
        pool_hour=pool_hour,
        model_hour=model_hour,
        tokens={(price.model.name, price.kind): price.price_micro for price in card.token_prices.all()},
    )


def price_segments(window: Span) -> list[PriceSegment]:
    """Every price in force in the window, per pool, priced category and service class."""
    return list(_segments(price_book(), window))


def price_parameters(segments: Sequence[PriceSegment]) -> dict[str, list[Any]]:
    """The segments as the arrays that queries unnest into a table of prices."""
    return {
        "price_pool": [segment.pool_id for segment in segments],
        "price_category": [segment.category for segment in segments],
        "price_class": [segment.service_class for segment in segments],
        "price_from": [segment.starts_at for segment in segments],
        "price_to": [segment.ends_at for segment in segments],
        "price_micro": [segment.price_micro for segment in segments],
    }


def _segments(book: PriceBook, window: Span) -> Iterator[PriceSegment]:
    pools = dict(Pool.objects.values_list("slug", "pk"))
    starts_ms = [card.valid_from_ms for card in book.cards]
    # A ledger without a rate card has no segment: the second list is longer then.
    for card, replaced_ms in zip(book.cards, [*starts_ms[1:], None], strict=False):
        ends = [ms for ms in (card.ended_ms, replaced_ms) if ms is not None]
        if card.valid_from_ms >= window.end_ms or (ends and min(ends) <= window.start_ms):
            continue
        starts_at = to_datetime(card.valid_from_ms)
        ends_at = to_datetime(min(ends)) if ends else _FOR_EVER
        for slug, gpu_model in book.gpu_models.items():
            for category in PRICED:
                for value, klass in _CLASSES:
                    price = card.price(slug, gpu_model, category, klass)
                    if price is not None:
                        yield PriceSegment(pools[slug], category, value, starts_at, ends_at, price)
