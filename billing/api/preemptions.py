"""`GET preemptions/`, one of them, and the matrix preemptor x victim."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.allocations import WINDOW
from billing.api.questions import filters_of, window_of
from billing.models import PreemptionRecord
from billing.selectors.names import Names
from billing.selectors.periods import ledger_and_now
from billing.selectors.preemption_rows import CAUSE, COLUMNS, VICTIM, Borne, causes_of, record_row
from billing.selectors.preemptions import matrix
from billing.selectors.statements import preemption_records
from ledger.access import Access
from ledger.api.views import LedgerView, ListView
from ledger.core.periods import to_datetime
from ledger.core.units import gpu_hours_text, milli_gpus_text
from ledger.models import Ledger

FILTERS = ("pool", "cause", "victim", "preemptor", "preemptor_source", "disposition")
_LOOKUPS = {"pool": "pool__slug", "victim": "victim__slug", "preemptor": "preemptor__slug"}

PreemptionOfList = type(
    "PreemptionRow",
    (serializers.Serializer,),
    {"id": serializers.UUIDField()} | {name: serializers.CharField() for name in COLUMNS},
)
PreemptionDetail = type(
    "PreemptionDetail",
    (PreemptionOfList,),
    {
        "events": serializers.ListField(
            child=serializers.JSONField(), help_text="what it was booked from, for those who run the ledger"
        )
    },
)


class MatrixRow(serializers.Serializer[Any]):
    preemptor = serializers.CharField()
    victim = serializers.CharField()
    preemptions = serializers.IntegerField()
    gpus = serializers.CharField()
    requeued_gpu_hours = serializers.CharField()
    requeued_gpu_us = serializers.CharField()
    waiting_gpu_us = serializers.CharField()


class PreemptionsView(ListView):
    """Who preempted whom, newest first. A tenant sees those that hit it and those that it caused.

    As one CSV of more than 2000 rows it has no `ETag`: its amounts and names follow prices, policies and the month.
    """

    parameters = frozenset({"window", *FILTERS})

    @extend_schema(
        operation_id="preemptions_list",
        parameters=[WINDOW, *[OpenApiParameter(name, str) for name in FILTERS]],
        responses=PreemptionOfList(many=True),
    )
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        rows = preemption_records(self.access).filter(
            decided_at__gte=to_datetime(window.start_ms), decided_at__lt=to_datetime(window.end_ms)
        )
        names = Names(self.access, at=to_datetime(window.start_ms))
        for name, values in filters_of(request, FILTERS).items():
            if name in ("victim", "preemptor") and not self.access.sees_all_tenants:
                # By what the rows say: to find by another's slug would tell whether it exists. Aliases hold commas.
                said = {*values, ",".join(values)}
                rows = rows.filter(**{f"{name}__in": names.shown_where(said.__contains__)})
                continue
            rows = rows.filter(**{f"{_LOOKUPS.get(name, name)}__in": values})
        borne = Borne(self.access.tenant_ids, to_datetime(window.start_ms), to_datetime(window.end_ms))
        return self.page_of(
            rows,
            lambda record: preemption_row(record, names, self.access, ledger, borne),
        )


def preemption_row(
    record: PreemptionRecord, names: Names, access: Access, ledger: Ledger, borne: Borne
) -> dict[str, Any]:
    """A record as its asker sees it: a tenant gets its own share and what it bears of it."""
    hit = [share.account.tenant_id for share in record.shares.all()]
    role, tenant = VICTIM, None
    if not access.sees_all_tenants:
        of_role = [pk for pk in hit if pk in access.tenant_ids]
        if not of_role:
            role, of_role = CAUSE, sorted(access.tenant_ids.intersection(filter(None, causes_of(record))))
        tenant = next(iter(of_role), None)
    row = record_row(record, role, names, ledger.currency, tenant=tenant, borne=borne)
    return {"id": str(record.pk), **{column: row[column] for column in COLUMNS}}


class PreemptionView(LedgerView):
    """One preemption with its source events."""

    @extend_schema(operation_id="preemptions_retrieve", responses=PreemptionDetail)
    def get(self, request: Request, preemption_id: UUID) -> Response:
        ledger, _ = ledger_and_now()
        record = preemption_records(self.access).filter(pk=preemption_id).first()
        if record is None:
            raise Http404
        names = Names(self.access, at=record.decided_at)
        borne = Borne(
            self.access.tenant_ids, record.decided_at, record.decided_at + timedelta(milliseconds=1)
        )
        row = preemption_row(record, names, self.access, ledger, borne)
        events = record.events if self.access.may_read_ingest else []
        return Response({**row, "events": events})


class PreemptionMatrixView(ListView):
    """Preemptor x victim over a window."""

    parameters = frozenset({"window"})

    @extend_schema(operation_id="preemptions_matrix", parameters=[WINDOW], responses=MatrixRow(many=True))
    def get(self, request: Request) -> Response:
        ledger, now_ms = ledger_and_now()
        window = window_of(request, ledger, now_ms)
        names = Names(self.access, at=to_datetime(window.start_ms))
        cells = matrix(preemption_records(self.access), window)
        rows = [
            {
                "preemptor": names.shown(cell.preemptor_id),
                "victim": names.shown(cell.victim_id),
                "preemptions": cell.preemptions,
                "gpus": milli_gpus_text(cell.milli_gpus),
                "requeued_gpu_hours": gpu_hours_text(cell.requeued_gpu_us),
                "requeued_gpu_us": str(cell.requeued_gpu_us),
                "waiting_gpu_us": str(cell.waiting_gpu_us),
            }
            for cell in cells
        ]
        # By what is shown: an order of aliases by the names behind them would tell something of these.
        rows.sort(key=lambda row: tuple(map(str, row.values())))
        return self.page(lambda offset, limit: rows[offset : offset + limit], lambda row: row)
