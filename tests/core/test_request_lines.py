"""The fast way to read requests never differs from the careful one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ingest.core import columns, fields
from ingest.core.parse import ParsedEvent, parse_line
from ingest.core.request_content import HASHED_NUMBERS
from ingest.core.request_lines import RequestReader
from ingest.core.request_rows import Requests
from ingest.core.unpack import Limits
from ledger.core.periods import to_datetime
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


@given(st.lists(request_events(), min_size=1, max_size=8))
def test_rows_equal_those_of_the_careful_way_and_the_rest_is_left_to_it(raw: list[bytes]) -> None:
    found, left = RequestReader(NOW_MS).read(1, raw, Limits())
    read = [] if found is None else found.line.tolist()
    assert sorted(read + [line for line, _ in left]) == list(range(1, len(raw) + 1))
    assert [line for line, _ in left] == sorted(line for line, _ in left)
    if found is None:
        return
    careful = [parse_line(line, raw[line - 1], NOW_MS, Limits()) for line in read]
    assert [one for one in careful if not isinstance(one, ParsedEvent)] == []
    assert plain(found) == plain(Requests.of_events([one for one in careful if isinstance(one, ParsedEvent)]))


def plain(requests: Requests) -> list[Any]:
    """Everything that the rows say, row by row."""
    numbers = [requests.hashed_number(name).tolist() for name in HASHED_NUMBERS]
    texts = [list(texts) for texts in requests.hashed_texts()]
    return [
        requests.line.tolist(),
        list(requests.raw),
        list(requests.sources),
        list(requests.event_ids),
        list(requests.digests),
        numbers,
        texts,
    ]


def sound(event_id: str = "req-100", **data: Any) -> bytes:
    return json.dumps(event("request", id=event_id, data={"request": event_id} | data)).encode()


def test_what_gateways_send_takes_the_fast_way() -> None:
    raw = [
        sound(gpu_seconds="1.270440", input_tokens=5, labels={"a": "b"}),
        b"",
        sound(gpu_seconds="12.5", queued_at="2026-09-30T23:58:00.5Z"),
        sound(gpu_seconds=1.5, tenant=None, identity={"kind": "user", "value": "u"}),
    ]
    found, left = RequestReader(NOW_MS).read(2, raw, Limits())
    assert found is not None and left == []
    assert found.line.tolist() == [2, 4, 5]
    assert found.number("gpu_seconds").tolist() == [1_270_440, 12_500_000, 1_500_000]


def test_one_odd_value_leaves_its_neighbours_on_the_fast_way() -> None:
    odd = [
        sound(gpu_seconds="1.0000001"),
        sound(started_at="yesterday"),
        sound(output_tokens=1, reasoning_tokens=2),
    ]
    found, left = RequestReader(NOW_MS).read(1, [sound(), *odd, sound("req-200")], Limits())
    assert found is not None and found.event_ids == ["req-100", "req-200"]
    assert left == [(2, odd[0]), (3, odd[1]), (4, odd[2])]


@given(st.lists(st.integers(946_684_800_000, 253_000_000_000_000), min_size=1, max_size=5), st.integers(0, 9))
def test_columns_of_instants(instants: list[int], places: int) -> None:
    texts = [
        f"{one:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{one:%f}000"[: places + 1] if places else "") + "Z"
        for one in map(to_datetime, instants)
    ]
    found = columns.instants_ms(texts)
    assert found is not None
    assert found.tolist() == [fields.instant_ms(text) for text in texts]


@given(st.lists(st.text(alphabet="0123456789.:-TZ ", min_size=20, max_size=24), min_size=1, max_size=3))
def test_columns_of_instants_refuse_what_the_careful_reader_refuses(texts: list[str]) -> None:
    found = columns.instants_ms(texts)
    if found is not None:
        assert found.tolist() == [fields.instant_ms(text) for text in texts]


@given(st.lists(st.text(alphabet="0123456789.e-+ \x00٣", max_size=17), min_size=1, max_size=4))
def test_columns_of_seconds(texts: list[str]) -> None:
    found = columns.seconds_us(texts)
    if found is not None:
        assert found.tolist() == [fields.seconds_us(text) for text in texts]


@given(st.lists(st.decimals(0, 99_999_999, places=6), min_size=1, max_size=8))
def test_columns_of_seconds_are_exact(values: list[Decimal]) -> None:
    found = columns.seconds_us([str(value) for value in values])
    assert found is not None
    assert found.tolist() == [int(value * 1_000_000) for value in values]


def test_rows_are_joined_in_the_order_of_their_lines() -> None:
    fast, _ = RequestReader(NOW_MS).read(
        1, [sound("req-1000"), b"", sound("req-3000", gpu_seconds="1.5")], Limits()
    )
    slow = parse_line(2, sound("req-2000", input_tokens="7"), NOW_MS, Limits())
    assert fast is not None and isinstance(slow, ParsedEvent)
    joined = fast.joined(Requests.of_events([slow]))
    assert joined.event_ids == ["req-1000", "req-2000", "req-3000"]
    assert joined.number("gpu_seconds").tolist() == [-1, -1, 1_500_000]
    assert joined.number("input_tokens").tolist() == [-1, 7, -1]
    assert joined.take([2]).event_ids == ["req-3000"]
