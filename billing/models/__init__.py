from billing.models.allocation import Allocation, BillingFinding, LendingDay, PoolSlot, WorkloadDay
from billing.models.preemption import PreemptionRecord, PreemptionShare, PreemptionWait
from billing.models.statement import MonthLine, Statement, StatementLine, StatementState
from billing.models.terms import (
    Calibration,
    Contract,
    GpuPrice,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
    TokenPrice,
)

__all__ = [
    "Allocation",
    "BillingFinding",
    "Calibration",
    "Contract",
    "GpuPrice",
    "LendingDay",
    "MonthLine",
    "Policy",
    "PoolCost",
    "PoolSlot",
    "PreemptionRecord",
    "PreemptionShare",
    "PreemptionWait",
    "RateCard",
    "ServicePolicy",
    "Statement",
    "StatementLine",
    "StatementState",
    "TokenPrice",
    "WorkloadDay",
]
