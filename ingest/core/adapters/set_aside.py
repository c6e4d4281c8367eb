"""Facts made of many samples, refused in a form that can be read again: the samples behind them are gone by then.

A pod of kube-state-metrics, or the GPUs of a host, are known from dozens of samples over hours. Where such a fact has
no place in the books (its node maps to no pool), what was found out about it is the record that goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from ingest.core.adapters.base import Refusal, Refused

Kept = tuple[int, bytes]
"""Its line in the input, and the line."""
T = TypeVar("T", bound=msgspec.Struct)


def refused(fact: msgspec.Struct, refusal: Refusal) -> Refused:
    """The fact itself as a refused record; `fact` is a tagged Struct."""
    return refusal.at(1, msgspec.json.encode(fact))


def without_kept(lines: Iterable[bytes], tag: str, kept: list[Kept]) -> Iterator[bytes]:
    """`lines`, with facts of that tag that are tried again put into `kept` and a blank line in their place."""
    start = b'{"type":"' + tag.encode() + b'"'
    for position, line in enumerate(lines, start=1):
        if line.startswith(start):
            kept.append((position, line))
            yield b""
        else:
            yield line


def read_kept(line: bytes, kind: type[T]) -> T:
    """Raises `Refusal`."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal("bad_record", f"not what was set aside here: {error}") from error
