"""Cells that are safe to open in a spreadsheet."""

from __future__ import annotations

from collections.abc import Iterable

# The last four are what an East Asian spreadsheet takes for the first.
_STARTS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_RISKY = frozenset(_STARTS_A_FORMULA)


def cells(row: Iterable[object]) -> list[object]:
    """A row of cells. Nearly all are text that begins with nothing special, and files have millions of them."""
    return [value if isinstance(value, str) and value[:1] not in _RISKY else cell(value) for value in row]


def cell(value: object) -> object:
    """`value` as a CSV cell: None is empty, true and false in words, and text that a spreadsheet would run as a
    formula gets a leading apostrophe. Numbers written as text, negative ones too, stay numbers."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_STARTS_A_FORMULA) and not _is_number(value):
        return "'" + value
    return value


def _is_number(text: str) -> bool:
    digits = text[1:] if text[:1] in "+-" else text
    whole, _, fraction = digits.partition(".")
    return (
        whole.isascii() and whole.isdigit() and (not fraction or (fraction.isascii() and fraction.isdigit()))
    )


def text_of_cell(text: str) -> str:
    """What a cell that was defused said."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_STARTS_A_FORMULA) else text
