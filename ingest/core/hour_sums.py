"""Requests summed up by the hour, as the hourly roll-up keeps them (domain.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest.core.binary_rows import Rows
from ingest.core.events import MS_PER_HOUR
from ingest.core.request_content import ABSENT, USAGE_TYPE
from ingest.core.request_rows import COLUMNS, OUTCOMES, SERVICE_CLASSES, Ids, Requests
from ingest.core.spans import Bools, Int64s

_FIELDS = {column: name for name, column in COLUMNS.items()}

HOUR_KEYS = ("pool_id", "hour", "identity_id", "service_id", "model_id", "service_class", "outcome")
HOUR_SUMS = (
    "requests",
    "input_tokens",
    "input_missing",
    "cached_input_tokens",
    "cached_missing",
    "cache_write_tokens",
    "output_tokens",
    "output_missing",
    "reasoning_tokens",
    "gpu_us",
    "gpu_missing",
    "concurrency_us",
    "preemptions",
    "recomputed_tokens",
    "recompute_gpu_us",
)
_MISSING = {
    "input_missing": "input_tokens",
    "cached_missing": "cached_input_tokens",
    "output_missing": "output_tokens",
    "gpu_missing": "gpu_us",
}


@dataclass(slots=True)
class HourSums:
    """keys[i] in the order of HOUR_KEYS (hours counted from 1970), sums[i] in the order of HOUR_SUMS."""

    keys: Int64s
    sums: Int64s

    @classmethod
    def together(cls, several: Sequence[HourSums]) -> HourSums:
        """Sums of several sets of rows, those of one key added up."""
        keys = np.concatenate([one.keys for one in several])
        return _grouped([*keys.T], [*np.concatenate([one.sums for one in several]).T])

    def table_rows(self) -> Rows:
        rows = Rows()
        columns = dict(zip(HOUR_KEYS, self.keys.T, strict=True))
        rows.number("pool_id", "bigint", columns["pool_id"])
        rows.number("hour", "timestamptz", columns["hour"] * MS_PER_HOUR)
        rows.number("model_id", "bigint", columns["model_id"])
        rows.number("service_class", "smallint", columns["service_class"])
        rows.number("outcome", "smallint", columns["outcome"])
        rows.optional("identity_id", "bigint", columns["identity_id"], ABSENT)
        rows.optional("service_id", "bigint", columns["service_id"], ABSENT)
        for name, sums in zip(HOUR_SUMS, self.sums.T, strict=True):
            rows.number(name, "bigint", sums)
        return rows


def _grouped(keys: Sequence[Int64s], sums: Sequence[Int64s]) -> HourSums:
    """Rows with equal keys added up. Exact: everything stays int64, and `fields` bounds each value."""
    count = len(keys[0])
    code = np.zeros(count, np.int64)
    codes = 1  # how many values `code` can have
    for column in keys:
        least = int(column.min())
        extent = int(column.max()) - least + 1
        if codes * extent >= 2**62:
            values, code = np.unique(code, return_inverse=True)
            codes = len(values)
        if codes * extent >= 2**62:
            values, places = np.unique(column, return_inverse=True)
            code, codes = code * len(values) + places, codes * len(values)
        elif extent > 1:
            code, codes = code * extent + (column - least), codes * extent
    order = np.argsort(code)
    ordered = code[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    first = order[starts]
    nothing = np.zeros(len(starts), np.int64)
    added = [np.add.reduceat(column[order], starts) if column.any() else nothing for column in sums]
    return HourSums(np.stack([column[first] for column in keys], axis=1), np.stack(added, axis=1))


def hour_sums(requests: Requests, ids: Ids) -> HourSums:
    """The rows' contribution to the hourly roll-up."""
    is_usage = requests.type == USAGE_TYPE
    counted_ms = np.where(is_usage, requests.starts_ms, requests.ends_ms)
    hour = counted_ms // MS_PER_HOUR
    in_flight_us = np.where(
        is_usage,
        np.maximum(requests.concurrency_us, 0),
        (requests.ends_ms - np.maximum(requests.starts_ms, hour * MS_PER_HOUR)) * 1000,
    )
    keys = [
        ids.pool,
        hour,
        ids.identity,
        ids.service,
        ids.model,
        requests.codes("service_class", SERVICE_CLASSES),
        requests.codes("outcome", OUTCOMES),
    ]
    sums = [_measure(requests, name, in_flight_us) for name in HOUR_SUMS]
    earlier_rows, earlier_hours, earlier_us = _earlier_hours(requests, hour, ~is_usage)
    if len(earlier_rows):
        more = [
            earlier_hours if name == "hour" else key[earlier_rows]
            for name, key in zip(HOUR_KEYS, keys, strict=True)
        ]
        keys = [np.concatenate(both) for both in zip(keys, more, strict=True)]
        nothing = np.zeros(len(earlier_rows), np.int64)
        added = [earlier_us if name == "concurrency_us" else nothing for name in HOUR_SUMS]
        sums = [np.concatenate(both) for both in zip(sums, added, strict=True)]
    return _grouped(keys, sums)


def _measure(requests: Requests, name: str, in_flight_us: Int64s) -> Int64s:
    if name == "requests":
        return requests.requests
    if name == "concurrency_us":
        return in_flight_us
    if name.endswith("_missing"):
        known = requests.numbers.get(_FIELDS.get(_MISSING[name], _MISSING[name]))
        count = np.maximum(requests.requests, 1)
        return count if known is None else np.where(known == ABSENT, count, 0)
    values = requests.numbers.get(_FIELDS.get(name, name))
    return np.zeros(len(requests), np.int64) if values is None else np.maximum(values, 0)


def _earlier_hours(requests: Requests, hour: Int64s, is_request: Bools) -> tuple[Int64s, Int64s, Int64s]:
    """(row, hour, microseconds in flight) of every hour that a request touched before the one it ended in."""
    first = requests.starts_ms // MS_PER_HOUR
    long = np.flatnonzero((first < hour) & is_request)
    spans = (hour - first)[long]
    rows = np.repeat(long, spans)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(spans) - spans, spans)
    hours = first[rows] + within
    begins_ms = np.maximum(requests.starts_ms[rows], hours * MS_PER_HOUR)
    return rows, hours, ((hours + 1) * MS_PER_HOUR - begins_ms) * 1000
