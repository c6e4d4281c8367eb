"""A statement's lines as FOCUS charges: what each column says, in strings (sources: FOCUS 1.2 and 1.4).

One line becomes one charge per slot where its GPU time is known by the slot, else one charge for its stretch of the
month. What a line costs is its printed amount, so that the charges of an invoice add up to its total to the minor
unit. ListCost and ContractedCost are the printed price times the printed quantity, exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from billing.core.focus_columns import FOCUS_1_2
from billing.core.rating_lines import GPU_US, TOKENS
from ledger.core.units import (
    GPU_HOUR_PLACES,
    GPU_US_PER_GPU_HOUR,
    MICRO_PER_UNIT,
    MS_PER_SECOND,
    fixed_decimal,
    round_half_even,
)

Row = dict[str, str]

USAGE, CREDIT, ADJUSTMENT = "Usage", "Credit", "Adjustment"
USED, UNUSED = "Used", "Unused"
DEFAULT_ISSUER = "GPU platform"

# What became of a reservation; the Unused ones consume nothing, whoever ran there meanwhile.
RESERVATION_STATUS = {
    "reserved_used": USED,
    "lent": UNUSED,
    "reserved_idle": UNUSED,
    "undelivered": UNUSED,
    "oversold": UNUSED,
}
_CREDITS = frozenset({"lend_credit", "delay_credit", "goodwill", "dispute_adjustment"})
_MOVED_BY_PREEMPTIONS = "preemption_"
_PRICING = {"borrowed": "Dynamic", "unreserved_idle": "Other", "committed_unused": "Other"}
# Each id is one documented method (docs/files.md).
SPLIT_BY_SERVICE = "shared-service"
SPLIT_OF_IDLE = "unreserved-idle"
_LEAST_PLACES = 6  # a whole number is a decimal to readers only with decimals
_TOKEN_PLACES = 6  # quantities of tokens are priced by the million
_PRICE_PLACES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """What all charges of a statement share. issuer: the organisation that runs the platform."""

    number: str
    tenant: str
    tenant_name: str
    issuer: str
    currency: str
    starts_ms: int
    ends_ms: int
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledLine:
    """A printed line. billed_micro: its printed amount; None where a price is missing (drafts only).

    quantity: in `unit`. percent: how much of the price is charged while reserved_idle charges ramp up.
    """

    position: int
    kind: str
    category: str
    quantity: int
    unit: str
    version_from_ms: int
    unit_price_micro: int | None
    billed_micro: int | None
    percent: int = 100
    pool: str = ""
    cluster: str = ""
    gpu_model: str = ""
    service: str = ""
    model: str = ""
    service_class: str = ""
    purpose: str = ""
    service_idle: bool = False
    description: str = ""
    concerns_month: str = ""
    preemptions: tuple[str, ...] = ()

    @property
    def is_correction(self) -> bool:
        """Whether it changes what an earlier, closed month said."""
        return bool(self.concerns_month)

    @property
    def is_of_slots(self) -> bool:
        """Whether its GPU time is known by the slot: held or reserved by this tenant in this month."""
        return self.kind in ("usage", "shared") and self.unit == GPU_US and self.category != "unreserved_idle"


def charge_category(category: str) -> str:
    if category in _CREDITS:
        return CREDIT
    return ADJUSTMENT if category.startswith(_MOVED_BY_PREEMPTIONS) else USAGE


def detail_id(invoice: Invoice, position: int) -> str:
    """Names a line of an invoice; the same in Cost and Usage and in Invoice Detail."""
    return f"{invoice.number}/{position}"


@lru_cache(maxsize=4096)
def instant(ms: int) -> str:
    """UTC, whole seconds: what FOCUS calls Date/Time."""
    whole = datetime.fromtimestamp(ms // MS_PER_SECOND, UTC)
    return whole.strftime("%Y-%m-%dT%H:%M:%SZ")


def decimal(scaled: int, places: int) -> str:
    """Exact, without trailing zeros beyond six decimals."""
    if places < _LEAST_PLACES:
        scaled, places = scaled * 10 ** (_LEAST_PLACES - places), _LEAST_PLACES
    text = fixed_decimal(scaled, places)
    keep = len(text) - (places - _LEAST_PLACES)
    return text[:keep] + text[keep:].rstrip("0")


def gpu_hours(gpu_us: int) -> str:
    return decimal(_scaled(gpu_us, GPU_US), GPU_HOUR_PLACES)


def _scaled(quantity: int, unit: str) -> int:
    if unit == GPU_US:
        return round_half_even(quantity * 10**GPU_HOUR_PLACES, GPU_US_PER_GPU_HOUR)
    return quantity


def _places(unit: str) -> int:
    return GPU_HOUR_PLACES if unit == GPU_US else _TOKEN_PLACES


def line_columns(line: BilledLine, invoice: Invoice, version: str) -> Row:
    """The columns that all charges of a line share."""
    row = _invoice_columns(invoice)
    row |= {
        "ChargeCategory": charge_category(line.category),
        "ChargeClass": "Correction" if line.is_correction else "",
        "ChargeDescription": line.description,
        "ChargeFrequency": "Usage-Based" if charge_category(line.category) == USAGE else "One-Time",
        "InvoiceDetailId": detail_id(invoice, line.position),
        "x_Category": line.category,
        "x_ConcernsMonth": line.concerns_month,
        "x_LineNumber": str(line.position),
        "x_Pool": line.pool,
        "x_PreemptionId": " ".join(line.preemptions),
        "x_Purpose": line.purpose,
        "x_ServiceClass": line.service_class,
        **_place_columns(line),
        **_service_columns(line),
    }
    if row["ChargeCategory"] == USAGE:
        row |= {**_resource_columns(line, invoice), **_split_columns(line, invoice), **_sku_columns(line)}
        row |= _unit_columns(line, version)
    return row


def invoice_columns(invoice: Invoice) -> Row:
    """The columns of a charge that belongs to no line: what a preemption did, which cost this tenant nothing."""
    return {
        **_invoice_columns(invoice),
        **_service_columns(None),
        "ChargeCategory": ADJUSTMENT,
        "ChargeFrequency": "One-Time",
    }


def _invoice_columns(invoice: Invoice) -> Row:
    return {
        "BillingAccountId": invoice.issuer,
        "BillingAccountName": invoice.issuer,
        "BillingAccountType": "Organization",
        "BillingCurrency": invoice.currency,
        "BillingPeriodStart": instant(invoice.starts_ms),
        "BillingPeriodEnd": instant(invoice.ends_ms),
        "HostProviderName": invoice.issuer,
        "InvoiceId": invoice.number,
        "InvoiceIssuerName": invoice.issuer,
        "PricingCurrency": invoice.currency,
        "ProviderName": invoice.issuer,
        "PublisherName": invoice.issuer,
        "ServiceProviderName": invoice.issuer,
        "SubAccountId": invoice.tenant,
        "SubAccountName": invoice.tenant_name,
        "SubAccountType": "Tenant",
        "Tags": _json(invoice.tags) if invoice.tags else "",
    }


def _place_columns(line: BilledLine) -> Row:
    return {"RegionId": line.cluster, "RegionName": line.cluster}


def _service_columns(line: BilledLine | None) -> Row:
    if line is not None and (line.service or line.unit == TOKENS):
        name = line.service or line.model or "Inference"
        return {
            "ServiceCategory": "AI and Machine Learning",
            "ServiceSubcategory": "Generative AI",
            "ServiceName": name,
        }
    return {
        "ServiceCategory": "Compute",
        "ServiceSubcategory": "Other (Compute)",
        "ServiceName": "GPU capacity",
    }


def _resource_columns(line: BilledLine, invoice: Invoice) -> Row:
    """What was held: a reservation, a service, a model's tokens, or GPUs of a pool."""
    reserved = f"{line.pool}/{line.service or invoice.tenant}"
    status = RESERVATION_STATUS.get(line.category, "")
    row = {"CapacityReservationId": reserved if status else "", "CapacityReservationStatus": status}
    if status == UNUSED:
        resource, kind = reserved, "GPU reservation"
    elif line.service:
        resource, kind = line.service, "Inference service"
    elif line.model:
        resource, kind = line.model, "Inference model"
    else:
        resource, kind = line.pool, "GPU pool"
    if resource:
        row |= {"ResourceId": resource, "ResourceName": resource, "ResourceType": kind}
    return row


def _split_columns(line: BilledLine, invoice: Invoice) -> Row:
    """Charges that are a tenant's part of something shared (1.3 and later)."""
    method = ""
    if line.category == "unreserved_idle":
        method = SPLIT_OF_IDLE
    elif line.service and not line.service_idle and RESERVATION_STATUS.get(line.category) != UNUSED:
        method = SPLIT_BY_SERVICE
    if not method:
        return {}
    return {
        "AllocatedMethodId": method,
        "AllocatedResourceId": invoice.tenant,
        "AllocatedResourceName": invoice.tenant_name,
    }


def _sku_columns(line: BilledLine) -> Row:
    """The price list's line. Without one price there is no SkuPriceId, and a correction has none."""
    what = line.gpu_model or line.model
    row = {"SkuId": f"{what}/{line.category}", "SkuMeter": line.category.replace("_", " ")}
    if line.unit_price_micro is None or line.is_correction:
        return row
    where = "/".join(part for part in (line.pool or what, line.category, line.service_class) if part)
    row["SkuPriceId"] = f"{where}@{instant(line.version_from_ms)}"
    if line.unit == GPU_US:
        row["SkuPriceDetails"] = _json({"GpuCount": 1, "x_GpuModel": line.gpu_model})
    list_price = decimal(line.unit_price_micro, _PRICE_PLACES)
    contracted = decimal(contracted_price_micro(line), _PRICE_PLACES)
    return row | {
        "ListUnitPrice": list_price,
        "ContractedUnitPrice": contracted,
        "PricingCurrencyListUnitPrice": list_price,
        "PricingCurrencyContractedUnitPrice": contracted,
    }


def contracted_price_micro(line: BilledLine) -> int:
    return round_half_even((line.unit_price_micro or 0) * line.percent, 100)


def _unit_columns(line: BilledLine, version: str) -> Row:
    """1.2 allows no hyphen in a unit: an hour of the one GPU that SkuPriceDetails names."""
    category = _PRICING.get(line.category, "Standard")
    if line.unit == GPU_US:
        unit = "Hours" if version == FOCUS_1_2 else "GPU-Hours"
        return {"PricingCategory": category, "PricingUnit": unit, "ConsumedUnit": unit}
    if line.unit == TOKENS:
        return {"PricingCategory": category, "PricingUnit": "1000000 Tokens", "ConsumedUnit": "Tokens"}
    return {"PricingCategory": category}


def charge_columns(line: BilledLine, quantity: int, billed_micro: int, starts_ms: int, ends_ms: int) -> Row:
    """What sets one charge of a line apart: how much of it, for how much, when."""
    billed = decimal(billed_micro, _PRICE_PLACES)
    row = {
        **_period_columns(starts_ms, ends_ms),
        "BilledCost": billed,
        "EffectiveCost": billed,
        "ListCost": billed,
        "ContractedCost": billed,
        "PricingCurrencyEffectiveCost": billed,
    }
    if charge_category(line.category) != USAGE or line.unit not in (GPU_US, TOKENS):
        return row
    scaled, places = _scaled(quantity, line.unit), _places(line.unit)
    row["PricingQuantity"] = decimal(scaled, places)
    row["ConsumedQuantity"] = _consumed(line, quantity)
    if line.unit_price_micro is not None and not line.is_correction:
        row["ListCost"] = decimal(scaled * line.unit_price_micro, places + _PRICE_PLACES)
        row["ContractedCost"] = decimal(scaled * contracted_price_micro(line), places + _PRICE_PLACES)
    if line.category == "undelivered":
        row["x_UndeliveredGpuHours"] = gpu_hours(quantity)
    return row


def _consumed(line: BilledLine, quantity: int) -> str:
    """Nothing was consumed of what stood idle, was lent, or was not there."""
    idle = line.category in ("unreserved_idle", "committed_unused")
    if idle or RESERVATION_STATUS.get(line.category) == UNUSED:
        return decimal(0, _LEAST_PLACES)
    if line.unit == TOKENS:
        return decimal(quantity * MICRO_PER_UNIT, _LEAST_PLACES)
    return gpu_hours(quantity)


def preemption_columns(
    preemption: str, pool: str, requeued_gpu_us: int | None, waiting_gpu_us: int, starts_ms: int, ends_ms: int
) -> Row:
    """A preemption as the victim's charge of nothing: its measures have no other place. Unknown ones stay empty."""
    nothing = decimal(0, _LEAST_PLACES)
    costs = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingCurrencyEffectiveCost")
    return {
        **_period_columns(starts_ms, ends_ms),
        **dict.fromkeys(costs, nothing),
        "ChargeDescription": "Preempted: GPU time to run again, and GPU time waited",
        "x_Category": "preempted",
        "x_Pool": pool,
        "x_PreemptionId": preemption,
        "x_RequeuedGpuHours": "" if requeued_gpu_us is None else gpu_hours(requeued_gpu_us),
        "x_WaitingGpuHours": gpu_hours(waiting_gpu_us),
    }


def _period_columns(starts_ms: int, ends_ms: int) -> Row:
    """Half-open; a slot shorter than a second still lasts one."""
    return {
        "ChargePeriodStart": instant(starts_ms),
        "ChargePeriodEnd": instant(max(ends_ms, (starts_ms // MS_PER_SECOND + 1) * MS_PER_SECOND)),
    }


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
