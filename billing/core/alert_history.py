"""What rules that measure over a stretch of time would have said in the past (domain.md section 9; docs/alerts.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from billing.core.alerts import DAY_S, Finding
from ledger.core.periods import Span
from ledger.core.units import MS_PER_SECOND

# Rules that measure the last `lasting_s`, from facts that are read by their own instants.
MEASURED = frozenset(
    {"unused_reservation", "conversion_drift", "preemption_spike", "rejections", "unattributed"}
)


def looks(span: Span, lasting_s: int) -> list[int]:
    """The instants at which a rule is looked at in hindsight, in ms: one stretch of its time after the other, at
    least once a day; the last is the span's end."""
    step_ms = max(min(lasting_s, DAY_S), 1) * MS_PER_SECOND
    return sorted({*range(span.start_ms + step_ms, span.end_ms, step_ms), span.end_ms})


def stretches(
    looked: Iterable[tuple[int, Sequence[Finding]]], holding: Iterable[Finding] = ()
) -> list[Finding]:
    """One finding for every run of looks that found the same subject, with what was found last; one that the last
    look still found has no end.

    looked: (instant in ms, what was found then), by instant. holding: what held before the first look: it goes on, or
    is over with the first look that does not find it.
    """
    running: dict[str, Finding] = {one.subject: one for one in holding}
    over: list[Finding] = []
    for now_ms, findings in looked:
        found: dict[str, Finding] = {}
        for one in findings:
            found.setdefault(one.subject, one)
        for subject in running.keys() - found.keys():
            over.append(replace(running.pop(subject), ended_ms=now_ms))
        for subject, one in found.items():
            since = running.get(subject, one)
            running[subject] = replace(one, started_ms=since.started_ms, opens_ms=since.opens_ms)
    return sorted(over + list(running.values()), key=lambda one: (one.started_ms, one.subject))
