"""The fast way to read requests never differs from the careful one."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.core import columns, fields
from ingest.core.parse import ParsedEvent, parse_line
from ingest.core.request_content import HASHED_NUMBERS
from ingest.core.request_content import TEXTS as TEXT_NAMES
from ingest.core.request_lines import RequestReader, request_shape
from ingest.core.request_rows import Requests
from ingest.core.spans import Bools, Int64s, Spans
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


@st.composite
def instants_with_a_slip(draw: st.DrawFn) -> str:
    """An instant with one character replaced by another."""
    sound = ["2026-10-03T04:00:02.450Z", "2024-02-29T23:59:59Z", "2026-10-03T07:30:02.5-03:30"]
    text = draw(st.sampled_from(sound))
    place = draw(st.integers(0, len(text) - 1))
    return text[:place] + draw(st.sampled_from("0123456789.:-TZtz /;+~")) + text[place + 1 :]


def sound(event_id: str = "req-100", **data: Any) -> bytes:
    return json.dumps(
        event("request", id=event_id, data={"request": event_id} | data), ensure_ascii=False
    ).encode()


# How many lines alike are walked together: every one, as in a large chunk; or none of a few, which are decoded.
WALKS, DECODES = 1, 64
WAYS = st.sampled_from([WALKS, 3, DECODES])


@given(st.lists(request_events(), min_size=1, max_size=8), WAYS)
def test_rows_equal_those_of_the_careful_way_and_the_rest_is_left_to_it(
    raw: list[bytes], fewest: int
) -> None:
    reads_as_the_careful_way(RequestReader(NOW_MS, fewest), raw)


def reads_as_the_careful_way(reader: RequestReader, raw: list[bytes]) -> list[int]:
    """The lines that went the fast way: each is a row that equals the careful verdict; the rest is left, in order."""
    found, left = reader.read(1, raw, Limits())
    read = [] if found is None else found.line.tolist()
    assert sorted(read + [line for line, _ in left]) == [n for n, text in enumerate(raw, 1) if text]
    assert [line for line, _ in left] == sorted(line for line, _ in left)
    assert [text for _, text in left] == [raw[line - 1] for line, _ in left]
    if found is not None:
        careful = [parse_line(line, raw[line - 1], NOW_MS, Limits()) for line in read]
        assert [one for one in careful if not isinstance(one, ParsedEvent)] == []
        events = [one for one in careful if isinstance(one, ParsedEvent)]
        assert plain(found) == plain(Requests.of_events(events))
    return read


SHAPES = [
    sound(gpu_seconds="1.270440", input_tokens=1536, cached_input_tokens=1024, output_tokens=212),
    sound(gpu_seconds=12.5, queued_at="2026-09-30T23:58:00.5Z", attempt=2, workload="w", user="", labels={}),
    sound(tenant=None, identity={"kind": "label:team", "value": "é"}, labels={"b": "1", "a": "x" * 40}),
    sound("req-" + "0" * 40, reasoning_tokens=7, output_tokens=8, service="chat", service_class="guaranteed"),
    sound(deferrals=0, preemptions=1, recompute_gpu_seconds="0.5", api_key="k", parent_request="p-1"),
    json.dumps(json.loads(sound(model="m" * 33)) | {"traceparent": "00-1"}, separators=(",", ":")).encode(),
    sound(pool="bj-h100", outcome="aborted") + b"\r",
]


@pytest.mark.parametrize("fewest", [WALKS, 9, DECODES])
def test_what_gateways_send_takes_the_fast_way_in_several_shapes_at_once(fewest: int) -> None:
    chunk = [SHAPES[n * n % len(SHAPES)] for n in range(40)] + [b""] + SHAPES
    assert reads_as_the_careful_way(RequestReader(NOW_MS, fewest), chunk) == [
        n for n in range(1, len(chunk) + 1) if n != 41
    ]


OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "cached_input_tokens": st.integers(0, 9),
    "cache_write_tokens": st.integers(0, 9),
    "reasoning_tokens": st.integers(0, 9),
    "preemptions": st.integers(0, 2),
    "gpu_seconds": st.decimals(0, 99, places=6).map(str) | st.integers(0, 9) | st.sampled_from([0.5, "1e3"]),
    "user": st.text("aé", max_size=9),
    "workload": st.text("wü", min_size=1, max_size=9),
    "parent_request": st.just("p-1"),
    "labels": st.dictionaries(st.sampled_from("abc"), st.text("xé", max_size=3)),
    "service_class": st.sampled_from(["guaranteed", "preemptible"]),
    "queued_at": st.sampled_from(["2026-09-30T23:58:00.5Z", "2026-10-01T07:58:00+08:00", None]),
    "attempt": st.integers(1, 3),
}


@st.composite
def optional_fields(draw: st.DrawFn) -> bytes:
    """A sound request with some of the optional fields, in the usual order of keys or any other."""
    optional = {name: draw(OPTIONAL[name]) for name in draw(st.sets(st.sampled_from(sorted(OPTIONAL))))}
    usual = {"input_tokens": 18, "output_tokens": 9} | {n: optional[n] for n in OPTIONAL if n in optional}
    data = dict(event("request")["data"]) | usual
    if draw(st.booleans()):
        del data["tenant"]
        data["identity"] = {"kind": "user", "value": draw(st.sampled_from(["u", "v"]))}
    if draw(st.booleans()):
        data = {name: data[name] for name in draw(st.permutations(sorted(data)))}
    return json.dumps(event("request", id="req-100") | {"data": data}, ensure_ascii=False).encode()


@given(st.lists(optional_fields(), min_size=1, max_size=12), WAYS, st.booleans())
def test_any_optional_fields_in_any_order_take_the_fast_way(
    raw: list[bytes], fewest: int, knows_shapes: bool
) -> None:
    reader = RequestReader(NOW_MS, fewest)
    if knows_shapes:
        reader.read(1, raw[::2], Limits())
    assert reads_as_the_careful_way(reader, raw) == [
        line for line, text in enumerate(raw, 1) if b'"1e3"' not in text
    ]


SHARED = {
    "pool": ["bj-h100", "sh-a100"],
    "model": ["m", "m" * 33, "é"],
    "outcome": ["ok", "aborted"],
    "service": ["chat", "chat-2"],
    "service_class": ["guaranteed", "preemptible", "neither"],
}


@st.composite
def chunks_that_share_texts(draw: st.DrawFn) -> list[bytes]:
    """Lines of one shape; each text is one for all of them or one of several, the same as in other chunks or not."""
    values = {
        name: draw(st.lists(st.sampled_from(texts), min_size=1, max_size=2)) for name, texts in SHARED.items()
    }
    sources = draw(
        st.lists(st.sampled_from(["/gateways/edge-1", "/gateways/edge-2"]), min_size=1, max_size=2)
    )
    lines = []
    for number in range(draw(st.integers(1, 6))):
        data = {name: texts[number % len(texts)] for name, texts in values.items()}
        whole = json.loads(sound(f"req-{number:03}", output_tokens=number, **data))
        lines.append(
            json.dumps(whole | {"source": sources[number % len(sources)]}, ensure_ascii=False).encode()
        )
    return lines


@given(st.lists(chunks_that_share_texts(), min_size=2, max_size=5), WAYS)
def test_texts_shared_by_one_chunk_are_not_taken_for_those_of_the_next(
    chunks: list[list[bytes]], fewest: int
) -> None:
    reader = RequestReader(NOW_MS, fewest)
    for chunk in chunks:
        assert reads_as_the_careful_way(reader, chunk) == [
            line for line, text in enumerate(chunk, 1) if b"neither" not in text
        ]


def test_a_shape_with_shared_texts_finds_the_same_places_in_fewer_stretches() -> None:
    lines = [sound(f"req-{n:03}", service="chat", output_tokens=n * 7) for n in range(20)]
    lines += [sound("req-200", service="chat-2"), sound("req-201", service="chat", pool="sh-a100")]
    shape = request_shape(lines[0])
    assert shape is not None
    pool = event("request")["data"]["pool"].encode()
    fixed = shape.fixed({"service": b"chat", "pool": pool, "source": b"/nowhere"})
    assert fixed.fixed({}) == fixed and len(shape.stretches) - len(fixed.stretches) == 3
    fixed = shape.fixed({"service": b"chat", "pool": pool})
    spans = Spans.of(lines, between=b"\n")
    rows, found = fixed.match(spans.buffer, spans.starts, spans.ends)
    assert rows.tolist() == list(range(20))
    _, places = shape.match(spans.buffer, spans.starts, spans.ends)
    assert {name: [starts.tolist(), ends.tolist()] for name, (starts, ends) in found.items()} == {
        name: [starts[:20].tolist(), ends[:20].tolist()] for name, (starts, ends) in places.items()
    }


@pytest.mark.parametrize("kinds", [1, 3, 40])
def test_large_chunks_are_walked_or_decoded_and_say_the_same(kinds: int) -> None:
    """A shape that many have, some that some have, and so many that none is worth a walk; and then one of them."""
    reader = RequestReader(NOW_MS, 16)
    optional = [name for name in OPTIONAL if name not in ("labels", "queued_at", "attempt")]
    values = dict.fromkeys(optional, 1) | {"user": "u", "workload": "é", "parent_request": "p"}
    values["service_class"] = "guaranteed"

    def line(number: int) -> bytes:
        given = {name: values[name] for bit, name in enumerate(optional) if number % kinds >> bit & 1}
        return sound(f"req-{number:03}", input_tokens=9, output_tokens=number, **given)

    for start in (0, 200):
        chunk = [line(number) for number in range(start, start + 200)] + [b'{"type":"odd"}']
        assert reads_as_the_careful_way(reader, chunk) == list(range(1, 201))
    again = [line(0)] * 50
    assert reads_as_the_careful_way(reader, again) == list(range(1, 51))


@st.composite
def slips(draw: st.DrawFn) -> bytes:
    """A line of one of the shapes with up to two bytes changed, added or taken away."""
    line = draw(st.sampled_from(SHAPES))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(line) - 1))
        other = draw(
            st.sampled_from([b"", *(bytes([byte]) for byte in b'0189.-+eE ,:;"{}[]\\\t\r\x00\x7f\x85\xffnZ')])
        )
        line = line[:place] + other + line[place + draw(st.integers(0, 1)) :]
    return line


@given(st.lists(slips(), min_size=1, max_size=12), WAYS, st.booleans())
def test_a_slip_in_a_line_is_judged_as_the_careful_way_judges_it(
    raw: list[bytes], fewest: int, knows_shapes: bool
) -> None:
    reader = RequestReader(NOW_MS, fewest)
    if knows_shapes:
        reader.read(1, SHAPES, Limits())
    reads_as_the_careful_way(reader, raw)


def plain(requests: Requests) -> list[Any]:
    """Everything that the rows say, row by row."""
    numbers = [requests.hashed_number(name).tolist() for name in HASHED_NUMBERS]
    texts = [requests.texts[name].texts() for name in TEXT_NAMES]
    own = [requests.sources.texts(), requests.event_ids.texts(), requests.digests.tolist()]
    return [requests.line.tolist(), list(requests.raw), own, numbers, texts]


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


@pytest.mark.parametrize("fewest", [WALKS, DECODES])
@pytest.mark.parametrize(
    "odd",
    [
        {"gpu_seconds": "1.0000001"},
        {"started_at": "yesterday"},
        {"started_at": "2026-10-01T23:59:00+24:00"},
        {"started_at": "2026-10-01T08:00:00+08:60"},
        {"output_tokens": 1, "reasoning_tokens": 2},
        {"outcome": "fine"},
        {"service_class": "best"},
        {"pool": "p" * 64},
        {"labels": {"": "x"}},
        {"tenant": None, "identity": {"kind": "shoe", "value": "u"}},
    ],
)
def test_one_odd_value_leaves_its_neighbours_on_the_fast_way(fewest: int, odd: dict[str, Any]) -> None:
    usual = {name: "1" for name in odd if name == "gpu_seconds"}
    raw = [sound(**usual), sound(**odd), sound("req-200", **usual)]
    found, left = RequestReader(NOW_MS, fewest).read(1, raw, Limits())
    assert found is not None and found.event_ids.texts() == ["req-100", "req-200"]
    assert left == [(2, raw[1])]


def spans(texts: list[str]) -> Spans:
    return Spans.of([text.encode() for text in texts], between=b"\n")


def equals_the_careful_reader(
    texts: list[str], found: tuple[Int64s, Bools], read: Callable[[str], int]
) -> None:
    for text, value, is_sound in zip(texts, found[0].tolist(), found[1].tolist(), strict=True):
        if is_sound:
            assert value == read(text)


ZONES = ["Z", "+08:00", "-03:30", "+00:00", "-23:59"]
MANY_INSTANTS = st.lists(
    st.tuples(st.integers(946_684_800_000, 253_000_000_000_000), st.sampled_from(ZONES)),
    min_size=1,
    max_size=5,
)


@given(MANY_INSTANTS, st.integers(0, 9))
def test_columns_of_instants(instants: list[tuple[int, str]], places: int) -> None:
    texts = [
        f"{one:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{one:%f}000"[: places + 1] if places else "") + zone
        for one, zone in ((to_datetime(ms), zone) for ms, zone in instants)
    ]
    found, is_sound = columns.instants_ms(spans(texts))
    assert is_sound.all()
    assert found.tolist() == [fields.instant_ms(text) for text in texts]


@given(st.lists(st.text(alphabet="0123456789.:+-TZ ", min_size=1, max_size=36), min_size=1, max_size=3))
def test_columns_of_instants_refuse_what_the_careful_reader_refuses(texts: list[str]) -> None:
    equals_the_careful_reader(texts, columns.instants_ms(spans(texts)), fields.instant_ms)


@given(st.lists(instants_with_a_slip(), min_size=1, max_size=4))
def test_columns_of_instants_notice_every_slip(texts: list[str]) -> None:
    equals_the_careful_reader(texts, columns.instants_ms(spans(texts)), fields.instant_ms)


@given(st.lists(st.text(alphabet="0123456789.e-+ \x00٣", max_size=17), min_size=1, max_size=4))
def test_columns_of_seconds_and_counts(texts: list[str]) -> None:
    equals_the_careful_reader(texts, columns.seconds_us(spans(texts)), fields.seconds_us)
    equals_the_careful_reader(texts, columns.counts(spans(texts)), fields.count)


@given(st.lists(st.decimals(0, 9_999_999, places=6), min_size=1, max_size=8), st.integers(0, 99_999_999))
def test_columns_of_seconds_and_counts_are_exact(values: list[Decimal], count: int) -> None:
    found, is_sound = columns.seconds_us(spans([str(value) for value in values]))
    assert is_sound.all()
    assert found.tolist() == [int(value * 1_000_000) for value in values]
    counted, is_sound = columns.counts(spans([str(count)]))
    assert is_sound.all() and counted.tolist() == [count]


@given(st.lists(st.none() | st.text("ab\xe9", max_size=20), min_size=1, max_size=9))
def test_few_different_texts_are_coded_exactly(texts: list[str | None]) -> None:
    column = Spans.of([None if text is None else text.encode() for text in texts])
    found, is_sound = columns.coded(column, bytes.decode)
    assert is_sound.all() and found.texts() == texts
    assert len(found.values) == len(set(texts))


def test_rows_are_joined_in_the_order_of_their_lines() -> None:
    fast, _ = RequestReader(NOW_MS).read(
        1, [sound("req-1000"), b"", sound("req-3000", gpu_seconds="1.5")], Limits()
    )
    slow = parse_line(2, sound("req-2000", input_tokens="7"), NOW_MS, Limits())
    assert fast is not None and isinstance(slow, ParsedEvent)
    joined = fast.joined(Requests.of_events([slow]))
    assert joined.event_ids.texts() == ["req-1000", "req-2000", "req-3000"]
    assert joined.number("gpu_seconds").tolist() == [-1, -1, 1_500_000]
    assert joined.number("input_tokens").tolist() == [-1, 7, -1]
    assert joined.take(np.array([2])).event_ids.texts() == ["req-3000"]
