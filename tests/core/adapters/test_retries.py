"""What was refused for want of a pool says, read again once the pool is mapped, what it would have said at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.core.adapters import load
from ingest.core.adapters.base import Refused, SourceConfig, forget_refusals
from tests.core.adapters.running import PASS_THROUGH, events_of, refused_of
from tests.core.adapters.test_golden import GOLDEN, case_names

Obj = dict[str, Any]

ONLY_REMARKS = ("slurm-sreport",)
"""Books nothing, so nothing of it lacks a pool."""
NOT_REFUSED = ("capacity", "pending", "preemption", "resume")
"""Nodes outside of every pool are no capacity and are not refused. Several records tell of one preemption, or of the
end of one wait: what they tell together needs the memory of those that were read."""


def refused_without_pools(name: str) -> tuple[SourceConfig, list[Refused], dict[str, Obj]]:
    """The source as it should be, what it refuses as long as no pool is mapped, and what that keeps from the books."""
    folder, case = GOLDEN / name.split("/")[0], name.split("/")[1]
    config = SourceConfig(**json.loads((folder / "source.json").read_text()))
    (given,) = folder.glob(f"{case}.in*")
    lines = Path(given).read_bytes().splitlines(keepends=True)
    adapter = load(config.adapter)
    sound = list(adapter.adapt(lines, config, None))
    blind = list(adapter.adapt(lines, replace(config, pool=None, pools={"elsewhere": "p"}), None))
    hopeless = {one.record for one in refused_of(sound)}
    refused = [one for one in refused_of(blind) if one.record not in hopeless]
    booked = {event["id"] for event in events_of(blind)}
    kept_back = {event["id"]: event for event in events_of(sound) if event["id"] not in booked}
    return config, refused, kept_back


@pytest.mark.parametrize(
    "name", [n for n in case_names() if n.split("/")[0] not in (*PASS_THROUGH, *ONLY_REMARKS)]
)
def test_a_retry_books_what_the_missing_pool_kept_back(name: str) -> None:
    config, refused, kept_back = refused_without_pools(name)
    assert refused
    adapter = load(config.adapter)
    state: Obj = {}
    again = [o for one in refused for o in adapter.adapt(one.record.split(b"\n"), config, state)]
    again += adapter.flush(config, state, None)
    assert refused_of(again) == []
    told = {event["id"]: event for event in events_of(again)}
    wanted = {i: e for i, e in kept_back.items() if e["type"].split(".")[1] not in NOT_REFUSED}
    assert {i: told.get(i) for i in wanted} == wanted


@pytest.mark.parametrize(
    "name", [n for n in case_names() if load(n.split("/")[0].replace("_", "-")).remembers]
)
def test_a_retry_with_what_was_remembered_leaves_nothing_out(name: str) -> None:
    """All of it, preemptions and ends of waits included, as if the pool had been mapped in time."""
    folder, case = GOLDEN / name.split("/")[0], name.split("/")[1]
    config = SourceConfig(**json.loads((folder / "source.json").read_text()))
    (given,) = folder.glob(f"{case}.in*")
    lines = Path(given).read_bytes().splitlines(keepends=True)
    adapter, memory = load(config.adapter), dict[str, Any]()
    sound = list(adapter.adapt(lines, config, None))
    blind = replace(config, pool=None, pools={"elsewhere": "p"})
    before = [*adapter.adapt(lines, blind, memory), *adapter.flush(blind, memory, None)]
    memory = json.loads(json.dumps(memory))
    forget_refusals(memory)
    hopeless = {one.record for one in refused_of(sound)}
    records = [one.record for one in refused_of(before) if one.record not in hopeless]
    again = [outcome for one in records for outcome in adapter.adapt(one.split(b"\n"), config, memory)]
    again += adapter.flush(config, memory, None)
    assert [one for one in refused_of(again) if one.record in records] == []
    told = {event["id"]: event for event in [*events_of(before), *events_of(again)]}
    wanted = {e["id"]: e for e in events_of(sound) if e["type"] != "ledger.capacity.v1"}
    assert {i: told.get(i) for i in wanted} == wanted
