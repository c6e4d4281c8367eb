"""What quarantine says in English is found again among the declared sentences, and each of these is said somewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.core.body import Limits
from ingest.core.details import DETAILS, OF_MSGSPEC, told
from ingest.core.native_details import OF_ADAPTERS
from ingest.core.parse import Rejected, parse_line
from ledger.core.sentences import Sentence

REFUSING = ("Refusal", "Refused", "Broken", "Rejected", "refused")
INGEST = Path(__file__).parents[2] / "ingest"
# What stands for the values of an f-string: a detail inside of another, a path, words that a sentence has itself.
SAMPLES = {
    "detail": "the text is empty",
    "error": "the text is empty",
    "path": "data",
    "what} is": "the record",
    "{what}": "a fraction",
}


def sample(node: ast.expr | None) -> str | None:
    """The text of a literal, with something for each value of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = [
        part.value if isinstance(part, ast.Constant) else _value(ast.unparse(part)) for part in node.values
    ]
    return "".join(map(str, parts))


def _value(source: str) -> str:
    return next((text for name, text in SAMPLES.items() if name in source), "7")


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def codes(detail: Sentence | str) -> set[str]:
    """Those of a detail and of what stands inside; nothing where a part is in English alone."""
    if isinstance(detail, str):
        return {""}
    return {detail.code}.union(*(codes(detail.values[name]) for name in detail.values if name == "problem"))


def test_what_is_refused_is_told_in_declared_sentences() -> None:
    said, wordless = 0, []
    for path in sorted(INGEST.rglob("*.py")):
        for node in nodes(path):
            name = (
                getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            )
            if not isinstance(node, ast.Call) or name not in REFUSING:
                continue
            texts = [text for one in node.args[-2:] if (text := sample(one)) and " " in text]
            said += len(texts)
            wordless += [(path.name, text) for text in texts if "" in codes(told(text))]
    assert said > 150
    assert wordless == []


def test_every_declared_detail_is_said_somewhere() -> None:
    said = set(BAD.values())
    for path in INGEST.rglob("*.py"):
        if path.name not in ("details.py", "native_details.py"):
            for node in nodes(path):
                text = sample(node) if isinstance(node, ast.expr) else None
                said |= codes(told(text)) if text and len(text) < 250 else set()
    assert {*DETAILS, *OF_ADAPTERS} - said == set()


BAD = {
    '"data":{"pool":"p","gpus":1,"colour":1}': "detail_unknown_field",
    '"data":{"pool":"p"}': "detail_missing_field",
    '"data":{"pool":5,"gpus":1}': "detail_not_text",
    '"data":{"pool":"p","gpus":-1}': "detail_negative",
    '"data":[]': "detail_of_another_type",
    '"data":{"pool":"p","gpus":"1.2345"}': "detail_places",
    '"data":{"pool":"p","gpus":1': "detail_truncated",
    '"data":{"pool" "p"}': "detail_malformed",
}


@pytest.mark.parametrize(("data", "code"), BAD.items())
def test_a_line_that_is_refused_is_told_by_codes(data: str, code: str) -> None:
    """What msgspec finds too, which has no codes of its own."""
    head = '{"specversion":"1.0","id":"1","source":"/s","type":"ledger.capacity.v1","time":"2026-10-01T00:00:00Z",'
    verdict = parse_line(
        1, f"{head}{data}{'' if code == 'detail_truncated' else '}'}".encode(), 2_000_000_000_000, Limits()
    )
    assert isinstance(verdict, Rejected)
    found = told(verdict.detail)
    assert code in codes(found), verdict.detail
    assert str(found) == verdict.detail
    assert code in {*DETAILS, *OF_MSGSPEC}


def test_what_is_not_declared_stays_as_it_is() -> None:
    assert told("what a version to come says") == "what a version to come says"
    assert str(told("data.x: something new")) == "data.x: something new"
    assert told("") == ""
