"""The tables that set a month's books beside what others counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.utils.translation import gettext as _

from billing.selectors.reconciliation import Line
from billing.selectors.residuals import ResidualRow
from ledger.templatetags.figures import count_cell, gpu_hours_cell
from ledger.views.tables import CODE, COUNT, DAY, TEXT_FILTER, Column, Table, words
from ledger.wording import DIFFERENCE_CAUSES, MEASURES, UNITS

CAUSE = words(lambda code: DIFFERENCE_CAUSES.get(code, code))
MEASURE = words(lambda code: MEASURES.get(code, code))
UNIT = words(lambda code: UNITS.get(code, code))


def _amount(unit: str, quantity: int) -> Any:
    """In the unit people read: GPU time in GPU-hours, everything else as it was counted."""
    return gpu_hours_cell(quantity) if unit == "gpu_us" else count_cell(quantity)


def reconciliation_table(rows: Callable[[], Sequence[Line]]) -> Table:
    def quantity(name: str, label: str) -> Column:
        return Column(
            name,
            label,
            COUNT,
            of=lambda line: line.difference if name == "difference" else int(getattr(line.row, name)),
            html=lambda line: _amount(
                line.row.unit, line.difference if name == "difference" else int(getattr(line.row, name))
            ),
        )

    return Table(
        "reconciliation",
        rows,
        [
            Column("who", _("Counted by"), CODE, of=_counted_by, filter=TEXT_FILTER),
            Column("subject", _("Subject"), CODE, of=lambda line: line.row.subject, filter=TEXT_FILTER),
            Column("measure", _("Measure"), MEASURE, of="row.measure"),
            quantity("stated", _("Stated")),
            quantity("booked", _("Booked")),
            quantity("difference", _("Difference")),
            Column("unit", _("Unit"), UNIT, of="row.unit"),
            Column("cause", _("Cause"), CAUSE),
            Column(
                "reason", _("Reason"), of=lambda line: line.explanation.reason if line.explanation else ""
            ),
        ],
        label=_("Reconciliation"),
    )


def _counted_by(line: Line) -> str:
    row = line.row
    return row.source or " ".join(part for part in (row.pool, row.tenant) if part)


def residuals_table(rows: Callable[[], Sequence[ResidualRow]]) -> Table:
    def quantity(name: str, label: str) -> Column:
        return Column(name, label, COUNT, html=lambda row: _amount(row.unit, getattr(row, name)))

    return Table(
        "residuals",
        rows,
        [
            Column("day", _("Day (UTC)"), DAY),
            Column("pool", _("Pool"), filter=TEXT_FILTER),
            Column("model", _("Model"), CODE, filter=TEXT_FILTER),
            Column("kind", _("Measure"), MEASURE),
            quantity("engine", _("Engines")),
            quantity("explained", _("Explained by requests")),
            quantity("unattributed", _("Unattributed")),
            Column("unit", _("Unit"), UNIT),
            Column("silent_requests", _("Requests without the count"), COUNT),
        ],
        label=_("Engine totals that no request explains"),
    )
