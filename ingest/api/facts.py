"""`GET facts/`: the evidence itself."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from ingest.api.questions import fact_question
from ingest.selectors.facts import KINDS, NAMED, facts
from ledger.api.parameters import WINDOW
from ledger.api.views import ListView


class FactRow(serializers.Serializer[Any]):
    kind = serializers.CharField()
    time = serializers.DateTimeField(help_text="from when it holds, or when it happened")
    ends_at = serializers.DateTimeField(allow_null=True, help_text="of a reservation that ends by itself")
    pool = serializers.CharField()
    subject = serializers.CharField(help_text="workload, reservation, or request")
    attempt = serializers.IntegerField(allow_null=True)
    holder = serializers.CharField(help_text="kind:value, as the fact names it; of a preemption its victim")
    other = serializers.CharField(help_text="of a preemption, its preemptor")
    gpus = serializers.CharField(allow_null=True)
    gpu_us = serializers.CharField(allow_null=True, help_text="GPU time stated, in microseconds")
    input_tokens = serializers.IntegerField(allow_null=True)
    output_tokens = serializers.IntegerField(allow_null=True)
    requests = serializers.IntegerField(allow_null=True)
    detail = serializers.DictField()
    source = serializers.CharField()  # type: ignore[assignment]  # the row's, not DRF's
    id = serializers.CharField()
    batch = serializers.IntegerField()
    line = serializers.IntegerField()


class FactsView(ListView):
    """Facts as they were booked, oldest first, each with the event and the batch line that it came from.

    A tenant sees the levels of its own holdings. Corrected facts are listed too: nothing is ever taken away.
    """

    parameters = frozenset({"kind", "pool", "tenant", "window"})

    @extend_schema(
        operation_id="facts_list",
        parameters=[
            OpenApiParameter("kind", str, enum=KINDS, description="`level`, the default, is all levels"),
            OpenApiParameter("pool", str),
            OpenApiParameter("tenant", str, description="by slug, or by what maps to it at that time"),
            OpenApiParameter(
                "window",
                str,
                pattern=WINDOW,
                description="facts that begin in it; `2026-10`, `today`, `last7d`, or `start,end`. "
                "Required for `request` and `usage`",
            ),
        ],
        responses=FactRow(many=True),
    )
    def get(self, request: Request) -> Response:
        found = facts(fact_question(request, self.access), self.access)
        return self.page_of(found.rows, found.to_row, also=NAMED)
