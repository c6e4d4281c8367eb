"""What the last months would have cost at another reservation size: a form in the address, a dry run, two tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.charts.planning import plan_chart
from billing.core.plan import CATEGORIES
from billing.selectors.periods import ledger_and_now
from billing.selectors.plan import PlannedMonth, plan
from billing.selectors.reservations import reservations
from ledger.core.units import milli_gpus_text, parse_milli_gpus
from ledger.models import Ledger, Pool, Tenant
from ledger.querysets import visible_to
from ledger.templatetags.figures import month_name
from ledger.views.tables import CATEGORY, GPU_HOURS, Column, Table, TablePage, choices_of, micro_in, words

MOST_MILLI_GPUS = 1_000_000_000


@dataclass(frozen=True)
class PlannedPart:
    """One category of one month, as it was and as it would have been."""

    month: str
    category: str
    now_gpu_us: int
    then_gpu_us: int

    @property
    def difference_gpu_us(self) -> int:
        return self.then_gpu_us - self.now_gpu_us


class PlanPage(TablePage):
    """`?tenant=acme&pool=bj-h100&reservation=64`; nothing is worked out before all three are named."""

    template = "billing/plan.html"

    @cached_property
    def ledger(self) -> Ledger:
        return ledger_and_now()[0]

    @cached_property
    def seen(self) -> list[str]:
        """Slugs of the tenants that can be planned for."""
        rows = visible_to(Tenant.objects.all(), self.access).order_by("holder__slug")
        return list(rows.values_list("holder__slug", flat=True))

    @cached_property
    def pools(self) -> list[Pool]:
        return list(Pool.objects.order_by("slug"))

    def asked(self, name: str) -> str:
        return self.request.GET.get(name, "").strip()

    @cached_property
    def tenant(self) -> Tenant | None:
        wanted = self.asked("tenant") or (self.seen[0] if len(self.seen) == 1 else "")
        if not wanted:
            return None
        if wanted not in self.seen:
            raise Http404
        return Tenant.objects.select_related("holder").get(holder__slug=wanted)

    @cached_property
    def pool(self) -> Pool | None:
        wanted = self.asked("pool")
        found = next((pool for pool in self.pools if pool.slug == wanted), None)
        if wanted and found is None:
            raise Http404
        return found

    @cached_property
    def milli_gpus(self) -> int | None:
        """None: not given, or no number of GPUs."""
        try:
            milli = parse_milli_gpus(self.asked("reservation"))
        except ValueError:
            return None
        return milli if milli <= MOST_MILLI_GPUS else None

    @cached_property
    def months(self) -> list[PlannedMonth]:
        if self.tenant is None or self.pool is None or self.milli_gpus is None:
            return []
        return plan(self.tenant, self.pool, self.milli_gpus, self.ledger)

    @cached_property
    def reserved_milli(self) -> int:
        """What the tenant has reserved in the pool now."""
        if self.tenant is None or self.pool is None:
            return 0
        rows = reservations(timezone.now(), pools=[self.pool.slug], tenant_ids=frozenset([self.tenant.pk]))
        return sum(row.milli_gpus for row in rows if row.starts_at <= timezone.now())

    def tables(self) -> list[Table]:
        return [
            amounts_table(lambda: self.months, self.ledger.currency),
            parts_table(lambda: parts_of(self.months), [month.month for month in self.months]),
        ]

    def context(self) -> dict[str, Any]:
        asked = self.asked("reservation")
        differences = [month.difference_micro for month in self.months]
        known = [value for value in differences if value is not None]
        return {
            "currency": self.ledger.currency,
            "seen": self.seen,
            "pools": self.pools,
            "tenant": self.tenant,
            "pool": self.pool,
            "asked": asked,
            "bad_number": bool(asked) and self.milli_gpus is None,
            "milli_gpus": self.milli_gpus,
            "reserved_milli": self.reserved_milli,
            "reserved_text": milli_gpus_text(self.reserved_milli),
            "is_ready": self.tenant is not None and self.pool is not None and self.milli_gpus is not None,
            "months": self.months,
            "difference_micro": sum(known) if known and len(known) == len(differences) else None,
            "saved_micro": -sum(known),
            "idle_now": sum(month.now.gpu_us["reserved_idle"] for month in self.months),
            "idle_then": sum(month.then.gpu_us["reserved_idle"] for month in self.months),
            "chart": plan_chart(self.months) if self.months else None,
        }


def parts_of(months: Sequence[PlannedMonth]) -> list[PlannedPart]:
    """By month, in the order of categories; what is nothing either way is left out."""
    return [
        PlannedPart(month.month, name, month.now.gpu_us[name], month.then.gpu_us[name])
        for month in months
        for name in CATEGORIES
        if month.now.gpu_us[name] or month.then.gpu_us[name]
    ]


def amounts_table(rows: Callable[[], Sequence[PlannedMonth]], currency: str) -> Table:
    money = micro_in(currency)

    def totals() -> dict[str, Any]:
        columns = {
            "as_it_was": [row.now.amount_micro for row in rows()],
            "re_rated": [row.then.amount_micro for row in rows()],
            "difference": [row.difference_micro for row in rows()],
        }
        return {
            key: None if None in values else sum(value or 0 for value in values)
            for key, values in columns.items()
        }

    return Table(
        "amounts",
        rows,
        [
            Column("month", _("Month"), words(month_name)),
            Column("as_it_was", _("As it was"), money, of="now.amount_micro", unit=currency),
            Column("re_rated", _("Re-rated"), money, of="then.amount_micro", unit=currency),
            Column("difference", _("Difference"), money, of="difference_micro", unit=currency),
        ],
        label=_("What the months would have cost"),
        totals=totals,
        empty=_("No month has been computed yet."),
    )


def parts_table(rows: Callable[[], Sequence[PlannedPart]], months: Sequence[str]) -> Table:
    return Table(
        "parts",
        rows,
        [
            Column("month", _("Month"), words(month_name), filter=choices_of(months, month_name)),
            Column("category", _("Category"), CATEGORY),
            Column("as_it_was_gpu_hours", _("As it was"), GPU_HOURS, of="now_gpu_us", unit=_("GPU-hours")),
            Column("re_rated_gpu_hours", _("Re-rated"), GPU_HOURS, of="then_gpu_us", unit=_("GPU-hours")),
            Column(
                "difference_gpu_hours",
                _("Difference"),
                GPU_HOURS,
                of="difference_gpu_us",
                unit=_("GPU-hours"),
            ),
        ],
        label=_("GPU time by category"),
        empty=_("The tenant had nothing in this pool, and would not have."),
    )
