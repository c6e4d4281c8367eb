"""A matrix folded to what fits: nothing is lost, and what is there is never shaded as nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing.core.matrix import REST, STEPS, fold_matrix


def test_the_largest_stay_and_the_rest_is_one() -> None:
    cells = [("a", "x", 5), ("a", "x", 4), ("b", "y", 30), ("c", "x", 1), ("d", "z", 2), ("d", "x", 1)]
    folded = fold_matrix(cells, 2)
    assert folded.columns == ["y", "x", "z"]  # one more than the limit is shown rather than folded
    assert [(row.name, [cell.value for cell in row.cells], row.total) for row in folded.rows] == [
        ("b", [30, 0, 0], 30),
        ("a", [0, 9, 0], 9),
        (REST, [0, 2, 2], 4),
    ]
    assert [[cell.step for cell in row.cells] for row in folded.rows] == [[9, 0, 0], [0, 3, 0], [0, 1, 1]]
    assert (folded.column_totals, folded.total) == ([30, 11, 2], 43)
    assert fold_matrix([], 3).rows == []


@given(
    st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from("uvwxyz"), st.integers(0, 10**15))),
    st.integers(1, 8),
)
def test_nothing_is_lost_by_folding(cells: list[tuple[str, str, int]], limit: int) -> None:
    folded = fold_matrix(cells, limit)
    assert sum(row.total for row in folded.rows) == sum(folded.column_totals) == folded.total
    assert folded.total == sum(value for _, _, value in cells)
    assert len(folded.rows) <= limit + 1
    for row in folded.rows:
        assert all((cell.step > 0) == (cell.value > 0) and cell.step <= STEPS for cell in row.cells)
