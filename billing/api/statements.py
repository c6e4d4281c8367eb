"""`statements/` and what hangs below one; downloads are streamed."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import http_date
from django.utils.translation import get_language, override
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.downloads import (
    AnyAccept,
    checksum_download,
    csv_download,
    file_schema,
    is_for_spreadsheets,
)
from billing.exports.bill import COLUMNS as BILL
from billing.exports.bill import line_row
from billing.exports.files import FORMATS, file_name, statement_file
from billing.exports.statement_pdf import pdf_name, statement_pdf
from billing.models import AnnexName, Statement, StatementState
from billing.selectors import preemption_rows as preemption_export
from billing.selectors.annexes import annex_of, annex_rows
from billing.selectors.borne import Borne, borne_for_others
from billing.selectors.names import Names
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.api.parameters import MONTH
from ledger.api.views import LedgerView, ListView
from ledger.core.currency import minor_places
from ledger.core.units import fixed_decimal, gpu_hours_text, micro_text
from ledger.models import Holder, Tenant


class StatementRow(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    number = serializers.CharField()
    month = serializers.CharField()
    tenant = serializers.CharField()
    state = serializers.ChoiceField(choices=StatementState.choices)
    currency = serializers.CharField()
    informational = serializers.BooleanField(help_text="showback: shown, not billed; on memo accounts")
    total = serializers.CharField(help_text="decimal, as printed")
    total_exact = serializers.CharField(help_text="decimal, to the micro unit")
    totals = serializers.DictField(help_text="GPU time by category and other totals, decimal strings")
    sha256 = serializers.CharField()
    computed_at = serializers.DateTimeField()
    issued_at = serializers.DateTimeField(allow_null=True)


# A line without what its statement already says, but for the hash of the draft that its number is of.
LINE_COLUMNS = tuple(name for name in BILL if name not in {"statement", "month", "tenant"})
StatementLineRow = type(
    "StatementLineRow",
    (serializers.Serializer,),
    {
        name: serializers.IntegerField() if name == "line" else serializers.CharField()
        for name in LINE_COLUMNS
    },
)
PreemptionRow = type(
    "StatementPreemptionRow",
    (serializers.Serializer,),
    {name: serializers.CharField() for name in preemption_export.COLUMNS},
)


def statement_row(statement: Statement) -> dict[str, Any]:
    return {
        "id": str(statement.pk),
        "number": statement.number,
        "month": statement.period_id,
        "tenant": statement.tenant.slug,
        "state": statement.state,
        "currency": statement.currency,
        "informational": bool(getattr(statement, "shown_only", False)),
        "total": fixed_decimal(statement.total_minor, minor_places(statement.currency)),
        "total_exact": micro_text(statement.total_micro),
        "totals": statement.totals,
        "sha256": statement.sha256,
        "computed_at": statement.computed_at,
        "issued_at": statement.issued_at,
    }


def _one(access: Access, statement_id: UUID, *, with_content: bool = False) -> Statement:
    rows = statements_for(access).filter(pk=statement_id)
    statement = (rows.defer(None) if with_content else rows).first()
    if statement is None:
        raise Http404
    return statement


def _cacheable_for_ever(
    response: HttpResponseBase, statement: Statement, form: str, language: str, access: Access
) -> None:
    """An issued statement never changes again; of one that is not issued nothing is promised.

    The tag names the reader too: files name other tenants as their reader may see them.
    """
    if statement.state != StatementState.ISSUED or statement.issued_at is None:
        return
    seen = "all" if access.sees_all_tenants else ",".join(map(str, sorted(access.tenant_ids)))
    form = sha256(f"{form}|{language}|{seen}".encode()).hexdigest()[:16]
    response["ETag"] = f'"{statement.sha256}-{form}"'
    response["Last-Modified"] = http_date(statement.issued_at.timestamp())
    response["Cache-Control"] = "private, max-age=31536000, immutable"


class StatementsView(ListView):
    """Statements, newest month first."""

    parameters = frozenset({"month", "tenant", "state"})

    @extend_schema(
        operation_id="statements_list",
        parameters=[
            OpenApiParameter("month", str, pattern=MONTH, description="such as 2026-10"),
            OpenApiParameter("tenant", str),
            OpenApiParameter("state", str, enum=StatementState.values),
        ],
        responses=StatementRow(many=True),
    )
    def get(self, request: Request) -> Response:
        rows = statements_for(self.access)
        for name, field in (("month", "period"), ("tenant", "tenant__holder__slug"), ("state", "state")):
            wanted = request.query_params.get(name, "")
            if name in request.query_params:
                rows = rows.filter(**{field: wanted})
        return self.page_of(rows, statement_row)


class StatementView(LedgerView):
    """One statement."""

    @extend_schema(operation_id="statements_retrieve", responses=StatementRow)
    def get(self, request: Request, statement_id: UUID) -> Response:
        statement = _one(self.access, statement_id)
        response = Response(statement_row(statement))
        if statement.issued_at is not None:
            response["Last-Modified"] = http_date(statement.issued_at.timestamp())
        return response


class BorneRow(serializers.Serializer[Any]):
    service = serializers.CharField()
    pool = serializers.CharField()
    charged_gpu_us = serializers.CharField(help_text="the service's occupied time that the tenant is charged")
    measured_gpu_us = serializers.CharField(help_text="what basis `measured` would have charged")
    borne_gpu_us = serializers.CharField(help_text="the difference; negative where others bore it")
    borne_gpu_hours = serializers.CharField()
    borne_amount = serializers.CharField(allow_null=True, help_text="at the tenant's own price of that time")


class BorneForOthersView(ListView):
    """What the tenant bears for others in each shared service: its charge less what its measured time would cost."""

    @extend_schema(operation_id="statements_borne_for_others", responses=BorneRow(many=True))
    def get(self, request: Request, statement_id: UUID) -> Response:
        rows = borne_for_others(_one(self.access, statement_id, with_content=True))
        return self.page(lambda offset, limit: rows[offset : offset + limit], _borne_row)


def _borne_row(row: Borne) -> dict[str, Any]:
    return {
        "service": row.service,
        "pool": row.pool,
        "charged_gpu_us": str(row.charged_gpu_us),
        "measured_gpu_us": str(row.measured_gpu_us),
        "borne_gpu_us": str(row.borne_gpu_us),
        "borne_gpu_hours": gpu_hours_text(row.borne_gpu_us),
        "borne_amount": None if row.borne_micro is None else micro_text(row.borne_micro),
    }


class StatementLinesView(ListView):
    """The lines of a statement, as in bill.csv."""

    @extend_schema(operation_id="statements_lines_list", responses=StatementLineRow(many=True))
    def get(self, request: Request, statement_id: UUID) -> Response:
        statement = _one(self.access, statement_id)
        lines = statement.lines.order_by("position")

        def to_row(line: Any) -> dict[str, Any]:
            row = line_row(statement, line)
            return {name: row[name] for name in LINE_COLUMNS}

        return self.page_of(lines, to_row, also=(Statement, Tenant, Holder))


class StatementPreemptionsView(ListView):
    """The preemptions of a statement's month, as in preemptions.csv."""

    @extend_schema(operation_id="statements_preemptions_list", responses=PreemptionRow(many=True))
    def get(self, request: Request, statement_id: UUID) -> Response:
        statement = _one(self.access, statement_id)
        rows = self._rows(statement)
        return self.page(
            lambda offset, limit: rows[offset : offset + limit],
            lambda row: dict(zip(preemption_export.COLUMNS, row, strict=True)),
        )

    def _rows(self, statement: Statement) -> list[tuple[object, ...]]:
        annex = annex_of(statement, AnnexName.PREEMPTIONS, self.access)
        if annex is not None:
            return list(annex_rows(annex))
        names = Names(self.access, at=statement.period.starts_at)
        return list(
            preemption_export.preemption_rows(statement.tenant, statement.period, names, statement.currency)
        )


class _StatementFileView(LedgerView):
    """A file of a statement, streamed."""

    parameters = frozenset({"excel"})
    content_negotiation_class = AnyAccept
    takes_format = False
    file: ClassVar[str]

    def get(self, request: Request, statement_id: UUID) -> StreamingHttpResponse:
        statement = _one(self.access, statement_id)
        excel = is_for_spreadsheets(request)
        response = csv_download(
            statement_file(statement, self.file, self.access, excel=excel), file_name(statement, self.file)
        )
        language = get_language() or settings.LANGUAGE_CODE
        _cacheable_for_ever(response, statement, self.file, language if excel else "", self.access)
        return response


@file_schema("statements_bill_csv")
class BillCsvView(_StatementFileView):
    """`bill.csv`: one row per line, the total last."""

    file = "bill"


@file_schema("statements_usage_csv")
class UsageCsvView(_StatementFileView):
    """`usage.csv`: one row per slot and category, in exact GPU-microseconds."""

    file = "usage"


@file_schema("statements_preemptions_csv")
class PreemptionsCsvView(_StatementFileView):
    """`preemptions.csv`: every preemption as victim and as cause."""

    file = "preemptions"


@file_schema("statements_focus_1_2_csv")
class Focus12CsvView(_StatementFileView):
    """FOCUS 1.2 Cost and Usage of a statement, by the slot."""

    file = "focus-1.2"


@file_schema("statements_focus_1_4_csv")
class Focus14CsvView(_StatementFileView):
    """FOCUS 1.4 Cost and Usage of a statement, by the slot."""

    file = "focus-1.4"


@file_schema("statements_focus_1_4_billing_period_csv")
class FocusBillingPeriodCsvView(_StatementFileView):
    """FOCUS 1.4 Billing Period of a statement's month."""

    file = "focus-1.4-billing-period"


@file_schema("statements_focus_1_4_invoice_detail_csv")
class FocusInvoiceDetailCsvView(_StatementFileView):
    """FOCUS 1.4 Invoice Detail: a statement's lines as printed."""

    file = "focus-1.4-invoice-detail"


class StatementPdfView(LedgerView):
    """The statement as an A4 document, in the language asked for (or else the reader's)."""

    parameters = frozenset({"language"})
    content_negotiation_class = AnyAccept
    takes_format = False

    @extend_schema(
        operation_id="statements_pdf",
        parameters=[OpenApiParameter("language", str, enum=[code for code, _ in settings.LANGUAGES])],
        responses={(200, "application/pdf"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, statement_id: UUID) -> HttpResponse:
        statement = statements_for(self.access).defer(None).filter(pk=statement_id).first()
        if statement is None:
            raise Http404
        language = request.query_params.get("language", get_language() or settings.LANGUAGE_CODE)
        with override(language):
            content = statement_pdf(statement, self.access)
        response = HttpResponse(content, content_type="application/pdf")
        response["Content-Disposition"] = f'attachment; filename="{pdf_name(statement)}"'
        response["Content-Language"] = language
        _cacheable_for_ever(response, statement, "pdf", language, self.access)
        return response


class StatementChecksumView(LedgerView):
    """SHA-256 of a file of a statement, as `sha256sum -c` reads it; for a closed month it is always the same."""

    content_negotiation_class = AnyAccept
    takes_format = False

    @extend_schema(
        operation_id="statements_file_sha256", responses={(200, "text/plain"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, statement_id: UUID, name: str) -> HttpResponse:
        statement = _one(self.access, statement_id)
        if name not in FORMATS:
            raise Http404
        pieces = statement_file(statement, name, self.access)
        return checksum_download(pieces, file_name(statement, name))
