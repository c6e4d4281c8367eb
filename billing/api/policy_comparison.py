"""`POST policies/compare/`: a month under two policies, side by side; a worker computes it, its address tells."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.actors import actor_of
from billing.api.periods import soon
from billing.api.proposals import usable
from billing.api.term_bodies import PolicyBody
from billing.models import EffectRun, RunState
from billing.services.effects import compared_rows, start_effect
from billing.services.policy_comparison import Compared, ComparisonError, policies_of
from billing.tasks import go_on_comparing
from ledger.access import Access
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.sentences import SentenceRow
from ledger.api.views import LedgerView
from ledger.core.sentences import in_english, is_kept
from ledger.core.units import micro_text
from ledger.models import Period
from ledger.services.masters import ensure_books


class PolicyChange(PolicyBody):
    """What differs from the policy in force at the month's end."""

    valid_from = None  # type: ignore[assignment]
    reason = None  # type: ignore[assignment]


class CompareBody(serializers.Serializer[Any]):
    month = serializers.CharField()
    base = serializers.IntegerField(required=False, help_text="a policy's id; left out: as in force")
    other = serializers.IntegerField(required=False, help_text="a policy's id")
    change = PolicyChange(required=False, help_text="or a policy that is nowhere in force")


class ComparedRow(serializers.Serializer[Any]):
    account = serializers.CharField(help_text="tenant:slug, platform, conversion or suspense")
    base_amount = serializers.CharField()
    other_amount = serializers.CharField()
    difference = serializers.CharField()
    base_preemptions = serializers.CharField(help_text="moved by preemptions, contained in the amount")
    other_preemptions = serializers.CharField()


class ComparisonRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    status_url = serializers.CharField()
    state = serializers.ChoiceField(choices=["running", "done", "failed"])
    problem = serializers.CharField(help_text="code of why there is no result; empty where there is one")
    detail = serializers.CharField(help_text="the same in words")
    detail_code = SentenceRow(allow_null=True)
    month = serializers.CharField()
    currency = serializers.CharField()
    requested_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(
        allow_null=True, help_text="the books are compared as they stood then"
    )
    rows = ComparedRow(many=True, help_text="empty until it is done")
    total = ComparedRow(
        allow_null=True, help_text="over all accounts: who bears a preemption or idle time changes no total"
    )


def _runs_the_ledger(access: Access) -> bool:
    return access.sees_all_tenants


class PoliciesCompareView(LedgerView):
    """A month under two policies side by side. Nothing is posted; the result is kept for 30 days.

    Two whole months are computed, by a worker: the answer is 202 with the address to ask in `Location`. What cannot
    be compared at all is refused at once.
    """

    examples = {"post": {"month": "2026-10", "change": {"preemption_charged_to": "platform"}}}

    allows = staticmethod(_runs_the_ledger)

    @extend_schema(operation_id="policies_compare", request=CompareBody, responses={202: ComparisonRow})
    def post(self, request: Request) -> Response:
        body = body_of(request, CompareBody)
        period = Period.objects.filter(month=body["month"]).first()
        if period is None:
            raise Problem(404, "not_found", "There is no such month.")
        if ("other" in body) == ("change" in body):
            raise Problem(422, "bad_comparison", "Name either 'other' or 'change'.", field="other")
        asked: dict[str, Any] = {name: body[name] for name in ("base", "other", "change") if name in body}
        try:
            with usable():
                policies_of(period, asked)
        except ComparisonError as error:
            if error.code == "unknown_version":
                raise Problem(404, "not_found", f"{str(error).capitalize()}.") from None
            raise Problem(409, error.code, str(error)) from None
        run = start_effect(period, {"policies": asked}, actor_of(request))
        soon(go_on_comparing.delay)
        row = _comparison_row(run, request)
        return Response(row, status=202, headers={"Location": row["status_url"]})


class PolicyComparisonView(LedgerView):
    """A comparison of policies: how far it is, and its result."""

    allows = staticmethod(_runs_the_ledger)

    @extend_schema(operation_id="policies_comparison", responses=ComparisonRow)
    def get(self, request: Request, comparison_id: int) -> Response:
        found = EffectRun.objects.filter(asked__has_key="policies").select_related("period")
        run = found.filter(pk=comparison_id).first() if comparison_id < 2**63 else None
        if run is None:
            raise Http404
        return Response(_comparison_row(run, request))


def _comparison_row(run: EffectRun, request: Request) -> dict[str, Any]:
    rows = compared_rows(run)
    sums = {
        name: sum(getattr(row, name) for row in rows)
        for name in ("base_micro", "other_micro", "base_moved_micro", "other_moved_micro")
    }
    return {
        "id": run.pk,
        "status_url": request.build_absolute_uri(reverse("api-policies-comparison", args=[run.pk])),
        "state": "failed" if run.problem else "running" if run.state == RunState.RUNNING else "done",
        "problem": run.problem,
        "detail": in_english(run.detail),
        "detail_code": run.detail if is_kept(run.detail) else None,
        "month": run.period.month,
        "currency": ensure_books().currency,
        "requested_by": run.requested_by,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "rows": [_compared_row(row) for row in rows],
        "total": _compared_row(Compared("total", **sums)) if rows else None,
    }


def _compared_row(row: Compared) -> dict[str, str]:
    return {
        "account": row.account,
        "base_amount": micro_text(row.base_micro),
        "other_amount": micro_text(row.other_micro),
        "difference": micro_text(row.difference_micro),
        "base_preemptions": micro_text(row.base_moved_micro),
        "other_preemptions": micro_text(row.other_moved_micro),
    }
