"""A month's books beside what others counted: the tables, and the form that explains a difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.core.reconciliation import Quantity
from billing.selectors.reconciliation import Line, month_lines
from billing.selectors.residuals import ResidualRow
from billing.services.explanations import explain_difference
from ledger.core.figures import set_digits
from ledger.models import Period
from ledger.services.audit import Actor
from ledger.templatetags.figures import count_cell, gpu_hours_cell
from ledger.views.acting import Refused, text_of
from ledger.views.tables import CODE, COUNT, DAY, TEXT_FILTER, Column, Kind, Table, words
from ledger.wording import DIFFERENCE_CAUSES, MEASURES, UNITS

CAUSE = words(lambda code: DIFFERENCE_CAUSES.get(code, code))
MEASURE = words(lambda code: MEASURES.get(code, code))
UNIT = words(lambda code: UNITS.get(code, code))


def _amount(quantity: Quantity) -> Any:
    return gpu_hours_cell(quantity.amount) if quantity.unit == "gpu_us" else count_cell(quantity.amount)


QUANTITY = Kind(_amount, lambda quantity: quantity.text, is_number=True)


def reconciliation_table(rows: Callable[[], Sequence[Line]]) -> Table:
    def quantity(name: str, label: str) -> Column:
        def of(line: Line) -> Quantity:
            amount = line.difference if name == "difference" else int(getattr(line.row, name))
            return Quantity(amount, line.row.unit)

        return Column(name, label, QUANTITY, of=of)

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
            Column("unit", _("Unit"), UNIT, of=lambda line: Quantity(0, line.row.unit).shown_unit),
            Column("cause", _("Cause"), CAUSE),
            Column(
                "reason", _("Reason"), of=lambda line: line.explanation.reason if line.explanation else ""
            ),
        ],
        label=_("Reconciliation"),
    )


PROBLEMS = {
    "closed": gettext_lazy("The month is closed: what differs now is explained where it is adjusted."),
    "unknown_difference": gettext_lazy("There is no such comparison any more; look again."),
    "no_difference": gettext_lazy("Both sides agree meanwhile: there is nothing to explain."),
    "no_reason": gettext_lazy("Say why it differs; it stays on record."),
}


def explainable(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """(what the form sends, what people read) of each difference; those that block the close first."""
    differing = sorted((line for line in lines if line.difference), key=lambda line: not line.is_unexplained)
    return [(f"{line.difference} {line.row.key}", _difference_words(line)) for line in differing]


def _difference_words(line: Line) -> str:
    row = line.row
    amount = Quantity(line.difference, row.unit)
    words = [_counted_by(line), row.subject, str(MEASURES.get(row.measure, row.measure))]
    unit = UNITS.get(amount.shown_unit, amount.shown_unit)
    text = f"{' '.join(word for word in words if word)}: {set_digits(amount.text)} {unit}"
    cause = DIFFERENCE_CAUSES.get(line.cause, line.cause)
    return text if line.is_unexplained else f"{text} ({cause})"


def explain_from_form(period: Period, form: QueryDict, by: Actor) -> str:
    """A person's word for the difference as it was seen: one that has changed meanwhile is looked at again.

    Raises:
        Refused, PeriodError
    """
    seen, _space, key = text_of(form, "difference", 4000).partition(" ")
    line = next((line for line in month_lines(period) if line.row.key == key), None)
    if line is not None and str(line.difference) != seen:
        raise Refused(_("The difference has changed since you looked; look at it again."))
    explain_difference(period, key, text_of(form, "reason"), by)
    return _("The difference is explained; it does not block the close any more.")


def explanation_refused(error: Exception) -> str:
    return str(PROBLEMS.get(getattr(error, "code", ""), error))


def _counted_by(line: Line) -> str:
    row = line.row
    return row.source or " ".join(part for part in (row.pool, row.tenant) if part)


def residuals_table(rows: Callable[[], Sequence[ResidualRow]]) -> Table:
    def quantity(name: str, label: str) -> Column:
        return Column(name, label, QUANTITY, of=lambda row: Quantity(getattr(row, name), row.unit))

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
            Column("unit", _("Unit"), UNIT, of=lambda row: Quantity(0, row.unit).shown_unit),
            Column("silent_requests", _("Requests without the count"), COUNT),
        ],
        label=_("Engine totals that no request explains"),
    )
