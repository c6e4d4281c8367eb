"""Sources over the API: who may, signing off, silence and what people do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from billing.selectors.checklist import month_checklist
from ingest.models import Batch
from ledger.models import (
    AuditEntry,
    FactFinding,
    Level,
    Membership,
    Period,
    Role,
    SilenceWaiver,
    Source,
    User,
)
from tests.ingest.doors import NOON, TEAM, a_source, asked_for, audit, call, client, code
from tests.ingest.feeding import SOURCE, deliver, event, occupancy

__all__ = ["asked_for"]  # the fixture

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


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
    return next(tuple(map(str, item.evidence)) for item in month_checklist(period) if item.code == "silence")


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
