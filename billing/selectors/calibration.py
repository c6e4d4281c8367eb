"""Whether tokens still cost what calibrations say, day by day, and the re-fit it would take (domain.md section 7)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import date, datetime

from django.db import connection

from billing.core.calibration import Deviation, Observation, Refit, TokenCost, deviation, refit
from billing.sql.calibration import DAILY
from ledger.core.periods import Span, to_datetime
from ledger.selectors.settings import ledger_settings


@dataclass(frozen=True, slots=True)
class DayOfModel:
    """One day (of the billing time zone) of a model on a GPU model under one calibration; deviation None: no
    calibration was in force."""

    day: date
    model: str
    gpu_model: str
    seen: Observation
    calibrated_from: datetime | None
    cost: TokenCost | None

    @property
    def deviation(self) -> Deviation | None:
        return None if self.cost is None else deviation(self.cost, self.seen)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A re-fit over the days of a window; `days_beyond` of them deviate beyond the tolerance in force."""

    model: str
    gpu_model: str
    days_beyond: int
    fitted: Refit


def deviations(window: Span) -> list[DayOfModel]:
    """By model, GPU model and day, of hours whose requests stated tokens and GPU time. One query over roll-ups."""
    with connection.cursor() as cursor:
        span = {"from": to_datetime(window.start_ms), "to": to_datetime(window.end_ms)}
        cursor.execute(DAILY, {**span, "zone": ledger_settings().billing_time_zone})
        rows = cursor.fetchall()
    return [
        DayOfModel(
            day=row[0],
            model=row[1],
            gpu_model=row[2],
            seen=Observation(*row[3:7]),
            calibrated_from=row[7],
            cost=None if row[7] is None else TokenCost(*row[8:12]),
        )
        for row in rows
    ]


def refit_proposals(days: list[DayOfModel]) -> list[Proposal]:
    """For each model with a day beyond its tolerance, or without a calibration: what the days would be fitted by.

    Nothing is proposed where the days do not determine the costs.
    """
    of_model: defaultdict[tuple[str, str], list[DayOfModel]] = defaultdict(list)
    for day in days:
        of_model[day.model, day.gpu_model].append(day)
    found = []
    for (model, gpu_model), ones in sorted(of_model.items()):
        beyond = sum(day.deviation is None or day.deviation.beyond_tolerance for day in ones)
        if beyond:
            fitted = refit([day.seen for day in ones])
            if fitted is not None:
                found.append(Proposal(model, gpu_model, beyond, fitted))
    return found
