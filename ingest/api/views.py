"""`POST events/`, receipts of batches, and the evidence behind a key."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import Http404
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from ingest.api.receiving import count_events, read_body
from ingest.models import Batch, BatchState
from ingest.selectors.batches import batches, booked_events, quarantined
from ingest.services.inbox import accept_batch
from ingest.services.limits import configured_limits
from ingest.tasks import request_booking
from ledger.access import Access
from ledger.api.parameters import SOME_TEXT
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView

MAX_KEY = 200
LINES_SHOWN = 1000


class Accepted(serializers.Serializer[Any]):
    batch = serializers.IntegerField()
    received = serializers.IntegerField()
    status_url = serializers.CharField()


class QuarantinedLine(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    id = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    reason = serializers.CharField()
    detail = serializers.CharField()
    resolution = serializers.CharField()


class BatchRow(serializers.Serializer[Any]):
    batch = serializers.IntegerField()
    state = serializers.CharField()
    door = serializers.CharField()
    submitted_by = serializers.CharField()
    origin = serializers.CharField()
    received_at = serializers.DateTimeField()
    booked_at = serializers.DateTimeField(allow_null=True)
    body_bytes = serializers.IntegerField()
    body_sha256 = serializers.CharField()
    received = serializers.IntegerField(allow_null=True)
    booked = serializers.IntegerField(allow_null=True)
    duplicate = serializers.IntegerField(allow_null=True)
    conflict = serializers.IntegerField(allow_null=True)
    quarantined = serializers.IntegerField(allow_null=True)


class BatchDetail(BatchRow):
    refusal = serializers.CharField()
    lines = QuarantinedLine(many=True)
    lines_truncated = serializers.BooleanField()


class BookedEvent(serializers.Serializer[Any]):
    source = serializers.CharField()  # type: ignore[assignment]
    id = serializers.CharField()
    type = serializers.CharField()
    time = serializers.DateTimeField()
    batch = serializers.IntegerField()
    line = serializers.IntegerField()
    content_hash = serializers.CharField()
    event = serializers.JSONField()
    corrected_by = serializers.ListField(child=serializers.JSONField())


EXAMPLE_EVENT = {
    "specversion": "1.0",
    "id": "occ-91",
    "source": "/clusters/bj-1/kueue",
    "type": "ledger.occupancy.v1",
    "time": "2026-10-03T02:00:00Z",
    "data": {"workload": "wl-7", "tenant": "acme", "pool": "bj-h100", "gpus": 8},
}


def _may_use_events(access: Access) -> bool:
    return access.may_ingest or access.may_read_ingest


class EventsView(ListView):
    """The door for events, and what was booked under a key."""

    parameters = frozenset({"source", "id"})
    examples: ClassVar[dict[str, Any]] = {"post": EXAMPLE_EVENT}
    allows = staticmethod(_may_use_events)

    @extend_schema(
        operation_id="events_create",
        description="One event, an array, or one per line. 202 once the bytes are kept; booking follows, and "
        "what is no event among others goes to quarantine.",
        request={
            "application/cloudevents+json": {"type": "object"},
            "application/cloudevents-batch+json": {"type": "array", "items": {}},
            "application/x-ndjson": {},
        },
        parameters=[
            OpenApiParameter(
                "Idempotency-Key",
                {"type": "string", "pattern": "^[!-~]([ -~]*[!-~])?$", "maxLength": MAX_KEY},
                OpenApiParameter.HEADER,
            )
        ],
        responses={202: Accepted},
    )
    def post(self, request: Request) -> Response:
        if not self.access.may_ingest:
            raise Problem(403, "not_allowed", "Your role may not send events.")
        key = request.META.get("HTTP_IDEMPOTENCY_KEY", "").strip()
        if len(key) > MAX_KEY or not key.isprintable():
            raise Problem(
                400, "bad_idempotency_key", f"Idempotency-Key: at most {MAX_KEY} printable characters."
            )
        bounds = configured_limits()
        body = read_body(request, bounds)
        received = count_events(body, bounds)
        batch, is_new = accept_batch(
            body,
            door="api",
            submitted_by=self.access.name[:150],
            idempotency_key=f"key:{key}" if key else "",
            allowed_sources=self.access.source_ids,
        )
        if is_new:
            request_booking(batch.pk)
        elif batch.received is not None:
            received = batch.received
        url = request.build_absolute_uri(reverse("batch-detail", args=[batch.pk]))
        answer = {"batch": batch.pk, "received": received, "status_url": url}
        return Response(answer, status=202, headers={"Location": url})

    @extend_schema(
        operation_id="events_lookup",
        parameters=[
            OpenApiParameter("source", str, required=True, pattern=SOME_TEXT),
            OpenApiParameter("id", str, required=True, pattern=SOME_TEXT),
        ],
        responses=BookedEvent(many=True),
    )
    def get(self, request: Request) -> Response:
        if not self.access.may_read_ingest:
            raise Problem(403, "not_allowed", "Your role may not read events.")
        for name in ("source", "id"):
            value = request.query_params.get(name, "")
            if not value:
                raise Problem(400, "missing_parameter", f"Give '{name}'.", parameter=name)
        found = list(booked_events(request.query_params["source"], request.query_params["id"]))
        return self.page(
            lambda offset, limit: found[offset : offset + limit], lambda row: BookedEvent(row).data
        )


def _row(batch: Batch) -> dict[str, Any]:
    names = [str(name) for name in BatchRow().fields]
    return {name: batch.pk if name == "batch" else getattr(batch, name) for name in names}


class BatchesView(ListView):
    """What came in, the newest first. A sender's token sees its own."""

    parameters = frozenset({"state"})
    allows = staticmethod(_may_use_events)

    @extend_schema(
        operation_id="batches_list",
        parameters=[OpenApiParameter("state", str, enum=BatchState.values)],
        responses=BatchRow(many=True),
    )
    def get(self, request: Request) -> Response:
        found = visible_batches(self.access).order_by("-pk")
        state = request.query_params.get("state")
        if state is not None:
            found = found.filter(state=state)
        return self.page_of(found, lambda batch: BatchRow(_row(batch)).data, also=())


class BatchView(LedgerView):
    """The receipt of one batch."""

    allows = staticmethod(_may_use_events)

    @extend_schema(operation_id="batches_retrieve", responses=BatchDetail)
    def get(self, request: Request, batch_id: int) -> Response:
        batch = visible_batches(self.access).filter(pk=batch_id).first()
        if batch is None:
            raise Http404
        lines = list(quarantined(batch)[: LINES_SHOWN + 1])
        shown = [
            {
                "line": one.line,
                "id": one.event_id,
                "source": one.source_uri,
                "reason": one.reason,
                "detail": one.detail,
                "resolution": one.resolution,
            }
            for one in lines[:LINES_SHOWN]
        ]
        detail = {"refusal": batch.refusal, "lines": shown, "lines_truncated": len(lines) > LINES_SHOWN}
        return Response(BatchDetail(_row(batch) | detail).data)


def visible_batches(access: Access) -> Any:
    found = batches()
    return found if access.may_read_ingest else found.filter(submitted_by=access.name[:150])
