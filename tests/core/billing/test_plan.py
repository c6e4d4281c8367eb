"""Facts with another reservation in them (domain.md section 9)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from billing.core.plan import with_reservation
from ledger.core.levels import Kind, Levels, sort_order

ROWS = st.lists(
    st.tuples(
        st.sampled_from([Kind.CAPACITY, Kind.RESERVATION, Kind.OCCUPANCY]),
        st.integers(1, 3),
        st.integers(0, 50),
        st.integers(0, 9),
        st.integers(0, 2),
    ),
    max_size=20,
)


def levels(rows: list[tuple[Kind, int, int, int, int]]) -> Levels:
    def column(values: list[int]) -> np.ndarray:
        return np.array(values, np.int64)

    made = Levels(
        column([int(row[0]) for row in rows]),
        column([row[1] for row in rows]),
        column([0] * len(rows)),
        column([row[2] for row in rows]),
        column([row[3] for row in rows]),
        column([-1 if row[0] == Kind.CAPACITY else row[4] for row in rows]),
        np.ones(len(rows), bool),
        column([0] * len(rows)),
    )
    return made.take(sort_order(made.kind, made.subject, made.attempt, made.time_ms))


@given(ROWS, st.integers(0, 2), st.integers(0, 9))
def test_one_reservation_stands_for_the_holders_own_and_all_else_stays(
    rows: list[tuple[Kind, int, int, int, int]], holder: int, milli: int
) -> None:
    before = levels(rows)
    after = with_reservation(before, holder, milli, -1)
    own = (after.kind == Kind.RESERVATION) & (after.who == holder)
    held = after.take(own & (after.time_ms == -1))
    assert (len(held), held.milli.tolist(), held.lendable.tolist()) == (1, [milli], [True])
    assert after.take(own & (after.time_ms >= 0)).milli.sum() == 0
    others_before = before.take(~((before.kind == Kind.RESERVATION) & (before.who == holder)))
    others_after = after.take(~own)
    for name in Levels.__slots__:
        assert getattr(others_after, name).tolist() == getattr(others_before, name).tolist()
    order = sort_order(after.kind, after.subject, after.attempt, after.time_ms)
    assert (np.diff(order) >= 0).all() or len(
        set(zip(after.kind, after.subject, after.time_ms, strict=True))
    ) < len(after)
