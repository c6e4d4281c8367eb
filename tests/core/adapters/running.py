"""Runs an adapter over literals; shared by the adapter tests."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from ingest.core.adapters import load
from ingest.core.adapters.base import Event, Notice, Outcome, Refused, SourceConfig, State
from ingest.core.parse import ParsedEvent, parse_line
from ingest.core.unpack import Limits

PASS_THROUGH = ("cloudevents", "csv")
"""Adapters whose events are the user's own words; the door judges them."""
LONG_AFTER_MS = 1_900_000_000_000
"""A clock after every synthetic record, so that nothing is in the future."""

Obj = dict[str, Any]


def source_of(adapter: str, **fields: Any) -> SourceConfig:
    """A source with one pool unless the test maps pools itself."""
    fields.setdefault("uri", f"/clusters/c1/{adapter}")
    if "pools" not in fields:
        fields.setdefault("pool", "p1")
    return SourceConfig(name="test", adapter=adapter, cluster="c1", **fields)


def as_lines(records: Iterable[Obj | str | bytes]) -> list[bytes]:
    """Objects as one JSON per line; text and bytes as they are."""
    return [
        r if isinstance(r, bytes) else r.encode() if isinstance(r, str) else json.dumps(r).encode()
        for r in records
    ]


def run(
    adapter: str, records: Iterable[Obj | str | bytes], state: State | None = None, **fields: Any
) -> list[Outcome]:
    outcomes = list(load(adapter).adapt(as_lines(records), source_of(adapter, **fields), state))
    if adapter not in PASS_THROUGH:
        assert_contract(outcomes)
    return outcomes


def assert_contract(outcomes: Iterable[Outcome]) -> None:
    """Every event an adapter makes is one that the ledger's own door accepts (events.md)."""
    for outcome in outcomes:
        if isinstance(outcome, dict):
            parsed = parse_line(1, json.dumps(outcome).encode(), LONG_AFTER_MS, Limits())
            assert isinstance(parsed, ParsedEvent), (parsed, outcome)


def events_of(outcomes: Iterable[Outcome], event_type: str | None = None) -> list[Event]:
    return [o for o in outcomes if isinstance(o, dict) and event_type in (None, o["type"].split(".")[1])]


def refused_of(outcomes: Iterable[Outcome]) -> list[Refused]:
    return [o for o in outcomes if isinstance(o, Refused)]


def notices_of(outcomes: Iterable[Outcome]) -> list[Notice]:
    return [o for o in outcomes if isinstance(o, Notice)]


def levels_of(outcomes: Iterable[Outcome]) -> list[tuple[str, str, Any]]:
    """`(time, pool, gpus)` of the occupancy events, in time order."""
    return sorted((e["time"], e["data"]["pool"], e["data"]["gpus"]) for e in events_of(outcomes, "occupancy"))


def plain(outcome: Outcome) -> Obj:
    """An outcome as golden files hold it; the bytes of a refused record are left out, its line is enough."""
    if isinstance(outcome, Refused):
        return {"refused": outcome.reason, "line": outcome.position, "detail": outcome.detail}
    if isinstance(outcome, Notice):
        return {"notice": outcome.reason, "line": outcome.position, "subject": outcome.subject}
    if isinstance(outcome, Notice):
        return {"notice": outcome.reason, "line": outcome.position, "detail": outcome.detail}
    return copy.deepcopy(outcome)
