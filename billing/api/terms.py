"""Dated terms: `rate-cards/`, `policies/`, `contracts/`, `calibrations/`; `POST` proposes another version."""

from __future__ import annotations

from typing import Any

from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.masters import RowsView
from billing.api.proposals import EndBody, ProposalBody, ProposalRow, end_proposed, proposed
from billing.models import Calibration, Contract, GpuPrice, Policy, PoolCost, RateCard, TokenPrice
from ledger.api.views import LedgerView
from ledger.core.units import micro_text
from ledger.querysets import visible_to


class RateCardRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    gpu_hour = serializers.ListField(child=serializers.DictField())
    token = serializers.ListField(child=serializers.DictField())


class PoolCostRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    pool = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    cost_per_gpu_hour = serializers.CharField(help_text="of capacity, in the ledger's currency")
    recorded_by = serializers.CharField()
    reason = serializers.CharField()


class PolicyRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    preemption_charged_to = serializers.CharField()
    unreserved_idle = serializers.CharField()
    lend_credit = serializers.CharField()
    min_confidence = serializers.CharField()
    undelivered_counts_pending = serializers.BooleanField()
    names_visible = serializers.BooleanField()
    purpose_payers = serializers.DictField()


class CalibrationRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    load_test = serializers.CharField()
    input_gpu_us_per_1k = serializers.CharField()
    cached_input_gpu_us_per_1k = serializers.CharField()
    output_gpu_us_per_1k = serializers.CharField()


class ContractRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    tenant = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    kind = serializers.CharField()
    token_quota = serializers.CharField(allow_null=True)
    committed_tokens = serializers.CharField(allow_null=True)
    overage_price = serializers.CharField(allow_null=True, help_text="per million tokens")
    delay_credit = serializers.CharField(help_text="per GPU-hour")
    on_preemption = serializers.CharField()
    max_delay_seconds = serializers.IntegerField(allow_null=True)
    reserved_idle_ramp = serializers.ListField(child=serializers.IntegerField())
    reserved_throughput = serializers.ListField(child=serializers.DictField())


class _DatedBody(ProposalBody):
    valid_from = serializers.DateTimeField(help_text="RFC 3339 with an offset")


class RateCardBody(_DatedBody):
    """Prices are decimal strings: per GPU-hour by category, per million tokens by kind."""

    name = serializers.CharField()
    gpu_hour = serializers.ListField(child=serializers.DictField(), required=False)
    token = serializers.ListField(child=serializers.DictField(), required=False)


class PoolCostBody(_DatedBody):
    pool = serializers.CharField()
    cost_per_gpu_hour = serializers.CharField(help_text="decimal string; of each GPU-hour of capacity")


class PolicyBody(_DatedBody):
    preemption_charged_to = serializers.ChoiceField(
        choices=["entitlement", "victim", "preemptor", "platform"], required=False
    )
    unreserved_idle = serializers.ChoiceField(choices=["platform", "proportional", "even"], required=False)
    lend_credit = serializers.CharField(required=False, help_text="borrower_paid, or a share such as 0.5")
    min_confidence = serializers.CharField(required=False)
    undelivered_counts_pending = serializers.BooleanField(required=False)
    names_visible = serializers.BooleanField(required=False)
    purpose_payers = serializers.DictField(child=serializers.CharField(), required=False)


class ContractBody(_DatedBody):
    """Begins at a month's start in the billing zone."""

    tenant = serializers.CharField()
    kind = serializers.ChoiceField(choices=["gpu_time", "tokens"], required=False)
    token_quota = serializers.IntegerField(required=False, allow_null=True)
    committed_tokens = serializers.IntegerField(required=False, allow_null=True)
    overage_price = serializers.CharField(required=False, allow_blank=True)
    delay_credit = serializers.CharField(required=False)
    on_preemption = serializers.ChoiceField(choices=["stop", "requeue", "degrade"], required=False)
    max_delay_seconds = serializers.IntegerField(required=False, allow_null=True)
    reserved_idle_ramp = serializers.ListField(child=serializers.IntegerField(), required=False)
    reserved_throughput = serializers.ListField(child=serializers.DictField(), required=False)


class CalibrationBody(_DatedBody):
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    load_test = serializers.CharField(required=False, allow_blank=True)
    input_gpu_us_per_1k = serializers.IntegerField()
    cached_input_gpu_us_per_1k = serializers.IntegerField()
    output_gpu_us_per_1k = serializers.IntegerField()
    concurrency_per_gpu = serializers.CharField(required=False)
    tolerance = serializers.CharField(required=False)


_WAITING = OpenApiExample(
    "waits for a second person",
    {
        "state": "waiting",
        "approval": "5b0c2c58-6a0f-4a1e-9f44-6a4f6f4f9f10",
        "changes": ["+ policy from 2026-12-01T00:00:00+00:00"],
    },
    response_only=True,
)


class RateCardsView(RowsView):
    """Dated price lists."""

    examples = {
        "post": {
            "name": "2027",
            "valid_from": "2026-12-01T00:00:00+08:00",
            "gpu_hour": [{"gpu_model": "H100", "reserved_used": "2", "on_demand": "3.5"}],
            "reason": "new prices",
        }
    }

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[RateCard]:
        return RateCard.objects.prefetch_related(
            Prefetch("gpu_prices", GpuPrice.objects.select_related("pool").order_by("pk")),
            Prefetch("token_prices", TokenPrice.objects.select_related("model").order_by("pk")),
        )

    @extend_schema(operation_id="rate_cards_list", responses=RateCardRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(_rate_card_row)

    @extend_schema(
        operation_id="rate_cards_propose",
        request=RateCardBody,
        responses={202: ProposalRow},
        examples=[_WAITING],
    )
    def post(self, request: Request) -> Response:
        """Propose a price list; it replaces the one before from `valid_from` on."""
        return proposed(request, "rate_card", RateCardBody)


def _rate_card_row(card: RateCard) -> dict[str, Any]:
    return {
        "id": card.pk,
        "name": card.name,
        "valid_from": card.valid_from,
        "ended_at": card.ended_at,
        "gpu_hour": [
            {
                "pool": price.pool.slug if price.pool else None,
                "gpu_model": price.gpu_model or None,
                "category": price.category,
                "service_class": price.get_service_class_display(),
                "price": micro_text(price.price_micro),
            }
            for price in card.gpu_prices.all()
        ],
        "token": [
            {
                "model": price.model.name,
                "kind": price.kind,
                "price_per_million": micro_text(price.price_micro),
            }
            for price in card.token_prices.all()
        ],
    }


class PoolCostsView(RowsView):
    """Dated costs of pools: what a GPU-hour of capacity costs the platform. No tenant sees them."""

    examples = {
        "post": {
            "pool": "bj-h100",
            "cost_per_gpu_hour": "1.25",
            "valid_from": "2026-12-01T00:00:00+08:00",
            "reason": "lease renewed",
        }
    }

    allows = staticmethod(lambda access: access.sees_all_tenants)
    parameters = frozenset({"pool"})
    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[PoolCost]:
        rows = PoolCost.objects.select_related("pool")
        pool = self.request.query_params.get("pool")
        return rows if pool is None else rows.filter(pool__slug=pool.replace("\x00", ""))

    @extend_schema(
        operation_id="pool_costs_list",
        parameters=[OpenApiParameter("pool", str)],
        responses=PoolCostRow(many=True),
    )
    def get(self, request: Request) -> Response:
        return self.respond(_pool_cost_row)

    @extend_schema(
        operation_id="pool_costs_propose",
        request=PoolCostBody,
        responses={202: ProposalRow},
        examples=[_WAITING],
    )
    def post(self, request: Request) -> Response:
        """Propose what a GPU-hour of a pool costs from `valid_from` on."""
        return proposed(request, "pool_cost", PoolCostBody)


def _pool_cost_row(cost: PoolCost) -> dict[str, Any]:
    return {
        "id": cost.pk,
        "pool": cost.pool.slug,
        "valid_from": cost.valid_from,
        "ended_at": cost.ended_at,
        "cost_per_gpu_hour": micro_text(cost.cost_micro_per_gpu_hour),
        "recorded_by": cost.recorded_by,
        "reason": cost.reason,
    }


class EndView(LedgerView):
    """A version that is in force no longer from an instant on; a started version is never edited, only ended."""

    examples = {"post": {"ended_at": "2027-01-01T00:00:00+08:00", "reason": "agreed in November"}}

    table = ""

    @extend_schema(request=EndBody, responses={202: ProposalRow}, examples=[_WAITING])
    def post(self, request: Request, version_id: int) -> Response:
        """Propose the end of this version."""
        return end_proposed(request, self.table, version_id)


class PoliciesView(RowsView):
    """Dated policies: who bears what."""

    examples = {
        "post": {
            "valid_from": "2026-12-01T00:00:00+08:00",
            "preemption_charged_to": "entitlement",
            "reason": "agreed in November",
        }
    }

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[Policy]:
        return Policy.objects.all()

    @extend_schema(operation_id="policies_list", responses=PolicyRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(_policy_row)

    @extend_schema(
        operation_id="policies_propose", request=PolicyBody, responses={202: ProposalRow}, examples=[_WAITING]
    )
    def post(self, request: Request) -> Response:
        """Propose who bears what from `valid_from` on."""
        return proposed(request, "policy", PolicyBody)


def _policy_row(policy: Policy) -> dict[str, Any]:
    return {
        "id": policy.pk,
        "valid_from": policy.valid_from,
        "ended_at": policy.ended_at,
        "preemption_charged_to": policy.preemption_charged_to,
        "unreserved_idle": policy.unreserved_idle,
        "lend_credit": policy.lend_credit,
        "min_confidence": micro_text(policy.min_confidence_ppm),
        "undelivered_counts_pending": policy.undelivered_counts_pending,
        "names_visible": policy.names_visible,
        "purpose_payers": policy.purpose_payers,
    }


class ContractsView(RowsView):
    """Dated contracts; a tenant sees its own."""

    examples = {
        "post": {
            "tenant": "acme",
            "kind": "tokens",
            "token_quota": 1000000000,
            "valid_from": "2026-12-01T00:00:00+08:00",
            "reason": "renewal",
        }
    }

    parameters = frozenset({"tenant"})
    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[Contract]:
        rows = visible_to(Contract.objects.select_related("tenant__holder"), self.access)
        tenant = self.request.query_params.get("tenant")
        return rows if tenant is None else rows.filter(tenant__holder__slug=tenant.replace("\x00", ""))

    @extend_schema(
        operation_id="contracts_list",
        parameters=[OpenApiParameter("tenant", str)],
        responses=ContractRow(many=True),
    )
    def get(self, request: Request) -> Response:
        return self.respond(_contract_row)

    @extend_schema(
        operation_id="contracts_propose",
        request=ContractBody,
        responses={202: ProposalRow},
        examples=[_WAITING],
    )
    def post(self, request: Request) -> Response:
        """Propose what a tenant agrees to from a month's start on."""
        return proposed(request, "contract", ContractBody)


def _contract_row(contract: Contract) -> dict[str, Any]:
    overage = contract.overage_price_micro
    return {
        "id": contract.pk,
        "tenant": contract.tenant.slug,
        "valid_from": contract.valid_from,
        "ended_at": contract.ended_at,
        "kind": contract.kind,
        "token_quota": None if contract.token_quota is None else str(contract.token_quota),
        "committed_tokens": None if contract.committed_tokens is None else str(contract.committed_tokens),
        "overage_price": None if overage is None else micro_text(overage),
        "delay_credit": micro_text(contract.delay_credit_micro_per_gpu_hour),
        "on_preemption": contract.on_preemption,
        "max_delay_seconds": contract.max_delay_s,
        "reserved_idle_ramp": contract.reserved_idle_ramp,
        "reserved_throughput": contract.reserved_throughput,
    }


class CalibrationsView(RowsView):
    """Dated calibrations: GPU time per 1000 tokens."""

    examples = {
        "post": {
            "model": "qwen3-32b",
            "gpu_model": "H100",
            "input_gpu_us_per_1k": 1800,
            "cached_input_gpu_us_per_1k": 90,
            "output_gpu_us_per_1k": 14000,
            "valid_from": "2026-12-01T00:00:00+08:00",
            "reason": "load test of 20 November",
        }
    }

    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[Calibration]:
        return Calibration.objects.select_related("model")

    @extend_schema(operation_id="calibrations_list", responses=CalibrationRow(many=True))
    def get(self, request: Request) -> Response:
        return self.respond(
            lambda calibration: {
                "id": calibration.pk,
                "model": calibration.model.name,
                "gpu_model": calibration.gpu_model,
                "valid_from": calibration.valid_from,
                "ended_at": calibration.ended_at,
                "load_test": calibration.load_test,
                "input_gpu_us_per_1k": str(calibration.input_gpu_us_per_1k),
                "cached_input_gpu_us_per_1k": str(calibration.cached_input_gpu_us_per_1k),
                "output_gpu_us_per_1k": str(calibration.output_gpu_us_per_1k),
            }
        )

    @extend_schema(
        operation_id="calibrations_propose",
        request=CalibrationBody,
        responses={202: ProposalRow},
        examples=[_WAITING],
    )
    def post(self, request: Request) -> Response:
        """Propose what tokens cost in GPU time from `valid_from` on."""
        return proposed(request, "calibration", CalibrationBody)
