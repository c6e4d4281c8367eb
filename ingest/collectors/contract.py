"""What every collector is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingest.core.adapters.base import Notice

Position = dict[str, Any]
"""Where a collector goes on: JSON values, kept in `Source.state` by whoever runs it."""

Clock = Callable[[], int]
"""The present in milliseconds since the epoch."""


class CollectorError(Exception):
    """The source cannot be read: one sentence for the person who runs it, naming what was asked."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class NotConfigured(CollectorError):
    """The source's own table says too little, or something wrong. No cluster can be blamed for it."""


@dataclass(frozen=True, slots=True)
class Window:
    """Milliseconds since the epoch; the start is not in it, the end is."""

    starts_ms: int
    ends_ms: int


@dataclass(slots=True)
class Harvest:
    """What one step brought, and where the next one goes on. Both are kept together or not at all."""

    lines: list[bytes]
    """Native records as the source's adapter reads them."""
    position: Position
    reached_ms: int
    """Everything up to here was asked for."""
    settled_ms: int | None = None
    """Nothing older will come; what an adapter holds back up to here it can let go."""
    starts_ms: int | None = None
    """What was asked for begins here, where it begins anywhere."""
    leads_in: bool = False
    """Some records are from before `starts_ms`, only to know how far counters stood then; they are not booked."""
    notices: list[Notice] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Parts that could not be read this time; the next step tries them again from where they were left."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `check_source`."""

    ok: bool
    subject: str
    detail: str


class Collector(Protocol):
    @property
    def has_past(self) -> bool:
        """Whether a window that is over can still be read."""
        ...

    @property
    def reads_once(self) -> bool:
        """Whether a window may be read only once, because what is made of it depends on where reading began."""
        ...

    @property
    def longest_step_ms(self) -> int:
        """A step that takes longer than this has died with its process."""
        ...

    def steps(self, position: Position, window: Window | None) -> Iterator[Harvest]:
        """Reads on from `position`, or the whole of `window`; raises `CollectorError`."""
        ...

    def check(self) -> Iterator[Finding]:
        """Can it be reached, what is switched off there that is needed, what would be read."""
        ...
