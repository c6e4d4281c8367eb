"""One event's bytes: the typed event or the reason, whatever the bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.core.events import TYPES, Correction, Occupancy, Request
from ingest.core.parse import ParsedEvent, Rejected, parse_line, refused_line
from ingest.core.reasons import REASONS
from ingest.core.unpack import Limits

NOW_MS = 1_791_000_000_000  # 2026-10-03T00:00:00Z and a little more
OCTOBER = "2026-10-01T00:00:00Z"


def event(kind: str = "occupancy", /, **changes: Any) -> dict[str, Any]:
    """A sound event with some attributes changed; None takes one out. `data` is merged."""
    whole = {
        "specversion": "1.0",
        "id": "e-1",
        "source": "/s",
        "type": f"ledger.{kind}.v1",
        "time": OCTOBER,
        "data": dict(SOUND[kind]),
    }
    for name, value in changes.items():
        if name == "data":
            whole["data"] = {**whole["data"], **value}
        else:
            whole[name] = value
    return {name: value for name, value in whole.items() if value is not None}


SOUND: dict[str, dict[str, Any]] = {
    "capacity": {"pool": "p", "gpus": 8},
    "reservation": {"reservation": "r", "tenant": "acme", "pool": "p", "gpus": 8},
    "occupancy": {"workload": "w", "tenant": "acme", "pool": "p", "gpus": 8},
    "pending": {"workload": "w", "tenant": "acme", "pool": "p", "gpus": 8},
    "preemption": {
        "preemption": "x",
        "victim": {"workload": "w", "tenant": "acme"},
        "preemptor_source": "none",
        "pool": "p",
        "gpus": 8,
        "cause": "priority",
    },
    "resume": {"preemption": "x", "pool": "p"},
    "request": {
        "request": "r-1",
        "tenant": "acme",
        "pool": "p",
        "model": "m",
        "started_at": "2026-09-30T23:59:00Z",
        "outcome": "ok",
    },
    "usage": {
        "usage": "u",
        "pool": "p",
        "model": "m",
        "starts_at": "2026-09-30T23:00:00Z",
        "ends_at": OCTOBER,
    },
    "rejection": {"tenant": "acme", "layer": "quota", "reason": "over", "status": 429},
    "quota": {"tenant": "acme", "layer": "cluster", "resource": "gpus", "limit": 8, "used": "7.5"},
    "correction": {"supersedes": {"source": "/s", "id": "e-0"}, "reason": "wrong"},
}


def judge(value: Any, **limits: int) -> ParsedEvent | Rejected:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_line(1, raw, NOW_MS, Limits(**limits))


def parsed(value: Any) -> ParsedEvent:
    verdict = judge(value)
    assert isinstance(verdict, ParsedEvent), verdict
    return verdict


def reason(value: Any, **limits: int) -> str:
    verdict = judge(value, **limits)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.reason in REASONS
    return verdict.reason


def data(kind: str = "occupancy", /, **changes: Any) -> dict[str, Any]:
    return event(kind, data=changes)


@pytest.mark.parametrize("kind", SOUND)
def test_every_type_of_the_contract_is_read(kind: str) -> None:
    verdict = parsed(event(kind))
    assert type(verdict.record) is TYPES[f"ledger.{kind}.v1"]
    assert (verdict.source, verdict.id, verdict.time_ms) == ("/s", "e-1", 1_790_812_800_000)


@pytest.mark.parametrize(
    ("raw", "kind"), [(b"1", "int"), (b'"a"', "str"), (b"null", "null"), (b"[]", "array")]
)
def test_what_is_no_object_is_told_of_the_event_itself(raw: bytes, kind: str) -> None:
    verdict = parse_line(1, raw, NOW_MS, Limits())
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, verdict.detail) == ("not_object", f"Expected `object`, got `{kind}`")


def test_every_type_has_a_sound_example() -> None:
    assert {f"ledger.{kind}.v1" for kind in SOUND} == set(TYPES)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (event(id=""), "missing_id"),
        (event(id="None"), "missing_id"),
        (event(id="null"), "missing_id"),
        (event(id=None), "missing_id"),
        (event(id=7), "bad_value"),
        (event(id="x" * 1025), "too_long"),
        (event(source=None), "missing_source"),
        (event(source=""), "missing_source"),
        (event(source="a b"), "bad_source"),
        (event(specversion="0.3"), "bad_specversion"),
        (event(specversion=None), "bad_specversion"),
        (event(type="ledger.occupancy.v2"), "unknown_type"),
        (event(type="nonsense"), "unknown_type"),
        (event(type=None), "unknown_type"),
        (event(type=["x"]), "unknown_type"),
        (event(time=None), "missing_time"),
        (event(time="2026-10-01T00:00:00"), "time_without_offset"),
        (event(time="2026-10-01"), "bad_time"),
        (event(time="2026-02-30T00:00:00Z"), "bad_time"),
        (event(time="2026-10-01T24:00:00Z"), "bad_time"),
        (event(time="2026-10-01T00:00:00+24:00"), "bad_time"),
        (event(time="0001-01-01T00:00:00Z"), "bad_time"),
        (event(time=1_790_812_800), "bad_time"),
        (event(time="2026-10-04T00:00:00Z"), "future_time"),
        ({**event(), "data": []}, "bad_value"),
        ({key: value for key, value in event().items() if key != "data"}, "missing_field"),
        (data(colour="red"), "unknown_field"),
        (data("preemption", victim={"workload": "w", "tenant": "a", "colour": 1}), "unknown_field"),
        (data(workload=None), "missing_field"),
        (data(workload=""), "bad_value"),
        (data(workload="a\x00b"), "bad_text"),
        (data(workload="x" * 1025), "too_long"),
        (data(pool=5), "bad_value"),
        (data(kind="party"), "bad_value"),
        (data(labels={"a": 1}), "bad_value"),
        (data(tenant=None), "bad_identity"),
        (data(service="chat"), "bad_identity"),
        (data(identity={"kind": "k8s_namespace", "value": "n"}), "bad_identity"),
        (data(tenant=None, identity={"kind": "shoe", "value": "n"}), "bad_identity"),
        (data(tenant=None, identity={"kind": "tenant", "value": "n"}), "bad_identity"),
        (data(tenant=None, identity={"kind": "label:", "value": "n"}), "bad_identity"),
        (data(preemptible=True, service_class="guaranteed"), "bad_value"),
        (data("reservation", ends_at=OCTOBER), "contradiction"),
        (data("pending", gpus=None), "missing_field"),
        (data("pending", queue="q"), "missing_field"),
        (data("preemption", victim={"workload": "w", "request": "r", "tenant": "a"}), "missing_field"),
        (data("preemption", victim={"request": "r", "tenant": "a"}), "contradiction"),
        (data("preemption", preemptor={"tenant": "b"}), "contradiction"),
        (data("preemption", confidence="1.1"), "bad_number"),
        (data("request", started_at="2026-10-01T00:00:01Z"), "contradiction"),
        (data("request", started_at="2026-08-01T00:00:01Z"), "contradiction"),
        (data("request", input_tokens=5, cached_input_tokens=3, cache_write_tokens=3), "contradiction"),
        (data("request", output_tokens=5, reasoning_tokens=6), "contradiction"),
        (data("request", attempt=0), "bad_number"),
        (data("request", outcome="fine"), "bad_value"),
        (data("usage", starts_at="2026-09-30T22:59:59Z"), "usage_crosses_hour"),
        (data("usage", ends_at="2026-09-30T23:30:00Z"), "contradiction"),
        (data("rejection", status=42), "bad_number"),
        (data("correction", event={"id": "x"}), "bad_specversion"),
        (data("correction", event=event("correction")), "bad_value"),
        (data("correction", event=event(id="e-0")), "bad_value"),
        (data("correction", supersedes={"source": "/s", "id": "None"}), "missing_id"),
        (b"", "not_json"),
        (b"[]", "not_object"),
        (b"{", "not_json"),
        (b'{"id": NaN}', "not_json"),
        (b'{"id": "\xff"}', "bad_encoding"),
        (b'{"id": "\xed\xa0\x80"}', "bad_encoding"),
        (b"\x00", "not_json"),
        (b"[" * 500_000, "too_deep"),
    ],
)
def test_what_is_wrong_has_a_reason(value: Any, code: str) -> None:
    assert reason(value) == code


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e5", "0x10", "", " 1", "1_0", "-1", "٣", "."]
)
def test_texts_that_are_no_numbers(number: str) -> None:
    assert reason(data(gpus=number)) == "bad_number"
    assert reason(data("request", input_tokens=number, gpu_seconds=number)) == "bad_number"


@pytest.mark.parametrize(
    "number", [b"true", b"-1", b"1.0001", b"1e400", b"-1e-400", b"1e-400", b"9" * 5000, b"[]", b"{}"]
)
def test_json_values_that_are_no_numbers_of_gpus(number: bytes) -> None:
    raw = json.dumps(data(gpus="GPUS")).encode().replace(b'"GPUS"', number)
    assert reason(raw) in ("bad_number", "not_json")


@pytest.mark.parametrize(
    ("written", "milli"),
    [(b"8", 8000), (b"8.0", 8000), (b'"8.500"', 8500), (b"0.001", 1), (b"1E1", 10_000), (b"-0", 0)],
)
def test_spellings_of_numbers(written: bytes, milli: int) -> None:
    record = parsed(json.dumps(data(gpus="GPUS")).encode().replace(b'"GPUS"', written)).record
    assert isinstance(record, Occupancy) and record.gpus == milli


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2026-10-01T00:00:00Z", 0),
        ("2026-10-01t00:00:00.9999999z", 999),
        ("2026-10-01T08:00:00.1+08:00", 100),
        ("2026-09-30T23:59:60Z", 0),
        ("2026-09-30T14:30:00.0009-09:30", 0),
    ],
)
def test_instants_are_floored_to_milliseconds(written: str, ms: int) -> None:
    assert parsed(event(time=written)).time_ms == 1_790_812_800_000 + ms


def test_planned_capacity_and_reservations_may_lie_ahead() -> None:
    for kind in ("capacity", "reservation"):
        parsed(event(kind, time="2027-10-04T00:00:00Z"))
    parsed(event(time="2026-10-03T04:09:00Z"))


def test_defaults_are_filled_in() -> None:
    own = parsed(data()).record
    served = parsed(data(tenant=None, service="chat")).record
    assert isinstance(own, Occupancy) and isinstance(served, Occupancy)
    assert (own.kind, own.attempt, served.kind) == ("batch", 1, "serving")


def test_preemptible_is_an_older_spelling_of_the_service_class() -> None:
    assert parsed(data(preemptible=True)).digest == parsed(data(service_class="preemptible")).digest
    assert parsed(data(preemptible=False)).digest == parsed(data(service_class="guaranteed")).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"gpus": "8.000"}},
        {"data": {"attempt": "1", "kind": "batch", "user": None}},
        {"time": "2026-10-01T08:00:00.0004+08:00"},
        {"traceparent": "00-1", "datacontenttype": "application/json"},
    ],
)
def test_spelling_and_foreign_attributes_make_no_other_content(changes: dict[str, Any]) -> None:
    assert parsed(event(**changes)).digest == parsed(event()).digest


def test_the_order_of_keys_makes_no_other_content() -> None:
    one = data(labels={"a": "1", "b": "2"})
    other = {name: one[name] for name in reversed(one)} | {
        "data": {name: one["data"][name] for name in reversed(one["data"])} | {"labels": {"b": "2", "a": "1"}}
    }
    assert parsed(one).digest == parsed(other).digest


@pytest.mark.parametrize(
    "changes", [{"gpus": 9}, {"user": "u"}, {"labels": {}}, {"attempt": 2}, {"kind": "serving"}]
)
def test_other_content_has_another_hash(changes: dict[str, Any]) -> None:
    assert parsed(data(**changes)).digest != parsed(data()).digest


def test_foreign_attributes_are_kept_as_bounded_text() -> None:
    verdict = parsed(event(traceparent="00-1", partition=7, odd={"a": [1.5, None]}))
    assert verdict.attributes == {"traceparent": "00-1", "partition": "7", "odd": '{"a":[1.5,null]}'}


def test_of_a_repeated_key_the_last_counts() -> None:
    raw = json.dumps(event()).encode().replace(b'"id": "e-1"', b'"id": "e-1", "id": "e-2"')
    raw = raw.replace(b'"gpus": 8', b'"gpus": 8, "gpus": 4')
    verdict = parsed(raw)
    assert isinstance(verdict.record, Occupancy)
    assert (verdict.id, verdict.record.gpus) == ("e-2", 4000)


def test_a_correction_brings_its_replacement() -> None:
    verdict = parsed(data("correction", event=event(id="e-9")))
    assert isinstance(verdict.record, Correction) and verdict.replacement is not None
    assert (verdict.replacement.id, verdict.replacement.type) == ("e-9", "ledger.occupancy.v1")
    respelled = parsed(data("correction", event=event(id="e-9", data={"gpus": "8.0"})))
    assert respelled.digest == verdict.digest


def test_limits_of_one_event() -> None:
    assert reason(event(), event_bytes=50) == "event_too_large"
    nested: Any = "x"
    for _ in range(40):
        nested = [nested]
    assert reason(event(odd=nested)) == "too_deep"
    assert isinstance(judge(event(odd='{"[' * 40)), ParsedEvent), "brackets inside of text are no depth"


def test_rejections_tell_what_could_be_read() -> None:
    verdict = judge(data(gpus=-1))
    assert isinstance(verdict, Rejected)
    assert (verdict.id, verdict.source, verdict.time_ms) == ("e-1", "/s", 1_790_812_800_000)
    assert verdict.detail == "data.gpus: -1 is negative"
    broken = judge(b'{"id":"e-7", "source"')
    assert isinstance(broken, Rejected) and broken.id == "e-7"


def test_what_a_door_refused_keeps_its_reason_and_bytes() -> None:
    refused = Rejected(3, "unmapped_pool", "no pool for it", b"\xff\x00raw", id="n-1", source="/s")
    verdict = parse_line(9, refused_line(refused), NOW_MS, Limits())
    assert verdict == Rejected(9, "unmapped_pool", "no pool for it", b"\xff\x00raw", id="n-1", source="/s")


# --- fuzz ---------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "None", OCTOBER]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=400))
def test_any_bytes_get_a_verdict(raw: bytes) -> None:
    assert isinstance(judge(raw), Rejected)


@given(st.sampled_from(sorted(SOUND)), st.data())
def test_any_values_in_the_right_places_get_a_verdict(kind: str, draw: st.DataObject) -> None:
    whole = event(kind)
    for _ in range(draw.draw(st.integers(1, 3))):
        target = draw.draw(
            st.sampled_from([whole, whole["data"] if isinstance(whole["data"], dict) else whole])
        )
        names = st.sampled_from([*sorted(target), "colour"]) | st.text(max_size=6)
        target[draw.draw(names)] = draw.draw(JSON_VALUES)
    verdict = judge(json.dumps(whole).encode("utf-8", "surrogatepass"))
    if isinstance(verdict, Rejected):
        assert verdict.detail and verdict.reason in REASONS
    else:
        assert verdict.record is not None and len(verdict.digest) == 16


@given(st.data())
def test_a_sound_event_with_a_byte_changed_gets_a_verdict(draw: st.DataObject) -> None:
    raw = bytearray(json.dumps(event(draw.draw(st.sampled_from(sorted(SOUND))))).encode())
    raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
    assert judge(bytes(raw)) is not None


def test_requests_keep_an_unknown_count_unknown() -> None:
    record = parsed(data("request", output_tokens=0)).record
    assert isinstance(record, Request)
    assert (record.input_tokens, record.output_tokens) == (None, 0)
