"""The two small datasets of FOCUS 1.4: Billing Period and Invoice Detail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from billing.core.focus import charge_category, decimal, detail_id, instant
from billing.core.focus_columns import BILLING_PERIOD, INVOICE_DETAIL
from billing.models import Statement, StatementState
from billing.selectors.focus_lines import billed_lines, invoice_of
from ledger.core.periods import to_ms
from ledger.core.units import MS_PER_SECOND
from ledger.models import Period, PeriodState

PAYABLE = "Internal chargeback"
INFORMATIONAL = "For information, not payable"


def billing_period_rows(statements: Iterable[Statement]) -> Iterator[tuple[object, ...]]:
    """One row per month and issuer."""
    seen: set[tuple[str, str]] = set()
    for statement in statements:
        invoice, period = invoice_of(statement), statement.period
        if (period.month, invoice.issuer) in seen:
            continue
        seen.add((period.month, invoice.issuer))
        row = {
            "BillingPeriodCreated": instant(invoice.starts_ms),
            "BillingPeriodStart": instant(invoice.starts_ms),
            "BillingPeriodEnd": instant(invoice.ends_ms),
            "BillingPeriodLastUpdated": _text(_last_updated(period)),
            "BillingPeriodStatus": "Closed" if period.state == PeriodState.CLOSED else "Open",
            "InvoiceIssuerName": invoice.issuer,
        }
        yield tuple(row[column] for column in BILLING_PERIOD)


def _last_updated(period: Period) -> datetime:
    return max(period.starts_at, period.closed_at or period.computed_at or period.starts_at)


def invoice_detail_rows(statements: Iterable[Statement]) -> Iterator[tuple[object, ...]]:
    """One row per statement line, as printed: to the minor unit, in the order of the bill."""
    for statement in statements:
        invoice = invoice_of(statement)
        issued = statement.state == StatementState.ISSUED
        since = _text(statement.issued_at if issued and statement.issued_at else statement.computed_at)
        for line in billed_lines(statement):
            concerned = f"{line.concerns_month}-{invoice.tenant}" if line.concerns_month else invoice.number
            row = {
                "BilledCost": decimal(line.billed_micro or 0, 6),
                "BillingAccountId": invoice.issuer,
                "BillingCurrency": invoice.currency,
                "BillingPeriodStart": instant(invoice.starts_ms),
                "BillingPeriodEnd": instant(invoice.ends_ms),
                "ChargeCategory": charge_category(line.category),
                "InvoiceDetailCreated": since,
                "InvoiceDetailLastUpdated": since,
                "InvoiceDetailDescription": line.description,
                "InvoiceDetailGrain": f'{{"SubAccountId":"{invoice.tenant}","x_LineNumber":{line.position}}}',
                "InvoiceDetailId": detail_id(invoice, line.position),
                "InvoiceId": invoice.number,
                "InvoiceIssueDate": since if issued else "",
                "InvoiceIssueStatus": "Issued" if issued else "Open",
                "InvoiceIssuerName": invoice.issuer,
                "PaymentTerms": INFORMATIONAL if _is_informational(statement) else PAYABLE,
                "ReferenceInvoiceId": concerned,
            }
            yield tuple(row.get(column, "") for column in INVOICE_DETAIL)


def _is_informational(statement: Statement) -> bool:
    return bool(getattr(statement, "said_informational", False))


def _text(at: datetime) -> str:
    """Whole seconds, as everything in a FOCUS file."""
    return instant(to_ms(at) // MS_PER_SECOND * MS_PER_SECOND)
