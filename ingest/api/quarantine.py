"""`quarantine/`: what waits for a person, trying it again, and settling what shall never be booked."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from ingest.api.questions import MAX_ID, number_parameter, text_parameter
from ingest.api.sources import reads_ingest, refuse_readers
from ingest.models import QuarantinedEvent
from ingest.selectors.quarantine import STATES, quarantine
from ingest.services.retrying import HOPELESS, QuarantineProblem, dismiss_quarantine, send_again
from ingest.tasks import request_booking
from ledger.api.actors import actor_of
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView

MOST_IDS = 10_000


class QuarantineRow(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="of the line in quarantine")
    batch = serializers.IntegerField()
    line = serializers.IntegerField()
    event = serializers.CharField(help_text="id of the event, as far as it could be read")
    source = serializers.CharField()  # type: ignore[assignment]  # the row's, not DRF's
    time = serializers.DateTimeField(allow_null=True)
    counts_at = serializers.DateTimeField(
        help_text="in whose month it blocks the close: its time, else the newest it speaks of, else when it came"
    )
    reason = serializers.CharField()
    detail = serializers.CharField()
    adapter = serializers.CharField(help_text="that refused a native record; empty for an event")
    can_be_retried = serializers.BooleanField()
    resolution = serializers.CharField(help_text="empty while it waits; retried or dismissed")
    resolved_at = serializers.DateTimeField(allow_null=True)
    resolved_by = serializers.CharField()
    retried_in = serializers.IntegerField(allow_null=True)


class _IdsField(serializers.ListField):
    child = serializers.IntegerField(min_value=1, max_value=MAX_ID)


class LinesBody(serializers.Serializer[Any]):
    """Which lines: each field narrows."""

    reasons = serializers.ListField(child=serializers.CharField(), required=False)
    batch = serializers.IntegerField(required=False, min_value=1, max_value=MAX_ID)
    source = serializers.CharField(required=False, help_text="address of the source")  # type: ignore[assignment]
    ids = _IdsField(required=False, allow_empty=False, max_length=MOST_IDS)


class RetryBody(LinesBody): ...


class DismissBody(LinesBody):
    reason = serializers.CharField(allow_blank=True, help_text="why they shall never be booked")


def _chosen(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "reasons": body.get("reasons", ()),
        "batch_id": body.get("batch"),
        "source_uri": body.get("source"),
        "ids": body.get("ids"),
    }


class SentRow(serializers.Serializer[Any]):
    batch = serializers.IntegerField()
    lines = serializers.IntegerField()
    status_url = serializers.CharField()


class RetriedRow(serializers.Serializer[Any]):
    lines = serializers.IntegerField()
    batches = SentRow(many=True)


class DismissedRow(serializers.Serializer[Any]):
    lines = serializers.IntegerField()


class QuarantineView(ListView):
    """Lines that could not be booked, newest first."""

    allows = staticmethod(reads_ingest)
    parameters = frozenset({"reason", "source", "batch", "state"})

    @extend_schema(
        operation_id="quarantine_list",
        parameters=[
            OpenApiParameter("reason", str),
            OpenApiParameter("source", str, description="address of the source"),
            OpenApiParameter("batch", {"type": "integer", "minimum": 0, "maximum": MAX_ID}),
            OpenApiParameter("state", str, enum=STATES, description="`open` is the default"),
        ],
        responses=QuarantineRow(many=True),
    )
    def get(self, request: Request) -> Response:
        state = text_parameter(request, "state") or "open"
        found = quarantine(
            reason=text_parameter(request, "reason") or "",
            source_uri=text_parameter(request, "source"),
            batch_id=number_parameter(request, "batch"),
            state=state,
        )
        return self.page_of(found, _row, also=())


class RetryView(LedgerView):
    """Send lines through the inbox again; a native record goes to its source's adapter again.

    Without a filter, all that can be tried again. Each line is booked at most once; what is still wrong comes back.
    """

    allows = staticmethod(reads_ingest)

    @extend_schema(
        operation_id="quarantine_retry",
        request=RetryBody,
        responses={202: RetriedRow},
        examples=[OpenApiExample("after a pool was added", {"reasons": ["unknown_pool"]}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        refuse_readers(self.access)
        body = body_of(request, RetryBody)
        try:
            sent = send_again(actor_of(request), **_chosen(body))
        except QuarantineProblem as error:
            raise Problem(409, error.code, str(error)) from None
        rows = []
        for one in sent:
            request_booking(one.batch.pk)
            url = request.build_absolute_uri(reverse("batch-detail", args=[one.batch.pk]))
            rows.append({"batch": one.batch.pk, "lines": one.lines, "status_url": url})
        return Response({"lines": sum(one.lines for one in sent), "batches": rows}, status=202)


class DismissView(LedgerView):
    """Settle lines that shall never be booked, such as conflicts, with a reason. Their bytes stay.

    At least one filter is needed: nothing dismisses all that waits.
    """

    examples = {"post": {"ids": [17, 18], "reason": "test events of the vendor"}}

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="quarantine_dismiss", request=DismissBody, responses=DismissedRow)
    def post(self, request: Request) -> Response:
        refuse_readers(self.access)
        body = body_of(request, DismissBody)
        try:
            lines = dismiss_quarantine(actor_of(request), body["reason"], **_chosen(body))
        except QuarantineProblem as error:
            raise Problem(
                409 if error.code == "nothing_to_dismiss" else 422, error.code, str(error)
            ) from None
        return Response({"lines": lines})


def _row(row: QuarantinedEvent) -> dict[str, Any]:
    return {
        "id": row.pk,
        "batch": row.batch_id,
        "line": row.line,
        "event": row.event_id,
        "source": row.source_uri,
        "time": row.occurred_at,
        "counts_at": row.occurred_at or row.attributed_at,
        "reason": row.reason,
        "detail": row.detail,
        "adapter": row.adapter,
        "can_be_retried": row.resolved_at is None and row.reason not in HOPELESS,
        "resolution": row.resolution,
        "resolved_at": row.resolved_at,
        "resolved_by": row.resolved_by,
        "retried_in": row.retried_in_id,
    }
