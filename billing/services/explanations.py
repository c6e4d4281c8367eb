"""What people say about differences from others' totals (domain.md section 9)."""

from __future__ import annotations

from django.db import transaction

from billing.models import DifferenceExplanation, ReconciliationLine
from billing.services.periods import PeriodError
from ledger.models import Period, PeriodState
from ledger.services.audit import Actor, record


@transaction.atomic
def explain_difference(period: Period, key: str, reason: str, by: Actor) -> DifferenceExplanation:
    """A person says why a difference is as it is. It holds for exactly that amount.

    Raises:
        PeriodError: `closed`; `unknown_difference`: no comparison of the month has that key; `no_difference`;
            `no_reason`.
    """
    if period.state == PeriodState.CLOSED:
        raise PeriodError("closed", f"{period.month} is closed")
    line = ReconciliationLine.objects.filter(period=period, key=key).first()
    if line is None:
        raise PeriodError("unknown_difference", f"{period.month} has no comparison {key!r}")
    if not line.difference:
        raise PeriodError("no_difference", "both sides agree: there is nothing to explain")
    if not reason.strip():
        raise PeriodError("no_reason", "say why it differs")
    said = DifferenceExplanation.objects.create(
        period=period,
        key=key,
        difference=line.difference,
        unit=line.unit,
        reason=reason.strip(),
        explained_by=by.name,
    )
    after = {"key": key, "difference": str(line.difference), "unit": line.unit}
    record(by, "explain_difference", "period", period.month, after=after, reason=reason.strip())
    return said
