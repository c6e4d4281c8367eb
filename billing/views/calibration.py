"""Do tokens still cost what the calibrations say? Predicted against measured by day, and the re-fit it would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import Http404, QueryDict
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from billing.api.periods import soon
from billing.charts.planning import calibration_chart
from billing.core.configuration import ConfigurationError
from billing.core.sentences import sentence
from billing.models import Calibration, Decision
from billing.selectors.calibration import DayOfModel, Proposal, deviations, refit_proposals
from billing.selectors.pages_calibration import (
    ModelWindow,
    calibration_versions,
    calibrations_asked_for,
    models_of,
)
from billing.services.approvals import ApprovalError
from billing.services.deeds import decide
from billing.services.recalibration import accept_refit
from billing.tasks import recompute_open_months
from billing.views.closing_words import REFUSALS, refusal
from billing.views.days import start_of_day
from billing.views.heat import choose
from billing.views.term_tables import end_link
from billing.views.windows import WindowPage
from ledger.core.periods import Month, to_datetime
from ledger.core.units import fixed_decimal, round_half_even
from ledger.services.audit import Actor
from ledger.views.acting import ActingPage, Refused, text_of
from ledger.views.page import runs_the_ledger
from ledger.views.tables import (
    CHANGE,
    CODE,
    COUNT,
    DAY,
    GPU_HOURS,
    PERCENT,
    TEXT_FILTER,
    VALIDITY,
    Column,
    Kind,
    Table,
)
from ledger.wording_sentences import in_words

CODE_IN_ONE = Kind(css="code nowrap")
COSTS = ("input", "cached_input", "output")


class CalibrationPage(WindowPage, ActingPage):
    """Finance accepts a re-fit, with a reason; another person in finance decides. The rest look on."""

    template = "billing/calibration.html"
    allows = staticmethod(runs_the_ledger)

    @cached_property
    def days(self) -> list[DayOfModel]:
        return deviations(self.window)

    @cached_property
    def models(self) -> list[ModelWindow]:
        return models_of(self.days)

    @cached_property
    def proposals(self) -> list[Proposal]:
        return refit_proposals(self.days)

    def may_act(self) -> bool:
        return self.access.is_finance

    def tables(self) -> list[Table]:
        return [
            models_table(lambda: self.models),
            days_table(lambda: self.days),
            refits_table(lambda: self.proposals),
            versions_table(lambda: list(calibration_versions()), self.may_act()),
        ]

    def context(self) -> dict[str, Any]:
        names = {f"{row.model}/{row.gpu_model}": f"{row.model} · {row.gpu_model}" for row in self.models}
        chosen, choices = choose(self.request, "of", names) if names else ("", [])
        shown = [day for day in self.days if f"{day.model}/{day.gpu_model}" == chosen]
        worst = farthest_off(shown)
        waiting = list(calibrations_asked_for())
        return {
            **self.window_context(),
            "choices": choices if len(choices) > 1 else [],
            "chosen": next((row for row in self.models if f"{row.model}/{row.gpu_model}" == chosen), None),
            "chart": calibration_chart(shown) if shown else None,
            "worst": worst,
            "worst_percent": _percent(worst.deviation.ppm) if worst and worst.deviation else None,
            "proposals": self.proposals,
            "may_act": self.may_act(),
            "asks_me": [one for one in waiting if one.requested_by != self.access.name],
            "asked_by_me": [one for one in waiting if one.requested_by == self.access.name],
            "from_day": self._next_month(),
        }

    def _next_month(self) -> date:
        """The first day that is changed by nothing that has been shown to anybody yet."""
        zone = ZoneInfo(self.zone)
        following = Month.containing(self.now_ms, self.zone).next()
        return to_datetime(following.starts_ms(self.zone)).astimezone(zone).date()

    def do(self, form: QueryDict, by: Actor, **_kwargs: Any) -> str:
        deeds = {"accept": self._accept, "decide": self._decide}
        deed = deeds.get(form.get("deed", ""))
        if deed is None:
            raise Http404
        try:
            return deed(form, by)
        except ApprovalError as error:
            raise Refused(_in_words(error)) from None
        except ConfigurationError as error:
            raise Refused(in_words(error.told)) from None

    def _accept(self, form: QueryDict, by: Actor) -> str:
        wanted = text_of(form, "proposal")
        proposal = next((one for one in self.proposals if f"{one.model}/{one.gpu_model}" == wanted), None)
        if proposal is None:
            raise Refused(_("Nothing is proposed for it any more; look again."))
        valid_from = start_of_day(text_of(form, "valid_from"), self.zone)
        if valid_from is None:
            raise Refused(_("Give the day from which it shall hold."))
        approval, _changes = accept_refit(
            proposal, valid_from.isoformat(), self.named[0], text_of(form, "reason")[:2000], by
        )
        if approval is None:
            soon(recompute_open_months.delay)
            return _("The new calibration is in force from the day you gave.")
        return _("The new calibration is asked for. A second person in finance sees it here and decides.")

    def _decide(self, form: QueryDict, by: Actor) -> str:
        try:
            wanted = UUID(form.get("approval", ""))
        except ValueError:
            raise Http404 from None
        approval = calibrations_asked_for().filter(pk=wanted).first()
        if approval is None:
            raise Refused(str(REFUSALS["decided"]))
        is_approved = form.get("decision") == Decision.APPROVED
        decision = Decision.APPROVED if is_approved else Decision.REJECTED
        decide(approval.pk, decision, by, text_of(form, "note")[:2000])
        if not is_approved:
            return _("The calibration stays as it is.")
        soon(recompute_open_months.delay)
        return _("The new calibration is approved; open months that it touches are computed again.")


def farthest_off(days: Sequence[DayOfModel]) -> DayOfModel | None:
    """The day that deviates most, either way."""
    known = [
        (abs(day.deviation.ppm), day)
        for day in days
        if day.deviation is not None and day.deviation.ppm is not None
    ]
    return max(known, key=lambda one: one[0])[1] if known else None


def _in_words(error: ApprovalError) -> str:
    own = {
        "no_reason": _("Give a reason: it stands on the audit trail."),
        "no_change": _("It is so already."),
        "outdated": _("Its day has come meanwhile, or something else stands there now: propose it again."),
    }
    return own.get(error.code) or refusal(error)


def _percent(ppm: int | None) -> str | None:
    return None if ppm is None else fixed_decimal(round_half_even(ppm, 1000), 1)


def models_table(rows: Callable[[], Sequence[ModelWindow]]) -> Table:
    hours = _("GPU-hours")
    return Table(
        "models",
        rows,
        [
            Column("model", _("Model"), CODE_IN_ONE, filter=TEXT_FILTER),
            Column("gpu_model", _("GPU model"), CODE),
            Column("measured_gpu_hours", _("Measured"), GPU_HOURS, of="measured_gpu_us", unit=hours),
            Column("predicted_gpu_hours", _("Predicted"), GPU_HOURS, of="predicted_gpu_us", unit=hours),
            Column("deviation_percent", _("Deviation"), CHANGE, of=lambda row: _percent(row.deviation_ppm)),
            Column("tolerance_percent", _("Tolerance"), PERCENT, of=lambda row: _percent(row.tolerance_ppm)),
            Column("days", _("Days"), COUNT),
            Column(
                "days_beyond",
                _("Days beyond"),
                COUNT,
                css=lambda row: "alarm" if row.days_beyond else "",
            ),
            Column("days_without", _("Without calibration"), COUNT),
            Column("calibrated_from", _("Calibrated since"), VALIDITY),
        ],
        label=_("Models against their calibrations"),
        empty=_("No request of this time stated both its tokens and its GPU time."),
    )


def days_table(rows: Callable[[], Sequence[DayOfModel]]) -> Table:
    def of(name: str) -> Callable[[DayOfModel], int | None]:
        return lambda day: None if day.deviation is None else getattr(day.deviation, name)

    def state(day: DayOfModel) -> str:
        if day.deviation is None:
            return _("no calibration")
        return _("beyond tolerance") if day.deviation.beyond_tolerance else _("within tolerance")

    return Table(
        "days",
        rows,
        [
            Column("day", _("Day"), DAY, unit="UTC"),
            Column("model", _("Model"), CODE_IN_ONE, filter=TEXT_FILTER),
            Column("gpu_model", _("GPU model"), CODE, filter=TEXT_FILTER),
            Column("input_tokens", _("Input tokens"), COUNT, of="seen.input_tokens"),
            Column("cached_input_tokens", _("Cached input tokens"), COUNT, of="seen.cached_input_tokens"),
            Column("output_tokens", _("Output tokens"), COUNT, of="seen.output_tokens"),
            Column("measured_gpu_hours", _("Measured"), GPU_HOURS, of="seen.measured_gpu_us"),
            Column("predicted_gpu_hours", _("Predicted"), GPU_HOURS, of=of("predicted_gpu_us")),
            Column("deviation_percent", _("Deviation"), CHANGE, of=lambda day: _percent(of("ppm")(day))),
            Column(
                "state",
                _("State"),
                of=state,
                css=lambda day: "alarm" if day.deviation and day.deviation.beyond_tolerance else "",
            ),
        ],
        label=_("Predicted and measured by day"),
        caption=_("GPU time in GPU-hours"),
    )


def _tests(row: Calibration) -> str:
    """What load tests are called, or over which time it was fitted again, in the reader's language."""
    refit = str(sentence("refit_over", window=""))
    if not row.load_test.startswith(refit):
        return row.load_test
    return in_words(sentence("refit_over", window=row.load_test.removeprefix(refit)))


def refits_table(rows: Callable[[], Sequence[Proposal]]) -> Table:
    titles = {"input": _("Input"), "cached_input": _("Cached input"), "output": _("Output")}
    return Table(
        "refits",
        rows,
        [
            Column("model", _("Model"), CODE_IN_ONE),
            Column("gpu_model", _("GPU model"), CODE),
            Column("days_beyond", _("Days beyond"), COUNT),
            *[_cost_column(f"fitted.cost.{name}_gpu_us_per_1k", name, titles[name]) for name in COSTS],
            Column("days", _("Fitted over"), COUNT, of="fitted.observations", unit=_("days")),
            Column(
                "residual_gpu_hours",
                _("Residual"),
                GPU_HOURS,
                of="fitted.residual_gpu_us",
                unit=_("GPU-hours a day"),
                help=_("Root mean square of measured less predicted by the re-fit"),
            ),
        ],
        label=_("Proposed re-fits"),
        caption=_("GPU-seconds per 1000 tokens"),
        empty=_("Every model is within its tolerance: nothing is proposed."),
    )


_SECONDS = Kind(
    lambda gpu_us: COUNT.show(None) if gpu_us is None else COUNT.show(fixed_decimal(int(gpu_us), 6)),
    lambda gpu_us: "" if gpu_us is None else fixed_decimal(int(gpu_us), 6),
    is_number=True,
)


def _cost_column(path: str, name: str, title: Any) -> Column:
    return Column(f"{name}_gpu_seconds_per_1k", title, _SECONDS, of=path)


def versions_table(rows: Callable[[], Sequence[Calibration]], may_end: bool) -> Table:
    titles = {"input": _("Input"), "cached_input": _("Cached input"), "output": _("Output")}
    end = _("End it")
    return Table(
        "versions",
        rows,
        [
            Column("model", _("Model"), CODE_IN_ONE, of="model.name", filter=TEXT_FILTER),
            Column("gpu_model", _("GPU model"), CODE, filter=TEXT_FILTER),
            Column("valid_from", _("From"), VALIDITY),
            Column("until", _("Until"), VALIDITY, of="ended_at"),
            *[_cost_column(f"{name}_gpu_us_per_1k", name, titles[name]) for name in COSTS],
            Column("tolerance_percent", _("Tolerance"), PERCENT, of=lambda row: _percent(row.tolerance_ppm)),
            Column("load_test", _("From which tests"), html=_tests, css=lambda row: "wide"),
            Column("by", _("Recorded by"), of="recorded_by"),
            Column("reason", _("Reason")),
            Column(
                "end",
                end,
                of=lambda row: end,
                link=lambda row: end_link("calibration", row.pk),
                can_sort=False,
                in_csv=False,
                on_page=may_end,
            ),
        ],
        label=_("Calibrations"),
        caption=_("GPU-seconds per 1000 tokens"),
        empty=_("There is no calibration yet. Import a load test, or configure one:"),
    )
