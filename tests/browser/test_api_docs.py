"""The API browser works under the content security policy, from local files only."""

from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer


def test_the_api_browser_lists_endpoints_and_fetches_nothing_from_other_hosts(
    live_server: LiveServer, page: Page
) -> None:
    requested: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"{live_server.url}/docs/api/")
    expect(page.get_by_text("GPU chargeback and preemption ledger").first).to_be_visible()
    foreign = [url for url in requested if not url.startswith((live_server.url, "data:", "blob:"))]
    assert foreign == []
    assert [text for text in complaints if "Content Security Policy" in text] == []
