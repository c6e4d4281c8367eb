"""What a body may be, and what it is cut into (events.md, Doors)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one body may be; each limit has a reason code of its own."""

    body_bytes: int = 64 * MIB
    unpacked_bytes: int = 512 * MIB
    event_bytes: int = MIB
    events: int = 500_000
    depth: int = 32


class Broken(Exception):
    """The rest of the body cannot be read. `rest` holds its first bytes, where there are any to show."""

    def __init__(self, reason: str, detail: str, rest: bytes = b"") -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.rest = rest


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive events of a body; `raw[i]` is line (or array element) `first + i`. Blank ones are no events."""

    first: int
    raw: Sequence[bytes]
    oversize_bytes: int = 0  # not 0: the only line here was this long, and `raw` holds its beginning


# What quarantine keeps of a line that is too large to be an event.
KEPT_OF_OVERSIZE = 64 * 1024
