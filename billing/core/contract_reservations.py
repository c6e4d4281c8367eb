"""Reservations that follow from token contracts, as events of their own source (domain.md section 7).

A reservation that a contract brings is a fact like any other: it has an id, is booked once, and a change of the
contract supersedes it by a correction. So everything that reads reservations reads these, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.core.periods import to_datetime
from ledger.core.units import milli_gpus_text

SOURCE = "/ledger/contracts"


@dataclass(frozen=True, slots=True)
class Promise:
    """One version of a tenant's contract: milli-GPUs by (model, pool). ended_ms: where it ends by itself."""

    valid_from_ms: int
    ended_ms: int | None
    milli_gpus: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Which level: a tenant's reservation for a model in a pool, from an instant on."""

    tenant: str
    model: str
    pool: str
    starts_ms: int

    @property
    def reservation(self) -> str:
        return f"contract/{self.tenant}/{self.model}"


@dataclass(frozen=True, slots=True)
class Height:
    """What is held from there on; ends_ms: until then, if nothing else ends it before."""

    milli_gpus: int
    ends_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BookedLevel:
    """A level of these that counts at present, by the id of its event."""

    event_id: str
    reservation: str
    pool: str
    starts_ms: int
    height: Height


def levels_of(tenant: str, promises: Iterable[Promise]) -> dict[Place, Height]:
    """The levels of a tenant's reservations over all versions of its contract.

    What a version no longer promises ends where the version begins.
    """
    found: dict[Place, Height] = {}
    before: Collection[tuple[str, str]] = ()
    for promise in sorted(promises, key=lambda one: one.valid_from_ms):
        for model, pool in sorted({*promise.milli_gpus, *before}):
            milli = promise.milli_gpus.get((model, pool), 0)
            ends_ms = promise.ended_ms if milli else None
            found[Place(tenant, model, pool, promise.valid_from_ms)] = Height(milli, ends_ms)
        before = promise.milli_gpus
    return found


def events_towards(
    wanted: Mapping[Place, Height],
    booked: Sequence[BookedLevel],
    taken: Collection[str],
    now_ms: int,
    reason: str,
) -> list[dict[str, Any]]:
    """The canonical events that make `wanted` of `booked`; none where it is so already.

    taken: ids of all events of the source, also of those that no longer count. Each event is superseded at most
    once: what comes in its place has an id of its own.
    """
    standing = {(level.reservation, level.pool, level.starts_ms): level for level in booked}
    events = []
    for place, height in sorted(wanted.items()):
        level = standing.pop((place.reservation, place.pool, place.starts_ms), None)
        if level is not None and level.height == height:
            continue
        told = _reservation(place, height, taken)
        events.append(told if level is None else _correction(level.event_id, now_ms, reason, told))
    gone = sorted(standing.values(), key=lambda level: level.event_id)
    return events + [_correction(level.event_id, now_ms, reason) for level in gone]


def _reservation(place: Place, height: Height, taken: Collection[str]) -> dict[str, Any]:
    name = f"{place.reservation}/{place.pool}/{_text(place.starts_ms)}"
    event_id, number = name, 1
    while event_id in taken:
        number += 1
        event_id = f"{name}/{number}"
    data = {
        "reservation": place.reservation,
        "tenant": place.tenant,
        "pool": place.pool,
        "gpus": milli_gpus_text(height.milli_gpus),
    }
    if height.ends_ms is not None:
        data["ends_at"] = _text(height.ends_ms)
    return _event("reservation", event_id, place.starts_ms, data)


def _correction(
    event_id: str, now_ms: int, reason: str, instead: dict[str, Any] | None = None
) -> dict[str, Any]:
    data: dict[str, Any] = {"supersedes": {"source": SOURCE, "id": event_id}, "reason": reason}
    if instead is not None:
        data["event"] = instead
    return _event("correction", f"superseded/{event_id}", now_ms, data)


def _event(kind: str, event_id: str, time_ms: int, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": f"ledger.{kind}.v1",
        "time": _text(time_ms),
        "data": data,
    }


def _text(instant_ms: int) -> str:
    return to_datetime(instant_ms).isoformat().replace("+00:00", "Z")
