"""What is kept is a code with its values, and every code has words in both languages (issue: pages)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

import billing.checks  # noqa: F401  it declares the codes
from billing.core.configuration import ConfigurationError, from_document
from billing.core.sentences import CHECKLIST
from billing.views.closing_words import REFUSALS
from billing.views.reconciliation_tables import PROBLEMS as EXPLAINING
from ingest.core.details import DETAILS, OF_MSGSPEC
from ingest.core.native_details import OF_ADAPTERS
from ledger.core.sentences import Sentence, declare, declared, on_pages, read, sentence, spelled_out
from ledger.wording import DISPUTE_PROBLEMS
from ledger.wording_sentences import gist, in_words, kept_in_words

ROOT = Path(__file__).parents[2]
ENGLISH = re.compile(r"[A-Za-z]{3,} [a-z]{2,}")
PLACE = re.compile(r"%\((\w+)\)s")


def calls(*names: str) -> list[tuple[str, ast.Call]]:
    """Every call of these in the apps, with its place."""
    found = []
    for app in ("ledger", "billing", "ingest"):
        for path in sorted((ROOT / app).rglob("*.py")):
            text = path.read_text()
            if not any(f"{name}(" in text for name in names):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


def test_every_code_in_the_source_is_declared_with_the_values_it_is_given() -> None:
    wrong = []
    for place, call in calls("sentence"):
        code = call.args[0]
        if not isinstance(code, ast.Constant):
            continue
        given = {keyword.arg for keyword in call.keywords}
        wanted = set(PLACE.findall(declared().get(code.value, "")))
        if (
            code.value not in declared()
            or (None not in given and given != wanted)
            or not given - {None} <= wanted
        ):
            wrong.append((place, code.value, sorted(map(str, given)), sorted(wanted)))
    assert len(calls("sentence")) > 20
    assert wrong == []


def test_every_declared_code_is_used() -> None:
    """Words that nothing says any more are taken out."""
    texts: defaultdict[str, int] = defaultdict(int)
    for app in ("ledger", "billing", "ingest"):
        for path in (ROOT / app).rglob("*.py"):
            for word in re.findall(r"\"(\w+)\"", path.read_text()):
                texts[word] += 1
    # Of the codes of items, which the checklist lists; what quarantine says is taken for its code (test_details).
    made_of_names = {*CHECKLIST, *DETAILS, *OF_MSGSPEC, *OF_ADAPTERS}
    assert [code for code in declared() if texts[code] < 2 and code not in made_of_names] == []


def test_every_code_has_words_in_both_languages() -> None:
    wrong = {}
    for code in declared():
        english = on_pages(code)
        plain = PLACE.sub("…", english)
        with translation.override("en"):
            assert gist(code) == plain
        with translation.override("zh-hans"):
            told = gist(code)
        is_named = re.search("[a-z]{3}", PLACE.sub("", english)) is not None
        if ENGLISH.search(told) or (is_named and told == plain):
            wrong[code] = told
    assert wrong == {}


def test_instants_are_told_in_the_readers_zone_and_codes_in_the_readers_words() -> None:
    at = "2026-10-01T00:00:00+00:00"
    told = sentence("slots_do_not_meet", end_at=at, start_at=at)
    with translation.override("zh-hans"):
        assert "T00" not in in_words(told) and "2026-10-01 " in in_words(told)
        assert in_words(sentence("table_differs", table=sentence("table_tokens"))) == "重新计算后不同：Token"
        assert kept_in_words("told before there were codes") == "told before there were codes"


def test_what_is_kept_is_read_again_and_spelled_out_for_programs() -> None:
    inner = sentence("table_tokens")
    told = sentence("table_differs", table=inner)
    assert read(told.kept()) == told
    assert read("of before") == "of before"
    assert str(told) == "tokens differ when computed again"
    stored = {
        "detail": told.kept(),
        "all": [inner.kept()],
        "old": ["as it was"],
        "deep": [{"x": inner.kept()}],
    }
    assert spelled_out(stored) == {
        "detail": "tokens differ when computed again",
        "detail_code": told.kept(),
        "all": ["tokens"],
        "all_codes": [inner.kept()],
        "old": ["as it was"],
        "deep": [{"x": "tokens", "x_code": inner.kept()}],
    }


def test_a_code_has_one_meaning_and_misses_no_value() -> None:
    with pytest.raises(ValueError, match="declared already"):
        declare({"table_tokens": "something else"})
    with pytest.raises(KeyError):
        sentence("table_differs")
    with pytest.raises(KeyError):
        sentence("no such code")
    assert in_words(Sentence("table_tokens"))


CARD = {"name": "n", "valid_from": "2026-10-01T00:00:00Z"}
UNUSABLE: list[dict[str, Any]] = [
    {
        "contract": [
            {
                "tenant": "a",
                "valid_from": "2026-10-01T00:00:00Z",
                "reserved_throughput": [{"model": "m", "pool": "p", "input_tokens_per_minute": -1}],
            }
        ]
    },
    {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "dear"}]}]},
    {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "-1"}]}]},
    {"rate_card": [{**CARD, "gpu_hour": [{"gpu_model": "H100", "on_demand": "1.2345678"}]}]},
    {"rate_card": [{**CARD, "gpu_hour": [{"on_demand": "1"}]}]},
    {"rate_card": [{**CARD, "valid_from": "2026-10-01T00:00:00"}]},
    {"rate_card": [{**CARD, "valid_from": "yesterday"}]},
    {"rate_card": [{**CARD, "valid_from": "9999-10-01T00:00:00Z"}]},
    {"rate_card": [{"name": "n"}]},
    {"rate_card": [{**CARD, "colour": "red"}]},
    {"rate_card": [{**CARD, "name": 4}]},
    {"policy": [{"valid_from": "2026-10-01T00:00:00Z", "min_confidence": "2"}]},
    {"budget": [{"tenant": "acme"}]},
    {"budget": [{"tenant": "acme", "amount": "0"}]},
    {"budget": [{"tenant": "acme", "amount": "1", "month": "October"}]},
    {"tenant": [{"slug": "Not OK", "name": "n"}]},
]


def test_why_terms_cannot_be_used_is_told_in_chinese() -> None:
    """What msgspec finds too, which has no codes of its own."""
    in_english = {}
    for document in UNUSABLE:
        with pytest.raises(ConfigurationError) as error:
            from_document(document)
        with translation.override("zh-hans"):
            place, _, words = in_words(error.value.told).partition(": ")
        assert str(error.value).startswith(place)
        if ENGLISH.search(words) or error.value.told.values["problem"].code == "unusable":
            in_english[str(error.value)] = words
    assert in_english == {}


def test_every_refusal_that_a_page_shows_has_words() -> None:
    """By its code, or by a sentence that it brings along."""
    wordless = set()
    for place, call in calls("ApprovalError", "PeriodError"):
        code = call.args[0]
        assert isinstance(code, ast.Constant), place
        if code.value not in REFUSALS and len(call.args) < 3:
            wordless.add(code.value)
    assert wordless <= set(DISPUTE_PROBLEMS) | set(EXPLAINING)
