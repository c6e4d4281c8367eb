"""Tables whose rows stand in groups, each with a head and its sums, as on a bank statement: see `Table.grouping`.

Rows come from the selector group by group. Sorted by a column they are one list again, with the columns that the heads
stood for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Grouping:
    """of: which group a row is of. head: what stands over a group, by its first row. sums: of all rows of a group, by
    column. instead_of: keys of the columns that the heads stand for."""

    of: Callable[[Any], Hashable]
    head: Callable[[Any], Any]
    sums: Callable[[Sequence[Any]], Mapping[str, Any]]
    instead_of: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Group:
    """head: '' where rows stand in no group. rows: those of this page. sums: of all rows of the group."""

    head: Any
    rows: Sequence[Any]
    sums: Mapping[str, Any]


def groups_of(rows: Sequence[Any], everything: Sequence[Any], grouping: Grouping) -> Iterator[Group]:
    """The rows of a page in their groups; a group that goes on over pages has the sums of all its rows on each."""
    for key, members in groupby(rows, grouping.of):
        shown = list(members)
        sums = grouping.sums([row for row in everything if grouping.of(row) == key])
        yield Group(grouping.head(shown[0]), shown, sums)
