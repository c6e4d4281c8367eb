"""`sources/`: how far each source is, what is wrong with it, and what people say about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from ingest.api.questions import InstantField, source_or_404
from ingest.selectors.sources import Gap, SourceRow, gaps_of, known_sources, source_rows
from ingest.services.silence import end_holders
from ledger.access import Access
from ledger.api.actors import actor_of
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.units import milli_gpus_text
from ledger.models import Source
from ledger.selectors.silence import OpenHolder
from ledger.services.sources import SourceProblem, sign_off_source, waive_silence


class GapRow(serializers.Serializer[Any]):
    code = serializers.CharField()
    subject = serializers.CharField()
    detail = serializers.CharField()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True)


class SourceListRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField(allow_null=True)
    adapter = serializers.CharField()
    uri = serializers.CharField()
    cluster = serializers.CharField()
    watermark_at = serializers.DateTimeField(allow_null=True, help_text="greatest event time booked")
    complete_until = serializers.DateTimeField(allow_null=True, help_text="signed off up to here")
    silence_after_seconds = serializers.IntegerField(allow_null=True)
    is_silent = serializers.BooleanField()
    heard_at = serializers.DateTimeField(allow_null=True, help_text="only while silent")
    open_holders = serializers.IntegerField(
        help_text="workloads that hold GPUs by its last word, while silent"
    )
    waived_until = serializers.DateTimeField(allow_null=True)
    waived_because = serializers.CharField(allow_null=True)
    last_collected_at = serializers.DateTimeField(allow_null=True)
    last_problem = serializers.CharField()
    gaps = serializers.IntegerField()
    newest_gap = GapRow(allow_null=True)
    batches = serializers.IntegerField(help_text="that its collector brought")
    quarantined = serializers.IntegerField(help_text="lines of its events that wait for a person")
    retired_at = serializers.DateTimeField(allow_null=True)


class HolderRow(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="pool/workload, for end-holders")
    pool = serializers.CharField()
    workload = serializers.CharField()
    attempt = serializers.IntegerField()
    holder = serializers.CharField()
    gpus = serializers.CharField()
    starts_at = serializers.DateTimeField()


class SourceDetail(SourceListRow):
    newest_gaps = GapRow(many=True)
    holders = HolderRow(many=True)


class CompleteUntilBody(serializers.Serializer[Any]):
    complete_until = InstantField(allow_null=True, help_text="RFC 3339; null takes the word back")
    reason = serializers.CharField(allow_blank=True)
    move_back = serializers.BooleanField(default=False, help_text="an earlier instant, or null, is meant")


class WaiveBody(serializers.Serializer[Any]):
    until = InstantField(required=False, help_text="RFC 3339; left out: now")
    reason = serializers.CharField(allow_blank=True)


class EndHoldersBody(serializers.Serializer[Any]):
    ends_at = InstantField(help_text="RFC 3339; from when they hold nothing")
    holders = serializers.ListField(child=serializers.CharField(), required=False, help_text="left out: all")
    reason = serializers.CharField(allow_blank=True)


class EndedRow(serializers.Serializer[Any]):
    batch = serializers.IntegerField()
    booked = serializers.IntegerField()
    still_open = serializers.IntegerField()


def reads_ingest(access: Access) -> bool:
    return access.may_read_ingest


@contextmanager
def source_problems() -> Iterator[None]:
    """What a service refuses: 422 for what was said, 409 for what is the case."""
    try:
        yield
    except SourceProblem as error:
        status = 422 if error.code in ("no_reason", "bad_instant", "unknown_holder") else 409
        raise Problem(status, error.code, str(error)) from None


def refuse_readers(access: Access) -> None:
    if not access.may_tend_sources:
        raise Problem(403, "not_allowed", "Platform and finance may do this; your role may only read.")


class SourcesView(ListView):
    """Every source that ever delivered or is configured; those in use first."""

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="sources_list", responses=SourceListRow(many=True))
    def get(self, request: Request) -> Response:
        found = known_sources()
        return self.page(lambda offset, limit: source_rows(found[offset : offset + limit]), _row)


class SourceView(LedgerView):
    """One source with its newest gaps and, while it is silent, who holds GPUs by its last word."""

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="sources_retrieve", responses=SourceDetail)
    def get(self, request: Request, name: str) -> Response:
        return Response(_detail(source_or_404(name)))


class CompleteUntilView(LedgerView):
    """Sign a source off: everything of it up to an instant has arrived, whatever its newest event says."""

    allows = staticmethod(reads_ingest)

    @extend_schema(
        operation_id="sources_complete_until",
        request=CompleteUntilBody,
        responses=SourceDetail,
        examples=[
            OpenApiExample(
                "a quiet source",
                {
                    "complete_until": "2026-11-01T00:00:00Z",
                    "reason": "drained for maintenance since 30 October",
                },
                request_only=True,
            )
        ],
    )
    def post(self, request: Request, name: str) -> Response:
        source = source_or_404(name)
        refuse_readers(self.access)
        body = body_of(request, CompleteUntilBody)
        with source_problems():
            sign_off_source(
                source.pk,
                body["complete_until"],
                body["reason"],
                actor_of(request),
                move_back=body["move_back"],
            )
        return Response(_detail(source_or_404(name)))


class WaiveSilenceView(LedgerView):
    """Answer for a silent source up to an instant. Its levels stay as they are."""

    examples = {"post": {"until": "2026-11-01T00:00:00Z", "reason": "its cluster was switched off"}}

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="sources_waive_silence", request=WaiveBody, responses=SourceDetail)
    def post(self, request: Request, name: str) -> Response:
        source = source_or_404(name)
        refuse_readers(self.access)
        body = body_of(request, WaiveBody)
        with source_problems():
            waive_silence(source.pk, body.get("until") or timezone.now(), body["reason"], actor_of(request))
        return Response(_detail(source_or_404(name)))


class EndHoldersView(LedgerView):
    """Book that workloads of a silent source hold nothing from an instant on: a fact, by a person's word."""

    examples = {
        "post": {
            "ends_at": "2026-10-30T08:00:00Z",
            "holders": ["bj-h100/wl-7"],
            "reason": "the cluster was switched off",
        }
    }

    allows = staticmethod(reads_ingest)

    @extend_schema(operation_id="sources_end_holders", request=EndHoldersBody, responses={201: EndedRow})
    def post(self, request: Request, name: str) -> Response:
        source = source_or_404(name)
        refuse_readers(self.access)
        body = body_of(request, EndHoldersBody)
        with source_problems():
            receipt = end_holders(
                source.pk, body.get("holders"), body["ends_at"], body["reason"], actor_of(request)
            )
        silent = source_rows([source_or_404(name)])[0].silent
        still_open = len(silent.holders) if silent is not None else 0
        row = {"batch": receipt.batch, "booked": receipt.booked, "still_open": still_open}
        return Response(row, status=201)


def _row(row: SourceRow) -> dict[str, Any]:
    source, silent = row.source, row.silent
    return {
        "id": source.pk,
        "name": source.name,
        "adapter": source.adapter,
        "uri": source.uri,
        "cluster": row.cluster,
        "watermark_at": source.watermark_at,
        "complete_until": source.complete_until,
        "silence_after_seconds": source.silence_after_s,
        "is_silent": silent is not None,
        "heard_at": silent.heard_at if silent is not None else None,
        "open_holders": len(silent.holders) if silent is not None else 0,
        "waived_until": getattr(source, "waived_until", None),
        "waived_because": getattr(source, "waived_because", None),
        "last_collected_at": row.last_collected_at,
        "last_problem": row.last_problem,
        "gaps": row.gaps,
        "newest_gap": None if row.newest_gap is None else _gap(row.newest_gap),
        "batches": row.batches,
        "quarantined": row.quarantined,
        "retired_at": source.retired_at,
    }


def _detail(source: Source) -> dict[str, Any]:
    (row,) = source_rows([source])
    holders = row.silent.holders if row.silent is not None else ()
    return _row(row) | {
        "newest_gaps": [_gap(gap) for gap in gaps_of(source)],
        "holders": [_holder(holder) for holder in holders],
    }


def _gap(gap: Gap) -> dict[str, Any]:
    return {name: getattr(gap, name) for name in ("code", "subject", "detail", "starts_at", "ends_at")}


def _holder(holder: OpenHolder) -> dict[str, Any]:
    names = ("key", "pool", "workload", "attempt", "holder", "starts_at")
    return {name: getattr(holder, name) for name in names} | {"gpus": milli_gpus_text(holder.milli_gpus)}
