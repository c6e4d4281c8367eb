"""The tour in docs/tour.md: every page of it exists, every picture is there and shown, and none is left over."""

from __future__ import annotations

import re
import struct

import pytest
from django.urls import resolve

from tests.tour import MOST_BYTES, PICTURES, ROOT, SHOTS, TOUR, WIDTH, Shot


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_a_page_of_the_tour_exists_with_its_picture(shot: Shot) -> None:
    assert resolve(shot.address("2026-10").split("?")[0])
    head = shot.file.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">I", head[16:20])[0] == WIDTH
    assert shot.file.stat().st_size <= MOST_BYTES


def test_the_tour_shows_every_picture_and_no_other() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(screenshots/([a-z-]+)\.png\)", TOUR.read_text(encoding="utf-8"))
    assert shown == [shot.name for shot in SHOTS]
    assert {file.stem for file in PICTURES.glob("*.png")} == set(shown)


def test_the_readme_shows_some_of_them_and_leads_to_the_tour() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"docs/screenshots/([a-z-]+)\.png", readme)) <= {shot.name for shot in SHOTS}
    assert "docs/screenshots/month.png" in readme
    assert "](docs/tour.md)" in readme
