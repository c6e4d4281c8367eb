"""What people say about sources: signed off up to an instant, or answered for while silent (domain.md section 10)."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from ledger.models import SilenceWaiver, Source
from ledger.services.audit import Actor, record


class SourceProblem(ValueError):
    """What was asked for cannot be done; `code` for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@transaction.atomic
def sign_off_source(
    source_id: int, complete_until: datetime | None, reason: str, by: Actor, *, move_back: bool = False
) -> Source:
    """Say that everything of the source up to `complete_until` has arrived; None takes the word back.

    Later only, unless `move_back` says that going back is meant. Saying the same again changes and records nothing.

    Raises:
        SourceProblem: `no_reason`; `moves_back`.
    """
    reason = _said(reason)
    source = _locked(source_id)
    earlier = source.complete_until
    if complete_until == earlier:
        return source
    if earlier is not None and (complete_until is None or complete_until < earlier) and not move_back:
        raise SourceProblem(
            "moves_back", f"it is complete until {earlier.isoformat()} already; say that going back is meant"
        )
    source.complete_until = complete_until
    source.save(update_fields=["complete_until"])
    record(
        by,
        "sign_off_source",
        "source",
        _name(source),
        before={"complete_until": _text(earlier)},
        after={"complete_until": _text(complete_until)},
        reason=reason,
    )
    return source


@transaction.atomic
def waive_silence(source_id: int, until_at: datetime, reason: str, by: Actor) -> SilenceWaiver:
    """Answer for a silent source up to `until_at`. No level changes; new events count as always.

    Raises:
        SourceProblem: `no_reason`; `no_limit`, where the source may be silent for ever.
    """
    reason = _said(reason)
    source = _locked(source_id)
    if source.silence_after_s is None:
        raise SourceProblem("no_limit", "this source has no silence_after, so its silence blocks nothing")
    waiver = SilenceWaiver.objects.create(
        source=source, until_at=until_at, reason=reason, recorded_by=by.name[:150]
    )
    record(
        by,
        "waive_silence",
        "source",
        _name(source),
        before={"watermark_at": _text(source.watermark_at)},
        after={"until_at": _text(until_at)},
        reason=reason,
    )
    return waiver


def _said(reason: str) -> str:
    said = reason.strip()
    if not said:
        raise SourceProblem("no_reason", "give a reason")
    return said


def _locked(source_id: int) -> Source:
    # Not FOR UPDATE: that would hold up every booking of an event of this source.
    return Source.objects.select_for_update(no_key=True).get(pk=source_id)


def _name(source: Source) -> str:
    return str(source)[:200]


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
