"""The catalogues are complete, compiled, and readable by Python's own gettext; no tool of gettext's is needed."""

from __future__ import annotations

import gettext
import io
from pathlib import Path

import pytest
from django.conf import settings

from ledger.management.catalogue import (
    Catalogue,
    Entry,
    Text,
    compiled,
    read_catalogue,
    texts_in,
    write_catalogue,
)

LANGUAGES = [code for code, _name in settings.LANGUAGES if code != "en"]
FOLDERS = {"zh-hans": "zh_Hans"}


def catalogue_of(language: str) -> Path:
    return settings.BASE_DIR / "locale" / FOLDERS[language] / "LC_MESSAGES" / "django.po"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_of_the_pages_is_translated(language: str) -> None:
    wanted = texts_in(settings.BASE_DIR)
    assert len(wanted) > 300
    assert read_catalogue(catalogue_of(language)).missing(wanted) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    path = catalogue_of(language)
    assert path.with_suffix(".mo").read_bytes() == compiled(read_catalogue(path))


HEADER = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n"


def entries(*rows: Entry) -> Catalogue:
    return Catalogue(HEADER, {row.text.key: row for row in rows})


def test_a_compiled_catalogue_is_read_by_gettext() -> None:
    catalogue = entries(
        Entry(Text("open"), ("offen",)),
        Entry(Text("open", context="quarantine"), ("unerledigt",)),
        Entry(Text("%(n)s row", plural="%(n)s rows"), ("%(n)s Zeile", "%(n)s Zeilen")),
        Entry(Text("not yet"), ("",)),
    )
    read = gettext.GNUTranslations(io.BytesIO(compiled(catalogue)))
    assert read.gettext("open") == "offen"
    assert read.pgettext("quarantine", "open") == "unerledigt"
    assert [read.ngettext("%(n)s row", "%(n)s rows", n) for n in (1, 2)] == ["%(n)s Zeile", "%(n)s Zeilen"]
    assert read.gettext("not yet") == "not yet"


def test_a_catalogue_survives_being_written(tmp_path: Path) -> None:
    catalogue = entries(
        Entry(Text('say "no"\n', context="a\\b"), ("„nein“\n",)),
        Entry(Text("%(n)s row", plural="%(n)s rows"), ("1", "2")),
    )
    write_catalogue(tmp_path / "django.po", catalogue)
    assert read_catalogue(tmp_path / "django.po") == catalogue


def test_a_translation_that_drops_a_placeholder_is_missing() -> None:
    text = Text("%(count)s of %(all)s")
    assert entries(Entry(text, ("%(all)s",))).missing([text]) == [text]
    assert entries(Entry(text, ("%(all)s / %(count)s",))).missing([text]) == []


def test_texts_are_found_in_templates_and_in_code(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "ledger").mkdir()
    (tmp_path / "templates" / "a.html").write_text(
        '{% translate "One" %}{% translate "Two" context "x" %}{{ y|default:_("Three (and) more") }}'
        "{% blocktranslate count n=n %}{{ n }} row{% plural %}{{ n }} rows{% endblocktranslate %}"
    )
    (tmp_path / "ledger" / "b.py").write_text('from x import gettext as _\nA = _("Four" " and five")\n')
    assert texts_in(tmp_path) == [
        Text("One"),
        Text("Two", context="x"),
        Text("Three (and) more"),
        Text("%(n)s row", plural="%(n)s rows"),
        Text("Four and five"),
    ]
