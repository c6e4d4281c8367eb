"""What was asked for and what became of it; what refusing it cost, beside what killing work for it would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.charts.planning import refusals_chart
from billing.core.demand import Funnel
from billing.selectors.demand import DemandRow, RejectionRow, demand, rejections, retries_known
from billing.selectors.pages_demand import refusals_booked
from billing.views.windows import WindowPage
from ledger.core.figures import is_zero, percentages
from ledger.core.units import fixed_decimal, round_half_even, seconds_text
from ledger.models import Rejection
from ledger.templatetags.figures import duration
from ledger.views.page import shown_zone
from ledger.views.tables import (
    CODE,
    COUNT,
    GPU_HOURS,
    GPUS,
    INSTANT,
    SHARE,
    TEXT_FILTER,
    Column,
    Kind,
    Table,
    choices_of,
    micro_in,
    words,
)
from ledger.wording import DECLINED_BASES, OUTCOMES, REFUSING_LAYERS

_LEAST = "<0.001"  # percent: some, where rounding would show none


@dataclass(frozen=True)
class Part:
    """One summand of what was asked for."""

    name: str
    count: int
    percent: str


class DemandPage(WindowPage):
    """The funnel per tenant and model, the cost of refusing, and refusals by layer and reason."""

    template = "billing/demand.html"

    @cached_property
    def rows(self) -> list[DemandRow]:
        return demand(self.window, self.access)

    @cached_property
    def refused(self) -> list[DemandRow]:
        return [row for row in self.rows if row.funnel.rejected]

    @cached_property
    def reasons(self) -> list[RejectionRow]:
        by = ("tenant", "model", "layer", "reason", "status", "origin")
        return sorted(
            rejections(self.window, self.zone, self.access, by=by), key=lambda row: (-row.count, row.first_at)
        )

    @cached_property
    def days(self) -> list[RejectionRow]:
        return rejections(self.window, self.zone, self.access, by=(), step="day")

    def tables(self) -> list[Table]:
        currency = self.ledger.currency
        booked = [refusals_table(lambda: refusals_booked(self.window))] if self.access.may_read_ingest else []
        return [
            *booked,
            funnel_table(lambda: self.rows),
            refusing_table(lambda: self.refused, currency),
            reasons_table(lambda: self.reasons),
            days_table(lambda: self.days),
        ]

    def context(self) -> dict[str, Any]:
        whole = whole_of(self.rows)
        worst = max(self.refused, key=lambda row: row.declined.amount_micro or 0, default=None)
        return {
            **self.window_context(),
            "currency": self.ledger.currency,
            "whole": whole,
            "retries_known": retries_known(self.window),
            "parts": parts_of(whole),
            "explicit_percent": _percent(whole.explicit_ppm),
            "declined_micro": _sum(row.declined.amount_micro for row in self.refused),
            "killing_micro": _sum(
                None if row.killing is None else row.killing.amount_micro for row in self.refused
            ),
            "worst": worst,
            "busiest": max(self.days, key=lambda row: row.count, default=None),
            "chart": refusals_chart(self.days, shown_zone(self.request)) if self.days else None,
        }


def whole_of(rows: Sequence[DemandRow]) -> Funnel:
    return Funnel(*(sum(getattr(row.funnel, name) for row in rows) for name in (*OUTCOMES, "explicit")))


def parts_of(whole: Funnel) -> list[Part]:
    counts = [getattr(whole, name) for name in OUTCOMES]
    shares = [
        _LEAST if count and is_zero(share) else share
        for count, share in zip(counts, percentages(counts, 3), strict=True)
    ]
    return [
        Part(str(words), count, share)
        for words, count, share in zip(OUTCOMES.values(), counts, shares, strict=True)
    ]


def _sum(values: Any) -> int | None:
    """Of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _percent(ppm: int | None) -> str | None:
    return None if ppm is None else fixed_decimal(round_half_even(ppm, 1000), 1)


_MODEL = Kind(css="code nowrap")


def funnel_table(rows: Callable[[], Sequence[DemandRow]]) -> Table:
    def totals() -> dict[str, Any]:
        whole = whole_of(rows())
        names = ("asked", *OUTCOMES)
        return {**{name: getattr(whole, name) for name in names}, "explicit_share": whole.explicit_ppm}

    return Table(
        "funnel",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("model", _("Model"), _MODEL, filter=TEXT_FILTER),
            Column("asked", _("Asked"), COUNT, of="funnel.asked"),
            *[Column(name, title, COUNT, of=f"funnel.{name}") for name, title in OUTCOMES.items()],
            Column(
                "explicit_share",
                _("Explicit"),
                SHARE,
                of="funnel.explicit_ppm",
                unit=_("of failures"),
                help=_("Refused with a 4xx and Retry-After, of everything that was not completed"),
            ),
        ],
        label=_("Demand by tenant and model"),
        caption=_("Requests; one that was tried again counts once"),
        totals=totals,
        empty=_("Nothing was asked for in this time, or no gateway reports requests."),
    )


def refusing_table(rows: Callable[[], Sequence[DemandRow]], currency: str) -> Table:
    money = micro_in(currency)
    return Table(
        "refusing",
        rows,
        [
            Column("tenant", _("Tenant"), filter=TEXT_FILTER),
            Column("model", _("Model"), _MODEL, filter=TEXT_FILTER),
            Column("rejected", _("Rejected"), COUNT, of="funnel.rejected"),
            Column("tokens", _("Tokens"), COUNT, of="declined.tokens"),
            Column("gpu_hours", _("GPU-hours"), GPU_HOURS, of="declined.gpu_us"),
            Column("declined", _("Revenue declined"), money, of="declined.amount_micro", unit=currency),
            Column("basis", _("Priced by"), words(DECLINED_BASES.__getitem__), of="declined.basis"),
            Column(
                "killing_gpu_hours",
                _("Killing instead"),
                GPU_HOURS,
                of="killing.gpu_us",
                unit=_("GPU-hours re-queued"),
            ),
            Column("killing", _("Killing instead"), money, of="killing.amount_micro", unit=currency),
        ],
        label=_("What refusing cost, and what killing work would have"),
        sort="-declined",
        empty=_("Nothing was refused."),
    )


_WAIT = Kind(
    lambda us: "–" if us is None else duration(us // 1000),
    lambda us: "" if us is None else seconds_text(us),
    is_number=True,
)


def _told_to_wait(row: RejectionRow) -> str:
    least, greatest = row.least_retry_after_us, row.greatest_retry_after_us
    if least == greatest:
        return str(_WAIT.show(least))
    return f"{_WAIT.show(least)} – {_WAIT.show(greatest)}"


def reasons_table(rows: Callable[[], Sequence[RejectionRow]]) -> Table:
    def layer(code: str) -> str:
        return str(REFUSING_LAYERS.get(code, code))

    def part(name: str) -> Callable[[RejectionRow], str]:
        return lambda row: row.dimensions[name]

    return Table(
        "reasons",
        rows,
        [
            Column("tenant", _("Tenant"), of=part("tenant"), filter=TEXT_FILTER),
            Column("model", _("Model"), _MODEL, of=part("model")),
            Column(
                "layer",
                _("Refused by"),
                words(layer),
                of=part("layer"),
                filter=choices_of(REFUSING_LAYERS, layer),
            ),
            Column("reason", _("Reason"), of=part("reason"), filter=TEXT_FILTER),
            Column("status", _("Status"), CODE, of=part("status")),
            Column("origin", _("Origin"), of=part("origin"), on_page=False),
            Column("rejections", _("Refusals"), COUNT, of="count"),
            Column("explicit", _("Explicit"), COUNT),
            Column("tokens", _("Tokens asked for"), COUNT, of="requested_tokens"),
            Column("gpus", _("GPUs asked for"), GPUS, of="requested_milli_gpus"),
            Column("least_wait", _("Retry after, least"), _WAIT, of="least_retry_after_us", on_page=False),
            Column(
                "greatest_wait",
                _("Retry after"),
                _WAIT,
                of="greatest_retry_after_us",
                html=_told_to_wait,
                unit=_("least and greatest"),
            ),
            Column("last", _("Last"), INSTANT, of="last_at"),
        ],
        label=_("Refusals by layer and reason"),
        caption=_("As reported: one that was tried again counts each time"),
        totals=lambda: {
            "rejections": sum(row.count for row in rows()),
            "explicit": sum(row.explicit for row in rows()),
            "tokens": sum(row.requested_tokens for row in rows()),
        },
        empty=_("Nothing was refused."),
    )


def days_table(rows: Callable[[], Sequence[RejectionRow]]) -> Table:
    return Table(
        "days",
        rows,
        [
            Column("day", _("Day"), INSTANT, of="starts_at"),
            Column("rejections", _("Refusals"), COUNT, of="count"),
            Column("explicit", _("Explicit"), COUNT),
            Column("other", _("Other"), COUNT, of=lambda row: row.count - row.explicit),
        ],
        label=_("Refusals by day"),
        totals=lambda: {
            "rejections": sum(row.count for row in rows()),
            "explicit": sum(row.explicit for row in rows()),
            "other": sum(row.count - row.explicit for row in rows()),
        },
    )


def refusals_table(rows: Callable[[], QuerySet[Rejection]]) -> Table:
    layers = choices_of(REFUSING_LAYERS, lambda code: REFUSING_LAYERS[code])
    return Table(
        "refusals",
        rows,
        [
            Column(
                "at",
                _("At"),
                INSTANT,
                of="occurred_at",
                field="occurred_at",
                link=lambda row: reverse("ledger:event", args=[row.event.source_id, row.event.event_id]),
            ),
            Column(
                "identity",
                _("Identity"),
                CODE,
                of="identity.value",
                field="identity__value",
                filter=TEXT_FILTER,
            ),
            Column("model", _("Model"), _MODEL, of="model.name", field="model__name", filter=TEXT_FILTER),
            Column(
                "layer",
                _("Refused by"),
                words(lambda code: REFUSING_LAYERS.get(code, code)),
                field="layer",
                filter=layers,
            ),
            Column("reason", _("Reason"), field="reason", filter=TEXT_FILTER),
            Column("status", _("Status"), CODE, field="status"),
            Column("rejections", _("Refusals"), COUNT, of="count", field="count"),
        ],
        label=_("Refusals one by one"),
        rows_a_page=20,
        empty=_("Nothing was refused."),
    )
