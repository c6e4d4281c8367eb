"""`GET calibrations/deviation/` and `POST calibrations/accept/`: do tokens still cost what the contracts say?"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of, is_finance
from billing.api.allocations import WINDOW
from billing.api.proposals import ProposalRow, answer, usable
from billing.api.questions import window_of
from billing.selectors.calibration import DayOfModel, Proposal, deviations, refit_proposals
from billing.selectors.periods import ledger_and_now
from billing.services.recalibration import accept_refit
from ledger.api.bodies import TextOfForm, body_of
from ledger.api.parameters import WINDOW as WINDOW_FORM
from ledger.api.problems import Problem
from ledger.api.views import LedgerView, ListView
from ledger.core.units import micro_text
from ledger.core.windows import BadWindow, parse_window


class DeviationRow(serializers.Serializer[Any]):
    day = serializers.DateField(help_text="in the billing time zone")
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    input_tokens = serializers.CharField()
    cached_input_tokens = serializers.CharField(help_text="part of input_tokens")
    output_tokens = serializers.CharField()
    measured_gpu_us = serializers.CharField()
    predicted_gpu_us = serializers.CharField(allow_null=True, help_text="null: no calibration in force")
    deviation = serializers.CharField(allow_null=True, help_text="(measured - predicted) / predicted")
    tolerance = serializers.CharField(allow_null=True)
    beyond_tolerance = serializers.BooleanField(allow_null=True)
    calibrated_from = serializers.DateTimeField(allow_null=True)


class RefitRow(serializers.Serializer[Any]):
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    input_gpu_us_per_1k = serializers.CharField()
    cached_input_gpu_us_per_1k = serializers.CharField()
    output_gpu_us_per_1k = serializers.CharField()
    residual_gpu_us = serializers.CharField(help_text="root mean square over the days")
    days = serializers.IntegerField()
    days_beyond_tolerance = serializers.IntegerField()


class AcceptBody(serializers.Serializer[Any]):
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    window = TextOfForm(WINDOW_FORM, help_text="the days it is fitted over, such as 2026-10")
    valid_from = serializers.DateTimeField(help_text="RFC 3339 with an offset")
    reason = serializers.CharField()


def _sees_books(access: Any) -> bool:
    return bool(access.sees_all_tenants)


class DeviationsView(ListView):
    """Predicted against measured GPU time per day, of hours whose requests stated both tokens and GPU time."""

    allows = staticmethod(_sees_books)
    parameters = frozenset({"window", "model", "gpu_model"})

    @extend_schema(
        operation_id="calibrations_deviation",
        parameters=[WINDOW, OpenApiParameter("model", str), OpenApiParameter("gpu_model", str)],
        responses=DeviationRow(many=True),
    )
    def get(self, request: Request) -> Response:
        rows = deviations(window_of(request, *ledger_and_now()))
        for name in ("model", "gpu_model"):
            wanted = request.query_params.get(name)
            if wanted is not None:
                rows = [row for row in rows if getattr(row, name) == wanted]
        return self.page(lambda offset, limit: rows[offset : offset + limit], _deviation_row)


def _deviation_row(day: DayOfModel) -> dict[str, Any]:
    found, ppm = day.deviation, day.deviation.ppm if day.deviation else None
    return {
        "day": day.day,
        "model": day.model,
        "gpu_model": day.gpu_model,
        "input_tokens": str(day.seen.input_tokens),
        "cached_input_tokens": str(day.seen.cached_input_tokens),
        "output_tokens": str(day.seen.output_tokens),
        "measured_gpu_us": str(day.seen.measured_gpu_us),
        "predicted_gpu_us": None if found is None else str(found.predicted_gpu_us),
        "deviation": None if ppm is None else micro_text(ppm),
        "tolerance": None if day.cost is None else micro_text(day.cost.tolerance_ppm),
        "beyond_tolerance": None if found is None else found.beyond_tolerance,
        "calibrated_from": day.calibrated_from,
    }


class RefitsView(ListView):
    """Least-squares re-fits of models that deviate beyond their tolerance in the window, or have no calibration."""

    allows = staticmethod(_sees_books)
    parameters = frozenset({"window"})

    @extend_schema(operation_id="calibrations_refits", parameters=[WINDOW], responses=RefitRow(many=True))
    def get(self, request: Request) -> Response:
        rows = refit_proposals(deviations(window_of(request, *ledger_and_now())))
        return self.page(lambda offset, limit: rows[offset : offset + limit], _refit_row)


def _refit_row(proposal: Proposal) -> dict[str, Any]:
    cost = proposal.fitted.cost
    return {
        "model": proposal.model,
        "gpu_model": proposal.gpu_model,
        "input_gpu_us_per_1k": str(cost.input_gpu_us_per_1k),
        "cached_input_gpu_us_per_1k": str(cost.cached_input_gpu_us_per_1k),
        "output_gpu_us_per_1k": str(cost.output_gpu_us_per_1k),
        "residual_gpu_us": str(proposal.fitted.residual_gpu_us),
        "days": proposal.fitted.observations,
        "days_beyond_tolerance": proposal.days_beyond,
    }


class AcceptRefitView(LedgerView):
    """Accept a re-fit as a new dated calibration: another person in finance approves it."""

    examples = {
        "post": {
            "model": "qwen3-32b",
            "gpu_model": "H100",
            "window": "2026-10",
            "valid_from": "2026-12-01T00:00:00+08:00",
            "reason": "drift since the new engine",
        }
    }

    allows = staticmethod(is_finance)

    @extend_schema(operation_id="calibrations_accept", request=AcceptBody, responses={202: ProposalRow})
    def post(self, request: Request) -> Response:
        body = body_of(request, AcceptBody)
        ledger, now_ms = ledger_and_now()
        try:
            window = parse_window(body["window"], ledger.billing_time_zone, now_ms)
        except BadWindow as error:
            raise Problem(422, "bad_window", str(error), field="window") from None
        wanted = (body["model"], body["gpu_model"])
        proposals = [
            one for one in refit_proposals(deviations(window)) if (one.model, one.gpu_model) == wanted
        ]
        if not proposals:
            raise Problem(409, "no_refit", "Nothing is proposed for this model and GPU model in that window.")
        valid_from = body["valid_from"].isoformat()
        with usable():
            made = accept_refit(proposals[0], valid_from, body["window"], body["reason"], actor_of(request))
        return answer(*made)
