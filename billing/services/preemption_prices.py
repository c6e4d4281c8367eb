"""At what prices preempted time moves between accounts (domain.md section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from django.db import connection

from billing.core.preemption_charges import Price
from billing.core.rating_prices import PriceBook
from billing.selectors.quantities import pool_costs, pool_quantities
from billing.selectors.terms import month_terms, price_book
from billing.selectors.undated import UndatedTerms, undated_terms
from billing.sql.months import WEIGHED
from ledger.core.periods import Month, to_datetime
from ledger.models import Ledger, Pool

OCCUPIED = ("reserved_used", "on_demand", "borrowed", "excess")


@dataclass
class PreemptionPrices:
    """The rate card's prices, or in a month of cost recovery what a GPU-hour of the pool came to in it."""

    undated: UndatedTerms
    book: PriceBook
    derived: dict[Month, dict[str, Fraction]] = field(default_factory=dict)

    @classmethod
    def load(cls, ledger: Ledger) -> PreemptionPrices:
        return cls(undated_terms(ledger), price_book(Pool.objects.all()))

    def at(self, pool: str, instant_ms: int, service_class: str = "") -> Mapping[str, Price]:
        """category -> price at an instant; what a GPU-hour of the pool came to is the same for every class."""
        if not self.undated.recovers_cost_at(instant_ms):
            return self.book.prices(pool, service_class, instant_ms)
        price = self._of_month(Month.containing(instant_ms, self.undated.zone)).get(pool)
        return dict.fromkeys(OCCUPIED, price)

    def _of_month(self, month: Month) -> dict[str, Fraction]:
        if month not in self.derived:
            span = month.span(self.undated.zone)
            terms = month_terms(month, self.undated.zone)
            costs = pool_costs(pool_quantities(terms, span)[1], terms.costs)
            with connection.cursor() as cursor:
                cursor.execute(WEIGHED, {"from": to_datetime(span.start_ms), "to": to_datetime(span.end_ms)})
                weighed = {pool: int(gpu_us) for pool, gpu_us in cursor.fetchall() if gpu_us}
            self.derived[month] = {
                pool: Fraction(
                    sum(
                        cost.price_micro_per_gpu_hour * cost.capacity_gpu_us
                        for cost in costs
                        if cost.pool == pool
                    ),
                    gpu_us,
                )
                for pool, gpu_us in weighed.items()
                if any(cost.pool == pool for cost in costs)
            }
        return self.derived[month]
