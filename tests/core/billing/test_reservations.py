"""A holder's use divided over its reservations, by hand and as an invariant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.core.reservations import Reserved, Use, use_of_reservations


def test_use_fills_what_may_not_be_lent_first() -> None:
    """6 fixed and 10 lendable; 8 used: all of the fixed and 2; 3 lent; of the 5 left 1 undelivered, 4 idle."""
    reserved = [Reserved("fixed", 6, lendable=False), Reserved("spare", 10)]
    assert use_of_reservations(
        reserved, Use(used=8, lent=3, idle=4, undelivered=1, undelivered_pending=1)
    ) == [
        Use(used=6),
        Use(used=2, lent=3, idle=4, undelivered=1, undelivered_pending=1),
    ]


def test_what_covered_own_services_is_used() -> None:
    assert use_of_reservations([Reserved("r", 10)], Use(used=2, idle=5)) == [Use(used=5, idle=5)]


@given(st.data())
def test_parts_add_up_to_reservations_and_to_the_holder(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=4))
    reserved = [Reserved(str(place), size, flag) for place, (size, flag) in enumerate(sizes)]
    left = sum(size for size, _ in sizes)
    lent = data.draw(st.integers(0, sum(size for size, flag in sizes if flag)))
    left -= lent
    parts = []
    for _ in range(3):
        parts.append(data.draw(st.integers(0, left)))
        left -= parts[-1]
    use = Use(parts[0], lent, left, parts[1], parts[2])
    found = use_of_reservations(reserved, use)
    assert [one.reserved for one in found] == [one.gpu_us for one in reserved]
    for name in ("used", "lent", "idle", "undelivered", "oversold"):
        assert sum(getattr(one, name) for one in found) == getattr(use, name)
        assert all(getattr(one, name) >= 0 for one in found)
    assert all(one.lent == 0 for one, of in zip(found, reserved, strict=True) if not of.lendable)
