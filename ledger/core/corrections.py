"""Which facts no longer count: superseded ones, and replacements whose correction does not hold (domain.md section 3).

A correction is an event like any other, so it can be corrected itself. Of several corrections of one event that
count, the greatest (time, source, id) wins; a withdrawn or replaced correction does not count, and what it superseded
does again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[str, str]
"""(source, event id)."""


@dataclass(frozen=True, slots=True)
class CorrectionFact:
    """`time_ms` with `key` ranks it among the corrections of `target`, byte by byte."""

    key: Key
    time_ms: int
    target: Key
    replacement: Key | None = None

    @property
    def rank(self) -> tuple[int, bytes, bytes]:
        return self.time_ms, self.key[0].encode(), self.key[1].encode()


def void_keys(corrections: Iterable[CorrectionFact]) -> set[Key]:
    """Keys of the events that do not count, whatever order the corrections came in.

    Corrections that aim at each other in a circle decide nothing among themselves; there the greatest one counts.
    """
    facts = sorted(corrections, key=lambda fact: fact.rank, reverse=True)
    counts = _counting(facts)
    void = {fact.target for fact in facts if counts[fact.key] and fact.target != fact.key}
    won: set[Key] = set()
    for fact in facts:
        holds = counts[fact.key] and fact.target not in won
        if counts[fact.key]:
            won.add(fact.target)
        if not holds and fact.replacement is not None:
            void.add(fact.replacement)
    return void


def _counting(facts: list[CorrectionFact]) -> dict[Key, bool]:
    """Correction -> whether it counts. facts: greatest first."""
    if not _is_nested(facts):
        return dict.fromkeys((fact.key for fact in facts), True)
    aimed_at: dict[Key, list[CorrectionFact]] = defaultdict(list)
    brought_by: dict[Key, list[CorrectionFact]] = defaultdict(list)
    for fact in facts:
        if fact.target != fact.key:
            aimed_at[fact.target].append(fact)
        if fact.replacement is not None:
            brought_by[fact.replacement].append(fact)
    decided: dict[Key, bool] = {}
    open_facts = facts
    while open_facts:
        left = []
        for fact in open_facts:
            verdict = _verdict(fact, aimed_at, brought_by, decided)
            if verdict is None:
                left.append(fact)
            else:
                decided[fact.key] = verdict
        if len(left) == len(open_facts):
            decided[left.pop(0).key] = True
        open_facts = left
    return decided


def _is_nested(facts: list[CorrectionFact]) -> bool:
    keys = {fact.key for fact in facts}
    return any(fact.target in keys or fact.replacement in keys for fact in facts)


def _verdict(
    fact: CorrectionFact,
    aimed_at: dict[Key, list[CorrectionFact]],
    brought_by: dict[Key, list[CorrectionFact]],
    decided: dict[Key, bool],
) -> bool | None:
    """Whether the correction counts; None as long as that depends on one that is not decided."""
    known = [decided.get(one.key) for one in aimed_at[fact.key]]
    if True in known:
        return False
    bringers = [_holds(one, aimed_at, decided) for one in brought_by[fact.key]]
    if bringers and all(holds is False for holds in bringers):
        return False
    if None in known or (bringers and True not in bringers):
        return None
    return True


def _holds(
    fact: CorrectionFact, aimed_at: dict[Key, list[CorrectionFact]], decided: dict[Key, bool]
) -> bool | None:
    """Whether it counts and wins over all others of its target; None as long as that is open."""
    if fact.key not in decided:
        return None
    if not decided[fact.key]:
        return False
    greater = [decided.get(one.key) for one in aimed_at[fact.target] if one.rank > fact.rank]
    if True in greater:
        return False
    return None if None in greater else True
