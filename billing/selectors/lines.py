"""Lines as they are stored, turned back into the core's records."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db.models import Q

from billing.core.rating_lines import Line
from billing.models import MonthLine
from billing.selectors.accounts import Accounts
from ledger.core.periods import to_ms
from ledger.models import Period


def stored_lines(
    period: Period,
    accounts: Accounts,
    pools: Collection[str] | None = None,
    preemptions: Collection[UUID] | None = None,
) -> list[Line]:
    """The month's lines as they were last computed. One query.

    pools: of lines that follow from the slots of one pool alone, and stand while these do, only these pools'.
    preemptions: of lines that a preemption moves, which stand while its record does, only these records'.
    """
    rows = MonthLine.objects.filter(period=period)
    moved = Q(kind="transfer")
    if pools is not None:
        rows = rows.filter(moved | Q(pool="") | Q(concerns__isnull=False) | Q(pool__in=pools))
    if preemptions is not None:
        rows = rows.filter(~moved | Q(preemptions__0__in=[str(one) for one in preemptions]))
    return [_line(row, accounts) for row in rows]


def stored_lines_of(period: Period, accounts: Accounts, names: Collection[str]) -> list[Line]:
    """The lines of some accounts. One query."""
    rows = MonthLine.objects.filter(period=period, account__in=[accounts.ids[name] for name in names])
    return [_line(row, accounts) for row in rows]


def unpriced_lines(period: Period, accounts: Accounts) -> list[Line]:
    """The lines that lack a price. One query."""
    return [
        _line(row, accounts) for row in MonthLine.objects.filter(period=period, amount_micro__isnull=True)
    ]


def _line(row: MonthLine, accounts: Accounts) -> Line:
    # The last four parts of a key: on behalf of whom, the other side, the month concerned, preemptions.
    on_behalf_of, counter_account, concerns_month, _ = row.key.rsplit("|", 4)[1:]
    return Line(
        account=accounts.names[row.account_id],
        kind=row.kind,
        category=row.category,
        quantity=int(row.quantity),
        unit=row.unit,
        version_from_ms=to_ms(row.version_from),
        amount_micro=row.amount_micro,
        unit_price_micro=row.unit_price_micro,
        full_amount_micro=row.full_amount_micro,
        pool=row.pool,
        service=row.service,
        model=row.model,
        service_class=row.service_class,
        purpose=row.purpose,
        service_idle=row.service_idle,
        on_behalf_of=on_behalf_of,
        counter_account=counter_account,
        concerns_month=concerns_month,
        description=row.description,
        preemptions=tuple(row.preemptions),
    )
