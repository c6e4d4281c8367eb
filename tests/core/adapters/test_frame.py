"""The frame of all adapters: registry, numbers, instants, JSON from lines, Kubernetes shapes."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.core.adapters import ADAPTERS, load
from ingest.core.adapters.base import (
    ConfigError,
    Refusal,
    Refused,
    gpus_json,
    instant_ms,
    quantity,
    quantity_milli,
    rfc3339,
    unix_seconds_ms,
    whole,
)
from ingest.core.adapters.json_records import JsonRecord, read_json
from ingest.core.adapters.kubernetes import Watched, kube_event, read_objects
from tests.core.adapters.running import as_lines, run, source_of

EVENTS_MD = (
    "cloudevents csv kueue volcano kube-events kube-pods kube-state-metrics resource-quota elastic-quota kai "
    "koordinator slurm-sacct slurm-sacct-json slurmctld-log slurm-sreport vllm-metrics vllm-otel sglang-log "
    "sglang-metrics litellm-spendlogs litellm-payload openai-usage anthropic-usage dynamo-trace dynamo-fpm "
    "envoy-ai-gateway llm-d dcgm"
)


def test_every_adapter_of_the_contract_loads() -> None:
    assert set(ADAPTERS) >= set(EVENTS_MD.split())
    for name in ADAPTERS:
        assert load(name).name == name and callable(load(name).adapt)
    with pytest.raises(KeyError, match="kueue"):
        load("quue")


def test_every_trap_in_the_docs_has_the_test_that_is_named() -> None:
    root = Path(__file__).parents[3]
    named = set(re.findall(r"`(test_\w+)`", (root / "docs/sources/traps.md").read_text()))
    defined = {
        name
        for file in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(named) > 150 and named - defined == set()


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("8", 8000),
        (8, 8000),
        (0.5, 500),
        ("500m", 500),
        ("0.1", 100),
        (".5", 500),
        ("1.", 1000),
        ("1k", 1_000_000),
        ("2Ki", 2_048_000),
        ("1Ti", 2**40 * 1000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("2E", 2 * 10**21),
        ("100u", 1),
        ("1n", 1),
        ("1001u", 2),
        ("+3", 3000),
    ],
)
def test_kubernetes_quantities(text: Any, milli: int) -> None:
    assert quantity_milli(text) == milli


@pytest.mark.parametrize(
    "text", ["", "eight", "1x", "1 Gi", "NaN", "Infinity", "1e999", "--1", "-1", True, None, [], "１"]
)
def test_quantities_that_are_none(text: Any) -> None:
    with pytest.raises(Refusal) as caught:
        quantity_milli(text)
    assert caught.value.reason == "bad_quantity"


def test_huge_quantities_stay_exact() -> None:
    assert quantity("9007199254740993") == Decimal("9007199254740993")
    assert whole("9007199254740993") == 9007199254740993


@given(st.integers(0, 10**9))
def test_gpus_are_printed_as_they_are_read(milli: int) -> None:
    assert quantity_milli(gpus_json(milli)) == milli


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-09-01T10:30:36Z", "2026-09-01T10:30:36Z"),
        ("2026-09-01T10:30:36.412945Z", "2026-09-01T10:30:36.412Z"),
        ("2026-09-01t10:30:36.4z", "2026-09-01T10:30:36.400Z"),
        ("2026-09-01T18:30:36+08:00", "2026-09-01T10:30:36Z"),
        ("2026-09-01T05:00:36-0530", "2026-09-01T10:30:36Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
    ],
)
def test_instants(text: str, shown: str) -> None:
    assert rfc3339(instant_ms(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "2026-09-01T10:30:36",
        "2026-13-01T00:00:00Z",
        "2026-09-01",
        "",
        None,
        5,
        "2026-09-01T10:30:60Z",
        "0000-01-01T00:00:00Z",
    ],
)
def test_instants_that_are_none(text: Any) -> None:
    with pytest.raises(Refusal) as caught:
        instant_ms(text)
    assert caught.value.reason == "bad_time"


def test_unix_seconds_are_floored() -> None:
    assert unix_seconds_ms("1788264000.9999") == 1788264000999
    assert unix_seconds_ms(1788264000) == 1788264000000


def test_pools_and_options() -> None:
    source = source_of("kueue", pools={"h200": "p"}, options={"pending": "yes"})
    assert source.pool_for(None, "x", "h200") == "p"
    with pytest.raises(Refusal) as caught:
        source.pool_for("x", None)
    assert caught.value.reason == "unmapped_pool" and "'x'" in caught.value.detail
    with pytest.raises(ConfigError, match="pending"):
        source.option("pending", True)


def values(lines: list[bytes]) -> list[Any]:
    return [r.value if isinstance(r, JsonRecord) else (r.reason, r.position) for r in read_json(lines)]


def test_json_one_per_line_and_printed_documents() -> None:
    printed = b'{\n  "a": {\n    "b": 1\n  }\n}\n'.splitlines(keepends=True)
    assert values([b'{"x":1}\n', b"\n", *printed, b"[1]\n"]) == [{"x": 1}, {"a": {"b": 1}}, [1]]
    assert values([line.rstrip() for line in printed]) == [{"a": {"b": 1}}]


def test_a_document_that_breaks_off_does_not_swallow_its_neighbours() -> None:
    assert values([b"{\n", b'  "a": 1,\n', b'{"x":1}\n', b"{\n", b"{\n", b"}\n"]) == [
        ("not_json", 1),
        {"x": 1},
        ("not_json", 4),
        {},
    ]
    assert values([b"{", b' "a": 1']) == [("not_json", 1)]


@pytest.mark.parametrize("line", [b"NaN", b"[" * 100_000, b'{"a":\xff}', b'{"a":1}}', b"\x00"])
def test_broken_json_is_refused(line: bytes) -> None:
    assert values([line, b"1"]) == [("not_json", 1), 1]


def test_list_items_inherit_what_the_list_says() -> None:
    listed = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}, 5]}
    one, two = read_objects(as_lines([listed]))
    assert isinstance(one, Watched) and (one.kind, one.obj["apiVersion"], one.change) == (
        "Pod",
        "v1",
        "ADDED",
    )
    assert isinstance(two, Refused) and two.record == b"5"


def test_an_object_that_is_listed_again_is_refused_with_the_same_words() -> None:
    def says(change: str, observed_at: str, version: str) -> bytes:
        seen = {"kind": "Pod", "metadata": {"uid": "u", "resourceVersion": version}}
        (one,) = read_objects(as_lines([{"type": change, "object": seen, "observed_at": observed_at}]))
        assert isinstance(one, Watched)
        return one.refused(Refusal("unmapped_pool", "")).says

    first = says("ADDED", "2026-09-01T12:00:00Z", "1")
    assert first == says("ADDED", "2026-09-01T12:05:00Z", "1") != b""
    assert first != says("DELETED", "2026-09-01T12:05:00Z", "1")
    assert first != says("MODIFIED", "2026-09-01T12:05:00Z", "2"), (
        "it may be what it was before, and was not since"
    )


def test_watch_streams_bookmarks_and_errors() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "5"}}}
    (only,) = read_objects(as_lines([bookmark, {"type": "ERROR", "object": gone}]))
    assert isinstance(only, Refused) and only.reason == "watch_error" and "410" in only.detail


@pytest.mark.parametrize(
    ("fields", "first", "last", "count"),
    [
        ({"eventTime": "2026-09-01T12:00:00.000321Z", "deprecatedCount": 0}, 0, 0, 1),
        (
            {
                "eventTime": "2026-09-01T12:00:00.000321Z",
                "series": {"count": 3, "lastObservedTime": "2026-09-01T12:05:00Z"},
                "lastTimestamp": "2026-09-01T12:01:00Z",
            },
            0,
            300,
            3,
        ),
        (
            {"firstTimestamp": "2026-09-01T12:00:00Z", "lastTimestamp": "2026-09-01T12:02:00Z", "count": 4},
            0,
            120,
            4,
        ),
        (
            {
                "deprecatedFirstTimestamp": "2026-09-01T12:00:00Z",
                "deprecatedLastTimestamp": "2026-09-01T12:02:00Z",
                "deprecatedCount": 4,
            },
            0,
            120,
            4,
        ),
        ({}, -60, -60, 1),
    ],
)
def test_times_of_an_event_in_every_shape(fields: dict[str, Any], first: int, last: int, count: int) -> None:
    metadata = {"uid": "e", "name": "e", "creationTimestamp": "2026-09-01T11:59:00Z"}
    seen = kube_event({"kind": "Event", "metadata": metadata, "reason": "Preempted", **fields})
    base_ms = 1788264000000
    assert (seen.first_ms - base_ms, seen.last_ms - base_ms, seen.count) == (first * 1000, last * 1000, count)


def test_canonical_events_pass_unchanged() -> None:
    one = {"specversion": "1.0", "id": "a", "anything": [1]}
    assert run("cloudevents", [one, [one, one]]) == [one, one, one]
