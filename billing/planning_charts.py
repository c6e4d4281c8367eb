"""Figures of demand, quotas and calibrations, as plain data that the page carries as JSON; see `billing.charts`.

These show no categories of capacity, so they keep to the accent and the quiet colour, told apart by a pattern too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from billing.selectors.demand import RejectionRow
from billing.selectors.quota import TenantDrift
from ledger.core.figures import set_digits
from ledger.core.periods import Span, to_datetime
from ledger.core.units import gpu_hours_fixed
from ledger.wording import QUOTA_LAYERS

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
