"""The evidence itself: facts as they were booked, each with the event and the batch it came in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import Model, Q, QuerySet

from ledger.access import Access
from ledger.core.instants import instant_text
from ledger.core.periods import Span, to_datetime
from ledger.core.units import milli_gpus_text
from ledger.models import (
    Holder,
    Identity,
    Level,
    LevelKind,
    ModelName,
    Pool,
    PreemptionReport,
    Request,
    Service,
    Source,
)
from ledger.models.choices import EventType
from ledger.querysets import held_by, visible_to

LEVEL_KINDS = tuple(kind.label for kind in LevelKind)
# What facts are named by; events and bookings, where they come from, never change.
NAMED = (Pool, Identity, Source, ModelName, Service, Holder)
KINDS = ("level", *LEVEL_KINDS, "preemption", "request", "usage")


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """Which facts; None: any. span: facts that begin in it."""

    kind: str = "level"
    pool: str | None = None
    tenant_id: int | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Rows in a total order, and how one of them is shown."""

    rows: QuerySet[Any]
    to_row: Callable[[Any], dict[str, Any]]


def facts(question: FactQuestion, access: Access) -> Facts:
    """Levels that a tenant may see are its own; what names two parties, or a request, is for those who run or check
    the books. Requests read daily partitions, so they need a window."""
    if question.kind == "preemption":
        return Facts(_preemptions(question, access), _preemption_row)
    if question.kind in ("request", "usage"):
        return Facts(_requests(question, access), _request_row)
    return Facts(_levels(question, access), _level_row)


def _levels(question: FactQuestion, access: Access) -> QuerySet[Level]:
    rows = visible_to(Level.objects.all(), access)
    if question.kind != "level":
        rows = rows.filter(kind=LevelKind[question.kind.upper()])
    rows = _narrowed(rows, question, "starts_at", ("identity",))
    return rows.select_related("pool", "identity", "event__source", "event__booking").order_by(
        "starts_at", "pk"
    )


def _preemptions(question: FactQuestion, access: Access) -> QuerySet[PreemptionReport]:
    rows = visible_to(PreemptionReport.objects.all(), access)
    rows = _narrowed(rows, question, "decided_at", ("victim_identity", "preemptor_identity"))
    return rows.select_related(
        "pool", "victim_identity", "preemptor_identity", "event__source", "event__booking"
    ).order_by("decided_at", "pk")


def _requests(question: FactQuestion, access: Access) -> QuerySet[Request]:
    rows = visible_to(Request.objects.filter(type=EventType[question.kind.upper()]), access)
    if question.span is not None:
        first, last = (_utc(ms).date() for ms in (question.span.start_ms, question.span.end_ms - 1))
        rows = rows.filter(day__gte=first, day__lte=last)
    rows = _narrowed(rows, question, "ends_at", ("identity",))
    return rows.select_related("pool", "identity", "model", "service__holder", "source", "booking").order_by(
        "day", "source_id", "event_id"
    )


def _narrowed(
    rows: QuerySet[Any], question: FactQuestion, at: str, identities: Sequence[str]
) -> QuerySet[Any]:
    if question.pool is not None:
        rows = rows.filter(pool__slug=question.pool)
    if question.span is not None:
        starts_at, ends_at = to_datetime(question.span.start_ms), to_datetime(question.span.end_ms)
        rows = rows.filter(**{f"{at}__gte": starts_at, f"{at}__lt": ends_at})
    if question.tenant_id is not None:
        condition = Q()
        for identity in identities:
            condition |= held_by(identity, at, [question.tenant_id])
        # Two mappings of one identity never overlap, but a join may still give a row twice.
        matching: QuerySet[Model] = rows.model._default_manager.filter(condition)
        rows = (
            rows.filter(pk__in=matching.values("pk")) if rows.model is not Request else rows.filter(condition)
        )
    return rows


def _utc(instant_ms: int) -> datetime:
    return to_datetime(instant_ms).astimezone(UTC)


def _who(identity: Any) -> str:
    return "" if identity is None else f"{identity.kind}:{identity.value}"


def _row(kind: str, at: datetime, pool: str, **values: Any) -> dict[str, Any]:
    """Every kind has the same columns, so that a table of them is one table."""
    row: dict[str, Any] = {
        "kind": kind,
        "time": at,
        "ends_at": None,
        "pool": pool,
        "subject": "",
        "attempt": None,
    }
    row |= {
        "holder": "",
        "other": "",
        "gpus": None,
        "gpu_us": None,
        "input_tokens": None,
        "output_tokens": None,
    }
    row |= {"requests": None, "detail": {}}
    return row | values


def _origin(source: Any, event_id: str, booking: Any, line: int) -> dict[str, Any]:
    return {"source": source.uri, "id": event_id, "batch": booking.batch, "line": line}


def _event_origin(fact: Any) -> dict[str, Any]:
    event = fact.event
    return _origin(event.source, event.event_id, event.booking, event.line)


def _level_row(level: Level) -> dict[str, Any]:
    detail = {
        "lendable": level.lendable if level.kind == LevelKind.RESERVATION else None,
        "service_class": level.get_service_class_display(),
        "purpose": level.get_purpose_display(),
        "last_checkpoint_at": instant_text(level.last_checkpoint_at) or None,
        **(level.attributes or {}),
    }
    return _row(
        level.get_kind_display(),
        level.starts_at,
        level.pool.slug,
        ends_at=level.ends_at,
        subject=level.subject,
        attempt=level.attempt or None,
        holder=_who(level.identity),
        gpus=milli_gpus_text(level.milli_gpus),
        requests=level.requests,
        detail=_said(detail),
        **_event_origin(level),
    )


def _preemption_row(report: PreemptionReport) -> dict[str, Any]:
    detail = {
        "preemption": report.preemption,
        "cause": report.cause,
        "preemptor_source": report.preemptor_source,
        "preemptor_workload": report.preemptor_workload,
        "admitted_at": instant_text(report.admitted_at) or None,
        "released_at": instant_text(report.released_at) or None,
        "disposition": report.disposition,
    }
    return _row(
        "preemption",
        report.decided_at,
        report.pool.slug,
        subject=report.victim_workload or report.victim_request or "",
        attempt=report.victim_attempt,
        holder=_who(report.victim_identity),
        other=_who(report.preemptor_identity),
        gpus=milli_gpus_text(report.milli_gpus),
        gpu_us=None if report.lost_gpu_us is None else str(report.lost_gpu_us),
        detail=_said(detail),
        **_event_origin(report),
    )


def _request_row(request: Request) -> dict[str, Any]:
    detail = {
        "model": request.model.name,
        "service": request.service.slug if request.service is not None else None,
        "workload": request.workload,
        "outcome": request.get_outcome_display(),
        "starts_at": request.starts_at.isoformat(),
        "cached_input_tokens": request.cached_input_tokens,
        **(request.attributes or {}),
    }
    return _row(
        request.get_type_display(),
        request.ends_at,
        request.pool.slug,
        subject=request.request,
        attempt=request.attempt,
        holder=_who(request.identity),
        gpu_us=None if request.gpu_us is None else str(request.gpu_us),
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        requests=request.requests,
        detail=_said(detail),
        **_origin(request.source, request.event_id, request.booking, request.line),
    )


def _said(detail: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if value not in (None, "")}
