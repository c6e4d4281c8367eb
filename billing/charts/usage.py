"""What was held and what happened: a month by days, a preemption, a pool by the hour or minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from billing.selectors.pages_pools import Bucket
from billing.selectors.pages_statements import MonthOfDays
from ledger.core.figures import set_digits
from ledger.core.units import MILLI_PER_GPU, gpu_hours_fixed
from ledger.wording import category_name


@dataclass(frozen=True)
class Phase:
    """A stretch of a preemption. colour: a name of the style sheet; text: how long, in words."""

    name: str
    starts_at: datetime
    length_ms: int
    colour: str
    text: str


# From the ground up: what the reservation holds, then what was run beyond it.
DAILY_STACK = (
    "reserved_used",
    "lent",
    "undelivered",
    "reserved_idle",
    "oversold",
    "on_demand",
    "borrowed",
    "excess",
)


def daily_chart(month: MonthOfDays) -> dict[str, Any]:
    """A bar per day, stacked by category, with the reservation as a line on top."""
    days = [day.day.isoformat() for day in month.days]
    traces = [
        _bar(name, days, [day.gpu_us[name] for day in month.days])
        for name in DAILY_STACK
        if month.gpu_us[name]
    ]
    if month.reserved_gpu_us:
        traces.append(_reservation(days, [day.reserved_gpu_us for day in month.days]))
    return {
        "data": traces,
        "layout": {
            "barmode": "stack",
            "bargap": 0.25,
            "yaxis": {"title": {"text": _("GPU-hours")}, "rangemode": "tozero"},
            "xaxis": {"type": "date", "tickformat": "%d"},
        },
    }


POOL_STACK = (
    "reserved_used",
    "borrowed",
    "undelivered",
    "reserved_idle",
    "on_demand",
    "unreserved_idle",
)


def pool_chart(buckets: Sequence[Bucket], zone: ZoneInfo, urls: Sequence[str] = ()) -> dict[str, Any]:
    """A pool's GPUs over time: bars stacked by category that fill up to the line of its capacity.

    The height is the mean of the bucket in GPUs; the hover says the exact GPU-hours. `urls`: where a bar leads to.
    """
    x = [f"{bucket.starts_at.astimezone(zone):%Y-%m-%dT%H:%M:%S}" for bucket in buckets]
    traces = []
    for name in POOL_STACK:
        values = [bucket.gpu_us[name] for bucket in buckets]
        if any(values):
            bar = _bar(name, x, values)
            traces.append({**bar, "y": _gpus(buckets, values), "hovertemplate": _HOVER_AT})
    capacity = [bucket.gpu_us["capacity"] for bucket in buckets]
    line = {**_reservation(x, capacity), "name": _("Capacity"), "y": _gpus(buckets, capacity)}
    traces.append({**line, "line": {"shape": "hvh", "width": 1.5}, "hovertemplate": _HOVER_AT})
    return {
        "data": traces,
        "urls": list(urls),
        "layout": {
            "barmode": "stack",
            "bargap": 0.12 if len(buckets) < 60 else 0,
            "yaxis": {"title": {"text": _("GPUs")}, "rangemode": "tozero"},
            "xaxis": {"type": "date", "tickformatstops": _TICKS},
        },
    }


# Figures only, so that they read the same in every language.
_TICKS = [
    {"dtickrange": [None, 43_200_000], "value": "%H:%M\n%m-%d"},
    {"dtickrange": [43_200_000, None], "value": "%m-%d\n%Y"},
]
_HOVER_AT = "%{x|%Y-%m-%d %H:%M}<br>%{fullData.name}: %{y:.2f} GPUs, %{customdata}<extra></extra>"


def _gpus(buckets: Sequence[Bucket], gpu_us: Sequence[int]) -> list[float]:
    """How tall to draw it: the mean over the bucket."""
    return [
        round(value / (bucket.length_ms * MILLI_PER_GPU), 4) if bucket.length_ms else 0.0
        for value, bucket in zip(gpu_us, buckets, strict=True)
    ]


def _bar(category: str, days: list[str], gpu_us: list[int]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": category_name(category),
        "meta": {"category": category},
        "x": days,
        "y": [_height(value) for value in gpu_us],
        "customdata": [_exact(value) for value in gpu_us],
        "hovertemplate": "%{x|%Y-%m-%d}<br>%{fullData.name}: %{customdata}<extra></extra>",
    }


def _reservation(days: list[str], gpu_us: list[int]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": _("Reserved"),
        "meta": {"line": "ink"},
        "line": {"shape": "hvh", "width": 1.5},
        "x": days,
        "y": [_height(value) for value in gpu_us],
        "customdata": [_exact(value) for value in gpu_us],
        "hovertemplate": "%{x|%Y-%m-%d}<br>%{fullData.name}: %{customdata}<extra></extra>",
    }


def _height(gpu_us: int) -> float:
    """How tall to draw it; the exact figure is the text beside it."""
    return float(gpu_hours_fixed(gpu_us, 4))


def _exact(gpu_us: int) -> str:
    return f"{set_digits(gpu_hours_fixed(gpu_us))} {_('GPU-hours')}"


def preemption_chart(phases: Sequence[Phase], zone: ZoneInfo) -> dict[str, Any] | None:
    """One bar per phase of a preemption along the clock; None where no phase lasted."""
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase.name,
            "meta": {"fill": phase.colour},
            "y": [""],
            "base": [f"{phase.starts_at.astimezone(zone):%Y-%m-%dT%H:%M:%S.%f}"[:-3]],
            "x": [phase.length_ms],
            "customdata": [phase.text],
            "hovertemplate": "%{fullData.name}: %{customdata}<extra></extra>",
        }
        for phase in phases
        if phase.length_ms
    ]
    if not traces:
        return None
    return {
        "data": traces,
        "layout": {
            "barmode": "overlay",
            "bargap": 0.5,
            "xaxis": {"type": "date", "tickformatstops": _TICKS},
            "yaxis": {"showgrid": False, "zeroline": False},
        },
    }
