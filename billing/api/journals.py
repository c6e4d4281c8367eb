"""`periods/{month}/journal.csv` and `journal.beancount`: a month's transfers for other books."""

from __future__ import annotations

from typing import ClassVar

from django.http import Http404, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request

from billing.api.downloads import AnyAccept, file_schema, is_for_spreadsheets
from billing.exports.journal import journal
from ledger.api.views import LedgerView
from ledger.models import Period


class _JournalView(LedgerView):
    """Every transfer posted in the month, whatever month it concerns."""

    content_negotiation_class = AnyAccept
    takes_format = False
    allows = staticmethod(lambda access: access.sees_all_tenants)
    form: ClassVar[str]
    content_type: ClassVar[str]

    def get(self, request: Request, month: str) -> StreamingHttpResponse:
        period = Period.objects.filter(month=month).first()
        if period is None:
            raise Http404
        pieces = journal(period, self.form, excel=is_for_spreadsheets(request))
        response = StreamingHttpResponse(pieces, content_type=self.content_type)
        response["Content-Disposition"] = f'attachment; filename="journal-{period.month}.{self.form}"'
        return response


@file_schema("periods_journal_csv")
class JournalCsvView(_JournalView):
    """`journal.csv`: one row per transfer."""

    parameters = frozenset({"excel"})
    form, content_type = "csv", "text/csv; charset=utf-8"


@extend_schema_view(
    get=extend_schema(
        operation_id="periods_journal_beancount", responses={(200, "text/plain"): OpenApiTypes.BINARY}
    )
)
class JournalBeancountView(_JournalView):
    """`journal.beancount`: the same as transactions that bean-check accepts."""

    form, content_type = "beancount", "text/plain; charset=utf-8"
