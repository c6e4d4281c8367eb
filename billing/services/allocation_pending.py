"""Work that waits to start, where the policy `undelivered_counts_pending` counts it (domain.md section 4)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from django.db import connection

from billing.core.allocation_shares import Pending
from billing.models import Policy
from billing.services.allocation_facts import HolderIndex, holder_at, load_timeline, mapping_cuts
from billing.sql.preemptions import PENDING
from ledger.core.levels import NEVER
from ledger.core.periods import Span, to_datetime, to_ms


def pending_counts() -> list[tuple[int, int]]:
    """When pending work counts as undelivered: [start, end) in ms, in order."""
    found = []
    policies: list[Policy | None] = [*Policy.objects.order_by("valid_from"), None]
    for policy, following in pairwise(policies):
        if policy is None or not policy.undelivered_counts_pending:
            continue
        until = NEVER if following is None else to_ms(following.valid_from)
        ended = NEVER if policy.ended_at is None else to_ms(policy.ended_at)
        found.append((to_ms(policy.valid_from), min(until, ended)))
    return found


def read_pending(
    pool_id: int, span: Span, void: list[int], index: HolderIndex, counts: list[tuple[int, int]]
) -> Pending:
    """What waited for the pool inside `span` while it counts, cut where an identity changes hands.

    One query, and none where the policy never counts it.
    """
    if not any(start < span.end_ms and end > span.start_ms for start, end in counts):
        return Pending.none()
    with connection.cursor() as cursor:
        parameters: dict[str, Any] = {
            "pool": pool_id,
            "from": to_datetime(span.start_ms),
            "to": to_datetime(span.end_ms),
            "void": void,
        }
        cursor.execute(PENDING, parameters)
        changes = cursor.fetchall()
    timeline = load_timeline({identity for _, _, _, identity in changes}, index)
    cuts = mapping_cuts(timeline)
    rows = []
    for subject, start_ms, end_ms, milli, identity in _stretches(changes, span.end_ms):
        for low, high in counts:
            begin, end = max(start_ms, low, span.start_ms), min(end_ms, high, span.end_ms)
            if milli and begin < end:
                for left, right in pairwise([begin, *(cut for cut in cuts if begin < cut < end), end]):
                    rows.append((holder_at(timeline, identity, left), subject.encode(), left, right, milli))
    rows.sort()
    columns: list[Any] = [[row[place] for row in rows] for place in (0, 2, 3, 4)]
    return Pending(*(np.array(column, np.int64) for column in columns))


def _stretches(changes: list[tuple[Any, ...]], end_ms: int) -> list[tuple[str, int, int, int, int]]:
    """(subject, start, end, milli, identity) of each level; changes come in order, the last of one instant holds."""
    by_subject: dict[str, dict[int, tuple[int, int]]] = {}
    for subject, starts_at, milli, identity in changes:
        by_subject.setdefault(subject, {})[to_ms(starts_at)] = (milli, identity)
    found = []
    for subject, levels in by_subject.items():
        times = [*levels, end_ms]
        for (start_ms, (milli, identity)), until_ms in zip(levels.items(), times[1:], strict=True):
            found.append((subject, start_ms, until_ms, milli, identity))
    return found
