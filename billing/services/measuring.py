"""What a month's lines are rated from: its preemptions and its slots, in the order that each needs the other (domain.md
sections 2 to 6). The same for an open month and for a closed one that later facts are about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from billing.selectors.accounts import Accounts, accounts
from billing.selectors.terms import MonthTerms, month_terms
from billing.selectors.undated import UndatedTerms, undated_terms
from billing.services.allocation import Computed, compute_allocation, computed_up_to
from billing.services.preemption_lines import price_again
from billing.services.preemption_prices import PreemptionPrices
from billing.services.preemptions import Rebuilt, rebuild_preemptions, share_rebuilt
from ledger.core.periods import Month, Span, to_ms
from ledger.models import Ledger, Period, Pool


@dataclass(frozen=True)
class Measured:
    """span: the month up to where it is computed. rebuilt: preemptions that were measured again; allocation: slots
    that were computed again. recovers_cost: whether the month's prices follow from its cost."""

    span: Span
    terms: MonthTerms
    books: Accounts
    undated: UndatedTerms
    rebuilt: Rebuilt
    allocation: Computed
    recovers_cost: bool


def measure_month(
    ledger: Ledger,
    period: Period,
    asked: datetime,
    *,
    pool: Pool | None = None,
    everything: bool = False,
    closed_too: bool = False,
) -> Measured:
    """Bring preemption records and slots up to date with the facts; arguments as `compute_allocation` takes them.

    Preemptions come first, since work that waits makes idle reservations undelivered; they are shared out once there
    are slots, by which a shared service is; where a GPU-hour costs what the month came to, they are priced last.
    """
    month = Month.parse(period.month)
    span = Span(to_ms(period.starts_at), computed_up_to(period, asked))
    terms, books, undated = month_terms(month, ledger.billing_time_zone), accounts(), undated_terms(ledger)
    rebuilt = rebuild_preemptions(span, terms, books, undated, everything=everything)
    computed = compute_allocation(month, pool, asked, everything=everything, closed_too=closed_too)
    prices = PreemptionPrices(undated, terms.rating.prices)
    share_rebuilt(rebuilt, terms, books, prices)
    recovers_cost = undated.recovers_cost_at(span.start_ms)
    if recovers_cost:
        price_again(terms, span, books, prices)
    return Measured(span, terms, books, undated, rebuilt, computed, recovers_cost)
