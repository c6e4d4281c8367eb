"""The writers of budgets; every change is on the audit trail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from billing.core.sentences import sentence
from billing.models import Budget
from billing.models.budget import DEFAULT_THRESHOLDS
from ledger.core.sentences import Told
from ledger.models import Tenant
from ledger.services.audit import Actor, record

MOST_THRESHOLDS = 10


class BudgetError(Told):
    """A budget that cannot be; it says why."""


def set_budget(
    tenant: Tenant,
    month: str,
    by: Actor,
    *,
    amount_micro: int | None = None,
    gpu_us: int | None = None,
    thresholds: Sequence[int] | None = None,
) -> tuple[Budget, bool]:
    """Make the tenant's budget of a month ('' = every month) so; returns it, and whether anything changed.

    Raises:
        BudgetError: not exactly one limit above 0, or thresholds that are no percentages.
    """
    if (amount_micro is None) == (gpu_us is None) or (amount_micro or gpu_us or 0) <= 0:
        raise BudgetError(sentence("budget_of_nothing"))
    percents = sorted(set(thresholds if thresholds is not None else DEFAULT_THRESHOLDS))
    if len(percents) > MOST_THRESHOLDS or any(not 0 < percent <= 1000 for percent in percents):
        raise BudgetError(sentence("bad_thresholds", most=MOST_THRESHOLDS))
    with transaction.atomic():
        kind = {"gpu_us__isnull": gpu_us is None}
        existing = Budget.objects.select_for_update().filter(tenant=tenant, month=month, **kind).first()
        before = None if existing is None else _said(existing)
        budget = existing or Budget(tenant=tenant, month=month)
        budget.amount_micro, budget.gpu_us, budget.thresholds = amount_micro, gpu_us, percents
        if before == _said(budget):
            return budget, False
        budget.recorded_by = by.name
        budget.save()
        record(by, "set_budget", "budget", budget.pk, before=before, after=_said(budget))
        return budget, True


@transaction.atomic
def remove_budget(budget: Budget, by: Actor) -> None:
    record(by, "remove_budget", "budget", budget.pk, before=_said(budget))
    budget.delete()


def _said(budget: Budget) -> dict[str, Any]:
    return {
        "tenant": budget.tenant.slug,
        "month": budget.month,
        "amount_micro": budget.amount_micro,
        "gpu_us": budget.gpu_us,
        "thresholds": list(budget.thresholds),
    }
