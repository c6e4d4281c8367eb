"""A month's exceptions for people: grouped by kind, each with what to do, and leading to what it is about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Count, Q, Sum

from billing.models import BillingFinding, PreemptionRecord
from billing.services.preemption_records import record_id
from ledger.models import Event, FactFinding, Period
from ledger.wording import exception_words

SUBJECTS_SHOWN = 5  # of an exception; enough to know where to look
LEVEL_CONFLICT = "level_conflict"
MERGE_CONFLICT = "merge_conflict"
# A computation notes the event that lost by the number of its row.
_NUMBER_OF_EVENT = re.compile("event ([0-9]{1,18})")


@dataclass(frozen=True)
class Subject:
    """What an exception is about. event: the one that a fact came in; record: the preemption, if it is about one."""

    text: str
    event: Event | None = None
    record: UUID | None = None


@dataclass(frozen=True)
class ExceptionGroup:
    """All exceptions of one kind in a month, with what to do about them. more: subjects beyond those shown."""

    code: str
    what: str
    remedy: str
    count: int
    blocks_close: bool
    gpu_us: int | None = None
    subjects: tuple[Subject, ...] = ()
    more: int = 0


def exceptions_of(period: Period) -> list[ExceptionGroup]:
    """What blocks the close first, then the more frequent. Two queries, and one more where facts contradict."""
    computed = (
        BillingFinding.objects.filter(month=period.month)
        .values("code", "blocks_close")
        .annotate(
            count=Count("pk"),
            gpu_us=Sum("quantity", filter=Q(unit="gpu_us")),
            subjects=ArrayAgg("subject", distinct=True, order_by="subject"),
        )
        .order_by()
    )
    of_facts = (
        FactFinding.objects.filter(occurred_at__gte=period.starts_at, occurred_at__lt=period.ends_at)
        .values("code", "blocks_close")
        .annotate(count=Count("pk"), subjects=ArrayAgg("subject", distinct=True, order_by="subject"))
        .order_by()
    )
    rows: list[Mapping[str, Any]] = [*computed, *of_facts]
    named = {id(row): [subject for subject in row["subjects"] if subject] for row in rows}
    events = _events(
        subject
        for row in rows
        if row["code"] == LEVEL_CONFLICT
        for subject in named[id(row)][:SUBJECTS_SHOWN]
    )
    groups = []
    for row in rows:
        what, remedy = exception_words(row["code"])
        subjects = named[id(row)]
        groups.append(
            ExceptionGroup(
                code=row["code"],
                what=what,
                remedy=remedy,
                count=row["count"],
                blocks_close=row["blocks_close"],
                gpu_us=row.get("gpu_us") or None,
                subjects=tuple(_subject(row["code"], text, events) for text in subjects[:SUBJECTS_SHOWN]),
                more=max(len(subjects) - SUBJECTS_SHOWN, 0),
            )
        )
    return sorted(groups, key=lambda group: (not group.blocks_close, -group.count, group.code))


def _events(subjects: Iterable[str]) -> dict[str, Event]:
    """Of subjects such as `event 17`, those that are there."""
    numbers = {text: int(found[1]) for text in subjects if (found := _NUMBER_OF_EVENT.fullmatch(text))}
    if not numbers:
        return {}
    events = Event.objects.select_related("source").defer("body").in_bulk(numbers.values())
    return {text: events[number] for text, number in numbers.items() if number in events}


def _subject(code: str, text: str, events: Mapping[str, Event]) -> Subject:
    """In the words of whoever sent it: a fact by its source and id, a preemption by its cluster and id."""
    event = events.get(text)
    if event is not None:
        return Subject(f"{event.source.uri} {event.event_id}", event=event)
    cluster, slash, preemption = text.partition("/")
    if code == MERGE_CONFLICT and slash:
        return Subject(text, record=record_id((cluster, preemption)))
    return Subject(text)


def conflicts_of(record: PreemptionRecord) -> dict[str, list[str]]:
    """Field -> what each report said of it, where reports of the preemption disagree. One query, over finding_once."""
    found = FactFinding.objects.filter(
        code=MERGE_CONFLICT,
        pool=record.pool_id,
        occurred_at=record.decided_at,
        subject=f"{record.cluster}/{record.preemption}",
    ).first()
    detail: dict[str, list[str]] = {} if found is None else found.detail
    return detail
