"""Every page in a real browser: each role, both languages, narrow and wide, light and dark.

Nothing may go wrong in the console, no request may fail or leave the machine, nothing may be wider than the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from pytest_django.live_server_helper import LiveServer

from tests.billing.page_books import (
    MONTH,
    NEXT_MONTH,
    PASSWORD,
    Books,
    line_position,
    make_books,
    make_people,
)

# Width, language, theme: all that differ for whoever has pages of its own, the two extremes for the others.
WINDOWS = [
    (360, "en", "dark"),
    (360, "zh-hans", "light"),
    (1280, "en", "light"),
    (1280, "zh-hans", "dark"),
]
EXTREMES = WINDOWS[1:3]


@pytest.fixture
def books(live_server: LiveServer) -> Books:
    books = make_books()
    make_people()
    return books


@dataclass
class Complaints:
    """What a page did that it should not."""

    found: list[str] = field(default_factory=list)

    def listen(self, page: Page, ours: str) -> None:
        page.on("console", lambda said: self.note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.note(str(error)))
        page.on(
            "requestfailed",
            lambda request: None if _was_left_behind(request) else self.note(f"failed: {request.url}"),
        )
        page.on(
            "response",
            lambda answer: self.note(f"{answer.status}: {answer.url}") if answer.status >= 400 else None,
        )
        page.on(
            "request",
            lambda request: None if _is_ours(request.url, ours) else self.note(f"foreign: {request.url}"),
        )

    def note(self, text: str) -> None:
        self.found.append(text)


def _was_left_behind(request: Request) -> bool:
    """The icon is fetched after the page has loaded; going on to the next page breaks that off."""
    return request.failure == "net::ERR_ABORTED" and request.url.endswith("/mark.svg")


def _is_ours(url: str, ours: str) -> bool:
    return url.startswith((ours, "data:", "blob:"))


@dataclass
class Visitor:
    """Somebody signed in, in a window of some width and language."""

    page: Page
    address: str
    complaints: Complaints

    def goes_to(self, path: str) -> None:
        self.page.goto(self.address + path)  # until loaded, scripts that were deferred included
        overflow = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if overflow > 0:
            self.complaints.note(f"{path} is {overflow} px too wide")


SignIn = Callable[..., Visitor]


@pytest.fixture
def sign_in(browser: Browser, live_server: LiveServer) -> Iterator[SignIn]:
    contexts: list[BrowserContext] = []

    def visit(name: str, width: int = 1280, language: str = "en", scheme: str = "light") -> Visitor:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(15_000)
        context.add_cookies([{"name": "django_language", "value": language, "url": live_server.url}])
        contexts.append(context)
        page = context.new_page()
        complaints = Complaints()
        complaints.listen(page, live_server.url)
        page.goto(f"{live_server.url}/login/")
        page.locator("#id_username").fill(name)
        page.locator("#id_password").fill(PASSWORD)
        page.locator("button.primary").click()
        page.wait_for_url(lambda url: "/login/" not in url)
        return Visitor(page, live_server.url, complaints)

    yield visit
    for context in contexts:
        context.close()


def paths_of(name: str, books: Books) -> list[str]:
    """What this person works with."""
    tenant = "gamma" if name == "viewer-of-gamma" else "acme"
    statement = books.statement(tenant)
    category = "on_demand" if tenant == "gamma" else "reserved_used"
    of_tenant = f"/months/{MONTH}/statements/{tenant}/"
    paths = [
        "/",
        "/months/",
        f"/months/{MONTH}/preemptions/",
        f"/months/{MONTH}/lending/",
        of_tenant,
        f"{of_tenant}lines/{line_position(statement, category)}/",
        f"/preemptions/{books.record.pk}/",
        f"/workloads/{books.pool.slug}/{'wl-3' if tenant == 'gamma' else 'wl-4/a'}/",
        "/search/?q=wl",
        f"/quota/?window={MONTH}",
        f"/demand/?window={MONTH}",
        f"/budgets/?month={MONTH}",
        f"/plan/?tenant={tenant}&pool={books.pool.slug}&reservation=4",
    ]
    if name in ("finance", "platform", "auditor"):
        event = books.event("report-1")
        paths += [
            f"/months/{MONTH}/",
            f"/months/{MONTH}/closing/",
            f"/months/{MONTH}/platform/",
            f"/calibration/?window={MONTH}",
            "/cluster/",
            f"/pools/{books.pool.slug}/?zoom=day&at=2026-10-01T00:00:00Z",
            "/ingest/",
            f"/ingest/batches/{books.batch.pk}/",
            "/ingest/quarantine/",
            "/ingest/identities/",
            f"/ingest/sources/{event.source_id}/",
            f"/events/{event.source_id}/{event.event_id}/",
        ]
    return paths


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("finance", WINDOWS),
        ("viewer-of-gamma", WINDOWS),
        ("platform", EXTREMES),
        ("auditor", EXTREMES),
        ("admin-of-acme", EXTREMES),
    ],
)
def test_every_page_of_a_role_is_clean(
    name: str, windows: list[tuple[int, str, str]], books: Books, sign_in: SignIn
) -> None:
    paths = paths_of(name, books)
    for width, language, theme in windows:
        visitor = sign_in(name, width, language, theme)
        for path in paths:
            visitor.goes_to(path)
        assert visitor.complaints.found == [], (width, language, theme)


def test_the_chart_is_drawn_in_both_themes_from_the_local_file(books: Books, sign_in: SignIn) -> None:
    for scheme in ("light", "dark"):
        visitor = sign_in("viewer-of-gamma", scheme=scheme)
        visitor.goes_to(f"/months/{MONTH}/statements/gamma/")
        bars = visitor.page.locator(".chart .bars .point")
        expect(bars.first).to_be_visible()
        assert bars.count() == 2
        assert visitor.complaints.found == []


def test_a_page_without_a_chart_loads_no_plotly(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("finance")
    loaded: list[str] = []
    visitor.page.on("request", lambda request: loaded.append(request.url))
    visitor.goes_to(f"/months/{MONTH}/")
    assert [url for url in loaded if "plotly" in url] == []


def test_a_table_is_sorted_in_place_and_the_address_keeps_it(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("finance")
    page = visitor.page
    visitor.goes_to(f"/months/{MONTH}/")
    page.evaluate("document.body.dataset.stays = 'yes'")  # gone if the whole page is loaded
    table = page.locator("#table-tenants")
    table.get_by_role("link", name="Amount").click()
    expect(table.locator("[aria-sort=descending]")).to_contain_text("Amount")
    expect(table.locator("tbody th").first).to_have_text("acme")
    table.get_by_role("link", name="Amount").click()
    expect(table.locator("tbody th").first).to_have_text("delta")
    assert "tenants.sort=amount" in page.url
    assert page.evaluate("document.body.dataset.stays") == "yes"
    page.go_back()
    expect(table.locator("tbody th").first).to_have_text("acme")
    with page.expect_download() as download:
        table.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == f"tenants-{MONTH}.csv"
    assert visitor.complaints.found == []


def test_the_checklist_comes_with_the_month_and_leads_to_where_it_is_mended(
    books: Books, sign_in: SignIn
) -> None:
    visitor = sign_in("finance")
    page = visitor.page
    visitor.goes_to(f"/months/{MONTH}/")
    expect(page.get_by_text("Every source is complete past the end of the month")).to_be_visible()
    page.locator(".checklist li.blocked").filter(has_text="Every source is complete").get_by_role(
        "link"
    ).click()
    page.wait_for_url("**/ingest/#sources")
    assert visitor.complaints.found == []


def test_the_keyboard_reaches_months_sections_and_search(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("finance")
    page = visitor.page
    visitor.goes_to(f"/months/{NEXT_MONTH}/statements/acme/")
    page.keyboard.press("[")
    page.wait_for_url(f"**/months/{MONTH}/statements/acme/")
    page.keyboard.press("]")
    page.wait_for_url(f"**/months/{NEXT_MONTH}/statements/acme/")
    for key, path in (("c", "/cluster/"), ("i", "/ingest/"), ("m", "/months/")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**{path}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("gam")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search/?q=gam")
    expect(page.get_by_role("link", name="Gamma")).to_be_visible()
    assert visitor.complaints.found == []


def test_the_first_tab_leads_past_the_navigation(books: Books, sign_in: SignIn) -> None:
    page = sign_in("finance").page
    page.goto(page.url)
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_on_a_narrow_screen_the_sections_are_a_menu(books: Books, sign_in: SignIn) -> None:
    page = sign_in("finance", width=360).page
    sections = page.get_by_role("navigation", name="Sections")
    expect(sections).to_be_hidden()
    button = page.get_by_role("button", name="Menu")
    button.click()
    expect(sections).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    sections.get_by_role("link", name="Cluster").click()
    page.wait_for_url("**/cluster/")


def test_language_zone_and_theme_are_one_click(books: Books, sign_in: SignIn) -> None:
    page = sign_in("viewer-of-acme").page
    page.get_by_role("button", name="中文").click()
    expect(page.get_by_role("heading", name="明细")).to_be_visible()
    page.get_by_role("button", name="深色").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(21, 23, 26)"


def test_from_a_tenant_s_total_down_to_its_event(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("viewer-of-gamma")
    page = visitor.page
    visitor.goes_to(f"/months/{MONTH}/statements/gamma/")
    page.locator("table.lines").get_by_role("link", name="Borrowed").click()
    expect(page.get_by_text("The slots below add up to 20.00 of 20.00 GPU-hours.")).to_be_visible()
    page.get_by_role("link", name="wl-3").click()
    page.get_by_role("link", name="gamma-holds-8").click()
    expect(page.get_by_role("heading", name="As it was booked")).to_be_visible()
    assert visitor.complaints.found == []


def test_paper_shows_the_statement_and_nothing_around_it(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("viewer-of-acme", scheme="dark")
    page = visitor.page
    visitor.goes_to(f"/months/{MONTH}/statements/acme/")
    page.emulate_media(media="print")
    for hidden in (".top", ".sections", ".crumbs", ".downloads"):
        expect(page.locator(hidden).first).to_be_hidden()
    expect(page.locator(".total")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
