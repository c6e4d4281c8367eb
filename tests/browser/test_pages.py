"""Every page in a real browser: each role, both languages, narrow and wide, light and dark.

Nothing may go wrong in the console, no request may fail or leave the machine, nothing may be wider than the screen.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.billing.page_books import MONTH, NEXT_MONTH, PASSWORD, Books
from tests.browser.conftest import ServedBooks, SignIn

pytestmark = [pytest.mark.django_db]

# Loaded narrow in Chinese and wide in English; each is then looked at in every width, and in both themes. Whoever
# shares the pages of finance or of a tenant is sampled in one of the two.
WIDE, NARROW = (1280, "en"), (360, "zh-hans")
VISITS = [
    ("finance", *WIDE),
    ("finance", *NARROW),
    ("viewer-of-gamma", *WIDE),
    ("viewer-of-gamma", *NARROW),
    ("admin-of-acme", *NARROW),
    ("platform", *WIDE),
    ("auditor", *NARROW),
]
# The same pages with fewer buttons: that they are accessible is seen where finance looks.
SEE_FINANCES_PAGES = {"platform", "auditor"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width", "language"), VISITS)
def test_every_page_of_a_role_is_clean_and_accessible(
    name: str, width: int, language: str, served: ServedBooks, sign_in: SignIn
) -> None:
    visitor = sign_in(name, width, language)
    seen: set[str] = set()
    for path in served.paths[name]:
        visitor.page.emulate_media(color_scheme="light")
        visitor.goes_to(path)
        if visitor.page.url in seen:
            continue  # another address has led to this page, and it was looked at then
        seen.add(visitor.page.url)
        if name not in SEE_FINANCES_PAGES:
            visitor.checks_with_axe(f"{path} light")
            visitor.page.emulate_media(color_scheme="dark")
            visitor.checks_with_axe(f"{path} dark", only=("color-contrast",))
        visitor.looks_at_every_width(path)
    assert visitor.complaints.found == []


def test_signing_in_is_accessible_and_leads_to_where_one_was_going(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("finance")
    page = visitor.page
    page.context.clear_cookies()
    visitor.goes_to(f"/months/{MONTH}/")
    page.wait_for_url(lambda url: "/login/?next=" in url)
    visitor.checks_with_axe("login light")
    page.emulate_media(color_scheme="dark")
    visitor.checks_with_axe("login dark")
    page.get_by_label("User name").fill("finance")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(f"**/months/{MONTH}/")
    assert visitor.complaints.found == []


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
    visitor = sign_in("finance")
    page = visitor.page
    visitor.goes_to("/months/")
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_on_a_narrow_screen_the_sections_are_a_menu(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("finance", width=360)
    page = visitor.page
    visitor.goes_to("/months/")
    sections = page.get_by_role("navigation", name="Sections")
    expect(sections).to_be_hidden()
    button = page.get_by_role("button", name="Menu")
    button.click()
    expect(sections).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    sections.get_by_role("link", name="Cluster").click()
    page.wait_for_url("**/cluster/")


def test_language_zone_and_theme_are_one_click(books: Books, sign_in: SignIn) -> None:
    visitor = sign_in("viewer-of-delta")  # whose choice of language is kept, and who is in no other test
    page = visitor.page
    visitor.goes_to("/")
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
    # Nothing stands there that is of use to a pointer alone.
    for useless in ("button", ".csv", "details:not([open]) summary", ".pager a"):
        for one in page.locator(useless).all():
            expect(one).to_be_hidden()
    assert page.locator("details:not([open])").count() > 0
    expect(page.locator(".total")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")
