"""Turns query parameters into questions; what cannot be understood is a 400 that names the parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rest_framework.request import Request

from billing.selectors.allocations import DETAILS_OF, DIMENSIONS, FILTERS, STEPS, AllocationQuestion
from billing.selectors.minutes import LONGEST_BY_MINUTE_MS
from billing.services.as_of import RequestsGone
from ledger.access import Access
from ledger.api.problems import Problem
from ledger.core.periods import Month, Span, to_datetime, to_ms
from ledger.core.units import MS_PER_DAY
from ledger.core.windows import BadWindow, parse_instant, parse_window
from ledger.models import Ledger, ServiceClass

LABEL = "label:"
STEPS_OF_ROLLUPS = STEPS[STEPS.index("hour") :]
_CLASSES = {str(choice.label): str(choice.value) for choice in ServiceClass}


def window_of(request: Request, ledger: Ledger, now_ms: int, default: str | None = None) -> Span:
    """The `window` parameter as a span."""
    text = request.query_params.get("window", default)
    if text is None:
        raise Problem(400, "missing_parameter", "window is required, such as 2026-10.", parameter="window")
    try:
        return parse_window(text, ledger.billing_time_zone, now_ms)
    except BadWindow as error:
        raise Problem(422, "bad_window", str(error), parameter="window") from None


def allocation_question(request: Request, access: Access, ledger: Ledger, now_ms: int) -> AllocationQuestion:
    """`window`, `by`, `step`, filters and `include=idle` of `GET allocations/`."""
    named, label = _labelled(request.query_params.get("by", "tenant").split(","))
    by = _known_dimensions(named, (*DIMENSIONS, *DETAILS_OF))
    step = step_of(request, STEPS)
    include = request.query_params.get("include", "")
    if include not in ("", "idle"):
        raise Problem(400, "bad_include", "include can only be 'idle'.", parameter="include")
    filters = filters_of(request, FILTERS)
    for name in label_parameters(request):
        _, label = _labelled([name], label)
        filters["label"] = filters_of(request, (name,))[name]
    question = AllocationQuestion(
        window=window_of(request, ledger, now_ms),
        zone=ledger.billing_time_zone,
        by=by,
        step=step,
        filters=filters,
        label=label,
        # The pool's unsold idle time is the platform's business; a tenant sees its own rows only.
        include_idle=include == "idle" and access.sees_all_tenants,
        tenant_ids=None if access.sees_all_tenants else access.tenant_ids,
    )
    if question.step == "minute":
        _needs_a_day(question)
    if question.is_by_workload:
        _needs_whole_days(question)
    return question


def label_parameters(request: Request) -> list[str]:
    """Filters such as `label:team`."""
    return [name for name in request.query_params if name.startswith(LABEL)]


def _labelled(names: Sequence[str], known: str = "") -> tuple[list[str], str]:
    """(names with `label` for `label:<name>`, the one label's name)"""
    labels = {name.removeprefix(LABEL) for name in names if name.startswith(LABEL)} | ({known} - {""})
    if len(labels) > 1 or "" in labels or "label" in names or any("\x00" in label for label in labels):
        raise Problem(422, "bad_by", "one label at a time, as label:<name>.", parameter="by")
    return ["label" if name.startswith(LABEL) else name for name in names if name], next(iter(labels), "")


def _needs_a_day(question: AllocationQuestion) -> None:
    """Minutes are split when they are asked for, from levels alone."""
    if question.window.length_ms > LONGEST_BY_MINUTE_MS:
        raise Problem(422, "bad_window", "by the minute a window is a day at most.", parameter="window")
    if question.is_by_workload or question.is_by_request:
        detail = "by the minute, by can be " + ", ".join(DIMENSIONS) + "."
        raise Problem(422, "bad_by", detail, parameter="by")


def _needs_whole_days(question: AllocationQuestion) -> None:
    """By workload the books keep UTC days, cut at the ends of a month."""
    if question.step in ("minute", "hour"):
        detail = "by workload, user or label the step is day, month or all."
        raise Problem(422, "bad_step", detail, parameter="step")
    for edge_ms in (question.window.start_ms, question.window.end_ms):
        is_month = edge_ms == Month.containing(edge_ms, question.zone).starts_ms(question.zone)
        if edge_ms % MS_PER_DAY and not is_month:
            detail = "by workload, user or label a window begins and ends at 00:00 UTC, or with a month."
            raise Problem(422, "bad_window", detail, parameter="window")


def as_of(request: Request, now_ms: int) -> datetime | None:
    """The `as_of` parameter: an instant that has been; None where it is not given."""
    text = request.query_params.get("as_of")
    if text is None:
        return None
    try:
        instant = to_datetime(parse_instant(text))
    except BadWindow as error:
        raise Problem(422, "bad_as_of", str(error), parameter="as_of") from None
    if to_ms(instant) > now_ms:
        raise Problem(422, "bad_as_of", "as_of must not lie in the future.", parameter="as_of")
    return instant


@contextmanager
def requests_kept() -> Iterator[None]:
    """What was known of usage cannot always be told once requests are pruned: a 409 that says so."""
    try:
        yield
    except RequestsGone as gone:
        raise Problem(409, "requests_pruned", str(gone), parameter="as_of") from None


def month_of(window: Span, zone: str) -> Month:
    """The billing month that a window lies in. Raises Problem where it touches several."""
    month = Month.containing(window.start_ms, zone)
    if window.end_ms > month.span(zone).end_ms:
        raise Problem(422, "bad_as_of", "as_of needs a window within one month.", parameter="as_of")
    return month


def dimensions_of(request: Request, possible: tuple[str, ...], default: str) -> tuple[str, ...]:
    """The `by` parameter, in the order of `possible`."""
    asked = [name for name in request.query_params.get("by", default).split(",") if name]
    return _known_dimensions(asked, possible)


def _known_dimensions(asked: Sequence[str], possible: tuple[str, ...]) -> tuple[str, ...]:
    for name in asked:
        if name not in possible:
            problem = f"by cannot be '{name}'; possible: {', '.join(possible)}."
            raise Problem(400, "bad_by", problem, parameter="by")
    return tuple(name for name in possible if name in asked)


def step_of(request: Request, possible: Sequence[str] = STEPS_OF_ROLLUPS) -> str:
    step = request.query_params.get("step", "all")
    if step not in possible:
        raise Problem(400, "bad_step", f"step must be one of {', '.join(possible)}.", parameter="step")
    return step


def filters_of(request: Request, names: tuple[str, ...]) -> dict[str, list[str]]:
    """Comma-separated wanted values per dimension."""
    filters: dict[str, list[str]] = {}
    for name in names:
        text = request.query_params.get(name)
        if text is None:
            continue
        values = text.split(",")
        filters[name] = _class_values(values) if name == "service_class" else values
    return filters


def _class_values(values: list[str]) -> list[str]:
    for value in values:
        if value not in _CLASSES:
            raise Problem(
                400, "bad_filter", f"there is no service_class '{value}'.", parameter="service_class"
            )
    return [_CLASSES[value] for value in values]


def instant_of(request: Request, default: datetime) -> datetime:
    """The `at` parameter."""
    text = request.query_params.get("at")
    if text is None:
        return default
    try:
        return to_datetime(parse_instant(text))
    except BadWindow as error:
        raise Problem(422, "bad_instant", str(error), parameter="at") from None
    except OverflowError:
        raise Problem(422, "bad_instant", f"{text!r} is out of range", parameter="at") from None
