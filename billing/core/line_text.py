"""What a line is, in words, for the column `description` of a bill."""

from __future__ import annotations

from billing.core.rating_lines import Line

CATEGORIES = {
    "reserved_used": "GPU time inside the reservation",
    "on_demand": "GPU time beyond the reservation, on unreserved GPUs",
    "borrowed": "GPU time on another tenant's idle reservation",
    "excess": "GPU time that no capacity backs",
    "lent": "Reserved, idle and lent to others",
    "lend_credit": "Credit for lending an idle reservation",
    "reserved_idle": "Reserved and used by nobody",
    "undelivered": "Reserved and idle while preempted work waited",
    "oversold": "Reserved, but the capacity was not there",
    "unreserved_idle": "Neither reserved nor occupied",
    "cost_difference": "Cost of the pool less what was charged",
    "cost_unallocated": "Cost of a pool that nobody held",
    "committed_unused": "Committed tokens not used",
    "preemption_lost": "GPU time lost to a preemption",
    "preemption_recompute": "GPU time computed again after a preemption",
    "goodwill": "Goodwill credit",
    "dispute_adjustment": "Adjustment after a dispute",
    "delay_credit": "Credit for entitled GPU time that waited or was lost",
}
TOKEN_KINDS = {
    "input": "Input tokens",
    "cached_input": "Cached input tokens",
    "output": "Output tokens",
    "reasoning": "Reasoning tokens",
}
PURPOSES = {"warmup": "warm-up", "load_test": "load test", "drill": "drill"}


def description(line: Line) -> str:
    """One short phrase: category, then what sets the line apart from its neighbours."""
    details = [
        f"service {line.service}" if line.service else "",
        "idle time of the service" if line.service_idle else "",
        line.service_class,
        PURPOSES.get(line.purpose, line.purpose),
        f"for {_owner(line.on_behalf_of)}" if line.on_behalf_of else "",
    ]
    shown = ", ".join(detail for detail in details if detail)
    return f"{_category(line)} ({shown})" if shown else _category(line)


def _category(line: Line) -> str:
    kind = line.category.removesuffix("_overage")
    if line.kind == "tokens" and kind in TOKEN_KINDS:
        beyond = "" if kind == line.category else " beyond the quota"
        return TOKEN_KINDS[kind] + beyond
    return CATEGORIES.get(line.category, line.category)


def _owner(account: str) -> str:
    return account.rpartition(":")[2]
