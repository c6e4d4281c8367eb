"""Dated terms: `rate-cards/`, `policies/`, `contracts/`, `calibrations/`; `POST` proposes another version.

`service-policies/` are proposed with their service, at `services/`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.masters import RowsView
from billing.api.proposals import EndBody, ProposalRow, end_proposed, proposed
from billing.api.term_bodies import (
    CalibrationBody,
    CalibrationRow,
    ContractBody,
    ContractRow,
    PolicyBody,
    PolicyRow,
    PoolCostBody,
    PoolCostRow,
    RateCardBody,
    RateCardRow,
    ServicePolicyRow,
)
from billing.models import (
    Calibration,
    Contract,
    GpuPrice,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
    TokenPrice,
)
from ledger.api.views import LedgerView
from ledger.core.units import micro_text
from ledger.models import Tenant
from ledger.querysets import visible_to

_WAITING = OpenApiExample(
    "waits for a second person",
    {
        "state": "waiting",
        "approval": "5b0c2c58-6a0f-4a1e-9f44-6a4f6f4f9f10",
        "changes": ["+ policy from 2026-12-01T00:00:00+00:00"],
        "changes_codes": [
            {
                "code": "version_added",
                "values": {"what": {"code": "the_policy", "values": {}}, "at": "2026-12-01T00:00:00+00:00"},
            }
        ],
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
        return rows if pool is None else rows.filter(pool__slug=pool)

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


class ServicePoliciesView(RowsView):
    """Dated rules by which the time of shared services is divided; another one is proposed at `services/`.

    Who recorded one, and why, is for those who run the ledger; a tenant sees its own share only.
    """

    parameters = frozenset({"service"})
    orderings = frozenset({"valid_from"})
    default_ordering = "-valid_from"

    def rows(self) -> QuerySet[ServicePolicy]:
        rows = ServicePolicy.objects.select_related("service__holder")
        service = self.request.query_params.get("service")
        return rows if service is None else rows.filter(service__holder__slug=service)

    @extend_schema(
        operation_id="service_policies_list",
        parameters=[OpenApiParameter("service", str)],
        responses=ServicePolicyRow(many=True),
    )
    def get(self, request: Request) -> Response:
        seen = visible_to(Tenant.objects.all(), self.access).values_list("holder__slug", flat=True)
        return self.respond(partial(_service_policy_row, frozenset(seen), self.access.sees_all_tenants))


def _service_policy_row(seen: frozenset[str], runs: bool, policy: ServicePolicy) -> dict[str, Any]:
    return {
        "id": policy.pk,
        "service": policy.service.holder.slug,
        "valid_from": policy.valid_from,
        "ended_at": policy.ended_at,
        "key": policy.key,
        "service_basis": policy.basis,
        "shares": {slug: int(share) for slug, share in policy.shares.items() if slug in seen},
        "recorded_by": policy.recorded_by if runs else "",
        "reason": policy.reason if runs else "",
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
        return rows if tenant is None else rows.filter(tenant__holder__slug=tenant)

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
