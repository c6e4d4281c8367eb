"""`periods/{month}/focus-1.2.csv` and its neighbours: one file for all statements of a month that the asker sees."""

from __future__ import annotations

from typing import ClassVar

from django.http import Http404, HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from billing.api.downloads import (
    AnyAccept,
    checksum_download,
    csv_download,
    file_schema,
    is_for_spreadsheets,
)
from billing.exports.bills import bills_zip
from billing.exports.files import MONTH_FORMATS, month_file, month_file_name
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.api.views import LedgerView
from ledger.models import Period


def _period(month: str, access: Access) -> Period:
    """The month; to a tenant only those that it has a statement of exist."""
    period = Period.objects.filter(month=month).first()
    if period is None or not (access.sees_all_tenants or statements_for(access).filter(period=period)):
        raise Http404
    return period


class _MonthFileView(LedgerView):
    """A file of a month, streamed. A tenant's has its own statements alone."""

    parameters = frozenset({"excel"})
    content_negotiation_class = AnyAccept
    takes_format = False
    file: ClassVar[str]

    def get(self, request: Request, month: str) -> StreamingHttpResponse:
        period = _period(month, self.access)
        excel = is_for_spreadsheets(request)
        pieces = month_file(period, self.file, self.access, excel=excel)
        return csv_download(pieces, month_file_name(period, self.file))


@file_schema("periods_focus_1_2_csv")
class MonthFocus12CsvView(_MonthFileView):
    """FOCUS 1.2 Cost and Usage of a month."""

    file = "focus-1.2"


@file_schema("periods_focus_1_4_csv")
class MonthFocus14CsvView(_MonthFileView):
    """FOCUS 1.4 Cost and Usage of a month."""

    file = "focus-1.4"


@file_schema("periods_focus_1_4_billing_period_csv")
class MonthFocusBillingPeriodCsvView(_MonthFileView):
    """FOCUS 1.4 Billing Period of a month."""

    file = "focus-1.4-billing-period"


@file_schema("periods_focus_1_4_invoice_detail_csv")
class MonthFocusInvoiceDetailCsvView(_MonthFileView):
    """FOCUS 1.4 Invoice Detail of a month: every line of every statement."""

    file = "focus-1.4-invoice-detail"


class MonthChecksumView(LedgerView):
    """SHA-256 of a file of a month, as `sha256sum -c` reads it; for a closed month it is always the same."""

    content_negotiation_class = AnyAccept
    takes_format = False

    @extend_schema(operation_id="periods_file_sha256", responses={(200, "text/plain"): OpenApiTypes.BINARY})
    def get(self, request: Request, month: str, name: str) -> HttpResponse:
        period = _period(month, self.access)
        if name not in MONTH_FORMATS:
            raise Http404
        return checksum_download(month_file(period, name, self.access), month_file_name(period, name))


class BillsZipView(LedgerView):
    """Bill, usage and preemptions of every tenant of a month, with a manifest of their hashes; for finance and
    auditors. A closed month's archive is the same bytes each time."""

    content_negotiation_class = AnyAccept
    takes_format = False
    allows = staticmethod(lambda access: access.is_finance or "auditor" in access.roles)

    @extend_schema(
        operation_id="periods_bills_zip", responses={(200, "application/zip"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, month: str) -> StreamingHttpResponse:
        period = _period(month, self.access)
        response = StreamingHttpResponse(bills_zip(period, self.access), content_type="application/zip")
        response["Content-Disposition"] = f'attachment; filename="{period.month}-bills.zip"'
        return response
