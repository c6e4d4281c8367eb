"""The pages of docs/tour.md: one list for the script that takes the pictures and for the tests that hold it true.

A picture is current as long as its page is there, is reached in the same way and says what the tour says of it: the
suite walks through the list on a demo month (tests/browser/test_walks.py), and compares it with the files and with the
text (tests/core/test_tour.py). Bytes of pictures are not compared: fonts differ between machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, expect

ROOT = Path(__file__).resolve().parent.parent
TOUR = ROOT / "docs" / "tour.md"
PICTURES = ROOT / "docs" / "screenshots"
WIDTH, HEIGHT = 1280, 860
MOST_BYTES = 400_000
SLOW_MS = 30_000  # of a busy machine


@dataclass(frozen=True)
class Shot:
    """`path` with `{month}` and `{day}`; `follow`: a link to click there. `says`: what the page shows, in English."""

    name: str
    who: str
    path: str
    says: str
    follow: str = ""
    scroll_to: str = ""
    language: str = "en"
    scheme: str = "light"

    def address(self, month: str) -> str:
        return self.path.format(month=month, day=f"{month}-14")

    @property
    def file(self) -> Path:
        return PICTURES / f"{self.name}.png"


SHOTS = (
    Shot("month", "finance", "/months/{month}/", "Where every GPU-hour went"),
    Shot("closing", "finance", "/months/{month}/", "Exceptions", scroll_to="#exceptions"),
    Shot("statement", "finance", "/months/{month}/statements/research/", "Against the month before"),
    Shot(
        "line",
        "finance",
        "/months/{month}/statements/research/",
        "The slots below add up to",
        follow='table.lines a[href*="/lines/"]:has-text("On-demand")',
    ),
    Shot("platform-side", "finance", "/months/{month}/platform/", "Cost against billed, per pool"),
    Shot("bill-of-a-tenant", "viewer", "/", "Reserved, used and idle by day", scroll_to="#days"),
    Shot("preemptions", "platform", "/months/{month}/preemptions/", "Preemptions"),
    Shot(
        "preemption",
        "platform",
        "/months/{month}/preemptions/?victim=research&sort=-waiting_gpu_hours",
        "Timeline",
        follow='#table-preemptions tbody a[href^="/preemptions/"]',
    ),
    Shot("pool", "platform", "/pools/bj-h100/?zoom=day&at={day}T00:00:00Z", "Capacity over time by category"),
    Shot("quarantine", "platform", "/ingest/quarantine/", "By reason"),
    Shot("month-zh-dark", "finance", "/months/{month}/", "每一 GPU 卡时的去向", language="zh-hans", scheme="dark"),
)  # fmt: skip


def look_at(page: Page, address: str, shot: Shot, month: str) -> None:
    """The page of a shot as its reader has it in sight, with everything on it that is fetched or drawn later."""
    page.goto(address + shot.address(month))
    if shot.follow:
        page.locator(shot.follow).first.click()
    expect(page.locator("main")).to_contain_text(shot.says, timeout=SLOW_MS)
    expect(page.locator(".htmx-request")).to_have_count(0, timeout=SLOW_MS)
    for chart in page.locator(".chart").all():
        expect(chart.locator(".main-svg").first).to_be_visible(timeout=SLOW_MS)
    if shot.scroll_to:
        page.locator(shot.scroll_to).evaluate("element => element.scrollIntoView()")
