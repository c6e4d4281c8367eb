"""Statements, their lines and preemptions on pages, against the worked example."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC

import pytest
from django.test import Client

from billing.models import StatementLine
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import (
    Membership,
    Role,
    Tenant,
    User,
)
from tests.billing.page_books import (
    MONTH,
    Books,
    client_of,
    line_position,
)
from tests.billing.page_text import figures, shown_text

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_a_statement_prints_what_its_bill_says(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/statements/acme/")
    bill = finance.get(f"/months/{MONTH}/statements/acme/bill.csv").getvalue().decode()
    rows = list(csv.DictReader(io.StringIO(bill)))
    printed = figures(page)
    assert rows[-1]["amount"] == "124.00" and printed[0] == rows[-1]["amount"]
    for row in rows[:-1]:
        assert row["amount"] in printed
        assert row["quantity"] in printed
    lines = page.context["lines"]
    assert [group.pool for group in lines.pools] == ["bj-h100"]
    assert [line.category for line in lines.pools[0].lines] == [
        "reserved_used",
        "lent",
        "reserved_idle",
        "lend_credit",
    ]
    assert lines.pools[0].amount_minor == 12400
    assert all(proof.holds for proof in page.context["proofs"])
    assert "The parts add up to 80.00 of 80.00 GPU-hours." in shown_text(page)


def test_the_download_is_the_same_bytes_as_from_the_api(books: Books, finance: Client) -> None:
    statement = books.statement("acme")
    for name in ("bill", "usage", "preemptions"):
        page = finance.get(f"/months/{MONTH}/statements/acme/{name}.csv")
        api = finance.get(f"/api/v1/statements/{statement.pk}/{name}.csv")
        assert page.getvalue() == api.getvalue()
        assert page.headers["Content-Disposition"] == f'attachment; filename="acme-{MONTH}-{name}.csv"'
    assert finance.get(f"/months/{MONTH}/statements/acme/ledger.csv").status_code == 404


def test_the_chart_is_the_table(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/statements/gamma/")
    (text,) = re.findall(
        r'<script id="daily-figure" type="application/json">(.*?)</script>', page.content.decode()
    )
    traces = {
        trace["meta"]["category"]: trace for trace in json.loads(text)["data"] if "category" in trace["meta"]
    }
    assert {name: trace["y"] for name, trace in traces.items()} == {"on_demand": [32.0], "borrowed": [20.0]}
    assert traces["borrowed"]["x"] == ["2026-10-01"]
    assert page.context["days"].gpu_us["on_demand"] == 32 * GPU_US_PER_GPU_HOUR


def test_a_line_is_the_sum_of_its_slots_and_the_day_of_its_work(books: Books, finance: Client) -> None:
    position = line_position(books.statement("gamma"), "borrowed")
    page = finance.get(f"/months/{MONTH}/statements/gamma/lines/{position}/")
    detail = page.context["detail"]
    assert detail.gpu_us == page.context["line"].quantity == 20 * GPU_US_PER_GPU_HOUR
    assert [slot.gpu_us // GPU_US_PER_GPU_HOUR for slot in detail.chosen.slots] == [4, 4, 4, 4, 4]
    assert [(part.workload.workload, part.gpu_us) for part in detail.workloads] == [
        ("wl-3", 20 * GPU_US_PER_GPU_HOUR)
    ]
    assert f"/workloads/{books.pool.slug}/wl-3/" in page.content.decode()


def test_from_a_workload_to_its_event_and_its_batch(books: Books, finance: Client) -> None:
    workload = finance.get(f"/workloads/{books.pool.slug}/wl-1/")
    (event,) = re.findall(r'href="(/events/\d+/acme-holds-2/)"', workload.content.decode())
    page = finance.get(event)
    assert f'href="/ingest/batches/{books.batch.pk}/"' in page.content.decode()
    assert '{"id":"acme-holds-2"}' in finance.get(f"/ingest/batches/{books.batch.pk}/").context["raw"]


def test_every_line_of_every_statement_leads_somewhere(finance: Client) -> None:
    for line in StatementLine.objects.select_related("statement__tenant__holder"):
        path = f"/months/{line.statement.period_id}/statements/{line.statement.tenant.slug}/"
        assert finance.get(f"{path}lines/{line.position}/").status_code == 200
    assert finance.get(f"/months/{MONTH}/statements/acme/lines/99/").status_code == 404


def test_a_preemption_reads_like_a_story(books: Books, finance: Client, people: dict[str, User]) -> None:
    path = f"/preemptions/{books.record.pk}/"
    story = finance.get(path).context["story"]
    assert story == (
        "acme reclaimed 4 GPUs from gamma's wl-3 at 2026-10-01 04:00:00; "
        "it waited 3\u202fh, lost 8.00 GPU-hours of work and redid 640.5 GPU-seconds; "
        "no other pool could have given 4 GPUs of the same model."
    )
    sources = {event["event_id"] for event in finance.get(path).context["events"]}
    assert "report-1" in sources and len(sources) == 2
    gamma = client_of(people["viewer-of-gamma"]).get(path)
    assert gamma.context["story"].startswith("Alpha customer reclaimed 4 GPUs from gamma's wl-3")
    assert gamma.context["events"] == []
    acme = client_of(people["viewer-of-acme"]).get(path)
    assert acme.context["story"].startswith("acme reclaimed 4 GPUs from another tenant at")


def test_the_timeline_s_bars_are_the_instants_of_the_record(books: Books, finance: Client) -> None:
    page = finance.get(f"/preemptions/{books.record.pk}/")
    record = page.context["record"]
    bars = {bar["name"]: bar for bar in page.context["chart"]["data"]}
    waited_ms = int((record.resumed_at - record.released_at).total_seconds() * 1000)
    assert bars["Waited"]["x"] == [waited_ms]
    assert bars["Runs again"]["base"] == [f"{record.resumed_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.000"]
    assert bars["Ran"]["x"][0] <= waited_ms


def test_preemptions_of_a_statement_are_sorted_and_downloaded(books: Books, finance: Client) -> None:
    page = f"/months/{MONTH}/statements/gamma/"
    tables = finance.get(page).context["tables"]
    assert (tables["as_victim"].count, tables["as_cause"].count) == (1, 0)
    lines = finance.get(f"{page}?csv=as_victim").getvalue().decode().splitlines()
    assert lines[0].startswith("preemption,decided_at,victim,preemptor,cause,pool,gpus")
    assert lines[1].startswith(str(books.record.pk))
    caused = finance.get(f"/months/{MONTH}/statements/acme/?as_cause.sort=-gpus").context["tables"]
    assert [side.role for side in caused["as_cause"].shown] == ["cause"]
    assert [head.direction for head in caused["as_cause"].heads if head.direction] == ["descending"]
    delta = finance.get(f"/months/{MONTH}/statements/delta/").content.decode()
    assert "No work of this tenant lost its GPUs" in delta


def test_tables_of_a_workload_are_sorted_and_downloaded_by_who_sees_it(books: Books, finance: Client) -> None:
    page = f"/workloads/{books.pool.slug}/wl-3/"
    assert finance.get(page).context["tables"]["facts"].count == 4
    assert len(finance.get(f"{page}?csv=preemptions").getvalue().decode().splitlines()) == 2
    days = finance.get(f"{page}?csv=days&days.sort=-borrowed_gpu_hours").getvalue().decode().splitlines()
    assert days[0] == (
        "day,attempt,user,reserved_used_gpu_hours,on_demand_gpu_hours,borrowed_gpu_hours,excess_gpu_hours"
    )
    assert len(days) > 1
    stranger = User.objects.create_user("of-delta")
    delta = Tenant.objects.get(holder__slug="delta")
    Membership.objects.create(user=stranger, role=Role.TENANT_VIEWER, tenant=delta)
    for name in ("preemptions", "days", "facts"):
        assert client_of(stranger).get(f"{page}?csv={name}").status_code == 404
