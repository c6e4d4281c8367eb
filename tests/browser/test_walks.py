"""Each role's real work on a demo month, by clicking what a person clicks: links, buttons and fields by their names.

One server holds the month for the module. What a worker does in the background is done here, by its own functions,
when the person has asked for it. No walk minds what another has done before it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils.translation import override
from playwright.sync_api import BrowserContext, Download, Locator, Page, expect
from pytest_django.plugin import DjangoDbBlocker

from billing.exports.statement_pdf import _document, statement_pdf
from billing.models import CloseRun, PreemptionRecord, Statement
from billing.services.closing import run_close
from billing.services.disputes import open_dispute
from billing.services.months import compute_month
from ingest.models import Batch, QuarantinedEvent
from ingest.services.booking import book_batch
from ingest.services.inbox import Body, accept_batch
from ingest.services.retrying import dismiss_quarantine, send_again
from ledger.access import access_of_user
from ledger.core.periods import Month
from ledger.models import Pool, User
from ledger.services.audit import Actor
from ledger.services.masters import ensure_pool_books
from tests.browser.conftest import serving, session_of, visitor_in
from tests.browser.visiting import Visitor, follow
from tests.fixtures.demo_month import MONTH, SMALL
from tests.tour import HEIGHT, SHOTS, WIDTH, look_at

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.slow]

Windows = Callable[..., BrowserContext]

MONTH_IN_WORDS = "February 2026"
# Of the month after, so that it holds up nobody's close.
BAD_EVENT = {
    "specversion": "1.0",
    "id": "of-a-pool-nobody-knows",
    "source": "/capacity/manager",
    "type": "ledger.capacity.v1",
    "time": "2026-03-05T00:00:00Z",
    "data": {"pool": "sz-b200", "gpus": 64},
}


PLATFORM = Actor("platform", "request-2")


@dataclass(frozen=True)
class Town:
    url: str
    sessions: dict[str, str]


@pytest.fixture(scope="module")
def town(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Town]:
    """Committed, so that the server sees it; emptied at the end."""
    with django_db_blocker.unblock(), serving() as url:
        said = {"stdout": io.StringIO(), "stderr": io.StringIO()}
        call_command("load_demo_month", MONTH, **SMALL, **said)
        batch, _ = accept_batch(
            Body(json.dumps(BAD_EVENT).encode() + b"\n", "application/x-ndjson"),
            door="api",
            submitted_by="capacity-manager",
        )
        book_batch(batch.pk, wait=True)
        names = ("finance", "platform", "tenantadmin", "viewer")
        yield Town(url, {name: session_of(name) for name in names})


def arrives(town: Town, windows: Windows, name: str) -> Visitor:
    """Somebody who has signed in, on the page where their role begins."""
    context: BrowserContext = windows(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    visitor = visitor_in(context, town.url, town.sessions[name])
    visitor.goes_to("/")
    return visitor


def section(page: Page, name: str) -> None:
    follow(page, page.get_by_role("navigation", name="Sections").get_by_role("link", name=name, exact=True))


def crumb(page: Page, name: str | re.Pattern[str]) -> None:
    follow(page, page.locator(".crumbs").get_by_role("link", name=name, exact=isinstance(name, str)))


def total_of(page: Page) -> str:
    return page.locator(".total data").get_attribute("value") or ""


def elsewhere(work: Callable[[], Any]) -> None:
    """In a thread with a connection of its own, as in another process: the server sees it, and it stays."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def settles_quarantine() -> None:
    """What platform does with the demo's own mistakes (docs/demo.md): they would hold up the close."""
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write('[[service]]\nslug = "qwen3-coder"\npool = "bj-h200"\nowner = "research"\n')
        file.flush()
        call_command("apply_config", file.name, stdout=io.StringIO(), stderr=io.StringIO())
    for sent in send_again(PLATFORM):
        book_batch(sent.batch.pk, wait=True)
    left = QuarantinedEvent.objects.filter(resolved_at=None).exclude(event_id=BAD_EVENT["id"])
    if left:
        dismiss_quarantine(PLATFORM, "The field is not ours.", [one.pk for one in left])


def computes() -> None:
    """What beat and a worker do after a mapping: open months are computed again."""
    elsewhere(lambda: compute_month(Month.parse(MONTH), horizon=datetime(2026, 2, 28, 16, tzinfo=UTC)))


def test_finance_reviews_maps_answers_and_closes(town: Town, windows: Windows) -> None:
    disputed = Statement.objects.get(period=MONTH, tenant__holder__slug="assistant")
    line = disputed.lines.filter(kind="usage", category="on_demand").order_by("position").first()
    assert line is not None
    elsewhere(lambda: open_dispute(line, "We ran nothing that day.", Actor("tenantadmin", "request-1")))
    elsewhere(settles_quarantine)
    computes()
    visitor = arrives(town, windows, "finance")
    page = visitor.page

    # The month, and what keeps it from closing.
    follow(page, page.get_by_role("link", name=MONTH_IN_WORDS).first)
    expect(page.get_by_role("heading", level=1)).to_contain_text(MONTH_IN_WORDS)
    blocking = page.locator(".checklist li.blocked").filter(has_text="GPU-hours")
    expect(blocking).to_have_count(1)
    before = page.locator("#table-tenants tbody tr").filter(has_text="robotics").locator("data").first
    amount_before = before.get_attribute("value")
    follow(page, blocking.get_by_role("link", name="Mend it there"))

    # Somebody's namespace that nobody has mapped: it is robotics's.
    if "identities" not in page.url:
        follow(page, page.locator("main").get_by_role("link", name=re.compile("nmapped|dentit")).first)
    page.locator("#table-unmapped").get_by_role("link").filter(has_text="genai-hackathon").click()
    form = page.locator("form").filter(has=page.get_by_role("button", name="Map", exact=True))
    expect(form.get_by_label("Value")).to_have_value("genai-hackathon")
    form.get_by_label("Tenant").select_option("robotics")
    form.get_by_label("Reason").fill("Their hackathon")
    page.get_by_role("button", name="Map", exact=True).click()
    expect(page.get_by_text("These pools are computed again")).to_be_visible()
    expect(page.get_by_text("Every fact belongs to somebody.")).to_be_visible()
    computes()

    # The statement has changed.
    section(page, "Months")
    follow(page, page.get_by_role("link", name=MONTH_IN_WORDS).first)
    follow(page, page.locator("#table-tenants").get_by_role("link", name="robotics"))
    assert float(total_of(page)) > float(amount_before or "0")
    crumb(page, MONTH_IN_WORDS)

    # A dispute is answered, on the line it is about.
    follow(page, page.locator("#table-tenants").get_by_role("link", name="assistant"))
    page.locator("#table-disputes tbody").get_by_role("link").first.click()
    expect(page.get_by_text("We ran nothing that day.")).to_be_visible()
    page.get_by_label("Answer; the tenant reads it").fill("Two evaluations ran; see the work of that day.")
    page.get_by_role("button", name="Reject", exact=True).click()
    expect(page.get_by_text("The dispute is rejected.")).to_be_visible()
    crumb(page, MONTH_IN_WORDS)

    # Review, approval, close, with its progress.
    page.get_by_role("button", name="Open the review").click()
    expect(page.get_by_text("The month is in review")).to_be_visible()
    page.get_by_role("button", name="Approve all drafts as they are").click()
    expect(page.get_by_text("drafts are approved as they are now")).to_be_visible()
    page.get_by_role("button", name="Close the month").click()
    expect(page.get_by_text("The close has begun")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_visible()
    elsewhere(lambda: run_close(CloseRun.objects.get(state="running").pk))
    expect(page.get_by_text("Head of the chain")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text("closed")
    follow(page, page.locator("#table-tenants").get_by_role("link", name="robotics"))
    expect(page.locator(".statement-head .state").first).to_have_text("Issued")
    assert visitor.complaints.found == []


def test_a_tenant_reads_downloads_and_disputes_its_bill(town: Town, windows: Windows) -> None:
    visitor = arrives(town, windows, "tenantadmin")
    page = visitor.page
    expect(page.get_by_role("heading", level=1)).to_contain_text("ssistant")
    total = total_of(page)
    assert float(total) > 0

    # The bill as a file says what the page says.
    rows = list(
        csv.DictReader(io.StringIO(text_of(downloaded(page, page.get_by_role("link", name="bill.csv")))))
    )
    assert (rows[-1]["kind"], rows[-1]["amount"]) == ("total", total)
    assert {row["tenant"] for row in rows} == {"assistant"}
    # What stands in that document is for the tests of the document; it says this total, as its reader may see it.
    statement = Statement.objects.defer(None).get(number=rows[0]["statement"])
    reader = access_of_user(User.objects.get(username="tenantadmin"))
    with override("en"):
        assert pdf_behind(page) == statement_pdf(statement, reader)
    assert _document(statement, reader)["total"] == page.locator(".total data").inner_text()

    # A preemption, as cause or as victim, and back.
    page.locator("main table").get_by_role("link").and_(
        page.locator('a[href^="/preemptions/"]')
    ).first.click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.locator(".story")).to_contain_text("GPU")
    page.go_back()
    assert total_of(page) == total

    # A line is wrong.
    page.locator("table.lines").get_by_role("link", name="Reserved, used").first.click()
    page.get_by_label("What is wrong with this line; finance answers here").fill(
        "Half of it was maintenance."
    )
    page.get_by_role("button", name="Dispute this line").click()
    expect(page.get_by_text("The dispute is open.", exact=False).first).to_be_visible()
    crumb(page, "assistant")
    expect(page.locator("#table-disputes")).to_contain_text("Half of it was maintenance.")
    assert visitor.complaints.found == []


def downloaded(page: Page, link: Locator) -> Download:
    with page.expect_download() as download:
        link.click()
    return download.value


def text_of(download: Download) -> str:
    return Path(download.path()).read_text(encoding="utf-8")


def pdf_behind(page: Page) -> bytes:
    """A headless browser shows no PDF: what the link leads to is fetched as the browser would."""
    address = page.get_by_role("link", name="statement.pdf").get_attribute("href")
    answer = page.context.request.get(page.url.split("/months/")[0] + str(address))
    assert answer.headers["content-type"] == "application/pdf"
    return answer.body()


def test_platform_finds_who_preempted_whom_and_retries_what_waits(town: Town, windows: Windows) -> None:
    visitor = arrives(town, windows, "platform")
    page = visitor.page
    expect(page.get_by_role("heading", level=1)).to_contain_text("Cluster")

    # The newest preemptions, one of them, and whether it could have been avoided.
    follow(page, page.locator("#table-recent").locator('a[href^="/preemptions/"]').first)
    record = PreemptionRecord.objects.get(pk=page.url.rstrip("/").split("/")[-1])
    assert record.victim is not None
    expect(page.locator(".story")).to_contain_text(record.victim.slug)
    facts = page.locator("dl.facts").filter(has_text="Idle elsewhere")
    idle = record.idle_elsewhere_milli_gpus
    expect(facts).to_contain_text("unknown" if idle is None else f"{idle // 1000} GPU")
    if record.preemptor is not None:
        expect(facts).to_contain_text(record.preemptor.slug)

    # Who did it how often, in the month of that record.
    crumb(page, "Preemptions")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Preemptions")
    expect(page.locator(".heat-map .heatmaplayer")).to_be_visible()
    page.get_by_text("The same as a table").click()
    expect(page.locator("table.heat").first).to_be_visible()

    # What could not be booked, because a pool was not known, is tried again once it is.
    section(page, "Ingest")
    page.locator("#table-quarantine").get_by_role("link", name="unknown_pool").click()
    expect(page.locator("#table-lines")).to_contain_text(str(BAD_EVENT["id"]))
    # All of one reason at once, by a button beside it that stands outside of its form.
    reason = page.locator("#table-quarantine tr", has_text="unknown_pool")
    reason.get_by_role("button", name="All of this reason").click()
    expect(page.get_by_text("1 line is tried again")).to_be_visible()
    elsewhere(lambda: book_batch(Batch.objects.latest("pk").pk, wait=True))
    section(page, "Ingest")
    page.locator("#table-quarantine").get_by_role("link", name="unknown_pool").click()
    expect(page.locator("#table-lines")).to_contain_text(str(BAD_EVENT["id"]))
    elsewhere(
        lambda: ensure_pool_books(Pool.objects.create(slug="sz-b200", cluster="sz-1", gpu_model="B200"))
    )
    page.locator("#table-lines tbody").get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Try the chosen lines again").click()
    expect(page.get_by_text("1 line is tried again")).to_be_visible()
    elsewhere(lambda: book_batch(Batch.objects.latest("pk").pk, wait=True))
    page.reload()
    section(page, "Ingest")
    expect(page.locator("#table-quarantine")).not_to_contain_text("unknown_pool")
    assert visitor.complaints.found == []


def test_from_a_month_down_to_the_bytes_and_back(town: Town, windows: Windows) -> None:
    visitor = arrives(town, windows, "finance")
    page = visitor.page
    follow(page, page.get_by_role("link", name=MONTH_IN_WORDS).first)
    follow(page, page.locator("#table-tenants").get_by_role("link", name="research"))
    total = total_of(page)
    follow(page, page.locator("table.lines").get_by_role("link", name="On-demand").first)
    line = page.url.split("#")[0].split("?")[0]

    # An hour of the line leads to what the whole pool did in it, minute by minute.
    follow(page, page.locator("#table-hours tbody").get_by_role("link").first)
    expect(page.get_by_role("heading", name="Capacity over time by category")).to_be_visible()
    page.go_back()

    # Work that ran, a preemption that stopped it, the event that told of it, and the batch that brought the event.
    stopped = set(
        PreemptionRecord.objects.filter(
            victim__slug="research",
            pool__slug=pool_of(page),
            queued_only=False,
            victim_workload__isnull=False,
        ).values_list("victim_workload", flat=True)
    )
    work = a_day_with(page, stopped)
    # Work that was stopped and came back the same day has a row for each attempt.
    follow(
        page, page.get_by_role("region", name="Workloads").get_by_role("link", name=work, exact=True).first
    )
    follow(page, page.locator('#table-preemptions a[href^="/preemptions/"]').first)
    preemption = page.url
    follow(page, page.locator("#table-events tbody").get_by_role("link").first)
    event = page.url
    expect(page.get_by_role("heading", name="As it was booked")).to_be_visible()
    follow(page, page.locator("dl.facts").get_by_role("link").first)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Batch")
    expect(page.locator(".proof")).to_contain_text("events received =")

    # And back: the batch lists its events, the event names the work, the work its preemption, that its month.
    expect(page.locator('#table-events a[href^="/events/"]').first).to_be_visible()
    page.goto(event)
    follow(page, page.locator("main").get_by_role("link", name=work, exact=True).first)
    follow(page, page.locator(f'a[href="{preemption.split(town.url)[1]}"]').first)
    crumb(page, MONTH_IN_WORDS)
    follow(page, page.locator("#table-tenants").get_by_role("link", name="research"))
    assert total_of(page) == total
    assert line.startswith(page.url.split("#")[0])
    assert visitor.complaints.found == []


def pool_of(page: Page) -> str:
    return page.locator("h1 .muted").inner_text().strip()


def a_day_with(page: Page, workloads: set[str]) -> str:
    """Goes from day to day of the line until one of these ran."""
    days = page.locator("#table-days tbody").get_by_role("link")
    for number in range(days.count()):
        follow(page, days.nth(number))
        names = page.get_by_role("region", name="Workloads").get_by_role("link").all_inner_texts()
        found = sorted(workloads.intersection(names))
        if found:
            return found[0]
    raise AssertionError("no work of this line was ever stopped")


def test_every_page_of_the_tour_is_there_and_says_what_the_tour_says(town: Town, windows: Windows) -> None:
    """The pictures themselves are taken by tests/screenshots.py, of the same list."""
    for who, language in {(shot.who, shot.language): None for shot in SHOTS}:
        visitor = visitor_in(
            windows(viewport={"width": WIDTH, "height": HEIGHT}), town.url, town.sessions[who], language
        )
        for shot in SHOTS:
            if (shot.who, shot.language) == (who, language):
                look_at(visitor.page, town.url, shot, MONTH)
        assert visitor.complaints.found == []
