"""The check that no page fetches from another host must itself find what it is for."""

from pathlib import Path

import pytest

from tests.foreign_hosts import foreign_references


@pytest.mark.parametrize(
    "line",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        "<link rel=stylesheet href=//cdn.example.org/x.css>",
        "body { background: url(http://example.org/x.png) }",
        '@import "https://example.org/x.css";',
        "fetch('https://example.org/data')",
    ],
)
def test_what_a_page_would_fetch_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text(f"<p>\n{line}\n")
    (found,) = foreign_references(tmp_path)
    assert found.startswith("templates/page.html:2: ")


def test_a_link_to_click_on_is_fine(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "page.html").write_text('<a href="https://example.org/">docs</a>')
    assert list(foreign_references(tmp_path)) == []
