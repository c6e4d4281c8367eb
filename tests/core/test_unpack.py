"""Bodies in every form and encoding, cut into events, with every limit kept in bounded memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.core.parse import ParsedEvent, Rejected, parse_body
from ingest.core.unpack import BATCH, JSON, NDJSON, SINGLE, Broken, Limits, cut, unpack
from ledger.core import zstd
from tests.core.test_parse import NOW_MS, event

MIB = 1024 * 1024
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstd.compress,
}


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def read(
    content: bytes, content_type: str = NDJSON, encoding: str = "", size: int = 7, **limits: int
) -> list[Any]:
    return list(parse_body(pieces(content, size), encoding, content_type, NOW_MS, Limits(**limits)))


def events(count: int) -> list[dict[str, Any]]:
    return [event(id=f"e-{n}", data={"name": 'b}],{[ "\\'}) for n in range(count)]


def kinds(verdicts: list[Any]) -> list[str]:
    return [one.id if isinstance(one, ParsedEvent) else one.reason for one in verdicts]


@pytest.mark.parametrize("encoding", PACKERS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("indent", [None, 2])
def test_every_form_gives_the_same_events(encoding: str, size: int, indent: int | None) -> None:
    sent = events(5)
    array = json.dumps(sent, indent=indent).encode()
    by_line = b"\r\n".join([json.dumps(one).encode() for one in sent])
    pack = PACKERS[encoding]
    for content, content_type in [
        (array, BATCH),
        (array, JSON),
        (array, ""),
        (b"\xef\xbb\xbf" + array, BATCH),
        (by_line, NDJSON),
        (by_line + b"\n\n", ""),
    ]:
        found = read(pack(content), content_type, encoding, size)
        assert kinds(found) == [f"e-{n}" for n in range(5)]
        assert [one.line for one in found] == [1, 2, 3, 4, 5]
    single = read(pack(json.dumps(sent[0], indent=2).encode()), SINGLE, encoding, size)
    assert kinds(single) == ["e-0"]


def test_blank_lines_are_no_events_and_keep_their_numbers() -> None:
    raw = json.dumps(event()).encode()
    found = read(b"\n  \n" + raw + b"\n\r\n" + raw)
    assert [one.line for one in found] == [3, 5]


def test_an_empty_array_is_empty() -> None:
    assert read(b" [ ] ", BATCH) == []
    assert read(b"", BATCH) == read(b"", NDJSON) == read(b" \n", SINGLE) == []


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_bad_element_never_takes_its_neighbours_along(size: int) -> None:
    good = [json.dumps(one).encode() for one in events(3)]
    bad = [b'{"a":NaN,"b":[{"c":"}"},{"d":1}]}', b"7", b'"x,]"', b"nonsense", b'{"a":"\xff"}', b"[1,[2]]"]
    content = b"[" + b",".join([good[0], *bad, good[1], bad[0], good[2]]) + b"]"
    found = kinds(read(content, BATCH, size=size))
    assert (found[0], found[7], found[9]) == ("e-0", "e-1", "e-2")
    assert set(found[1:7]) <= {"not_json", "not_object", "bad_encoding"}
    assert len(found) == 10


@pytest.mark.parametrize(
    ("content", "kept"),
    [(b"%s", 1), (b"%s,", 1), (b"%s,{", 1), (b"%s] 7", 1), (b"%s}", 1), (b"", 0), (b"%s,,%s]", 1)],
)
def test_a_damaged_array_keeps_what_came_before(content: bytes, kept: int) -> None:
    good = json.dumps(event()).encode()
    found = read(b"[" + content.replace(b"%s", good), BATCH)
    assert kinds(found)[:kept] == ["e-1"] * kept
    assert kinds(found)[-1] in ("not_an_array", "e-1", "not_json")
    assert any(isinstance(one, Rejected) for one in found)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_that_breaks_off_keeps_what_came_before(encoding: str) -> None:
    sent = [json.dumps(event(id=f"e-{n}", data={"name": f"{n * 7919:x}" * 20})).encode() for n in range(3000)]
    packed = PACKERS[encoding](b"\n".join(sent))
    found = read(packed[: len(packed) * 2 // 3], NDJSON, encoding, 4096)
    assert isinstance(found[-1], Rejected) and found[-1].reason == "broken_compression"
    assert len(found) > 10 and kinds(found[:5]) == [f"e-{n}" for n in range(5)]
    assert kinds(read(b"garbage", NDJSON, encoding)) == ["broken_compression"]


def test_gzip_of_several_members_and_padding() -> None:
    raw = json.dumps(event()).encode()
    content = gzip.compress(raw + b"\n") + gzip.compress(raw) + b"\0" * 100
    assert kinds(read(content, NDJSON, "gzip")) == ["e-1", "e-1"]


def test_limits_end_a_body_with_their_own_reason() -> None:
    raw = json.dumps(event()).encode()
    five = b"\n".join([raw] * 5)
    assert kinds(read(five, events=3)) == ["e-1", "e-1", "e-1", "too_many_events"]
    assert kinds(read(five, unpacked_bytes=len(raw) + 10))[-1] == "unpacked_too_large"
    assert kinds(read(five, events=5)) == ["e-1"] * 5
    large = raw[:-1] + b" " * 2000 + b"}"
    assert kinds(read(raw + b"\n" + large + b"\n" + raw, event_bytes=1000)) == [
        "e-1",
        "event_too_large",
        "e-1",
    ]
    array = b"[" + raw + b"," + large + b"," + raw + b"]"
    assert kinds(read(array, BATCH, event_bytes=1000)) == ["e-1", "event_too_large", "e-1"]
    assert kinds(read(large, SINGLE, event_bytes=1000)) == ["event_too_large"]


def endless_line(mebibytes: int) -> Iterator[bytes]:
    yield b'{"id":"big","x":"'
    for _ in range(mebibytes):
        yield b"x" * MIB
    yield b'"}\n' + json.dumps(event()).encode()


def test_a_line_of_a_gibibyte_takes_little_memory_and_spares_its_neighbour() -> None:
    limits = Limits(unpacked_bytes=2**40)
    tracemalloc.start()
    found = list(parse_body(endless_line(1024), "", NDJSON, NOW_MS, limits))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kinds(found) == ["event_too_large", "e-1"]
    assert found[0].id == "big" and len(found[0].raw) < MIB
    assert peak < 16 * MIB


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_defused_in_bounded_memory(encoding: str) -> None:
    if encoding == "gzip":
        packer = zlib.compressobj(9, wbits=31)
        bomb = b"".join([packer.compress(b" " * MIB) for _ in range(200)]) + packer.flush()
    else:
        bomb = zstd.compress(b" " * (200 * MIB), 19)
    assert len(bomb) < MIB
    tracemalloc.start()
    with pytest.raises(Broken, match="unpacks to more than") as caught:
        for _ in unpack([bomb], encoding, 50 * MIB):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.reason == "unpacked_too_large"
    assert peak < 80 * MIB


@given(
    st.binary(max_size=600),
    st.sampled_from(["", "gzip", "zstd"]),
    st.sampled_from([NDJSON, BATCH, SINGLE, JSON]),
)
def test_any_body_is_read_to_its_end_without_an_exception(
    content: bytes, encoding: str, content_type: str
) -> None:
    for verdict in read(content, content_type, encoding, 50):
        assert isinstance(verdict, Rejected)


@given(st.lists(st.text(max_size=30), max_size=6), st.integers(1, 40), st.sampled_from([None, 1]))
def test_an_array_is_cut_where_json_says(texts: list[str], size: int, indent: int | None) -> None:
    elements: list[Any] = [{"a": [{"b": text}, {text: 1}], "c": text} for text in texts]
    content = json.dumps(elements, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    found = [raw for group in cut(pieces(content, size), BATCH, Limits()) for raw in group.raw]
    assert [json.loads(raw) for raw in found] == json.loads(content)
