"""The closing checklist: from what is known of a month to items that are clean, blocked or open (domain.md section 10).

An item is blocked by its evidence alone. One that a close does not need is open instead: it informs whoever closes. A
blocked item can be waived with a reason, for exactly that evidence;
what would make the books say something they cannot mean (order of months, an approval of another draft) cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from billing.core.canonical_json import canonical_sha256
from billing.core.sentences import Sentence, sentence
from ledger.core.silence import heard_until_ms, is_silent


class ItemState(StrEnum):
    CLEAN = "clean"
    BLOCKED = "blocked"
    OPEN = "open"
    WAIVED = "waived"


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the checklist. evidence: what is found; empty when clean. blocks: whether that keeps the month from
    being closed."""

    code: str
    evidence: tuple[Sentence, ...] = ()
    can_be_waived: bool = True
    waived_because: str = ""
    blocks: bool = True

    @property
    def state(self) -> ItemState:
        if not self.evidence:
            return ItemState.CLEAN
        if not self.blocks:
            return ItemState.OPEN
        return ItemState.WAIVED if self.waived_because else ItemState.BLOCKED

    @property
    def title(self) -> Sentence:
        return sentence(f"checklist_{self.code}")

    @property
    def evidence_sha256(self) -> str:
        """Names what was seen: a waiver holds for this and nothing else."""
        return canonical_sha256([self.code, [str(one) for one in self.evidence]])

    def told(self) -> Sentence:
        """What blocks it, as one sentence."""
        return sentence("item_blocks", item=self.title, evidence=self.evidence)


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source that is not retired. Instants in ms; None: never, or not said."""

    name: str
    watermark_ms: int | None
    complete_until_ms: int | None
    silence_after_ms: int | None
    waived_until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthEvidence:
    """Everything a close looks at, as plain values; each sequence holds what is wrong.

    earlier_open: months before this one that are not closed. behind: what is not computed yet. unproved: broken
    invariants. unreconciled: differences from others' totals that nothing and nobody explains. stale_approvals:
    numbers of statements whose draft changed after it was approved. unapproved: how many drafts nobody approved at all.
    quarantined_elsewhere: what is refused of months before, or came later without a time.
    awaiting_approval: what concerns the month's amounts and waits for a second person.
    """

    ends_ms: int
    now_ms: int
    earlier_open: Sequence[str] = ()
    behind: Sequence[Sentence] = ()
    unprocessed: Sequence[Sentence] = ()
    quarantined: Sequence[Sentence] = ()
    quarantined_elsewhere: Sequence[Sentence] = ()
    unattributed: Sequence[Sentence] = ()
    unreconciled: Sequence[Sentence] = ()
    exceptions: Sequence[Sentence] = ()
    missing_prices: Sequence[Sentence] = ()
    unproved: Sequence[Sentence] = ()
    sources: Sequence[SourceSeen] = ()
    stale_approvals: Sequence[str] = ()
    unapproved: Sequence[Sentence] = ()
    awaiting_approval: Sequence[Sentence] = ()


def checklist(seen: MonthEvidence) -> list[Item]:
    """All items, always in this order."""
    months = [sentence("month_not_closed", month=month) for month in seen.earlier_open]
    drafts = [sentence("draft_changed", statement=number) for number in seen.stale_approvals]
    return [
        _item("order", months, can_be_waived=False),
        _item("computed", seen.behind, can_be_waived=False),
        _item("batches", seen.unprocessed),
        _item("quarantine", seen.quarantined),
        _item("attribution", seen.unattributed),
        _item("reconciliation", seen.unreconciled),
        _item("exceptions", seen.exceptions),
        _item("prices", seen.missing_prices),
        _item("conservation", seen.unproved),
        _item("complete", _sources(incomplete(seen))),
        _item("silence", _sources(silent(seen))),
        _item("approvals", drafts, can_be_waived=False),
        _informs("quarantine_elsewhere", seen.quarantined_elsewhere),
        _informs("drafts", seen.unapproved),
        _informs("second_person", seen.awaiting_approval),
    ]


def _item(code: str, evidence: Sequence[Sentence], *, can_be_waived: bool = True) -> Item:
    return Item(code, tuple(evidence), can_be_waived)


def _sources(names: Sequence[str]) -> list[Sentence]:
    return [sentence("source_to_see_to", source=name) for name in names]


def _informs(code: str, evidence: Sequence[Sentence]) -> Item:
    return Item(code, tuple(evidence), can_be_waived=False, blocks=False)


def incomplete(seen: MonthEvidence) -> list[str]:
    """Sources that neither reported past the month's end nor were signed off up to it."""
    return [source.name for source in seen.sources if not _reaches(source, seen.ends_ms)]


def silent(seen: MonthEvidence) -> list[str]:
    """Sources not heard of for longer than they may be, unless a person answers for the month to its end."""
    return [source.name for source in seen.sources if _is_silent(source, seen)]


def _is_silent(source: SourceSeen, seen: MonthEvidence) -> bool:
    answered_ms = heard_until_ms(source.complete_until_ms, source.waived_until_ms)
    heard_ms = heard_until_ms(source.watermark_ms, answered_ms)
    return answered_ms < seen.ends_ms and is_silent(heard_ms, source.silence_after_ms, seen.now_ms)


def _reaches(source: SourceSeen, instant_ms: int) -> bool:
    return max(source.watermark_ms or 0, source.complete_until_ms or 0) >= instant_ms


def with_waivers(items: Sequence[Item], waivers: Mapping[tuple[str, str], str]) -> list[Item]:
    """waivers: (code, evidence_sha256) -> reason."""
    return [
        replace(item, waived_because=waivers.get((item.code, item.evidence_sha256), ""))
        if item.evidence and item.can_be_waived
        else item
        for item in items
    ]


def blocked(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.state == ItemState.BLOCKED]


def months_out_of_order(wanted: str, not_closed: Collection[str]) -> list[str]:
    """Months before `wanted` that have to be closed first."""
    return sorted(month for month in not_closed if month < wanted)
