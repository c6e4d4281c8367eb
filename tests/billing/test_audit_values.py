"""What the audit page says stood before and after a deed, in the reader's language (issue: pages)."""

from __future__ import annotations

import ast
from pathlib import Path

from django.utils import translation

import billing
import ingest
import ledger
from billing.core import configuration
from billing.core.sentences import sentence
from billing.views.audit_values import audit_lines, label


def recorded_names() -> set[str]:
    """Names that any `record(...)` or any payload of an approval is given, and the fields of the declarative file."""
    names: set[str] = set()
    for path in (
        path for app in (ledger, billing, ingest) for path in Path(app.__file__).parent.rglob("*.py")
    ):
        if "/services/" not in path.as_posix():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "record":
                given = [one.value for one in node.keywords if one.arg in ("before", "after")]
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                given = [node.value] if node.targets[0].id in ("payload", "before", "after") else []
            dicts = (one for value in given for one in ast.walk(value) if isinstance(one, ast.Dict))
            keys = (key for one in dicts for key in one.keys if isinstance(key, ast.Constant))
            names |= {str(key.value) for key in keys}
    tables = (one for one in vars(configuration).values() if isinstance(one, type))
    for table in tables:
        names |= set(getattr(table, "__struct_fields__", ()))
    return names


def test_what_was_recorded_is_told_by_names_that_a_chinese_reader_has() -> None:
    with translation.override("zh-hans"):
        left = {name for name in recorded_names() if label(name) == name.replace("_", " ")}
    assert len(recorded_names()) > 80
    assert left <= {"sha256", "slug", "uri"}


def test_an_entry_is_told_in_the_readers_language_and_kept_as_it_is() -> None:
    change = sentence("added", what=sentence("tenant_named", name="acme"))
    kept = {
        "changes": [change.kept()],
        "retroactive": True,
        "table": "rate_card",
        "row": {"valid_from": "2027"},
        "order": ["of old"],
    }
    with translation.override("zh-hans"):
        assert audit_lines(kept) == [
            "变更：新增：租户 acme",
            "追溯：是",
            "类别：价目表",
            "内容：{生效时间：2027}",
            "更早的月份均已关账：of old",
        ]
        assert audit_lines(None) == []
    assert audit_lines({"state": "", "gone": None, "runs": []}) == ["state: —", "gone: —", "runs: —"]
