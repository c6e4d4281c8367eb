"""The pages of ingest on which people act: who may, what is done, and what they read when it cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.services.configuration import apply_document
from ingest.models import QuarantinedEvent
from ledger.models import (
    AuditEntry,
    IdentityMapping,
    Level,
    Membership,
    Role,
    Source,
    SourceTotal,
    Tenant,
    User,
)
from tests.ingest.feeding import SOURCE, deliver, occupancy, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

NOON = "2026-10-03T12:00:00Z"
TEAM = {"kind": "k8s_namespace", "value": "team-a"}


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[list[int]]:
    small_world()
    asked: list[int] = []
    monkeypatch.setattr("ingest.views.quarantine.request_booking", asked.append)
    yield asked


def signed_in(role: Role, tenant: str = "", **options: Any) -> Client:
    user = User.objects.create_user(f"{role}-{User.objects.count()}", password="x")
    of = Tenant.objects.get(holder__slug=tenant) if tenant else None
    Membership.objects.create(user=user, role=role, tenant=of)
    client = Client(**options)
    client.force_login(user)
    return client


def silent_source() -> Source:
    source = Source.objects.create(uri=SOURCE, name="bj-kueue", adapter="kueue", silence_after_s=60)
    deliver(
        occupancy("o-1", NOON, 8),
        occupancy("o-2", NOON, 2, workload="wl-2", identity=TEAM),
        occupancy("o-3", NOON, 2, workload="wl-3", tenant="late"),
    )
    return source


def deeds(source: Source) -> dict[str, dict[str, str]]:
    one = str(QuarantinedEvent.objects.latest("pk").pk)
    return {
        f"/ingest/sources/{source.pk}/": {"deed": "waive", "reason": "checked"},
        "/ingest/quarantine/": {"deed": "retry", "id": one},
        "/ingest/identities/": {**TEAM, "tenant": "acme", "reason": "ticket"},
    }


def actions() -> list[tuple[str, str]]:
    rows = AuditEntry.objects.exclude(action="apply_configuration").order_by("pk")
    return list(rows.values_list("action", "reason"))


def test_who_may_act_on_the_pages() -> None:
    source = silent_source()
    readers = (
        (signed_in(Role.AUDITOR), 403),
        (signed_in(Role.TENANT_ADMIN, "acme"), 404),
        (signed_in(Role.FINANCE, enforce_csrf_checks=True), 403),
    )
    for client, status in readers:
        for path, form in deeds(source).items():
            assert client.post(path, form).status_code == status, path
    assert Client().post("/ingest/quarantine/", {}).status_code == 302
    assert actions() == []
    for role in (Role.PLATFORM, Role.FINANCE):
        assert [signed_in(role).get(path).status_code for path in deeds(source)] == [200] * 3
    platform = signed_in(Role.PLATFORM)
    assert [platform.post(path, form).status_code for path, form in deeds(source).items()] == [303] * 3
    assert [action for action, _ in actions()] == ["waive_silence", "retry_quarantine", "map_identity"]


def test_an_auditor_reads_everything_and_is_offered_nothing() -> None:
    source = silent_source()
    auditor, finance = signed_in(Role.AUDITOR), signed_in(Role.FINANCE)
    for path in ("/ingest/", *deeds(source)):
        own = auditor.get(path).content.decode()
        assert 'method="post" hx' not in own and 'id="retry"' not in own and 'type="checkbox"' not in own
        assert 'form="retry"' not in own
        assert 'method="post"' in finance.get(path).content.decode()


def test_the_overview_says_what_needs_a_person() -> None:
    source = silent_source()
    page = signed_in(Role.PLATFORM).get("/ingest/")
    body = page.content.decode()
    assert page.context["unmapped"] == 1
    assert [len(one.holders) for one in page.context["silent"]] == [2]
    assert f'href="/ingest/sources/{source.pk}/"' in body and "2 workloads still hold GPUs" in body
    assert (
        f'href="/ingest/sources/{source.pk}/"' in signed_in(Role.PLATFORM).get("/cluster/").content.decode()
    )
    assert "no tenant has this slug" in body, "codes of quarantine are explained"
    for path in ("quarantine/", f"batches/{QuarantinedEvent.objects.get().batch_id}/"):
        told = signed_in(Role.PLATFORM).get(f"/ingest/{path}", headers={"Accept-Language": "zh-hans"})
        assert "没有名为 &#x27;late&#x27; 的租户" in told.content.decode(), path


def test_a_source_that_never_sent_anything_says_since_when_it_is_waited_for() -> None:
    client, new = signed_in(Role.PLATFORM), Source.objects.create(uri="/new", name="new")
    page = f"/ingest/sources/{new.pk}/"
    assert "<dt>Waited for since</dt>" in client.get(page).content.decode()
    Source.objects.update(watermark_at=NOON)
    assert "Waited for since" not in client.get(page).content.decode()


def test_an_empty_ledger_says_what_to_do() -> None:
    client = signed_in(Role.PLATFORM)
    assert "import_events" in client.get("/ingest/").content.decode()
    assert "Nothing is in quarantine." in client.get("/ingest/quarantine/").content.decode()
    assert "Every fact belongs to somebody." in client.get("/ingest/identities/").content.decode()


def test_lines_of_quarantine_are_chosen_tried_and_dismissed(asked_for: list[int]) -> None:
    silent_source()
    apply_document({"tenant": [{"slug": "late"}]})
    deliver(occupancy("c-1", NOON, 1, workload="w"), occupancy("c-1", NOON, 2, workload="w"))
    client = signed_in(Role.FINANCE)
    late, conflict = QuarantinedEvent.objects.order_by("pk")
    nothing = client.post("/ingest/quarantine/", {"deed": "retry"})
    assert (nothing.status_code, "Choose the lines first." in nothing.content.decode()) == (422, True)
    hopeless = client.post("/ingest/quarantine/", {"deed": "retry", "id": conflict.pk})
    assert (hopeless.status_code, asked_for) == (422, [])
    done = client.post("/ingest/quarantine/", {"reason": "unknown_tenant"}, follow=True)
    assert "1 line is tried again" in done.content.decode()
    late.refresh_from_db()
    assert (late.resolution, asked_for) == ("retried", [late.retried_in_id])
    silent = client.post("/ingest/quarantine/", {"deed": "dismiss", "id": conflict.pk, "why": " "})
    assert (silent.status_code, "Give a reason" in silent.content.decode()) == (422, True)
    done = client.post(
        "/ingest/quarantine/", {"deed": "dismiss", "id": conflict.pk, "why": "a test"}, follow=True
    )
    assert "1 line is dismissed" in done.content.decode()
    assert actions() == [("retry_quarantine", ""), ("dismiss_quarantine", "a test")]
    found = client.get("/ingest/quarantine/?lines.state=dismissed").context["tables"]["lines"]
    assert [line.cells[3].shown for line in found.lines] == ["c-1"]


def test_all_lines_of_a_reason_are_dismissed_at_once(asked_for: list[int]) -> None:
    silent_source()
    deliver(b"{a", b"{b", occupancy("c-1", NOON, 1, workload="w", tenant="late"))
    client = signed_in(Role.PLATFORM)
    page = client.get("/ingest/quarantine/").content.decode()
    assert '<option value="not_json">' in page and '<option value="unknown_tenant">' in page
    done = client.post(
        "/ingest/quarantine/", {"deed": "dismiss", "all_of": "not_json", "why": "a test"}, follow=True
    )
    assert "2 lines are dismissed" in done.content.decode()
    assert set(QuarantinedEvent.objects.filter(resolved_at=None).values_list("reason", flat=True)) == {
        "unknown_tenant"
    }


def test_an_identity_is_mapped_and_the_page_says_what_moved() -> None:
    silent_source()
    client = signed_in(Role.PLATFORM)
    form = {**TEAM, "tenant": "acme", "valid_from": "2026-10-03T08:00", "reason": "ticket 7"}
    wrong = client.post("/ingest/identities/", form | {"reason": ""})
    assert wrong.status_code == 422
    assert 'value="2026-10-03T08:00"' in wrong.content.decode(), "what was typed stays"
    page = client.get("/ingest/identities/", TEAM).content.decode()
    assert 'value="team-a"' in page
    done = client.post("/ingest/identities/", form, follow=True).content.decode()
    assert "k8s_namespace:team-a is acme&#x27;s: bj-h100 (1 level, 0 requests)" in done
    mapping = IdentityMapping.objects.get()
    assert mapping.validity.lower == datetime(2026, 10, 3, 8, tzinfo=UTC)
    other = client.post("/ingest/identities/", form | {"tenant": "beta"})
    assert "another tenant" in other.content.decode()
    again = client.post("/ingest/identities/", form, follow=True).content.decode()
    assert "nothing has changed" in again
    assert actions() == [("map_identity", "ticket 7")]


def test_a_source_tells_how_it_is_read_and_what_it_adds_up_to() -> None:
    source = silent_source()
    source.config = {"pools": {"h200": "bj-h100"}, "pool": "bj-h100"}
    source.state = {"last": {"at_ms": 1_791_028_805_879, "reached_ms": 1_791_028_800_000}}
    source.save()
    noon = datetime.fromisoformat(NOON)
    for measure, unit, quantity in (("occupied", "gpu_us", 7_200_000_000), ("held_time", "s", 5412)):
        SourceTotal.objects.create(
            source=source, measure=measure, unit=unit, subject="team-b/j", ends_at=noon, quantity=quantity
        )
    page = signed_in(Role.PLATFORM).get(f"/ingest/sources/{source.pk}/")
    body = page.content.decode()
    assert '<span class="code">h200</span> → bj-h100' in body and "everything else → bj-h100" in body
    assert "12:00:00" in body and "12:00:05</time>" in body, "to the second"
    cells = [
        [re.sub("<[^>]*>", "", str(cell.shown)) for cell in line.cells]
        for line in page.context["tables"]["totals"].lines
    ]
    assert [(row[2], row[4], row[5]) for row in cells] == [
        ("Time held", "5\u202f412", "seconds"),
        ("GPU time occupied", "2.00", "GPU-hours"),
    ]
    Source.objects.filter(pk=source.pk).update(watermark_at=None)
    page = signed_in(Role.PLATFORM, HTTP_ACCEPT_LANGUAGE="zh-hans").get(f"/ingest/sources/{source.pk}/")
    assert "从未有过消息。静默" in page.content.decode().replace(" ", ""), "one language's full stop"
    assert "check_source NAME" in signed_in(Role.PLATFORM).get("/ingest/").content.decode()


def test_a_typed_instant_is_in_the_zone_of_the_page() -> None:
    apply_document({"ledger": {"billing_time_zone": "Asia/Shanghai"}})
    client = signed_in(Role.PLATFORM)
    form = {**TEAM, "tenant": "acme", "valid_from": "2026-10-01T00:00", "reason": "x"}
    assert client.post("/ingest/identities/", form).status_code == 303
    assert IdentityMapping.objects.get().validity.lower == datetime(2026, 9, 30, 16, tzinfo=UTC)


def test_a_source_is_signed_off_answered_for_and_its_holders_are_ended() -> None:
    source = silent_source()
    client = signed_in(Role.PLATFORM)
    path = f"/ingest/sources/{source.pk}/"
    assert client.post(path, {"deed": "sign_off", "reason": "x"}).status_code == 422
    form = {"deed": "sign_off", "complete_until": "2026-10-04T00:00", "reason": "drained"}
    assert client.post(path, form).status_code == 303
    earlier = form | {"complete_until": "2026-10-03T00:00"}
    assert "Tick the box" in client.post(path, earlier).content.decode()
    assert client.post(path, earlier | {"move_back": "1"}).status_code == 303
    early = {"deed": "end", "holder": ["bj-h100/wl-1"], "ends_at": "2026-10-03T11:00", "reason": "x"}
    assert client.post(path, early).status_code == 422
    page = client.get(f"{path}?holders.sort=-workload")
    chosen = 'form="end" name="holder" value="bj-h100/{}" checked'
    body = page.content.decode()
    assert 0 < body.index(chosen.format("wl-2")) < body.index(chosen.format("wl-1"))
    assert [row.workload for row in page.context["tables"]["holders"].matching] == ["wl-2", "wl-1"]
    assert chosen.format("wl-1") not in signed_in(Role.AUDITOR).get(path).content.decode()
    late = early | {"ends_at": "2026-10-03T13:00", "reason": "node lost"}
    assert client.post(path, late).status_code == 303
    assert Level.objects.filter(subject="wl-1").latest("pk").milli_gpus == 0
    assert [holder.workload for holder in client.get(path).context["row"].silent.holders] == ["wl-2"]
    assert client.post(path, {"deed": "waive", "reason": "wl-2 runs"}).status_code == 303
    assert client.get(path).context["row"].silent is None
    assert actions() == [
        ("sign_off_source", "drained"),
        ("sign_off_source", "drained"),
        ("end_holders", "node lost"),
        ("waive_silence", "wl-2 runs"),
    ]
    assert client.post(path, {"deed": "nonsense"}).status_code == 422
    assert client.post("/ingest/sources/999999/", form).status_code == 404
    source.refresh_from_db()
    assert source.complete_until == datetime(2026, 10, 3, tzinfo=UTC)
    assert source.watermark_at is not None and source.watermark_at < timezone.now()


def test_over_htmx_a_refused_form_is_put_in_place() -> None:
    client = signed_in(Role.PLATFORM)
    headers = {"HX-Request": "true", "HX-Target": "content", "HX-Boosted": "true"}
    answer = client.post("/ingest/identities/", {**TEAM, "tenant": "acme"}, headers=headers)
    assert (answer.status_code, 'role="alert"' in answer.content.decode()) == (200, True)
