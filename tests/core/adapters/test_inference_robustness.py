"""Whatever comes in: no inference adapter raises, none loses a good neighbour, and none invents a field."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.core.adapters import ADAPTERS as ADAPTER_MODULES
from ingest.core.adapters import load
from ingest.core.adapters.base import NOTICES, REASONS, Notice, Refused, SourceConfig, instant_ms
from ingest.core.parse import ParsedEvent, Rejected, parse_line
from ingest.core.unpack import Limits
from tests.core.adapters.running import events_of, notices_of, refused_of

GOLDEN = Path(__file__).parent / "golden"
PAGES = Path(__file__).parents[3] / "docs" / "sources"

AFTER_ALL_MS = instant_ms("9000-01-01T00:00:00Z")

OF_THE_VALUE = {
    "bad_number",
    "bad_time",
    "bad_text",
    "bad_value",
    "bad_encoding",
    "bad_identity",  # such as the wrapper of an Anthropic answer, which names its caller by kind and value
    "too_long",
    "contradiction",
}
"""What the contract may still refuse in an event: a value the source itself stated."""

ADAPTERS = [
    "vllm-metrics",
    "vllm-otel",
    "sglang-log",
    "sglang-metrics",
    "litellm-spendlogs",
    "litellm-payload",
    "openai-usage",
    "anthropic-usage",
    "dynamo-trace",
    "dynamo-fpm",
    "vllm-step-log",
    "envoy-ai-gateway",
    "llm-d",
    "csv",
]


def config_of(adapter: str) -> SourceConfig:
    return SourceConfig(**json.loads((GOLDEN / adapter.replace("-", "_") / "source.json").read_text()))


def golden_lines(adapter: str) -> list[bytes]:
    folder = GOLDEN / adapter.replace("-", "_")
    return [
        line for path in sorted(folder.glob("*.in.*")) for line in path.read_bytes().splitlines(keepends=True)
    ]


def outcomes_of(adapter: str, lines: list[bytes]) -> list[Any]:
    return list(load(adapter).adapt(lines, config_of(adapter), None))


def verdict(event: dict[str, Any]) -> ParsedEvent | Rejected:
    return parse_line(1, json.dumps(event).encode(), AFTER_ALL_MS, Limits())


def check_event(event: dict[str, Any], missing: bool = False) -> None:
    """No field is unknown, nobody is named twice, no hour is crossed: that is the adapter's doing. Only of a table may
    a field be `missing`: which ones there are is its owner's map, and an empty cell is absent."""
    assert None not in event["data"].values()
    judged = verdict(event)
    allowed = OF_THE_VALUE | {"missing_field"} if missing else OF_THE_VALUE
    assert isinstance(judged, ParsedEvent) or judged.reason in allowed, (judged, event)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_event_of_the_golden_inputs_keeps_the_contract(adapter: str) -> None:
    events = events_of(outcomes_of(adapter, golden_lines(adapter)))
    assert events
    for event in events:
        check_event(event)
        assert isinstance(verdict(event), ParsedEvent)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_refusals_and_notices_use_known_codes_and_say_something(adapter: str) -> None:
    outcomes = outcomes_of(adapter, golden_lines(adapter))
    for refused in refused_of(outcomes):
        assert refused.reason in REASONS and len(refused.detail) > 10 and refused.record
    for notice in notices_of(outcomes):
        assert notice.reason in NOTICES and len(notice.detail) > 10


KEYS = """id usage model choices finish_reason metadata status startTime endTime request response chunks events
error message attributes resourceSpans spans scopeSpans version worker_id counter_id wall_time received_at schema
event_type event_time_unix_ms metric values data result start_time response_code x-request-id litellm_call_id
prompt_tokens completion_tokens queue_time request_parameters"""
keys = st.sampled_from(KEYS.split())
COUNTERS = ("vllm-metrics", "sglang-metrics")
STEPS = ("dynamo-fpm", "vllm-step-log")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.sampled_from(
        ["NaN", "1e999", "None", "2026-13-01T00:00:00Z", "failure", "request_end", 1790000015, 253402300800.0]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)


def total(adapter: str, lines: list[bytes]) -> None:
    """Every outcome is an event that keeps the contract, a refusal, or a notice; and nothing was raised."""
    for outcome in outcomes_of(adapter, lines):
        if isinstance(outcome, Refused):
            assert outcome.reason in REASONS
        elif not isinstance(outcome, Notice):
            check_event(outcome, missing=adapter == "csv")


@pytest.mark.parametrize("adapter", ADAPTERS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(values.map(lambda v: json.dumps(v).encode()), st.binary(max_size=40)), max_size=4))
def test_no_input_raises(adapter: str, lines: list[bytes]) -> None:
    total(adapter, lines)


def spoil(value: Any, path: list[int], with_what: Any) -> Any:
    """`value` with the leaf (or branch) at `path`, counted round, replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return with_what
    if isinstance(value, dict):
        chosen = sorted(value)[path[0] % len(value)]
        return {**value, chosen: spoil(value[chosen], path[1:], with_what)}
    index = path[0] % len(value)
    return [*value[:index], spoil(value[index], path[1:], with_what), *value[index + 1 :]]


@pytest.mark.parametrize(
    "adapter", [a for a in ADAPTERS if a not in ("csv", "sglang-metrics", "vllm-step-log")]
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_good_record_spoiled_anywhere_raises_nothing(adapter: str, data: st.DataObject) -> None:
    records = [
        line for line in golden_lines(adapter) if line.startswith(b"{") and line.rstrip().endswith(b"}")
    ]
    record = json.loads(data.draw(st.sampled_from(records)))
    path = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))
    total(adapter, [json.dumps(spoil(record, path, data.draw(scalars))).encode()])


@pytest.mark.parametrize("adapter", ["vllm-metrics", "sglang-metrics", "vllm-step-log", "csv"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_good_line_with_a_byte_changed_raises_nothing(adapter: str, data: st.DataObject) -> None:
    lines = golden_lines(adapter)
    index = data.draw(st.integers(0, len(lines) - 1))
    at = data.draw(st.integers(0, max(len(lines[index]) - 2, 0)))
    broken = bytearray(lines[index])
    broken[at : at + 1] = data.draw(st.binary(max_size=2))
    total(adapter, [*lines[:index], bytes(broken), *lines[index + 1 :]])


@pytest.mark.parametrize(
    "adapter", [a for a in ADAPTERS if a not in ("csv", "vllm-metrics", "sglang-metrics", "vllm-step-log")]
)
def test_a_bad_line_between_any_two_changes_nothing_else(adapter: str) -> None:
    lines = golden_lines(adapter)
    clean = outcomes_of(adapter, lines)
    dirty_lines = [dirty for line in lines for dirty in (line, b'{"half": \n')]
    dirty = outcomes_of(adapter, dirty_lines)
    assert events_of(dirty) == events_of(clean)
    assert len(refused_of(dirty)) == len(refused_of(clean)) + len(lines)


def by_id(outcomes: list[Any]) -> list[dict[str, Any]]:
    return sorted(events_of(outcomes), key=lambda event: str(event["id"]))


def ids(outcomes: list[Any]) -> list[str]:
    return [event["id"] for event in events_of(outcomes)]


@pytest.mark.parametrize(
    "adapter",
    [
        a
        for a in ADAPTERS
        if a not in ("csv", "vllm-metrics", "sglang-metrics", "dynamo-fpm", "vllm-step-log")
    ],
)
def test_records_speak_for_themselves_in_any_order_and_batch(adapter: str) -> None:
    lines = golden_lines(adapter)
    whole = outcomes_of(adapter, lines)
    one_by_one = [outcome for line in lines for outcome in outcomes_of(adapter, [line])]
    backwards = outcomes_of(adapter, lines[::-1])
    assert by_id(whole) == by_id(one_by_one) == by_id(backwards)
    assert len(set(ids(whole))) == len(ids(whole))


@pytest.mark.parametrize("adapter", [*ADAPTERS, "cloudevents"])
def test_each_source_has_a_page_that_names_its_options(adapter: str) -> None:
    page = (PAGES / f"{adapter}.md").read_text()
    code = Path(str(import_module(ADAPTER_MODULES[adapter]).__file__)).read_text()
    options = set(re.findall(r'source\.option\("(\w+)"', code))
    assert {option for option in options if f"`{option}`" not in page} == set()
    assert "manage.py import_events" in page or "As for `vllm-metrics`" in page


def test_a_table_with_any_cell_left_empty_raises_nothing() -> None:
    header, *rows = golden_lines("csv")
    for row in rows:
        cells = row.split(b";")
        for place in range(len(cells)):
            total("csv", [header, b";".join([*cells[:place], b"", *cells[place + 1 :]])])
