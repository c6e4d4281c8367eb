"""What dated terms look like over the API: rows as they are listed, bodies as they are proposed."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from billing.api.proposals import ProposalBody
from billing.core.configuration import GPU_CATEGORIES, MAX_TOKENS_PER_MINUTE, TOKEN_KINDS
from ledger.api.bodies import TextOfForm
from ledger.api.parameters import PRICE

SERVICE_KEYS = ["gpu_seconds", "tokens", "concurrency", "shares"]
SERVICE_BASES = ["spread", "measured"]
_CLASSES = ["guaranteed", "preemptible"]


class GpuPriceRow(serializers.Serializer[Any]):
    pool = serializers.CharField(allow_null=True)
    gpu_model = serializers.CharField(
        allow_null=True, help_text="for pools of it that have no price of their own"
    )
    category = serializers.ChoiceField(choices=GPU_CATEGORIES)
    service_class = serializers.ChoiceField(choices=["", *_CLASSES], help_text="empty: of either class")
    price = serializers.CharField(help_text="per GPU-hour")


class TokenPriceRow(serializers.Serializer[Any]):
    model = serializers.CharField()
    kind = serializers.ChoiceField(choices=TOKEN_KINDS)
    price_per_million = serializers.CharField()


class RateCardRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    gpu_hour = GpuPriceRow(many=True)
    token = TokenPriceRow(many=True)


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


class ServicePolicyRow(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    service = serializers.CharField()
    valid_from = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    key = serializers.ChoiceField(choices=SERVICE_KEYS)
    service_basis = serializers.ChoiceField(choices=SERVICE_BASES)
    shares = serializers.DictField(
        child=serializers.IntegerField(), help_text="of tenants that you may see, for the key 'shares'"
    )
    recorded_by = serializers.CharField()
    reason = serializers.CharField()


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


class ThroughputRow(serializers.Serializer[Any]):
    """Tokens per minute of a model that the contract reserves GPUs of a pool for; cached tokens count as input."""

    model = serializers.CharField()
    pool = serializers.CharField()
    input_tokens_per_minute = serializers.IntegerField()
    output_tokens_per_minute = serializers.IntegerField()


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
    reserved_throughput = ThroughputRow(many=True)


class _DatedBody(ProposalBody):
    valid_from = serializers.DateTimeField(help_text="RFC 3339 with an offset")


class _PriceField(serializers.CharField):
    """A decimal string; left out or empty: no price of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, allow_blank=True, **kwargs)


class GpuHourBody(serializers.Serializer[Any]):
    """Prices per GPU-hour by category, for a pool or for a GPU model."""

    pool = serializers.CharField(required=False, allow_blank=True)
    gpu_model = serializers.CharField(required=False, allow_blank=True)
    service_class = serializers.ChoiceField(choices=_CLASSES, required=False, allow_blank=True)
    reserved_used = _PriceField()
    reserved_idle = _PriceField(help_text="else as reserved_used")
    on_demand = _PriceField()
    borrowed = _PriceField(help_text="else as on_demand")
    excess = _PriceField(help_text="else as on_demand")
    unreserved_idle = _PriceField(help_text="else as reserved_idle")


class TokenPricesBody(serializers.Serializer[Any]):
    """Prices per million tokens of a model, by kind."""

    model = serializers.CharField()
    input = _PriceField()
    cached_input = _PriceField()
    output = _PriceField()
    reasoning = _PriceField()


class RateCardBody(_DatedBody):
    """Prices are decimal strings: per GPU-hour by category, per million tokens by kind."""

    name = serializers.CharField()
    gpu_hour = GpuHourBody(many=True, required=False)
    token = TokenPricesBody(many=True, required=False)


class PoolCostBody(_DatedBody):
    pool = serializers.CharField()
    cost_per_gpu_hour = TextOfForm(PRICE, help_text="decimal string; of each GPU-hour of capacity")


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


def _rate() -> serializers.IntegerField:
    return serializers.IntegerField(required=False, min_value=0, max_value=MAX_TOKENS_PER_MINUTE)


class ThroughputBody(serializers.Serializer[Any]):
    """Tokens per minute that the contract reserves GPUs of a pool for; cached tokens count as input."""

    model = serializers.CharField()
    pool = serializers.CharField()
    input_tokens_per_minute = _rate()
    output_tokens_per_minute = _rate()


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
    reserved_throughput = ThroughputBody(many=True, required=False)


class CalibrationBody(_DatedBody):
    model = serializers.CharField()
    gpu_model = serializers.CharField()
    load_test = serializers.CharField(required=False, allow_blank=True)
    input_gpu_us_per_1k = serializers.IntegerField()
    cached_input_gpu_us_per_1k = serializers.IntegerField()
    output_gpu_us_per_1k = serializers.IntegerField()
    concurrency_per_gpu = serializers.CharField(required=False)
    tolerance = serializers.CharField(required=False)
