"""The order in which the processes of the suite take the tests (tests/fixtures/order.py)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.fixtures.order import slow_first

QUICK = [Path(f"quick-{number}") for number in range(8) for _ in range(6)]
SLOW = [Path(name) for name in ("pages", "pages", "load", "start", "start", "start", "counts")]
# Of each slow file, tests in both parts: pytest-django has those with a transaction of their own come later.
FILES = [*QUICK[:20], *SLOW, *QUICK[20:], Path("pages"), Path("load")]


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_every_process_begins_with_its_share_of_the_slow_files(processes: int) -> None:
    order = slow_first(FILES, set(SLOW), processes)
    assert sorted(order) == list(range(len(FILES)))
    bounds = [len(FILES) * number // processes for number in range(processes + 1)]
    parts = [[FILES[place] for place in order[start:end]] for start, end in pairwise(bounds)]
    begun = [{file for file in part if file in SLOW} for part in parts]
    assert sum(len(files) for files in begun) == len(set(SLOW))  # none in two parts
    assert max(map(len, begun)) - min(map(len, begun)) <= 1
    for part in parts:
        kinds = [file in SLOW for file in part]
        assert kinds == sorted(kinds, reverse=True)


def test_tests_of_one_file_stay_in_their_order() -> None:
    order = slow_first(FILES, set(SLOW), 2)
    for file in set(FILES):
        places = [place for place in order if FILES[place] == file]
        assert places == sorted(places)


def test_without_slow_tests_nothing_moves() -> None:
    assert slow_first(QUICK, set(), 2) == list(range(len(QUICK)))
