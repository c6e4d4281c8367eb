"""The target of a month: every line of every account, from its slots and terms (domain.md section 8)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import connection

from billing.core.contracts import TokenUse, conversion_lines, token_lines
from billing.core.cost_recovery import cost_difference_lines, distribute_cost
from billing.core.line_text import description
from billing.core.rating import rate_gpu_time
from billing.core.rating_lines import Line, RatingFinding, missing_prices
from billing.models import BillingFinding, MonthLine
from billing.selectors.accounts import Accounts
from billing.selectors.adjustments import credit_lines
from billing.selectors.lines import unpriced_lines
from billing.selectors.quantities import gpu_quantities, lent_pairs, pool_costs, pool_quantities, token_use
from billing.selectors.terms import MonthTerms
from billing.selectors.undated import UndatedTerms
from billing.services.findings import replace_findings
from billing.services.line_columns import columns_of
from billing.services.preemption_lines import preemption_lines
from billing.services.preemption_prices import PreemptionPrices
from billing.sql.months import DELETE_LINES
from ledger.core.periods import Span
from ledger.models import Period, Pool

_BATCH = 2000
RATING_CODES = ("price_missing",)


def rate_month(
    undated: UndatedTerms,
    terms: MonthTerms,
    span: Span,
    accounts: Accounts,
    pools: Collection[str] | None = None,
    preemptions: Collection[UUID] | None = None,
) -> list[Line]:
    """All lines of a month up to the end of `span`, in order of account and key. Reads, writes nothing.

    pools: rate the GPU time of these only. preemptions: of what preemptions move, only these records. What belongs to
    no single one of them is complete all the same.
    """
    of_pools = terms if pools is None else terms.of_pools(pools)
    quantities = gpu_quantities(of_pools, span, accounts)
    idle, capacity = pool_quantities(of_pools, span)
    costs = pool_costs(capacity, terms.costs)
    if undated.recovers_cost_at(span.start_ms):
        lines = distribute_cost(costs, quantities, idle, terms.rating)
    else:
        lines = rate_gpu_time(quantities, idle, lent_pairs(of_pools, span), terms.rating)
        lines += cost_difference_lines(costs, lines)
    lines += _token_lines(terms, span)
    prices = PreemptionPrices(undated, terms.rating.prices)
    lines += preemption_lines(terms, span, accounts, prices, preemptions)
    lines += credit_lines(span.start_ms)
    return sorted(lines, key=lambda line: (line.account, line.key))


def _token_lines(terms: MonthTerms, span: Span) -> list[Line]:
    """Lines of tenants with a token contract, and the conversion account's."""
    if not terms.token_contracts:
        return []
    use_of: defaultdict[str, list[TokenUse]] = defaultdict(list)
    for one in token_use(terms, span):
        use_of[one.account].append(one)
    book = terms.rating.prices
    lines = []
    for account, contract in sorted(terms.token_contracts.items()):
        use = use_of[account]
        cards = {at: book.card_or_empty(at) for at in {span.start_ms, *(one.version_from_ms for one in use)}}
        of_tenant = token_lines(contract, use, cards)
        lines += of_tenant + conversion_lines(of_tenant)
    return lines


@dataclass(frozen=True)
class Changes:
    """What storing lines changed; a line that differs in anything is gone and new."""

    gone: Collection[Line]
    new: Sequence[Line]

    @property
    def accounts(self) -> set[str]:
        return {line.account for line in (*self.gone, *self.new)}


def store_lines(period: Period, lines: Sequence[Line], before: Sequence[Line], accounts: Accounts) -> Changes:
    """Write what differs from the lines stored before, and the findings."""
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    described = [replace(line, description=line.description or description(line)) for line in lines]
    stood, stands = set(before), set(described)
    gone, new = stood - stands, stands - stood
    if gone:
        values: dict[str, Any] = {
            "month": period.month,
            "accounts": [accounts.ids[line.account] for line in gone],
            "keys": [line.key for line in gone],
        }
        with connection.cursor() as cursor:
            cursor.execute(DELETE_LINES, values)
    ordered = sorted(new, key=lambda line: (line.account, line.key))
    rows = [_row(period, line, accounts, pools) for line in ordered]
    MonthLine.objects.bulk_create(rows, batch_size=_BATCH)
    note_missing_prices(period, unpriced_lines(period, accounts))
    return Changes(gone, ordered)


def note_missing_prices(period: Period, lines: Sequence[Line]) -> None:
    """Replace the month's findings of prices that its lines lack."""
    pools = {pool.slug: pool for pool in Pool.objects.all()}
    standing = BillingFinding.objects.filter(month=period.month, code__in=RATING_CODES)
    replace_findings(standing, (_finding(period, found, pools) for found in missing_prices(list(lines))))


def _row(period: Period, line: Line, accounts: Accounts, pools: dict[str, Pool]) -> MonthLine:
    return MonthLine(
        **columns_of(line, pools),
        period=period,
        account_id=accounts.ids[line.account],
        counter_account_id=accounts.ids.get(line.counter_account),
        concerns_id=line.concerns_month or None,
        description=line.description,
    )


def _finding(period: Period, found: RatingFinding, pools: dict[str, Pool]) -> BillingFinding:
    return BillingFinding(
        code=found.code,
        month=period.month,
        pool=pools.get(found.pool),
        subject=f"{found.account} {found.subject}",
        quantity=found.quantity,
        detail={"account": found.account, "category": found.subject},
    )
