"""Which reservations follow from the versions of a contract, and by which events the record gets there."""

from __future__ import annotations

from typing import Any

from billing.core.contract_reservations import (
    SOURCE,
    BookedLevel,
    Height,
    Place,
    Promise,
    events_towards,
    levels_of,
)

JUNE, JULY = 1_780_272_000_000, 1_782_864_000_000
QWEN, LLAMA = ("qwen", "h100"), ("llama", "h100")


def test_a_version_that_no_longer_promises_it_ends_the_reservation() -> None:
    versions = [Promise(JULY, None, {LLAMA: 500}), Promise(JUNE, None, {QWEN: 3000})]
    assert levels_of("acme", versions) == {
        Place("acme", "qwen", "h100", JUNE): Height(3000),
        Place("acme", "qwen", "h100", JULY): Height(0),
        Place("acme", "llama", "h100", JULY): Height(500),
    }
    assert levels_of("acme", [Promise(JUNE, None, {}), Promise(JULY, None, {})]) == {}


def test_an_end_of_its_own_is_the_levels_end() -> None:
    (height,) = levels_of("acme", [Promise(JUNE, JULY, {QWEN: 3000})]).values()
    assert height == Height(3000, JULY)


def booked(event_id: str, milli: int, starts_ms: int = JUNE) -> BookedLevel:
    return BookedLevel(event_id, "contract/acme/qwen", "h100", starts_ms, Height(milli))


def towards(milli: int | None, *standing: BookedLevel, taken: set[str] | None = None) -> list[dict[str, Any]]:
    wanted = {} if milli is None else {Place("acme", "qwen", "h100", JUNE): Height(milli)}
    taken = {level.event_id for level in standing} if taken is None else taken
    return events_towards(wanted, standing, taken, JULY, "agreed")


FIRST = "contract/acme/qwen/h100/2026-06-01T00:00:00Z"


def test_what_is_missing_is_told_once() -> None:
    (event,) = towards(1500)
    assert (event["id"], event["source"], event["time"]) == (FIRST, SOURCE, "2026-06-01T00:00:00Z")
    assert event["data"] == {
        "reservation": "contract/acme/qwen",
        "tenant": "acme",
        "pool": "h100",
        "gpus": "1.5",
    }
    assert towards(1500, booked(FIRST, 1500)) == []


def test_what_has_changed_is_superseded_under_another_id() -> None:
    (event,) = towards(2000, booked(FIRST, 1500))
    assert (event["type"], event["id"]) == ("ledger.correction.v1", f"superseded/{FIRST}")
    assert event["data"]["supersedes"] == {"source": SOURCE, "id": FIRST}
    assert (event["data"]["event"]["id"], event["data"]["event"]["data"]["gpus"]) == (f"{FIRST}/2", "2")


def test_what_nobody_promises_is_withdrawn_and_can_come_back() -> None:
    (event,) = towards(None, booked(FIRST, 1500))
    assert "event" not in event["data"]
    (again,) = towards(1500, taken={FIRST, f"superseded/{FIRST}"})
    assert (again["type"], again["id"]) == ("ledger.reservation.v1", f"{FIRST}/2")
