"""What changed since a statement was issued or approved, its proofs, and the archive of a month."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from rest_framework.test import APIClient

from billing.models import Decision, Statement, StatementLine
from billing.services.adjustments import adjust_closed_months
from billing.services.approvals import approve_statement
from billing.services.credits import request_credit
from billing.services.deeds import decide
from billing.services.months import compute_month
from ledger.core.units import GPU_US_PER_GPU_HOUR, MICRO_PER_UNIT
from ledger.models import Booking, Event, Level, Membership, Period, Pool, Role, Tenant, Transfer, User
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import (
    ANNA,
    BO,
    NOVEMBER,
    NOVEMBER_5,
    OCTOBER,
    booked,
    closable_ledger,
    close,
    hold,
)
from tests.billing.level_facts import hour
from tests.billing.page_books import client_of
from tests.billing.tampering import unguarded

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


def api(role: str, *tenants: str) -> APIClient:
    rows = list(Tenant.objects.filter(holder__slug__in=tenants))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('t', role, tenants=rows)[1]}")
    return client


def get(client: APIClient, path: str) -> Any:
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.content
    return response.json()


def late_fact(pool: Pool) -> None:
    """One more GPU of beta's for two hours, in batch 2."""
    before = set(Event.objects.values_list("pk", flat=True))
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    booked(2)
    late = Booking.objects.get(batch=2)
    late.booked_at = NOVEMBER_5
    late.save()
    with unguarded("ledger_event"):
        Event.objects.exclude(pk__in=before).update(booking=late)


def test_what_changed_since_it_was_issued(pool: Pool) -> None:
    close()
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    statement = Statement.objects.get(number="2026-10-beta")
    changes = get(api("finance"), f"statements/{statement.pk}/changes/")
    assert (changes["since"], changes["since_at"]) == ("issued", "2026-11-05T00:00:00Z")
    assert changes["lines"] == [
        {
            "kind": "usage",
            "pool": "bj-h100",
            "category": "on_demand",
            "description": "GPU time beyond the reservation, on unreserved GPUs",
            "unit": "gpu_us",
            "quantity_before": str(40 * GPU_US_PER_GPU_HOUR),
            "quantity_after": str(42 * GPU_US_PER_GPU_HOUR),
            "gpu_hours_before": "40",
            "gpu_hours_after": "42",
            "amount_before": "120",
            "amount_after": "126",
        }
    ]
    assert [(event["origin"], event["batch"], event["type"]) for event in changes["events"]] == [
        ("/tests", 2, "occupancy")
    ] * 2
    assert [event["id"] for event in changes["events"]] == [
        level.event.event_id for level in Level.objects.filter(subject="wl-9").order_by("event__line")
    ]
    others = get(api("finance"), f"statements/{Statement.objects.get(number='2026-10-acme').pk}/changes/")
    assert (others["lines"], others["events"]) == ([], [])


def test_an_adjustment_leads_to_what_it_adjusts_and_back(pool: Pool) -> None:
    """From the line to the month concerned, line by line, and from there to the adjustments where they were posted."""
    close()
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    compute_month(NOVEMBER, horizon=NOVEMBER_5)
    client = client_of(member("viewer", Role.TENANT_VIEWER, "beta"))
    line = StatementLine.objects.get(statement__number="2026-11-beta", kind="adjustment")
    page = client.get(f"/months/2026-11/statements/beta/lines/{line.position}/").content.decode()
    assert 'href="/months/2026-10/statements/beta/#changes"' in page
    october = client.get("/months/2026-10/statements/beta/")
    assert 'id="changes"' in october.content.decode()
    assert len(october.context["tables"]["changes"].shown) == 1
    way = "/months/2026-11/statements/beta/?lines.kind=adjustment#table-lines"
    assert f'href="{way}"' in october.content.decode()
    assert [row.pk for row in client.get(way).context["tables"]["lines"].shown] == [line.pk]
    # A month that the tenant has no statement of has no page to lead to.
    StatementLine.objects.filter(pk=line.pk).update(concerns_month="2025-01")
    page = client.get(f"/months/2026-11/statements/beta/lines/{line.position}/")
    assert page.status_code == 200 and b"#changes" not in page.content


def test_a_closed_month_says_that_its_time_is_not_what_was_issued(pool: Pool) -> None:
    """Only once something became known, to those whom it concerns, and with the way to what changed."""
    close()
    compute_month(NOVEMBER, horizon=NOVEMBER_5)
    clients = {"finance": client_of(member("finance", Role.FINANCE))}
    clients |= {name: client_of(member(name, Role.TENANT_VIEWER, *name.split("-"))) for name in WITH_TWO}

    def told() -> dict[str, list[str]]:
        """Who reads a note -> the ways on from it."""
        pages = {name: client.get("/months/2026-10/").content.decode() for name, client in clients.items()}
        notes = {
            name: re.search(r'<p class="notice".*after the close.*</p>', page) for name, page in pages.items()
        }
        return {name: re.findall('href="([^"]+)"', note[0]) for name, note in notes.items() if note}

    beta = Tenant.objects.get(holder__slug="beta")
    asked = request_credit(beta, Period.objects.get(month="2026-10"), MICRO_PER_UNIT, "an outage", ANNA)
    assert asked is not None
    decide(asked.pk, Decision.APPROVED, BO)
    adjust_closed_months(NOVEMBER_5)
    assert Transfer.objects.filter(concerns="2026-10", posted_in="2026-11").exists() and told() == {}
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    way = ["/months/2026-10/statements/beta/#changes"]
    assert told() == {"finance": way, "acme-beta": way}
    assert "after the close" not in clients["finance"].get("/months/2026-11/").content.decode()
    # What is taken back is nothing that changed.
    for one in Transfer.objects.filter(concerns="2026-10", posted_in="2026-11"):
        one.pk, one.debit, one.credit = uuid4(), one.credit, one.debit
        one.save(force_insert=True)
    assert told() == {}


WITH_TWO = ("acme-beta", "acme-gamma")  # whoever reads one statement only is led to it at once


def member(name: str, role: Role, *tenants: str) -> User:
    user = User.objects.create_user(name)
    for tenant in Tenant.objects.filter(holder__slug__in=tenants) if tenants else [None]:
        Membership.objects.create(user=user, role=role, tenant=tenant)
    return user


def test_a_tenant_sees_its_own_events_and_how_many_are_of_others(pool: Pool) -> None:
    close()
    late_fact(pool)
    hold(pool, "wl-8", "acme", 1, 3, 1_000)
    with unguarded("ledger_event"):
        Event.objects.filter(levels__subject="wl-8").update(booking=Booking.objects.get(batch=2))
    adjust_closed_months(NOVEMBER_5)
    statement = Statement.objects.get(number="2026-10-beta")
    changes = get(api("tenant_viewer", "beta"), f"statements/{statement.pk}/changes/")
    mine = set(Event.objects.filter(levels__subject="wl-9").values_list("event_id", flat=True))
    assert {event["id"] for event in changes["events"]} == mine
    assert (changes["events_of_others"], changes["deeds"]) == (2, [])
    assert api("tenant_viewer", "acme").get(f"/api/v1/statements/{statement.pk}/changes/").status_code == 404


def test_what_changed_since_it_was_approved(pool: Pool) -> None:
    compute_month(OCTOBER, horizon=hour(20))
    draft = Statement.objects.get(number="2026-10-beta")
    finance = api("finance")
    assert get(finance, f"statements/{draft.pk}/changes/")["since"] == "nothing"
    approve_statement(draft, draft.sha256, ANNA)
    assert get(finance, f"statements/{draft.pk}/changes/")["lines"] == []
    hold(pool, "wl-9", "beta", 1, 3, 1_000)
    compute_month(OCTOBER, horizon=hour(20))
    changes = get(finance, f"statements/{draft.pk}/changes/")
    assert changes["since"] == "approved"
    (line,) = changes["lines"]
    assert (line["gpu_hours_before"], line["gpu_hours_after"]) == ("40", "42")
    assert (line["amount_before"], line["amount_after"]) == ("120", "126")


def test_the_page_tells_it_and_its_proofs_go_on_holding(pool: Pool) -> None:
    close()
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    client = client_of(make_people_of(pool))
    page = client.get("/months/2026-10/statements/beta/").content.decode()
    assert "What changed since it was issued" in page
    assert Event.objects.filter(levels__subject="wl-9").first().event_id in page  # type: ignore[union-attr]
    # The bill's days are those it was issued with, so its parts still add up to them.
    assert "Not proved" not in page


def make_people_of(pool: Pool) -> Any:
    from ledger.models import Membership, Role, User

    user = User.objects.create_user("finance", password="x")
    Membership.objects.create(user=user, role=Role.FINANCE)
    return user


def test_every_proof_has_both_sides(pool: Pool) -> None:
    close()
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    statement = Statement.objects.get(number="2026-10-beta")
    rows = get(api("tenant_viewer", "beta"), f"statements/{statement.pk}/proofs/")["results"]
    forty, total = str(40 * GPU_US_PER_GPU_HOUR), str(120 * MICRO_PER_UNIT)
    month = str(16 * 31 * 24 * GPU_US_PER_GPU_HOUR)
    acme = Statement.objects.get(number="2026-10-acme").sha256
    said = statement.content["annexes"]
    files = [
        (name, said[name]["sha256"])
        for name in ("hits", "preemptions", "preemptions_named", "slots", "usage")
    ]
    assert [(row["proof"], row["subject"], row["left"], row["right"]) for row in rows] == [
        ("lines_add_up", "", total, total),
        ("printed_lines_add_up", "", "12000", "12000"),
        ("total_is_posted", "", total, total),
        ("time_is_billed", "on_demand", forty, forty),
        ("capacity_is_conserved", "bj-h100", month, month),
        ("hash_recomputes", "", statement.sha256, statement.sha256),
        ("chain_holds", "tenant", "0" * 64, "0" * 64),
        ("chain_holds", "ledger", acme, acme),
        *[("file_is_sealed", name, sha256, sha256) for name, sha256 in files],
    ]
    assert all(row["holds"] for row in rows)


def test_a_proof_that_fails_says_so(pool: Pool) -> None:
    close()
    with unguarded("billing_statementline"), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE billing_statementline SET amount_micro = amount_micro + 1 WHERE category = 'on_demand'"
        )
    statement = Statement.objects.get(number="2026-10-beta")
    rows = get(api("finance"), f"statements/{statement.pk}/proofs/")["results"]
    assert [row["proof"] for row in rows if not row["holds"]] == ["lines_add_up"]


def archive(client: APIClient, month: str = "2026-10") -> bytes:
    response = client.get(f"/api/v1/periods/{month}/bills.zip")
    assert response.status_code == 200
    return b"".join(response.streaming_content)  # type: ignore[attr-defined]


def test_the_archive_of_a_closed_month_is_the_same_bytes_for_ever(pool: Pool) -> None:
    close()
    before = archive(api("auditor"))
    late_fact(pool)
    adjust_closed_months(NOVEMBER_5)
    assert archive(api("finance")) == before
    with zipfile.ZipFile(io.BytesIO(before)) as opened:
        assert opened.testzip() is None
        files = {name: opened.read(name) for name in opened.namelist()}
    sums = files.pop("SHA256SUMS").decode()
    assert sums == "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    manifest = json.loads(files.pop("manifest.json"))
    assert sorted(files) == [
        f"{tenant}/{tenant}-2026-10-{name}.csv"
        for tenant in ("acme", "beta", "gamma")
        for name in ("bill", "preemptions", "usage")
    ]
    assert [entry["sha256"] for entry in manifest["statements"]] == list(
        Statement.objects.filter(period="2026-10").order_by("number").values_list("sha256", flat=True)
    )


def test_the_archive_is_for_finance_and_auditors(pool: Pool) -> None:
    close()
    for role, tenants in (("tenant_admin", ["beta"]), ("platform", [])):
        assert api(role, *tenants).get("/api/v1/periods/2026-10/bills.zip").status_code == 403
    assert api("finance").get("/api/v1/periods/2031-01/bills.zip").status_code == 404
    assert Period.objects.count() == 2
