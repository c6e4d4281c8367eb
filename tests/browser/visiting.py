"""Who visits the pages in a browser, and what is noted of what goes wrong there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from playwright.sync_api import Locator, Page, Request, ViewportSize, expect

from tests.billing.page_books import MONTH, Books, line_position
from tests.billing.test_views_access import RULES

# From a telephone to a wide desk; every page is looked at in each without being loaded again.
WIDTHS = (360, 768, 1280, 1920)
# Answers of these are files, or somebody else's page.
NOT_OUR_PAGES = {"billing:month-file", "billing:statement-file", "billing:statement-pdf", "api-docs"}
# A chart fits itself to a new width a moment after the window has it.
SETTLING_MS = (0, 50, 200, 1_000, 5_000)
SEVERE = ("serious", "critical")
_AXE = Axe()


@dataclass
class Complaints:
    """What a page did that it should not."""

    found: list[str] = field(default_factory=list)

    def listen(self, page: Page, ours: str) -> None:
        page.on("console", lambda said: self.note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.note(str(error)))
        page.on("requestfailed", lambda request: self._note_failure(request))
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

    def _note_failure(self, request: Request) -> None:
        if not _was_left_behind(request):
            self.note(f"failed: {request.url}")


def _was_left_behind(request: Request) -> bool:
    """Going on to the next page breaks off what of this one is not there yet; what is missing answers with a 404."""
    may_be_left = "/static/" in request.url or request.is_navigation_request()
    return request.failure == "net::ERR_ABORTED" and may_be_left


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
        expect(self.page.locator(".htmx-request")).to_have_count(0)  # nor is anything still being fetched
        self._measure(path)

    def looks_at_every_width(self, path: str) -> None:
        before = self.page.viewport_size
        for width in WIDTHS:
            self.page.set_viewport_size(ViewportSize(width=width, height=900))
            self._measure(f"{path} at {width} px")
        if before:
            self.page.set_viewport_size(before)

    def _measure(self, what: str) -> None:
        for wait_ms in SETTLING_MS:
            if wait_ms:
                self.page.wait_for_timeout(wait_ms)
            overflow = self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            if overflow <= 0:
                return
        self.complaints.note(f"{what} is {overflow} px too wide")

    def checks_with_axe(self, what: str, only: tuple[str, ...] = ()) -> None:
        """Notes each serious or critical finding of axe-core, or of the rules named `only`.

        The script comes in over the browser's own debugging door: the page's security policy stays as it is.
        """
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if only:
            options["runOnly"] = list(only)
        if not self.page.evaluate("'axe' in window"):  # it stays until the next page is loaded
            self.page.evaluate(_AXE.axe_script)
        found = self.page.evaluate("options => axe.run(options).then(done => done.violations)", options)
        for violation in found:
            if violation["impact"] in SEVERE:
                for node in violation["nodes"]:
                    self.complaints.note(f"{what}: {violation['id']}: {node['html'][:200]}: {_reason(node)}")


def follow(page: Page, link: Locator) -> None:
    """Clicks, and waits for where it leads: after a click alone, what is read next may still be of the old page."""
    with page.expect_navigation():
        link.click()


def _reason(node: dict[str, Any]) -> str:
    return "; ".join(check["message"] for check in node["any"] + node["all"] + node["none"])


def paths_of(person: str, books: Books) -> list[str]:
    """Every page that the rules of access let this person see, and where its own differ from acme's."""
    paths = [
        reverse(name, kwargs=rule.arguments(books))
        for name, rule in RULES.items()
        if person in rule.seen_by and name not in NOT_OUR_PAGES
    ]
    if person == "viewer-of-gamma":
        of_gamma = f"/months/{MONTH}/statements/gamma/"
        position = line_position(books.statement("gamma"), "on_demand")
        paths += [of_gamma, f"{of_gamma}lines/{position}/", f"/workloads/{books.pool.slug}/wl-3/"]
    if person in ("finance", "viewer-of-gamma"):
        tenant = "gamma" if person == "viewer-of-gamma" else "acme"
        paths += [
            f"/quota/?window={MONTH}",
            f"/demand/?window={MONTH}",
            f"/budgets/?month={MONTH}",
            f"/plan/?tenant={tenant}&pool={books.pool.slug}&reservation=4",
        ]
    if person == "finance":
        paths += [
            "/search/?q=wl",
            f"/calibration/?window={MONTH}",
            f"/pools/{books.pool.slug}/?zoom=day&at=2026-10-01T00:00:00Z",
            f"/months/{MONTH}/preemptions/?victim=nobody",
        ]
    return paths
