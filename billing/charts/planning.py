"""Figures of demand, quotas, budgets, plans and calibrations as plain data, as in `billing.charts`.

What is no category of capacity keeps to the accent and the quiet colour, told apart by a pattern too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from billing.core.calibration import PPM
from billing.core.plan import CATEGORIES
from billing.selectors.calibration import DayOfModel
from billing.selectors.demand import RejectionRow
from billing.selectors.forecast import TenantForecast
from billing.selectors.plan import PlannedMonth
from billing.selectors.quota import TenantDrift
from ledger.core.currency import minor_places
from ledger.core.figures import set_digits
from ledger.core.periods import Span, to_datetime
from ledger.core.units import gpu_hours_fixed, money_fixed, round_half_even
from ledger.wording import QUOTA_LAYERS, category_name

FIRST, SECOND = {"fill": "accent"}, {"fill": "rule-strong", "pattern": "/"}


def drift_chart(rows: Sequence[TenantDrift], window: Span, zone: ZoneInfo) -> dict[str, Any]:
    """A bar per episode on its tenant's row, by which layer was full."""

    def clock(at_ms: int) -> str:
        return f"{to_datetime(at_ms).astimezone(zone):%Y-%m-%dT%H:%M:%S}"

    traces = []
    for layer, meta in (("cluster", FIRST), ("serving", SECOND)):
        ones = [row for row in rows if row.drift.full_layer == layer]
        starts = [max(row.drift.starts_ms, window.start_ms) for row in ones]
        ends = [min(row.drift.ends_ms or window.end_ms, window.end_ms) for row in ones]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _("full: %(layer)s") % {"layer": QUOTA_LAYERS[layer]},
                "meta": meta,
                "y": [row.tenant for row in ones],
                "base": [clock(start) for start in starts],
                "x": [end - start for start, end in zip(starts, ends, strict=True)],
                "customdata": [
                    f"{to_datetime(start).astimezone(zone):%m-%d %H:%M} – "
                    f"{to_datetime(end).astimezone(zone):%m-%d %H:%M}"
                    for start, end in zip(starts, ends, strict=True)
                ],
                "hovertemplate": "%{y}<br>%{fullData.name}<br>%{customdata}<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": {
            "barmode": "overlay",
            "bargap": 0.45,
            "xaxis": {"type": "date", "range": [clock(window.start_ms), clock(window.end_ms)]},
            "yaxis": {"type": "category", "categoryorder": "category descending"},
        },
    }


def refusals_chart(days: Sequence[RejectionRow], zone: ZoneInfo) -> dict[str, Any]:
    """A bar per day: refused with a 4xx and a time to come back, and refused otherwise."""
    x = [f"{row.starts_at.astimezone(zone):%Y-%m-%d}" for row in days]
    parts = [
        (_("explicit: 4xx with Retry-After"), FIRST, [row.explicit for row in days]),
        (_("other refusals"), SECOND, [row.count - row.explicit for row in days]),
    ]
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "meta": meta,
                "x": x,
                "y": values,
                "customdata": [set_digits(str(value)) for value in values],
                "hovertemplate": "%{x|%Y-%m-%d}<br>%{fullData.name}: %{customdata}<extra></extra>",
            }
            for name, meta, values in parts
        ],
        "layout": {
            "barmode": "stack",
            "bargap": 0.25,
            "yaxis": {"title": {"text": _("requests")}, "rangemode": "tozero"},
            "xaxis": {"type": "date"},
        },
    }


def exact_hours(gpu_us: int) -> str:
    return f"{set_digits(gpu_hours_fixed(gpu_us))} {_('GPU-hours')}"


def plan_chart(months: Sequence[PlannedMonth]) -> dict[str, Any]:
    """Two bars a month, as it was and re-rated, stacked by category."""
    sides = [
        (f"{month.month} {name}", gpu_us)
        for month in months
        for name, gpu_us in ((_("as it was"), month.now.gpu_us), (_("re-rated"), month.then.gpu_us))
    ]
    y = [name for name, _gpu_us in sides]
    traces = []
    for category in CATEGORIES:
        values = [gpu_us[category] for _name, gpu_us in sides]
        if any(values):
            traces.append(
                {
                    "type": "bar",
                    "name": category_name(category),
                    "meta": {"category": category},
                    "orientation": "h",
                    "y": y,
                    "x": [float(gpu_hours_fixed(value, 4)) for value in values],
                    "customdata": [exact_hours(value) for value in values],
                    "hovertemplate": "%{y}<br>%{fullData.name}: %{customdata}<extra></extra>",
                }
            )
    return {
        "data": traces,
        "layout": {
            "barmode": "stack",
            "bargap": 0.3,
            "xaxis": {
                "title": {"text": _("GPU-hours"), "font": {"size": 14}},
                "rangemode": "tozero",
                "showgrid": True,
                "side": "top",  # the legend is below, and wraps on a narrow screen
            },
            "yaxis": {"type": "category", "autorange": "reversed"},
        },
    }


MOST_BARS = 20


def forecast_chart(rows: Sequence[TenantForecast], currency: str) -> dict[str, Any]:
    """The largest tenants: booked so far, what is expected to come, and its range."""
    shown = sorted(
        (row for row in rows if (row.amount.expected or row.amount.to_date) > 0),
        key=lambda row: (row.amount.expected or row.amount.to_date, row.tenant),
    )[-MOST_BARS:]

    def money(value: int | None) -> str:
        return "" if value is None else f"{set_digits(money_fixed(value, minor_places(currency)))} {currency}"

    def tall(value: int) -> float:
        return float(money_fixed(max(value, 0), 2))

    expected = [row.amount.expected or row.amount.to_date for row in shown]
    lows = [row.amount.low or value for row, value in zip(shown, expected, strict=True)]
    highs = [row.amount.high or value for row, value in zip(shown, expected, strict=True)]
    names = [row.tenant for row in shown]
    bar = {"type": "bar", "orientation": "h", "y": names}
    hover = "%{y}<br>%{fullData.name}: %{customdata}<extra></extra>"
    return {
        "data": [
            {
                **bar,
                "name": _("month to date"),
                "meta": FIRST,
                "x": [tall(row.amount.to_date) for row in shown],
                "customdata": [money(row.amount.to_date) for row in shown],
                "hovertemplate": hover,
            },
            {
                **bar,
                "name": _("expected by its end, with its range"),
                "meta": SECOND,
                "x": [tall(value - row.amount.to_date) for row, value in zip(shown, expected, strict=True)],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [tall(high - value) for high, value in zip(highs, expected, strict=True)],
                    "arrayminus": [tall(value - low) for low, value in zip(lows, expected, strict=True)],
                    "thickness": 1.5,
                },
                "customdata": [
                    f"{money(value)} ({money(low)} – {money(high)})"
                    for value, low, high in zip(expected, lows, highs, strict=True)
                ],
                "hovertemplate": hover,
            },
        ],
        "layout": {
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {
                "title": {"text": currency, "font": {"size": 14}},
                "rangemode": "tozero",
                "showgrid": True,
                "side": "top",  # the legend is below, and wraps on a narrow screen
            },
            "yaxis": {"type": "category"},
        },
    }


def calibration_chart(days: Sequence[DayOfModel]) -> dict[str, Any]:
    """Of one model on one GPU model: measured as bars, predicted as a line between the lines of its tolerance."""
    x = [day.day.isoformat() for day in days]

    def tall(gpu_us: int | None) -> float | None:
        return None if gpu_us is None else float(gpu_hours_fixed(gpu_us, 4))

    def line(name: str, values: Sequence[int | None], **more: Any) -> dict[str, Any]:
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "meta": {"line": "ink"},
            "x": x,
            "y": [tall(value) for value in values],
            "customdata": ["" if value is None else exact_hours(value) for value in values],
            "hovertemplate": "%{x|%Y-%m-%d}<br>%{fullData.name}: %{customdata}<extra></extra>",
            **more,
        }

    predicted = [None if day.deviation is None else day.deviation.predicted_gpu_us for day in days]
    dotted = {"line": {"dash": "dot", "width": 1}}
    return {
        "data": [
            {
                "type": "bar",
                "name": _("Measured"),
                "meta": SECOND,
                "x": x,
                "y": [tall(day.seen.measured_gpu_us) for day in days],
                "customdata": [exact_hours(day.seen.measured_gpu_us) for day in days],
                "hovertemplate": "%{x|%Y-%m-%d}<br>%{fullData.name}: %{customdata}<extra></extra>",
            },
            {**line(_("Predicted"), predicted), "meta": {"line": "accent"}, "line": {"width": 2}},
            line(_("Tolerance"), _edges(days, -1), **dotted),
            line(_("Tolerance"), _edges(days, 1), showlegend=False, **dotted),
        ],
        "layout": {
            "bargap": 0.25,
            "yaxis": {"title": {"text": _("GPU-hours")}, "rangemode": "tozero"},
            "xaxis": {"type": "date"},
        },
    }


def _edges(days: Sequence[DayOfModel], sign: int) -> list[int | None]:
    return [
        None
        if day.cost is None or day.deviation is None
        else round_half_even(day.deviation.predicted_gpu_us * (PPM + sign * day.cost.tolerance_ppm), PPM)
        for day in days
    ]
