"""`POST policies/compare/`: a month under two policies, side by side."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.proposals import usable
from billing.api.term_bodies import PolicyBody
from billing.models import Policy
from billing.services.policy_comparison import Compared, ComparisonError, changed_policy, compare_policies
from ledger.api.bodies import body_of
from ledger.api.problems import Problem
from ledger.api.views import LedgerView
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
    month = serializers.CharField()
    currency = serializers.CharField()
    rows = ComparedRow(many=True)
    total = ComparedRow(help_text="over all accounts: who bears a preemption or idle time changes no total")


class PoliciesCompareView(LedgerView):
    """A month under two policies side by side. Nothing is posted, nothing is kept."""

    examples = {"post": {"month": "2026-10", "change": {"preemption_charged_to": "platform"}}}

    allows = staticmethod(lambda access: access.sees_all_tenants)

    @extend_schema(operation_id="policies_compare", request=CompareBody, responses=ComparisonRow)
    def post(self, request: Request) -> Response:
        body = body_of(request, CompareBody)
        period = Period.objects.filter(month=body["month"].replace("\x00", "")).first()
        if period is None:
            raise Problem(404, "not_found", "There is no such month.")
        if ("other" in body) == ("change" in body):
            raise Problem(422, "bad_comparison", "Name either 'other' or 'change'.", field="other")
        base = _policy(body["base"]) if "base" in body else None
        other = _policy(body["other"]) if "other" in body else _changed_policy(period, dict(body["change"]))
        try:
            rows = compare_policies(period, base, other)
        except ComparisonError as error:
            raise Problem(409, error.code, str(error)) from None
        total = Compared(
            "total",
            *(
                sum(getattr(row, name) for row in rows)
                for name in ("base_micro", "other_micro", "base_moved_micro", "other_moved_micro")
            ),
        )
        return Response(
            {
                "month": period.month,
                "currency": ensure_books().currency,
                "rows": [_compared_row(row) for row in rows],
                "total": _compared_row(total),
            }
        )


def _policy(pk: int) -> Policy:
    policy = Policy.objects.filter(pk=pk).first() if pk < 2**63 else None
    if policy is None:
        raise Problem(404, "not_found", f"There is no policy {pk}.")
    return policy


def _changed_policy(period: Period, change: dict[str, Any]) -> Policy:
    """The policy in force at the month's end with what differs, checked like one of the declarative file."""
    with usable():
        return changed_policy(period, change)


def _compared_row(row: Compared) -> dict[str, str]:
    return {
        "account": row.account,
        "base_amount": micro_text(row.base_micro),
        "other_amount": micro_text(row.other_micro),
        "difference": micro_text(row.difference_micro),
        "base_preemptions": micro_text(row.base_moved_micro),
        "other_preemptions": micro_text(row.other_moved_micro),
    }
