"""Reads of calibrations for people: each model against its calibration, the versions, and who asks for another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from billing.core.calibration import PPM
from billing.models import Approval, ApprovalKind, Calibration, Decision
from billing.selectors.calibration import DayOfModel
from ledger.core.units import round_half_even


@dataclass(frozen=True)
class ModelWindow:
    """A model on a GPU model over a window; measured and predicted only of days with a calibration in force.

    deviation_ppm: (measured - predicted) / predicted, None where nothing was predicted. tolerance_ppm: of its newest
    day.
    """

    model: str
    gpu_model: str
    days: int
    days_beyond: int
    days_without: int
    measured_gpu_us: int
    predicted_gpu_us: int
    tolerance_ppm: int | None
    calibrated_from: datetime | None

    @property
    def deviation_ppm(self) -> int | None:
        if not self.predicted_gpu_us:
            return None
        return round_half_even((self.measured_gpu_us - self.predicted_gpu_us) * PPM, self.predicted_gpu_us)


def models_of(days: Sequence[DayOfModel]) -> list[ModelWindow]:
    """By model and GPU model. No query."""
    of_model: defaultdict[tuple[str, str], list[DayOfModel]] = defaultdict(list)
    for day in days:
        of_model[day.model, day.gpu_model].append(day)
    return [_window(*key, ones) for key, ones in sorted(of_model.items())]


def _window(model: str, gpu_model: str, days: Sequence[DayOfModel]) -> ModelWindow:
    known = [(day, day.deviation) for day in days if day.deviation is not None]
    newest = known[-1][0] if known else None
    return ModelWindow(
        model,
        gpu_model,
        len({day.day for day in days}),
        sum(found.beyond_tolerance for _day, found in known),
        len(days) - len(known),
        sum(found.measured_gpu_us for _day, found in known),
        sum(found.predicted_gpu_us for _day, found in known),
        newest.cost.tolerance_ppm if newest is not None and newest.cost is not None else None,
        newest.calibrated_from if newest is not None else None,
    )


def calibration_versions() -> QuerySet[Calibration]:
    """All of them, newest first of each model and GPU model."""
    return Calibration.objects.select_related("model").order_by("model__name", "gpu_model", "-valid_from")


def calibrations_asked_for() -> QuerySet[Approval]:
    """Calibrations that wait for a second person, oldest first; the end of one is decided in the settings."""
    waiting = Approval.objects.filter(
        kind=ApprovalKind.TERMS, decision=Decision.PENDING, payload__table="calibration"
    )
    return waiting.filter(payload__has_key="row").order_by("requested_at", "pk")
