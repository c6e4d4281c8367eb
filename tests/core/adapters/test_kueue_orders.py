"""Any life of a workload, told in any order: the same levels and the same preemptions."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.core.adapters import load
from ingest.core.adapters.base import rfc3339
from tests.core.adapters.kueue_records import (
    MESSAGE,
    PREEMPTOR,
    VICTIM,
    condition,
    new_event,
    preemptor,
    workload,
)
from tests.core.adapters.running import events_of, run, source_of

Obj = dict[str, Any]
START_MS = 1788249600000


def life(cycles: list[tuple[int, int, int]]) -> tuple[list[Obj], set[tuple[str, Any]], set[str]]:
    """`(records, expected levels, expected preemption ids)` of a workload that runs and is preempted, again and again.

    A cycle is `(seconds it runs, seconds of grace, seconds it waits)`; each gives a look at every transition, and an
    Event a few milliseconds after the decision, some of them across the second.
    """
    records: list[Obj] = [preemptor()]
    levels: set[tuple[str, Any]] = set()
    ids: set[str] = set()
    now = START_MS
    for number, (runs, grace, waits) in enumerate(cycles):
        admitted, decided, released = (
            rfc3339(now),
            rfc3339(now + runs * 1000),
            rfc3339(now + (runs + grace) * 1000),
        )
        over = (
            [condition("Evicted", "False", "QuotaReserved", admitted, f"Previously: {MESSAGE}")]
            if number
            else []
        )
        reserved = condition("QuotaReserved", "True", "QuotaReserved", admitted)
        evicted = condition("Evicted", "True", "Preempted", decided, MESSAGE)
        freed = condition("QuotaReserved", "False", "Pending", released, MESSAGE)
        records += [
            workload(VICTIM, [reserved, *over], evictions=number),
            workload(VICTIM, [reserved, evicted], evictions=number + 1),
            workload(VICTIM, [freed, evicted], evictions=number + 1, admitted=False),
        ]
        seen = rfc3339(now + runs * 1000 + 1)[:-5] + (".999Z" if number % 2 else ".002Z")
        records.append(new_event("Preempted", MESSAGE, uid=f"e{number}", eventTime=seen))
        levels |= {(admitted, 8), (released, 0)}
        ids.add(f"{VICTIM}/{decided}")
        now += (runs + grace + waits) * 1000
    return records, levels, ids


CYCLES = st.lists(
    st.tuples(st.integers(90, 9000), st.integers(1, 60), st.integers(1, 4000)), min_size=1, max_size=4
)


@given(CYCLES, st.data())
@settings(max_examples=60, deadline=None)
def test_any_order_any_repeats_any_batches(cycles: list[tuple[int, int, int]], data: st.DataObject) -> None:
    records, levels, ids = life(cycles)
    deliveries = data.draw(
        st.permutations(records + data.draw(st.lists(st.sampled_from(records), max_size=4)))
    )
    cut = data.draw(st.integers(0, len(deliveries)))
    state: Obj = {}
    outcomes = run("kueue", deliveries[:cut], state=state)
    state = copy.deepcopy(json.loads(json.dumps(state)))
    outcomes += run("kueue", deliveries[cut:], state=state)
    outcomes += load("kueue").flush(source_of("kueue"), state, None)
    occupancy = events_of(outcomes, "occupancy")
    assert {(e["time"], e["data"]["gpus"]) for e in occupancy} == levels
    preemptions = events_of(outcomes, "preemption")
    assert {e["data"]["preemption"] for e in preemptions} == ids
    assert {e["id"] for e in preemptions if e["id"].startswith("event/")} == {
        f"event/e{n}/1" for n in range(len(cycles))
    }
    assert {e["data"]["preemptor"]["workload"] for e in preemptions} == {PREEMPTOR}
    # Told in order, and kept nowhere: what has the same key has the same content.
    in_order = {e["id"]: e for e in events_of(run("kueue", records))}
    assert all(in_order.get(e["id"], e) == e for e in events_of(outcomes))
    assert len({e["id"] for e in outcomes if isinstance(e, dict)}) == sum(
        isinstance(e, dict) for e in outcomes
    )
