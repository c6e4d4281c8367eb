"""The columns of the FOCUS files, in the order that they are written (FinOps Open Cost and Usage Specification).

Ours begin with `x_`, stand after the specification's and in alphabetical order; no sum over the others needs them.
"""

from __future__ import annotations

FOCUS_1_2 = "1.2"
FOCUS_1_4 = "1.4"

EXTENSIONS = (
    "x_Category",
    "x_ConcernsMonth",
    "x_Lender",
    "x_LineNumber",
    "x_Pool",
    "x_PreemptionId",
    "x_Purpose",
    "x_RequeuedGpuHours",
    "x_ServiceClass",
    "x_UndeliveredGpuHours",
    "x_WaitingGpuHours",
)

_COMMON = (
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
)
_ONLY_1_2 = ("ProviderName", "PublisherName")
# 1.3 put these in their place and added the split of shared costs; 1.4 the invoice's lines.
_SINCE_1_3 = (
    "AllocatedMethodDetails",
    "AllocatedMethodId",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
    "CommitmentProgramEligibilityDetails",
    "ContractApplied",
    "HostProviderName",
    "InvoiceDetailId",
    "ServiceProviderName",
)

COST_AND_USAGE: dict[str, tuple[str, ...]] = {
    FOCUS_1_2: (*sorted((*_COMMON, *_ONLY_1_2)), *EXTENSIONS),
    FOCUS_1_4: (*sorted((*_COMMON, *_SINCE_1_3)), *EXTENSIONS),
}

BILLING_PERIOD = (
    "BillingPeriodCreated",
    "BillingPeriodEnd",
    "BillingPeriodLastUpdated",
    "BillingPeriodStart",
    "BillingPeriodStatus",
    "InvoiceIssuerName",
)

INVOICE_DETAIL = (
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "InvoiceDetailCreated",
    "InvoiceDetailDescription",
    "InvoiceDetailGrain",
    "InvoiceDetailId",
    "InvoiceDetailLastUpdated",
    "InvoiceId",
    "InvoiceIssueDate",
    "InvoiceIssueStatus",
    "InvoiceIssuerName",
    "PaymentDueDate",
    "PaymentTerms",
    "ReferenceInvoiceId",
)
