"""The doors for people and scripts over the API: sources, silence, facts, identities, quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from billing.selectors.checklist import month_checklist
from billing.services.configuration import apply_document
from ingest.core.adapters.base import Refused
from ingest.models import Batch, QuarantinedEvent
from ingest.services.booking import book_batch
from ingest.services.native_records import refused_record
from ingest.services.retrying import retry_quarantine
from ingest.services.source_config import source_config
from ledger.models import (
    AuditEntry,
    DirtySpan,
    FactFinding,
    IdentityMapping,
    Level,
    Membership,
    Period,
    Role,
    SilenceWaiver,
    Source,
    Tenant,
    User,
)
from ledger.services.tokens import create_api_token
from tests.ingest.feeding import SOURCE, deliver, event, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

TEAM = {"kind": "k8s_namespace", "value": "team-a"}
NOON = "2026-10-03T12:00:00Z"


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[list[int]]:
    small_world()
    asked: list[int] = []
    monkeypatch.setattr("ingest.api.quarantine.request_booking", asked.append)
    yield asked


def client(role: str = "platform", *tenants: str) -> APIClient:
    found = list(Tenant.objects.filter(holder__slug__in=tenants))
    _, secret = create_api_token(f"as-{role}", role, tenants=found)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def call(api: APIClient, path: str, body: dict[str, Any] | None = None) -> Any:
    if body is None:
        return api.get(f"/api/v1/{path}")
    return api.post(f"/api/v1/{path}", body, format="json")


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def audit() -> list[tuple[str, str, str, str]]:
    rows = AuditEntry.objects.exclude(action__in=("apply_configuration", "create_api_token")).order_by("pk")
    return list(rows.values_list("actor", "action", "object_id", "reason"))


def a_source(**values: Any) -> Source:
    return Source.objects.create(uri=SOURCE, name="bj-kueue", adapter="kueue", **values)


# --- who may -------------------------------------------------------------------------------------------------

READS = (
    "facts/",
    "sources/",
    "sources/bj-kueue/",
    "quarantine/",
    "identities/",
    "identities/unmapped/",
)
DEEDS: dict[str, dict[str, Any]] = {
    "sources/bj-kueue/complete-until/": {"complete_until": NOON, "reason": "quiet"},
    "sources/bj-kueue/waive-silence/": {"reason": "quiet"},
    "sources/bj-kueue/end-holders/": {"ends_at": NOON, "reason": "gone"},
    "quarantine/retry/": {},
    "quarantine/dismiss/": {"ids": [1], "reason": "test data"},
    "identities/": {**TEAM, "tenant": "acme", "reason": "ticket"},
}


def test_platform_and_finance_act_the_auditor_reads_and_a_tenant_has_its_own_facts_only() -> None:
    a_source()
    reads = {
        role: [call(client(role, *tenants), path).status_code for path in READS]
        for role, tenants in (
            ("platform", ()),
            ("finance", ()),
            ("auditor", ()),
            ("ingest", ()),
            ("tenant_admin", ("acme",)),
        )
    }
    everything, own = [200] * 6, [200, 403, 403, 403, 403, 403]
    assert reads == {
        "platform": everything,
        "finance": everything,
        "auditor": everything,
        "ingest": [403] * 6,
        "tenant_admin": own,
    }
    for role, tenants in (("auditor", ()), ("ingest", ()), ("tenant_admin", ("acme",))):
        api = client(role, *tenants)
        assert {code(call(api, path, body)) for path, body in DEEDS.items()} == {(403, "not_allowed")}, role
    assert audit() == []


def test_a_signed_in_browser_needs_its_token_against_forgery() -> None:
    a_source()
    user = User.objects.create_user("pat", password="x")
    Membership.objects.create(user=user, role=Role.PLATFORM)
    api = APIClient(enforce_csrf_checks=True)
    api.force_login(user)
    for path, body in DEEDS.items():
        assert call(api, path, body).status_code == 403, path
    assert audit() == []


# --- sources -------------------------------------------------------------------------------------------------


def test_a_source_says_how_far_it_is_and_what_is_wrong_with_it() -> None:
    source = a_source(
        config={"cluster": "bj"},
        state={"last": {"at_ms": 1_000, "problems": ["pods: 500", "jobs: 503"]}},
    )
    deliver(occupancy("o-1", NOON, 8), occupancy("o-2", NOON, "NaN", workload="wl-2"))
    for n, starts_ms in enumerate((5_000, 9_000)):
        FactFinding.objects.create(
            code="watch_gap",
            occurred_at=datetime.fromtimestamp(starts_ms / 1000, UTC),
            subject=f"bj-kueue: pods-{n}",
            detail={"source": SOURCE, "detail": "410 Gone", "starts_ms": starts_ms, "ends_ms": 10_000},
            blocks_close=False,
        )
    Batch.objects.filter(door="test").update(origin="bj-kueue")
    (row,) = call(client("auditor"), "sources/").json()["results"]
    assert row == {
        "id": source.pk,
        "name": "bj-kueue",
        "adapter": "kueue",
        "uri": SOURCE,
        "cluster": "bj",
        "watermark_at": "2026-10-03T12:00:00Z",
        "complete_until": None,
        "silence_after_seconds": None,
        "is_silent": False,
        "heard_at": None,
        "open_holders": 0,
        "waived_until": None,
        "waived_because": None,
        "last_collected_at": "1970-01-01T00:00:01Z",
        "last_problem": "pods: 500; jobs: 503",
        "gaps": 2,
        "newest_gap": {
            "code": "watch_gap",
            "subject": "bj-kueue: pods-1",
            "detail": "410 Gone",
            "starts_at": "1970-01-01T00:00:09Z",
            "ends_at": "1970-01-01T00:00:10Z",
        },
        "batches": 1,
        "quarantined": 1,
        "retired_at": None,
    }
    detail = call(client("auditor"), "sources/bj-kueue/").json()
    assert {name: detail[name] for name in row} == row
    assert [gap["subject"] for gap in detail["newest_gaps"]] == ["bj-kueue: pods-1", "bj-kueue: pods-0"]
    csv = client("finance").get("/api/v1/sources/?format=csv")
    assert csv["Content-Type"].startswith("text/csv") and b"bj-kueue" in csv.content


def test_sources_in_use_stand_before_retired_ones() -> None:
    Source.objects.create(uri="/a-retired", retired_at=datetime(2026, 1, 1, tzinfo=UTC))
    a_source()
    rows = call(client(), "sources/").json()["results"]
    assert [row["uri"] for row in rows] == [SOURCE, "/a-retired"]


def test_a_source_without_a_name_is_called_by_its_number() -> None:
    source = Source.objects.create(uri="/gateways/edge-1")
    assert call(client(), f"sources/{source.pk}/").json()["uri"] == "/gateways/edge-1"
    for name in ("never", str(source.pk + 1), "9" * 30, "%00"):
        assert code(call(client(), f"sources/{name}/")) == (404, "not_found")


def test_signing_off_goes_forward_unless_back_is_meant() -> None:
    a_source()
    api = client("finance")
    path = "sources/bj-kueue/complete-until/"
    first = call(api, path, {"complete_until": "2026-11-01T00:00:00+08:00", "reason": "drained"})
    assert (first.status_code, first.json()["complete_until"]) == (200, "2026-10-31T16:00:00Z")
    again = {"complete_until": "2026-10-31T16:00:00Z", "reason": "the same"}
    assert call(api, path, again).status_code == 200
    earlier = {"complete_until": NOON, "reason": "two jobs were late"}
    assert code(call(api, path, earlier)) == (409, "moves_back")
    assert code(call(api, path, {"complete_until": None, "reason": "wrong"})) == (409, "moves_back")
    assert call(api, path, {**earlier, "move_back": True}).json()["complete_until"] == NOON
    taken_back = {"complete_until": None, "reason": "wrong source", "move_back": True}
    assert call(api, path, taken_back).json()["complete_until"] is None
    assert audit() == [
        ("token:as-finance", "sign_off_source", "bj-kueue", "drained"),
        ("token:as-finance", "sign_off_source", "bj-kueue", "two jobs were late"),
        ("token:as-finance", "sign_off_source", "bj-kueue", "wrong source"),
    ]
    entry = AuditEntry.objects.filter(action="sign_off_source").order_by("pk").first()
    assert entry is not None
    assert (entry.before, entry.after) == (
        {"complete_until": None},
        {"complete_until": "2026-10-31T16:00:00+00:00"},
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"complete_until": NOON, "reason": "  "}, (422, "no_reason")),
        ({"complete_until": "2026-10-03T12:00:00", "reason": "x"}, (400, "bad_instant")),
        ({"complete_until": "soon", "reason": "x"}, (400, "bad_instant")),
        ({"complete_until": 7, "reason": "x"}, (400, "wrong_type")),
        ({"reason": "x"}, (400, "invalid")),
        ({"complete_until": NOON, "reason": "x", "until": NOON}, (400, "unknown_field")),
        ([1], (400, "invalid")),
    ],
)
def test_what_a_sign_off_needs(body: Any, expected: tuple[int, str]) -> None:
    a_source()
    assert code(call(client(), "sources/bj-kueue/complete-until/", body)) == expected
    assert Source.objects.get().complete_until is None


# --- silence -------------------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)


def silence_since(instant: str = NOON, hours: int = 2) -> Source:
    """wl-1 holds 8 GPUs of acme's by the last word of the source; wl-2 came and went; wl-3 is another source's."""
    source = a_source(silence_after_s=hours * 3600)
    other = {"source": "/clusters/bj-1/other"}
    deliver(
        occupancy("o-1", instant, 8),
        occupancy("o-2", "2026-10-02T00:00:00Z", 4, workload="wl-2"),
        occupancy("o-3", instant, 0, workload="wl-2"),
        occupancy("o-4", instant, 2, workload="wl-3") | other,
        occupancy("o-5", "2026-10-02T00:00:00Z", 1, workload="wl-4", identity=TEAM, attempt=1),
        occupancy("o-6", "2026-10-02T01:00:00Z", 2, workload="wl-4", identity=TEAM, attempt=2),
    )
    return source


def silence_item(month: str = "2026-10") -> tuple[str, ...]:
    starts_at = datetime(2026, 10, 1, tzinfo=UTC)
    period, _ = Period.objects.get_or_create(
        month=month, defaults={"starts_at": starts_at, "ends_at": starts_at + 31 * 24 * HOUR}
    )
    return next(item.evidence for item in month_checklist(period) if item.code == "silence")


def test_a_silent_source_flags_its_holders_and_blocks_the_month() -> None:
    silence_since()
    levels = list(Level.objects.order_by("pk").values())
    detail = call(client("auditor"), "sources/bj-kueue/").json()
    assert (detail["is_silent"], detail["heard_at"], detail["open_holders"]) == (True, NOON, 2)
    assert detail["holders"] == [
        {
            "key": "bj-h100/wl-1",
            "pool": "bj-h100",
            "workload": "wl-1",
            "attempt": 1,
            "holder": "acme",
            "gpus": "8",
            "starts_at": NOON,
        },
        {
            "key": "bj-h100/wl-4",
            "pool": "bj-h100",
            "workload": "wl-4",
            "attempt": 2,
            "holder": "k8s_namespace:team-a",
            "gpus": "2",
            "starts_at": "2026-10-02T01:00:00Z",
        },
    ]
    assert silence_item() == ("bj-kueue",)
    assert list(Level.objects.order_by("pk").values()) == levels, "silence ends nothing"


def test_a_planned_fact_is_no_word_of_how_far_a_source_has_got() -> None:
    source = silence_since()
    deliver(event("capacity", "c-9", "2126-01-01T00:00:00Z", pool="bj-h100", gpus=32))
    source.refresh_from_db()
    assert source.watermark_at == datetime(2026, 10, 3, 12, tzinfo=UTC)
    assert call(client(), "sources/bj-kueue/").json()["is_silent"] is True


def test_a_corrected_fact_holds_nothing() -> None:
    silence_since()
    deliver(event("correction", "x-1", NOON, supersedes={"source": SOURCE, "id": "o-1"}, reason="never ran"))
    holders = call(client(), "sources/bj-kueue/").json()["holders"]
    assert [holder["workload"] for holder in holders] == ["wl-4"]


def test_a_waiver_answers_for_the_month_and_a_later_word_replaces_it() -> None:
    silence_since()
    api = client()
    path = "sources/bj-kueue/waive-silence/"
    assert code(call(api, path, {"reason": ""})) == (422, "no_reason")
    short = call(api, path, {"until": "2026-10-20T00:00:00Z", "reason": "network down"})
    assert short.status_code == 200
    assert (short.json()["is_silent"], silence_item()) == (True, ("bj-kueue",))
    now = call(api, path, {"reason": "all jobs still run, checked by hand"}).json()
    assert (now["is_silent"], now["waived_because"]) == (False, "all jobs still run, checked by hand")
    assert (silence_item(), Level.objects.count()) == ((), 6)
    back = call(api, path, {"until": "2026-10-20T00:00:00Z", "reason": "not checked after all"}).json()
    assert (back["is_silent"], silence_item()) == (True, ("bj-kueue",))
    assert [(actor, action, reason) for actor, action, _, reason in audit()] == [
        ("token:as-platform", "waive_silence", "network down"),
        ("token:as-platform", "waive_silence", "all jobs still run, checked by hand"),
        ("token:as-platform", "waive_silence", "not checked after all"),
    ]
    with pytest.raises(DatabaseError), transaction.atomic():
        SilenceWaiver.objects.update(reason="another")


def test_a_source_that_may_be_silent_needs_no_waiver() -> None:
    a_source()
    answer = call(client(), "sources/bj-kueue/waive-silence/", {"reason": "x"})
    assert code(answer) == (409, "no_limit")


def test_a_person_ends_what_a_silent_source_left_open() -> None:
    silence_since()
    api = client()
    path = "sources/bj-kueue/end-holders/"
    first = {"holders": ["bj-h100/wl-1"], "ends_at": "2026-10-03T13:30:00Z", "reason": "node lost"}
    answer = call(api, path, first)
    assert (answer.status_code, answer.json()["booked"], answer.json()["still_open"]) == (201, 1, 1)
    ended = Level.objects.get(event__source__uri="/ledger/by-hand")
    assert (ended.subject, ended.attempt, ended.milli_gpus, str(ended.identity)) == (
        "wl-1",
        1,
        0,
        "tenant:acme",
    )
    assert ended.starts_at == datetime(2026, 10, 3, 13, 30, tzinfo=UTC)
    assert Batch.objects.get(pk=answer.json()["batch"]).door == "by_hand"
    assert silence_item() == ("bj-kueue",)
    rest = call(api, path, {"ends_at": "2026-10-03T13:30:00Z", "reason": "rack lost"})
    assert (rest.status_code, rest.json()["still_open"]) == (201, 0)
    assert silence_item() == ()
    assert [(action, reason) for _, action, _, reason in audit()] == [
        ("end_holders", "node lost"),
        ("end_holders", "rack lost"),
        ("waive_silence", "rack lost"),
    ]
    assert Source.objects.get(name="bj-kueue").watermark_at == datetime(2026, 10, 3, 12, tzinfo=UTC)
    assert [item.name for item in Source.objects.filter(uri="/ledger/by-hand", retired_at=None)] == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ends_at": "2026-10-02T00:30:00Z"}, (422, "bad_instant")),
        ({"ends_at": "2126-10-02T00:30:00Z"}, (422, "bad_instant")),
        ({"holders": ["bj-h100/wl-3"]}, (422, "unknown_holder")),
        ({"holders": []}, (422, "unknown_holder")),
        ({"reason": " "}, (422, "no_reason")),
    ],
)
def test_what_cannot_be_ended(change: dict[str, Any], expected: tuple[int, str]) -> None:
    silence_since()
    body = {"ends_at": "2026-10-03T13:30:00Z", "reason": "node lost"} | change
    assert code(call(client(), "sources/bj-kueue/end-holders/", body)) == expected
    assert (Level.objects.count(), audit()) == (6, [])


def test_a_source_that_reports_ends_its_own_holders() -> None:
    silence_since(instant=(timezone.now() - HOUR).isoformat())
    body = {"ends_at": timezone.now().isoformat(), "reason": "x"}
    assert code(call(client(), "sources/bj-kueue/end-holders/", body)) == (409, "not_silent")


# --- facts ---------------------------------------------------------------------------------------------------


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


# --- identities ----------------------------------------------------------------------------------------------


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


# --- quarantine ----------------------------------------------------------------------------------------------


def test_quarantine_is_filtered_tried_again_and_settled(asked_for: list[int]) -> None:
    late = [occupancy(f"l-{n}", NOON, 1, workload=f"w{n}", tenant="late") for n in range(3)]
    receipt = deliver(*late, b"{broken", occupancy("o-1", NOON, 1), occupancy("o-1", NOON, 2))
    api = client("finance")
    rows = call(api, "quarantine/").json()["results"]
    assert sorted((row["line"], row["reason"], row["can_be_retried"]) for row in rows) == [
        (1, "unknown_tenant", True),
        (2, "unknown_tenant", True),
        (3, "unknown_tenant", True),
        (4, "not_json", True),
        (6, "conflict", False),
    ]
    by_reason = call(api, f"quarantine/?reason=unknown_tenant&batch={receipt.batch}&source={SOURCE}").json()
    assert {row["event"] for row in by_reason["results"]} == {"l-0", "l-1", "l-2"}
    apply_document({"tenant": [{"slug": "late"}]})
    one = next(row["id"] for row in rows if row["event"] == "l-1")
    first = call(api, "quarantine/retry/", {"ids": [one]})
    assert (first.status_code, first.json()["lines"]) == (202, 1)
    rest = call(api, "quarantine/retry/", {"reasons": ["unknown_tenant"]}).json()
    assert [sent["lines"] for sent in rest["batches"]] == [2]
    assert asked_for == [first.json()["batches"][0]["batch"], rest["batches"][0]["batch"]]
    assert [book_batch(batch).booked for batch in asked_for] == [1, 2]  # type: ignore[union-attr]
    nothing = call(api, "quarantine/retry/", {"reasons": ["unknown_tenant"]})
    assert code(nothing) == (409, "nothing_to_retry")
    conflict = next(row["id"] for row in rows if row["reason"] == "conflict")
    assert code(call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": ""})) == (422, "no_reason")
    dismissed = call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": "sent twice by a test"})
    assert dismissed.json() == {"lines": 1}
    again = call(api, "quarantine/dismiss/", {"ids": [conflict], "reason": "x"})
    assert code(again) == (409, "nothing_to_dismiss")
    assert {row["reason"] for row in call(api, "quarantine/").json()["results"]} == {"not_json"}
    settled = call(api, "quarantine/?state=settled").json()["results"]
    assert sorted(row["resolution"] for row in settled) == ["dismissed", "retried", "retried", "retried"]
    assert [(action, object_id, reason) for _, action, object_id, reason in audit()] == [
        ("retry_quarantine", "all", ""),
        ("retry_quarantine", "unknown_tenant", ""),
        ("dismiss_quarantine", f"batch {receipt.batch} line 6: conflict", "sent twice by a test"),
    ]


@pytest.mark.parametrize("query", ["?state=never", "?batch=x", "?batch=99999999999999999999", "?reason=%00"])
def test_filters_of_quarantine_that_make_no_sense(query: str) -> None:
    assert call(client(), f"quarantine/{query}").status_code == 400


def columns(**changes: str) -> dict[str, str]:
    return {"id": "job", "time": "at", "workload": "job", "gpus": "gpus", "pool": "part"} | changes


def csv_source(**changes: str) -> Source:
    options = {"type": "occupancy", "columns": columns(**changes), "constants": {"tenant": "acme"}}
    return Source.objects.create(
        uri="/clusters/hpc/csv", name="hpc", adapter="csv", config={"options": options}
    )


def test_a_native_record_is_given_to_its_adapter_again(tmp_path: Any) -> None:
    """As an event it could never be read: it is a row of a table under its header."""
    source = csv_source(gpus="cards")
    file = tmp_path / "jobs.csv"
    file.write_text(
        "job,at,gpus,cards,part\n"
        "j-1,2026-10-01T00:00:00Z,2,2,bj-h100\n"
        "j-2,not a time,3,3,bj-h100\n"
        "j-3,2026-10-01T00:00:00Z,4\n"
        "j-4,2026-10-01T00:00:00Z,5,five,bj-h100\n"
    )
    call_command("import_events", str(file), source="hpc", verbosity=0)
    refused = QuarantinedEvent.objects.order_by("line").values_list("adapter", "reason")
    assert list(refused) == [("csv", "bad_time"), ("csv", "bad_record"), ("", "bad_number")]
    source.config["options"] |= {"time_format": "rfc3339", "columns": columns(gpus="gpus", time="at2")}
    source.save()
    (receipt,) = retry_quarantine(reasons=["bad_record"], by="test")
    assert (receipt.received, receipt.quarantined) == (1, 1), "its table lacks the column now"
    source.config["options"]["columns"] = columns(gpus="gpus")
    source.save()
    QuarantinedEvent.objects.filter(resolved_at=None, reason="bad_time").update(
        raw=b"job,at,gpus,cards,part\nj-2,2026-10-01T01:00:00Z,3,3,bj-h100"
    )
    totals = [(one.received, one.booked, one.quarantined) for one in retry_quarantine(by="test")]
    # j-4 is the adapter's own event, j-2 is right now, and j-3 is still too short.
    assert sorted(totals) == [(1, 0, 1), (1, 0, 1), (1, 1, 0)]
    left = QuarantinedEvent.objects.filter(resolved_at=None, adapter="csv")
    assert [bytes(row.raw).splitlines()[1] for row in left] == [b"j-3,2026-10-01T00:00:00Z,4"]
    assert list(Level.objects.order_by("subject").values_list("subject", "milli_gpus")) == [
        ("j-1", 2000),
        ("j-2", 3000),
    ]
    assert sum(one.received for one in retry_quarantine(by="test")) == 2, "nothing was booked twice or lost"


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_table_with_another_header_is_booked_whole_once_its_source_is_mended(
    delimiter: str, tmp_path: Any
) -> None:
    source = csv_source(gpus="cards")
    rows = ["job,at,gpus,part", *(f"j-{n},2026-10-01T00:00:00Z,{n},bj-h100" for n in (1, 2, 3))]
    file = tmp_path / "jobs.csv"
    file.write_text("\n".join(rows).replace(",", delimiter))
    call_command("import_events", str(file), source="hpc", verbosity=0)
    assert QuarantinedEvent.objects.filter(adapter="csv").count() == 4
    source.config["options"] |= {"columns": columns(), "delimiter": delimiter}
    source.save()
    list(retry_quarantine(by="test"))
    assert not QuarantinedEvent.objects.filter(resolved_at=None).exists()
    levels = Level.objects.order_by("subject").values_list("subject", "milli_gpus")
    assert list(levels) == [(f"j-{n}", 1000 * n) for n in (1, 2, 3)]


def test_a_native_record_whose_source_is_gone_stays_for_a_person() -> None:
    source = csv_source()
    deliver(refused_record(source_config(source), Refused(1, b"a,b\n1,2", "bad_record", "too short")))
    Source.objects.filter(pk=source.pk).update(name=None)
    (receipt,) = retry_quarantine(by="test")
    assert (receipt.received, receipt.quarantined) == (1, 1)
    row = QuarantinedEvent.objects.get(resolved_at=None)
    assert (row.reason, row.adapter, bytes(row.raw)) == ("not_configured", "csv", b"a,b\n1,2")
