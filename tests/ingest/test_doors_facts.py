"""Facts and identities over the API."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from ingest.models import Batch
from ledger.models import (
    DirtySpan,
    IdentityMapping,
)
from tests.ingest.doors import NOON, TEAM, asked_for, audit, call, client, code
from tests.ingest.feeding import SOURCE, deliver, event, occupancy, request

__all__ = ["asked_for"]  # the fixture

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def some_facts() -> None:
    deliver(
        event("capacity", "c-1", "2026-10-01T00:00:00Z", pool="bj-h100", gpus=16),
        occupancy("o-1", "2026-10-01T01:00:00Z", "1.5", name="qwen"),
        occupancy("o-2", "2026-10-02T01:00:00Z", 2, workload="wl-2", tenant="beta"),
        occupancy("o-3", "2026-10-03T01:00:00Z", 3, workload="wl-3", identity=TEAM),
        event(
            "preemption",
            "p-1",
            "2026-10-03T02:00:00Z",
            preemption="p",
            victim={"workload": "wl-3", "identity": TEAM},
            preemptor={"workload": "wl-2", "tenant": "beta"},
            preemptor_source="structured",
            pool="bj-h100",
            gpus=3,
            cause="priority",
        ),
        request("r-1", "2026-10-03T02:00:05Z", "2026-10-03T02:00:00Z", input_tokens=7, gpu_seconds="1.5"),
    )


def found(api: APIClient, query: str = "") -> list[tuple[str, str, str]]:
    rows = call(api, f"facts/{query}").json()["results"]
    return [(row["kind"], row["subject"], row["id"]) for row in rows]


def test_facts_by_kind_tenant_pool_and_window() -> None:
    some_facts()
    IdentityMapping.objects.all().delete()
    call(
        client(),
        "identities/",
        {**TEAM, "tenant": "acme", "valid_from": "2026-10-03T02:00:00Z", "reason": "x"},
    )
    api = client("auditor")
    levels = [
        ("capacity", "", "c-1"),
        ("occupancy", "wl-1", "o-1"),
        ("occupancy", "wl-2", "o-2"),
        ("occupancy", "wl-3", "o-3"),
    ]
    assert found(api) == levels
    assert found(api, "?kind=occupancy&window=2026-10-02T00:00:00Z,2026-10-03T00:00:00Z") == [levels[2]]
    assert found(api, "?tenant=acme") == [levels[1]], "the namespace was nobody's at 01:00"
    assert found(api, "?kind=preemption&tenant=acme") == [("preemption", "wl-3", "p-1")]
    assert found(api, "?kind=preemption&tenant=beta") == [("preemption", "wl-3", "p-1")]
    assert found(api, "?kind=request&window=2026-10&tenant=acme") == [("request", "r-1", "r-1")]
    assert found(api, "?kind=usage&window=2026-10&pool=bj-h100") == []
    assert found(client("tenant_viewer", "beta")) == [levels[2]]
    assert found(client("tenant_viewer", "beta"), "?kind=preemption") == []
    assert found(client("tenant_viewer", "beta"), "?kind=request&window=2026-10") == []
    (row,) = call(api, "facts/?kind=occupancy&tenant=acme").json()["results"]
    assert row == {
        "kind": "occupancy",
        "time": "2026-10-01T01:00:00Z",
        "ends_at": None,
        "pool": "bj-h100",
        "subject": "wl-1",
        "attempt": 1,
        "holder": "tenant:acme",
        "other": "",
        "gpus": "1.5",
        "gpu_us": None,
        "input_tokens": None,
        "output_tokens": None,
        "requests": None,
        "detail": {"name": "qwen"},
        "source": SOURCE,
        "id": "o-1",
        "batch": Batch.objects.get().pk,
        "line": 2,
    }
    (row,) = call(api, "facts/?kind=request&window=2026-10").json()["results"]
    assert (row["gpu_us"], row["input_tokens"], row["detail"]["model"]) == ("1500000", 7, "qwen")


def test_facts_are_paged_and_are_a_file() -> None:
    some_facts()
    api = client()
    first = call(api, "facts/?page_size=3").json()
    assert [row["id"] for row in first["results"]] == ["c-1", "o-1", "o-2"]
    second = api.get(first["next"]).json()
    assert ([row["id"] for row in second["results"]], second["next"]) == (["o-3"], None)
    body = api.get("/api/v1/facts/?format=csv&fields=id,gpus").content
    assert body == b"id,gpus\r\nc-1,16\r\no-1,1.5\r\no-2,2\r\no-3,3\r\n"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?kind=never", (400, "bad_kind")),
        ("?kind=request", (422, "missing_parameter")),
        ("?window=2026-13", (400, "bad_window")),
        ("?pool=never", (422, "unknown_pool")),
        ("?tenant=never", (404, "not_found")),
        ("?tenant=acme", (404, "not_found")),
        ("?since=2026", (400, "unknown_parameter")),
        ("?pool=%00", (400, "bad_filter")),
    ],
)
def test_what_cannot_be_asked(query: str, expected: tuple[int, str]) -> None:
    assert code(call(client("tenant_viewer", "beta"), f"facts/{query}")) == expected


def test_unmapped_facts_are_seen_mapped_and_attributed() -> None:
    some_facts()
    DirtySpan.objects.all().delete()
    api = client("finance")
    assert call(api, "identities/unmapped/").json()["results"] == [
        {
            "kind": "k8s_namespace",
            "value": "team-a",
            "first_seen_at": _first_seen(),
            "pools": ["bj-h100"],
            "levels": 1,
            "requests": 0,
            "preemptions": 1,
            "first_fact_at": "2026-10-03T01:00:00Z",
            "last_fact_at": "2026-10-03T02:00:00Z",
        }
    ]
    body = {**TEAM, "tenant": "acme", "valid_from": "2026-10-03T02:00:00Z", "reason": "ticket 4711"}
    answer = call(api, "identities/", body)
    assert answer.status_code == 201
    assert answer.json() == {
        **TEAM,
        "tenant": "acme",
        "valid_from": "2026-10-03T02:00:00Z",
        "valid_to": None,
        "changed": True,
        "attributed": [
            {
                "pool": "bj-h100",
                "levels": 0,
                "requests": 0,
                "preemptions": 1,
                "first_fact_at": "2026-10-03T02:00:00Z",
                "last_fact_at": "2026-10-03T02:00:00Z",
            }
        ],
    }
    assert [span.pool.slug for span in DirtySpan.objects.all()] == ["bj-h100"]
    left = call(api, "identities/unmapped/").json()["results"]
    assert [(row["value"], row["levels"], row["preemptions"]) for row in left] == [("team-a", 1, 0)]
    assert call(api, "identities/", body).status_code == 200
    assert audit() == [("token:as-finance", "map_identity", "k8s_namespace:team-a", "ticket 4711")]
    listed = call(api, "identities/").json()["results"]
    assert [(row["value"], row["tenant"], row["recorded_by"]) for row in listed] == [
        ("team-a", "acme", "token:as-finance")
    ]


def _first_seen() -> str:
    from ledger.models import Identity

    return Identity.objects.get(**TEAM).first_seen_at.isoformat().replace("+00:00", "Z")


def test_what_is_held_on_past_a_mappings_end_is_unmapped_from_then_on() -> None:
    deliver(
        occupancy("o-1", "2026-10-01T00:00:00Z", 1, identity=TEAM),
        occupancy("o-2", "2026-10-01T00:00:00Z", 1, workload="over", identity=TEAM),
        occupancy("o-3", "2026-10-02T00:00:00Z", 0, workload="over", identity=TEAM),
    )
    api = client()
    call(api, "identities/", {**TEAM, "tenant": "acme", "valid_to": NOON, "reason": "the team moved"})
    (row,) = call(api, "identities/unmapped/").json()["results"]
    assert (row["levels"], row["first_fact_at"], row["last_fact_at"]) == (1, NOON, NOON)
    call(api, "identities/", {**TEAM, "tenant": "beta", "valid_from": NOON, "reason": "to beta"})
    assert call(api, "identities/unmapped/").json()["results"] == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tenant": "never"}, (422, "unknown_tenant")),
        ({"kind": "tenant"}, (422, "bad_identity")),
        ({"kind": "nonsense"}, (422, "bad_identity")),
        ({"reason": ""}, (422, "no_reason")),
        ({"valid_from": NOON, "valid_to": NOON}, (422, "empty_validity")),
        ({"tenant": "beta"}, (409, "mapped_otherwise")),
        ({"valid_from": "yesterday"}, (400, "bad_instant")),
    ],
)
def test_what_cannot_be_mapped(change: dict[str, Any], expected: tuple[int, str]) -> None:
    api = client()
    body = {**TEAM, "tenant": "acme", "reason": "x"}
    assert call(api, "identities/", body).status_code == 201
    assert code(call(api, "identities/", body | {"reason": "again"} | change)) == expected
    assert [str(mapping.tenant) for mapping in IdentityMapping.objects.all()] == ["acme"]
