"""Native records through a source's adapter, as lines of canonical events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingest.core.adapters.base import Notice, SourceConfig, State
from ingest.core.parse import refused_line, rejected_rest
from ingest.core.unpack import Broken
from ingest.services.memories import keep_memory
from ingest.services.native_records import adapted_lines, keep_notices
from ingest.services.source_config import UnreadableSource, source_config
from ledger.models import Source


class UnknownSource(ValueError):
    """The message names what is wrong, for a person."""


def canonical_lines(
    name: str, native: Iterable[bytes], dry_run: bool = False, memory: State | None = None
) -> Iterator[bytes]:
    """Read a whole native input with the adapter of source `name`. What it refuses becomes a line of its own.

    Fills `memory` with what the adapter remembers of it, for `services.memories.keep_memory`.

    Raises:
        UnknownSource: no such source, or nothing says how to read it.
    """
    config = _configured(name)
    notices: list[Notice] = []
    try:
        yield from adapted_lines(config, native, notices, {} if memory is None else memory)
    except Broken as broken:
        yield refused_line(rejected_rest(1, broken))
    if notices and not dry_run:
        keep_notices(config, notices)


def keep_memory_of(name: str, memory: State, batches: Sequence[int]) -> None:
    """What the adapter of source `name` remembers of an input that became `batches`, for retries of what it refused."""
    keep_memory(_configured(name), memory, batches)


def _configured(name: str) -> SourceConfig:
    source = Source.objects.filter(name=name).first()
    if source is None:
        known = ", ".join(sorted(str(one) for one in Source.objects.filter(name__isnull=False)))
        raise UnknownSource(f"no source is called {name!r}; configured: {known or 'none'}")
    try:
        return source_config(source)
    except UnreadableSource as error:
        raise UnknownSource(str(error)) from None
