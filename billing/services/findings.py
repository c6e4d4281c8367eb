"""Findings of a computation take the place of earlier ones; what a close has seen of them stays known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from django.db.models import F, QuerySet

from billing.models import BillingFinding
from ledger.models import Period

_NAME = ("code", "month", "pool_id", "starts_at", "subject", "unit")


def replace_findings(standing: QuerySet[BillingFinding], noted: Iterable[BillingFinding]) -> None:
    """Put what was noted in the place of what stands. Of what was seen already, no more than there still is."""
    seen = Counter[tuple[object, ...]]()
    for *name, quantity in standing.filter(seen_quantity__gt=0).values_list(*_NAME, "seen_quantity"):
        seen[tuple(name)] += quantity
    standing.delete()
    rows = list(noted)
    for row in rows:
        name = tuple(getattr(row, field) for field in _NAME)
        row.seen_quantity = min(seen[name], row.quantity or 0)
        seen[name] -= row.seen_quantity
    BillingFinding.objects.bulk_create(rows)


def mark_findings_seen(closed: Period) -> None:
    """A close went past all that stands of its month and of those before: the next one is asked for what comes then."""
    BillingFinding.objects.filter(month__lte=closed.month, quantity__isnull=False).update(
        seen_quantity=F("quantity")
    )
