"""Reads of what is posted in one month and concerns another, and of credits as lines (domain.md section 10)."""

from __future__ import annotations

from django.db import connection

from billing.core.adjustments import Moved, adjustment_lines
from billing.core.rating_lines import MONEY, Line, tenant_account
from billing.models import Credit, CreditKind
from billing.selectors.accounts import Accounts
from billing.sql.months import POSTED_FOR_OTHERS
from ledger.core.periods import to_datetime, to_ms
from ledger.models import Period, Unit

CREDIT_CATEGORIES = {CreditKind.GOODWILL: "goodwill", CreditKind.DISPUTE: "dispute_adjustment"}


def adjustments_in(period: Period, accounts: Accounts) -> list[Line]:
    """The adjustment lines of a month: what is posted in it for other months. One query."""
    with connection.cursor() as cursor:
        cursor.execute(POSTED_FOR_OTHERS, {"month": period.month})
        rows = cursor.fetchall()
    return adjustment_lines(
        Moved(
            concerns, key, str(Unit(unit).label), accounts.names[debit], accounts.names[credit], int(quantity)
        )
        for concerns, key, unit, debit, credit, quantity in rows
    )


def credit_lines(month_starts_ms: int) -> list[Line]:
    """Credits that concern the month, as part of its target. One query."""
    credits = Credit.objects.filter(concerns__starts_at=to_datetime(month_starts_ms))
    return [credit_line(credit) for credit in credits.select_related("tenant__holder")]


def credit_line(credit: Credit) -> Line:
    """The tenant owes less, the platform bears it. The instant it was granted sets it apart from other credits."""
    return Line(
        account=tenant_account(credit.tenant.slug),
        kind="credit",
        category=CREDIT_CATEGORIES[CreditKind(credit.kind)],
        quantity=-credit.amount_micro,
        unit=MONEY,
        version_from_ms=to_ms(credit.granted_at),
        amount_micro=-credit.amount_micro,
        description=credit.reason,
    )
