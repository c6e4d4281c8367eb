"""CSV that every program reads and no spreadsheet runs."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.csv_cells import cell, cells, text_of_cell
from ledger.core.csv_stream import csv_pieces

FORMULAS = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＋A1", "－A1", "＠SUM(A1)"]


@pytest.mark.parametrize("text", FORMULAS)
def test_what_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert cells([text]) == ["'" + text]
    assert text_of_cell("'" + text) == text


@pytest.mark.parametrize("value", ["-1.5", "+3", "-0.000001", "", "a=b", "1-2", 5, -5])
def test_numbers_and_plain_text_stay_as_they_are(value: object) -> None:
    assert cells([value]) == [value]


@given(st.lists(st.one_of(st.text(max_size=8), st.none(), st.booleans(), st.integers()), max_size=8))
def test_a_row_at_once_is_its_cells_one_by_one(row: list[object]) -> None:
    assert cells(row) == [cell(value) for value in row]


@given(st.lists(st.lists(st.text(max_size=6), min_size=2, max_size=2), max_size=6))
def test_readers_get_back_what_was_written(rows: list[list[str]]) -> None:
    data = b"".join(csv_pieces(["a", "b"], rows)).decode()
    read = list(csv.reader(io.StringIO(data, newline="")))
    assert read[0] == ["a", "b"]
    assert [[text_of_cell(value) for value in row] for row in read[1:]] == [
        [text_of_cell(str(cell(value))) for value in row] for row in rows
    ]


def test_a_million_rows_come_in_pieces() -> None:
    """Nothing is read ahead: a piece is given out as soon as its rows are there."""
    asked = 0

    def rows() -> object:
        nonlocal asked
        while True:
            asked += 1
            yield (asked,)

    pieces = csv_pieces(["n"], rows())  # type: ignore[arg-type]
    next(pieces)
    assert asked <= 1000
