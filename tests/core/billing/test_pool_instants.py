"""Pools at instants from arrays are the pools that the sweep shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from billing.core.allocation_at import cover_own_services, split_at
from billing.core.allocation_levels import PLATFORM, Holders
from billing.core.pool_instants import PoolInstants
from billing.core.pool_moments import CAPACITY, OCCUPANCY, RESERVATION, Change, moments
from ledger.core.levels import Levels

# svc and web belong to acme, alone to the platform.
HOLDERS = Holders(("acme", "alone", "beta", "svc", "web"), np.array([PLATFORM, PLATFORM, PLATFORM, 0, 0]))
OWNERS = {"svc": "acme", "web": "acme"}
INSTANTS = [0, 3, 4, 9]

Fact = tuple[int, int, int, int, int, bool]
FACTS = st.lists(
    st.tuples(
        st.sampled_from([CAPACITY, RESERVATION, OCCUPANCY]),
        st.integers(0, 3),
        st.integers(0, 9),
        st.integers(0, len(HOLDERS.slugs) - 1),
        st.integers(0, 9_000),
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda fact: (fact[0], 0 if fact[0] == CAPACITY else fact[1], fact[2]),
)


def levels_of(facts: Sequence[Fact]) -> Levels:
    """In the order of effective_levels; a pool has one capacity. Subjects may change hands."""
    rows = sorted((kind, 0 if kind == CAPACITY else subject, *rest) for kind, subject, *rest in facts)
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    kind, subject, time_ms, who, milli, lendable = columns
    nothing = np.zeros(len(kind), np.int64)
    who = np.where(kind == CAPACITY, -1, who)
    return Levels(kind, subject, nothing, time_ms, milli, who, lendable.astype(bool), nothing)


@given(FACTS)
def test_pools_at_instants_are_those_of_the_sweep(facts: list[Fact]) -> None:
    levels = levels_of(facts)
    changes = [
        Change(time_ms, (kind, subject, 0), "" if who < 0 else HOLDERS.slugs[who], milli, lendable)
        for kind, subject, time_ms, who, milli, lendable in zip(
            *(
                getattr(levels, name).tolist()
                for name in ("kind", "subject", "time_ms", "who", "milli", "lendable")
            ),
            strict=True,
        )
    ]
    seen = PoolInstants.of(levels, HOLDERS, INSTANTS[::-1])
    idle = dict(zip(seen.instants.tolist(), seen.idle().tolist(), strict=True))
    for instant, moment in moments(changes, INSTANTS, OWNERS).items():
        held = seen.held(instant)
        assert cover_own_services(held, OWNERS) == moment.held
        assert split_at(seen.capacity_at(instant), held, OWNERS) == moment.split
        assert idle[instant] == moment.split.unreserved_idle + moment.split.lendable_idle
