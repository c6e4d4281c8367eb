"""The fast way to read requests never differs from the careful one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingest.core.parse import ParsedEvent, parse_line
from ingest.core.request_lines import RequestReader, row_of
from ingest.core.unpack import Limits
from tests.core.test_parse import NOW_MS, event

TOKENS = ["input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens"]
SECONDS = ["gpu_seconds", "prefill_gpu_seconds", "recompute_gpu_seconds"]
NUMBERS = st.one_of(
    st.integers(-2, 30),
    st.integers(0, 30).map(str),
    st.decimals(-1, 99, places=6).map(str),
    st.decimals(0, 99, places=3).map(float),
    st.sampled_from([None, True, "", ".5", "5.", "1e3", "NaN", "٣", 10**20, 1e-7, "1.0000001", 0.1 + 0.2]),
)
TIMES = st.sampled_from(
    [
        "2026-10-01T00:00:00Z",
        "2026-10-01T00:00:00.123456Z",
        "2026-10-01t08:00:00.5+08:00",
        "2026-09-30T23:59:60Z",
        "2026-09-30T23:59:59",
        "2026-09-01T00:00:00Z",
        "2026-10-03T05:00:00Z",
        "2026-02-30T00:00:00Z",
        "later",
        None,
        5,
    ]
)
TEXTS = st.sampled_from(["chat", "", "x" * 300, "a\x00b", "Grüße", "\\", None, 7, "None", "req-é"])


@st.composite
def request_events(draw: st.DrawFn) -> bytes:
    """A request that is mostly sound: some fields of many are odd."""
    whole = event("request", id=draw(TEXTS | st.just("req-100")))
    fields: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(
            [*TOKENS, *SECONDS, "attempt", "deferrals", "preemptions", "recomputed_tokens"], NUMBERS
        ),
        **dict.fromkeys(["started_at", "queued_at"], TIMES),
        **dict.fromkeys(["service", "workload", "user", "model", "request", "pool", "parent_request"], TEXTS),
        "service_class": st.sampled_from(["guaranteed", "preemptible", "", None]),
        "outcome": st.sampled_from(["ok", "preempted", "fine"]),
        "labels": st.sampled_from([{}, {"b": "1", "a": "2"}, {"": "x"}, None]),
        "identity": st.sampled_from(
            [None, {"kind": "user", "value": "u"}, {"kind": "shoe", "value": "u"}, {}]
        ),
        "tenant": st.sampled_from([None, "acme"]),
        "colour": st.just("red"),
    }
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)):
        whole["data"][name] = draw(fields[name])
    if draw(st.booleans()):
        whole["time"] = draw(TIMES)
    if draw(st.integers(0, 4)) == 0:
        whole[draw(st.sampled_from(["traceparent", "datacontenttype", "specversion", "source"]))] = draw(
            TEXTS
        )
    return json.dumps(whole, ensure_ascii=draw(st.booleans())).encode()


@given(st.lists(request_events(), min_size=1, max_size=6))
def test_rows_equal_those_of_the_careful_way_and_the_rest_is_left_to_it(raw: list[bytes]) -> None:
    reader = RequestReader(NOW_MS)
    for _ in range(2):  # the second time with everything known
        rows, left = reader.read(1, raw, Limits())
        assert sorted([row[0] for row in rows] + [line for line, _ in left]) == list(range(1, len(raw) + 1))
    for row in rows:
        careful = parse_line(row[0], row[1], NOW_MS, Limits())
        assert isinstance(careful, ParsedEvent), careful
        assert _plain(row) == _plain(row_of(careful))


def _plain(row: tuple[Any, ...]) -> list[Any]:
    """A row with its identity as plain texts: the two ways have classes of their own for it."""
    values = [(one.kind, one.value) if hasattr(one, "kind") else one for one in row[6]]
    return [*row[:6], values, row[7]]


def test_what_gateways_send_takes_the_fast_way() -> None:
    sound = event(
        "request", id="req-100", data={"gpu_seconds": "1.270440", "input_tokens": 5, "labels": {"a": "b"}}
    )
    reader = RequestReader(NOW_MS)
    reader.read(1, [json.dumps(sound).encode()], Limits())
    rows, left = reader.read(2, [json.dumps(sound).encode(), b""], Limits())
    assert (len(rows), left) == (1, [])
