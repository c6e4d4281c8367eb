"""`sacct -P` text: header, rows, and the damage that unescaped free text does to them (cluster.md 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingest.core.adapters.base import Refusal, Refused

FREE_TEXT = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "Extra", "WCKey", "SubmitLine", "WorkDir"}
)
_KNOWN = frozenset({"JobIDRaw", "JobID", "State", "Cluster", "AllocTRES", "Start", "End"})
_CLOCKS = (
    "Elapsed",
    "CPUTime",
    "TotalCPU",
    "UserCPU",
    "SystemCPU",
    "Suspended",
    "Planned",
    "Resv",
    "Reserved",
    "Priority",
)
"""Beginnings of columns that move while a job runs or waits, whatever happens to it."""


@dataclass(frozen=True, slots=True)
class Row:
    fields: dict[str, str]
    position: int
    raw: bytes

    def refused(self, refusal: Refusal) -> Refused:
        says = [value for name, value in self.fields.items() if not name.startswith(_CLOCKS)]
        return refusal.at(self.position, self.raw, "\x1f".join(says).encode())


def read_rows(lines: Iterable[bytes], delimiter: str, header: list[str] | None) -> Iterator[Row | Refused]:
    """The rows of `lines`; see `read_numbered`."""
    return read_numbered(enumerate(lines, start=1), delimiter, header)


def read_numbered(
    lines: Iterable[tuple[int, bytes]], delimiter: str, header: list[str] | None
) -> Iterator[Row | Refused]:
    """The rows of one or several outputs one after another; a header line starts over.

    A row with too many fields is joined at a free-text last column, else refused. A row with too few was cut
    by a newline in its text; it is joined with the lines that follow unless one of them is whole by itself:
    that one is a neighbour.
    """
    broken: list[tuple[int, bytes]] = []
    header, trailing = _columns(header or [])
    head = b""  # a row means nothing without its header line, and a retry has to find it
    for position, line in lines:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        parts = text.split(delimiter)
        if _is_header(parts):
            yield from _refuse(broken, head)
            header, trailing = _columns(parts)
            broken, head = [], line.rstrip(b"\r\n") + b"\n"
            continue
        if not text.strip() and not broken:
            continue
        if not header:
            yield Refused(
                position, line, "bad_record", "no header line and no options.fields: what are the columns?"
            )
            continue
        parts = _trimmed(parts, trailing)
        if len(parts) >= len(header):
            yield from _refuse(broken, head)
            broken = []
            yield _row(parts, header, position, head + line)
            continue
        broken.append((position, line))
        joined = b"".join(piece for _, piece in broken)
        whole = _trimmed(joined.decode("utf-8", "replace").rstrip("\r\n").split(delimiter), trailing)
        if len(whole) == len(header):
            yield _row(whole, header, broken[0][0], head + joined)
            broken = []
    yield from _refuse(broken, head)


def _is_header(parts: list[str]) -> bool:
    return len(_KNOWN & {part.strip() for part in parts}) >= 2


def _columns(parts: list[str]) -> tuple[list[str], bool]:
    """The names, and whether a delimiter follows the last field, too (`sacct -p`)."""
    names = [part.strip() for part in parts]
    trailing = bool(names) and names[-1] == ""
    return (names[:-1] if trailing else names), trailing


def _trimmed(parts: list[str], trailing: bool) -> list[str]:
    return parts[:-1] if trailing and parts[-1] == "" else parts


def _row(parts: list[str], header: list[str], position: int, raw: bytes) -> Row | Refused:
    if len(parts) > len(header):
        if header[-1] not in FREE_TEXT:
            return Refused(
                position,
                raw,
                "bad_record",
                f"{len(parts)} fields where the header has {len(header)}: a text holds the delimiter. "
                "Put free text last, choose another --delimiter, or use --json",
            )
        last = len(header) - 1
        parts = [*parts[:last], "|".join(parts[last:])]
    return Row(dict(zip(header, (part.strip() for part in parts), strict=True)), position, raw)


def _refuse(broken: list[tuple[int, bytes]], head: bytes) -> Iterator[Refused]:
    for position, line in broken:
        yield Refused(
            position, head + line, "bad_record", "fewer fields than the header: a text holds a newline"
        )
