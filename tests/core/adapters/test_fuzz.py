"""Whatever comes in, an adapter answers with outcomes: it never raises, and good neighbours come through."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.core.adapters import load
from ingest.core.adapters.base import REASONS, Notice, Refused, SourceConfig
from tests.core.adapters.test_golden import GOLDEN

CLUSTER_SOURCES = (
    "kueue",
    "volcano",
    "kube-events",
    "kube-pods",
    "kube-state-metrics",
    "resource-quota",
    "elastic-quota",
    "koordinator",
    "kai",
    "slurm-sacct",
    "slurm-sacct-json",
    "slurmctld-log",
    "slurm-sreport",
    "dcgm",
)
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    0.5,
    "",
    "x",
    "NaN",
    "9" * 40,
    [],
    [1],
    {},
    {"a": None},
    "2026-13-40T00:00:00Z",
]
GARBAGE = [
    b"\xff\xfe\x00",
    b"{",
    b"[" * 5000,
    b"nul\x00l|" * 9,
    b'{"kind": 1, "metadata": 2}',
    b"NaN",
    b"|||||||||||||||||",
]


def config_of(name: str) -> SourceConfig:
    return SourceConfig(**json.loads((GOLDEN / name / "source.json").read_text()))


def input_of(name: str) -> list[bytes]:
    (path,) = [p for p in sorted((GOLDEN / name).glob("*.in*")) if "list" not in p.name]
    return Path(path).read_bytes().splitlines(keepends=True)


def checked(name: str, lines: list[bytes]) -> list[Any]:
    outcomes = list(load(name).adapt(lines, config_of(name), None))
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            assert outcome.reason in REASONS and outcome.detail
        elif not isinstance(outcome, Notice):
            json.dumps(outcome, allow_nan=False)
            assert outcome["id"] and outcome["time"].endswith("Z")
            assert str(outcome["data"].get("gpus", 0))[0] != "-"
    return outcomes


@pytest.mark.parametrize("name", CLUSTER_SOURCES)
@given(lines=st.lists(st.sampled_from(GARBAGE) | st.binary(max_size=80), max_size=6))
@settings(max_examples=30, deadline=None)
def test_garbage(name: str, lines: list[bytes]) -> None:
    checked(name, lines)


@pytest.mark.parametrize("name", CLUSTER_SOURCES)
def test_garbage_between_good_records_loses_none(name: str) -> None:
    good = input_of(name)
    if good[0].strip() == b"{":  # one printed document: only around it is between records
        mixed = [*GARBAGE, *good, *GARBAGE]
    else:
        mixed = [piece for line in good for piece in (line, b"\xff\xfe garbage\n")]
    events = [o for o in checked(name, good) if isinstance(o, dict)]
    found = {o["id"]: o for o in checked(name, mixed) if isinstance(o, dict)}
    assert all(found.get(event["id"]) == event for event in events)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], to: Any, drop: bool) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if drop:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return value


@pytest.mark.parametrize(
    "name", [n for n in CLUSTER_SOURCES if n not in ("slurm-sacct", "slurmctld-log", "slurm-sreport")]
)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_field_missing_or_odd(name: str, data: st.DataObject) -> None:
    lines = input_of(name)
    if lines[0].strip() == b"{":
        lines = [json.dumps(json.loads(b"".join(lines))).encode()]
    readable = [i for i, line in enumerate(lines) if _is_json(line)]
    index = data.draw(st.sampled_from(readable))
    record = json.loads(lines[index])
    path = data.draw(st.sampled_from(list(places(record))))
    odd = changed(record, path, data.draw(st.sampled_from(ODD)), data.draw(st.booleans()))
    checked(name, [*lines[:index], json.dumps(odd).encode(), *lines[index + 1 :]])


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", ["slurm-sacct", "slurmctld-log", "slurm-sreport"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_text_field_odd(name: str, data: st.DataObject) -> None:
    lines = input_of(name)
    index = data.draw(st.integers(0, len(lines) - 1))
    parts = lines[index].split(b"|")
    place = data.draw(st.integers(0, len(parts) - 1))
    parts[place] = data.draw(
        st.sampled_from([b"", b"x", b"-1", b"9" * 40, b"gres/gpu=x", b"Unknown", b"a\nb", b"\xff"])
    )
    checked(name, [*lines[:index], *b"|".join(parts).splitlines(keepends=True), *lines[index + 1 :]])
