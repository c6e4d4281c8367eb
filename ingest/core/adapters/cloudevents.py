"""`cloudevents`: records that already are canonical events, one, an array, or one per line.

They pass unchanged; `ingest.core.parse` judges them like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.base import Outcome, Refused, SourceConfig, State
from ingest.core.adapters.json_records import JsonRecord, read_json


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Yields each object of the input as it came; a batch array is unrolled."""
    for record in read_json(lines):
        if isinstance(record, Refused):
            yield record
        else:
            yield from _events(record)


def _events(record: JsonRecord) -> Iterator[Outcome]:
    values = record.value if isinstance(record.value, list) else [record.value]
    for value in values:
        if isinstance(value, dict):
            yield value
        else:
            yield record.refused("bad_record", "an event is a JSON object")
