"""Tables behind a page's figures: sorted, filtered and downloaded by their address, and a way on from each row."""

from __future__ import annotations

import html
import io
import re
from datetime import UTC, datetime

import pytest
from django.core.management import CommandError, call_command
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from billing.models import Contract, GpuPrice, Policy, PreemptionRecord, RateCard, StatementLine
from billing.selectors.changes import Cause
from billing.services.disputes import open_dispute, reject_dispute
from billing.services.months import compute_month
from billing.views.statement_tables import known_since_table
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Booking, Level, ServiceClass, Tenant, User
from ledger.services.audit import Actor, record
from ledger.views.tables import BoundTable
from tests.billing.level_facts import hour, identity, occupancy
from tests.billing.page_books import (
    HOURS_OF_OCTOBER,
    MONTH,
    NEXT_MONTH,
    Books,
    client_of,
    line_position,
)
from tests.billing.page_text import shown_text
from tests.billing.test_views_bill import rows_of

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_a_line_s_days_hours_and_work_are_sorted_filtered_and_downloaded(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    """acme used its reservation: 2 GPUs in hours 0 to 4, 8 in 4 to 7, 4 in 7 to 10."""
    line = line_position(books.statement("acme"), "reserved_used")
    path = f"/months/{MONTH}/statements/acme/lines/{line}/"
    hours = 44 * GPU_US_PER_GPU_HOUR
    assert rows_of(finance, path, "days") == [
        ("day", "starts_at", "gpu_hours", "gpu_us"),
        ("2026-10-01", "2026-10-01T00:00:00Z", "44", str(hours)),
    ]
    assert rows_of(finance, f"{path}?hours.sort=-gpu_hours", "hours")[:2] == [
        ("slot", "until", "gpu_hours", "gpu_us"),
        ("2026-10-01T04:00:00Z", "2026-10-01T05:00:00Z", "8", str(8 * GPU_US_PER_GPU_HOUR)),
    ]
    assert [row[0] for row in rows_of(finance, f"{path}?workloads.name=QWEN", "workloads")] == [
        "workload",
        "wl-1",
    ]
    body = finance.get(f"{path}?day=2026-10-01&hours.sort=gpu_hours").content.decode()
    assert '<a href="?day=2026-10-01#hours" aria-current="true">2026-10-01</a>' in body
    assert 'aria-sort="ascending"' in body
    assert "day=2026-10-01&amp;hours.sort=-gpu_hours#table-hours" in body
    assert client_of(people["viewer-of-gamma"]).get(f"{path}?csv=days").status_code == 404


def test_the_events_of_a_preemption_are_a_file_for_who_runs_the_ledger_only(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    path = f"/preemptions/{books.record.pk}/"
    found = rows_of(finance, f"{path}?events.event=REPORT", "events")
    assert found == [("event", "source"), ("report-1", "/tests")]
    assert rows_of(client_of(people["viewer-of-gamma"]), path, "events") == [("event", "source")]
    assert client_of(people["viewer-of-delta"]).get(f"{path}?csv=events").status_code == 404


def test_the_levels_of_an_event_lead_to_pool_and_workload(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    path = f"/events/{books.event('gamma-holds-8').source_id}/gamma-holds-8/"
    assert rows_of(finance, path, "levels") == [
        ("from", "kind", "pool", "subject", "identity", "gpus"),
        ("2026-10-01T02:00:00Z", "occupancy", books.pool.slug, "wl-3", "tenant:gamma", "8"),
    ]
    body = finance.get(path).content.decode()
    assert f'href="/pools/{books.pool.slug}/"' in body
    assert f'href="/workloads/{books.pool.slug}/wl-3/"' in body
    assert client_of(people["viewer-of-acme"]).get(f"{path}?csv=levels").status_code == 404


def test_a_zero_is_a_figure_where_one_thing_is_looked_at(books: Books, finance: Client) -> None:
    """A dash for zero is for dense tables; of one event, one workload's facts, a line or a preemption it is said."""
    dash_for_zero = re.compile(r'<data class="figure" value="[-0.]*" title="[-0.]*">–</data>')
    released = Level.objects.filter(milli_gpus=0).select_related("event")
    pages = [f"/events/{level.event.source_id}/{level.event.event_id}/" for level in released]
    assert len(pages) == 7
    line = StatementLine.objects.filter(statement=books.statement("acme"), unit="gpu_us").first()
    assert line is not None and line.rounding_micro == 0
    facts = (
        finance.get(f"/workloads/{books.pool.slug}/wl-1/").content.decode().partition('id="table-facts"')[2]
    )
    free = f"/preemptions/{books.record.pk}/"
    PreemptionRecord.objects.update(amount_micro=0, charged_to="victim", lost_gpu_us=0)
    bodies = [finance.get(page).content.decode() for page in (*pages, free)]
    figures = finance.get(f"/months/{MONTH}/statements/acme/lines/{line.position}/").content.decode()
    for body in (facts, *bodies, figures.partition('class="key-figures"')[2].partition("</dl>")[0]):
        assert not dash_for_zero.search(body), body
        assert '<data class="figure" value="0' in body
    assert f"0.00</data> {books.statement('acme').currency}</dd>" in bodies[-1]
    PreemptionRecord.objects.update(amount_micro=None)
    assert "<dt>Amount</dt><dd>–</dd>" in finance.get(free).content.decode()


def test_who_holds_what_is_one_table_over_all_pools(books: Books, finance: Client) -> None:
    (row,) = finance.get("/cluster/").context["pools"]
    row_count = len(row.holders)
    found = rows_of(finance, "/cluster/", "holders")
    assert found[0] == ("holder", "pool", "reserved", "occupied", "pending")
    assert [one[0] for one in found[1:]] == [holder.name for holder in row.holders]
    assert len(rows_of(finance, f"/cluster/?holders.pool={books.pool.slug}", "holders")) == row_count + 1
    assert rows_of(finance, "/cluster/?holders.pool=other", "holders") == found[:1]


def test_a_workload_leads_back_to_its_pool(books: Books, finance: Client) -> None:
    crumbs = finance.get(f"/workloads/{books.pool.slug}/wl-3/").content.decode()
    assert f'<a href="/pools/{books.pool.slug}/">{books.pool.slug}</a>' in crumbs


def test_settings_say_terms_in_words_and_keep_the_codes_in_files(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    acme = Tenant.objects.get(holder__slug="acme")
    since = datetime(2026, 10, 1, tzinfo=UTC)
    Contract.objects.create(tenant=acme, valid_from=since, kind="tokens", on_preemption="requeue")
    Policy.objects.create(valid_from=since, lend_credit="0.8")
    GpuPrice.objects.create(
        rate_card=RateCard.objects.earliest("valid_from"),
        gpu_model="H20",
        category="borrowed",
        service_class=ServiceClass.PREEMPTIBLE,
        price_micro=1,
    )
    assert "preemptible" in {row[5] for row in rows_of(finance, "/settings/", "gpu_prices")}
    policies = rows_of(finance, "/settings/", "policies")
    assert {row[4] for row in policies} == {"lend_credit", "borrower_paid", "0.8"}
    contract = rows_of(finance, "/settings/", "contracts")[1]
    assert (contract[3], contract[7]) == ("tokens", "requeue")
    english = shown_text(finance.get("/settings/"))
    finance.cookies["django_language"] = "zh-hans"
    chinese = shown_text(finance.get("/settings/"))
    for text, told in ((english, "it is queued again"), (chinese, "重新排队")):
        assert told in text
    assert "80 % of the reserved rate" in english and "what the borrower paid" in english
    assert "borrower_paid" not in english + chinese
    assert "preemptible" in english and "preemptible" not in chinese


def test_settings_lead_to_the_newest_bill_of_a_tenant_and_to_the_pool(books: Books, finance: Client) -> None:
    body = finance.get("/settings/").content.decode()
    assert f'<a href="/months/{NEXT_MONTH}/statements/acme/">acme</a>' in body
    assert f'<a href="/pools/{books.pool.slug}/">{books.pool.slug}</a>' in body


def test_the_days_of_a_statement_are_its_categories_as_a_file(finance: Client) -> None:
    path = f"/months/{MONTH}/statements/acme/"
    assert rows_of(finance, f"{path}?daily.sort=-day", "daily") == [
        ("day", "reserved_used_gpu_hours", "lent_gpu_hours", "reserved_idle_gpu_hours"),
        ("2026-10-01", "44", "20", "16"),
    ]


def test_what_changed_since_the_approval_is_a_table(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    path = f"/months/{MONTH}/statements/acme/"
    header = ("what", "pool", "gpu_hours_before", "gpu_hours_after", "amount_before", "amount_after")
    assert rows_of(finance, path, "changes") == [header]
    finance.post(path, {"deed": "approve", "sha256": books.statement("acme").sha256})
    occupancy(books.pool, "wl-late", identity("acme"), hour(2), 2_000, event_id="late-1")
    occupancy(books.pool, "wl-late", identity("acme"), hour(3), 0, event_id="late-2")
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    changed = {row[0]: row[2:] for row in rows_of(finance, f"{path}?changes.what=reserved", "changes")[1:]}
    assert changed["reserved_used"] == ("44", "46", "88", "92")
    assert 'id="table-changes"' in finance.get(path).content.decode()


def test_what_changed_since_leads_to_each_event_line_and_deed(
    books: Books, finance: Client, people: dict[str, User]
) -> None:
    """Where the reader may look at it: a preemption's report names both sides, and is not for tenants."""
    path = f"/months/{MONTH}/statements/acme/"
    finance.post(path, {"deed": "approve", "sha256": books.statement("acme").sha256})
    for milli, at in ((2_000, 2), (0, 3)):
        late = occupancy(books.pool, "wl-late", identity("acme"), hour(at), milli, event_id=f"late-{at}")
        Booking.objects.filter(pk=late.event.booking_id).update(booked_at=timezone.now())
    occupancy(books.pool, "wl-other", identity("gamma"), hour(9), 0, event_id="late-of-gamma")
    record(Actor("platform"), "map_identity", "identity", "user:x", reason="a new name")
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    line = line_position(books.statement("acme"), "reserved_used")
    event = f"/events/{late.event.source_id}/late-2/"
    trail = "/audit/?deeds.action=map_identity&deeds.object_id=user%3Ax#table-deeds"
    for who, opens in (
        ("finance", {event, f"{path}lines/{line}/", trail}),
        ("viewer-of-acme", {event, f"{path}lines/{line}/"}),
    ):
        client = client_of(people[who])
        section = client.get(path).content.decode().partition('id="changes"')[2]
        found = {
            html.unescape(url) for url in re.findall(r'href="([^"?][^"]*)"', section.partition("<h2")[0])
        }
        assert opens <= found and (trail in found) == (trail in opens), who
        for url in found - {trail}:
            assert client.get(url).status_code == 200, (who, url)
    assert rows_of(finance, trail.partition("#")[0], "deeds")[1][4] == "user:x"
    hidden = Cause(3, "/tests", "late-1", "preemption", hour(2), 7, None, is_open=False)
    table = BoundTable(known_since_table(lambda: [hidden], leads_to_batches=False), QueryDict())
    assert not any(cell.url for line in table.lines for cell in line.cells)


def test_events_that_became_known_lead_to_their_batch_where_one_may_see_it() -> None:
    at = datetime(2026, 10, 1, 2, tzinfo=UTC)
    cause = Cause(3, "/tests", "late-1", "occupancy", at, 7, None)
    for leads_on, url in ((True, "/ingest/batches/7/"), (False, None)):
        table = BoundTable(known_since_table(lambda: [cause], leads_to_batches=leads_on), QueryDict())
        event = "/events/3/late-1/"
        assert [cell.url for line in table.lines for cell in line.cells] == [event, None, None, url, None]
        assert list(table.csv_rows()) == [["late-1", "/tests", "2026-10-01T02:00:00Z", "7", ""]]


def test_finance_finds_a_month_s_disputes_on_its_page_those_without_an_answer_first(
    books: Books, people: dict[str, User]
) -> None:
    lines = list(StatementLine.objects.filter(statement=books.statement("acme")).order_by("-amount_micro"))
    settled = open_dispute(lines[1], "too much", Actor("viewer-of-acme"))
    reject_dispute(settled, "it is wl-1", Actor("finance"))
    said = {"reason": "not ours", "by": "viewer-of-acme", "stdout": io.StringIO()}
    call_command("open_dispute", MONTH, "acme", **said)
    with pytest.raises(CommandError, match="has a dispute that is not settled"):
        call_command("open_dispute", MONTH, "acme", **said)
    for nowhere in (["2031-01", "acme"], [MONTH, "nobody"]):
        with pytest.raises(CommandError, match="there is no statement"):
            call_command("open_dispute", *nowhere, **said)
    with pytest.raises(CommandError, match="there is no such line"):
        call_command("open_dispute", MONTH, "acme", category="excess", **said)
    for option, value in (("pool", "nowhere"), ("at", "2026-09-01T00:00:00Z")):
        with pytest.raises(CommandError, match="there is no such line"):
            call_command("open_dispute", MONTH, "acme", **{option: value}, **said)
    with pytest.raises(CommandError, match="not an instant"):
        call_command("open_dispute", MONTH, "acme", at="2026-10-14", **said)
    path = f"/months/{MONTH}/"
    for who in ("finance", "auditor"):
        rows = rows_of(client_of(people[who]), path, "disputes")
        assert [(row[0], row[1], row[3], row[6]) for row in rows[1:]] == [
            ("acme", str(lines[0].position), "open", "not ours"),
            ("acme", str(lines[1].position), "rejected", "it is wl-1"),
        ]
        line = f"{path}statements/acme/lines/{lines[0].position}/#dispute"
        assert f'href="{line}"' in client_of(people[who]).get(path).content.decode()
    platform = client_of(people["platform"])
    assert (
        rows_of(platform, path, "disputes")[1:] == []
        and "#dispute" not in platform.get(path).content.decode()
    )
