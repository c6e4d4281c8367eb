"""Who gave wrong passwords waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.lockout import Failure, Lockout

MINUTE_MS = 60_000
RULE = Lockout(window_ms=15 * MINUTE_MS, name_and_address=3, name=5, address=7)


def failures(*minutes: int, name: bool = True, address: bool = True) -> list[Failure]:
    return [Failure(minute * MINUTE_MS, name, address) for minute in minutes]


@pytest.mark.parametrize(
    ("given_failures", "now_minute", "until_minute"),
    [
        ([], 20, 0),
        (failures(10, 11), 20, 0),
        (failures(10, 11, 12), 20, 25),  # the third-latest leaves at 25
        (failures(10, 11, 12), 25, 0),
        (failures(10, 11, 12, 13), 20, 26),
        (failures(10, 11, 12, 13, address=False), 20, 0),  # four places, one name
        (failures(10, 11, 12, 13, 14, address=False), 20, 25),
        (failures(10, 11, 12, 13, 14, 15, name=False), 20, 0),  # six names from one place
        (failures(10, 11, 12, 13, 14, 15, 16, name=False), 20, 25),
        (failures(10, 11, name=False) + failures(12, 13), 20, 0),
        (failures(1, 2, 12, 13), 20, 0),  # two of them are too old
    ],
)
def test_locks_by_hand(given_failures: list[Failure], now_minute: int, until_minute: int) -> None:
    assert RULE.locked_until_ms(given_failures, now_minute * MINUTE_MS) == until_minute * MINUTE_MS


some = st.lists(st.builds(Failure, st.integers(0, 60 * MINUTE_MS), st.booleans(), st.booleans()), max_size=30)


@given(some, st.integers(0, 60 * MINUTE_MS))
def test_a_lock_ends_by_itself_and_order_does_not_matter(found: list[Failure], now_ms: int) -> None:
    past = [one for one in found if one.at_ms <= now_ms]
    until_ms = RULE.locked_until_ms(past, now_ms)
    assert until_ms == RULE.locked_until_ms(list(reversed(past)), now_ms)
    assert until_ms <= now_ms + RULE.window_ms
    if until_ms:
        assert until_ms > now_ms
        assert RULE.locked_until_ms(past, until_ms) == 0


@given(some, st.integers(0, 60 * MINUTE_MS))
def test_one_more_failure_never_shortens_a_lock(found: list[Failure], now_ms: int) -> None:
    past = [one for one in found if one.at_ms <= now_ms]
    more = [*past, Failure(now_ms, True, True)]
    assert RULE.locked_until_ms(more, now_ms) >= RULE.locked_until_ms(past, now_ms)
