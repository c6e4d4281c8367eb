"""Every stored code that a page shows has words in both languages; the codes are read off what stores them."""

from __future__ import annotations

import ast
from pathlib import Path

from django.conf import settings
from django.utils.translation import override

import billing
import ingest
import ledger
from billing.core.line_text import CATEGORIES as LINE_TEXTS
from billing.core.line_text import TOKEN_KINDS
from billing.selectors.adjustments import CREDIT_CATEGORIES
from billing.services.configuration import _STEPS_OF as TABLES
from ledger.management.catalogue import read_catalogue
from ledger.wording import LINE_KINDS, category_name
from ledger.wording_deeds import DEEDS, OBJECTS, deed_name, object_name


def trees() -> list[ast.Module]:
    roots = [Path(app.__file__).parent for app in (billing, ingest, ledger)]
    return [ast.parse(file.read_text()) for root in roots for file in root.rglob("*.py")]


def texts(node: ast.expr) -> set[str]:
    return {
        one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def recorded() -> tuple[set[str], set[str]]:
    """(actions, kinds of objects) that any `record(by, action, object_type, ...)` writes."""
    actions, objects = set(), set()
    for tree in trees():
        # An action that is chosen first, or made of the name of a table of terms.
        chosen = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id == "action" and isinstance(node.value, ast.IfExp)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id != "record" or len(node.args) < 3:
                continue
            action, kind = node.args[1:3]
            if isinstance(action, ast.Name):
                choice = chosen[action.id]
                assert isinstance(choice, ast.IfExp)
                actions |= texts(choice.body) | texts(choice.orelse)
            elif isinstance(action, ast.JoinedStr):
                if texts(action) == {"change_"}:
                    actions |= {f"change_{table}" for table in TABLES}
                    objects |= set(TABLES)
                else:
                    assert texts(action) == {"end_"}
                    actions |= {f"end_{table}" for table in ENDABLE}
            else:
                actions |= texts(action)
            objects |= texts(kind)
    return actions, objects


# What dates apply to: tenants and pools have none.
ENDABLE = set(TABLES) - {"tenant", "pool"}


def test_every_deed_and_every_kind_of_object_has_words() -> None:
    actions, objects = recorded()
    assert {"close_month", "resolve_alert", "deactivate_user", "change_policy"} <= actions
    assert (set(DEEDS), set(OBJECTS)) == (actions, objects)
    names: dict[str, list[str]] = {}
    for language in ("en", "zh-hans"):
        with override(language):
            names[language] = [deed_name(one) for one in sorted(actions)]
            names[language] += [object_name(one) for one in sorted(objects)]
    assert set(names["en"]).isdisjoint(actions | objects)
    assert [here for here, there in zip(names["en"], names["zh-hans"], strict=True) if here == there] == []


def test_every_category_and_kind_of_a_line_has_words() -> None:
    codes = set(LINE_TEXTS) | set(TOKEN_KINDS) | set(CREDIT_CATEGORIES.values())
    codes |= {f"{kind}_overage" for kind in TOKEN_KINDS if kind != "reasoning"}
    names: dict[str, dict[str, str]] = {}
    for language in ("en", "zh-hans"):
        with override(language):
            names[language] = {code: category_name(code) for code in codes}
            names[language] |= {code: str(name) for code, name in LINE_KINDS.items()}
        assert [code for code, name in names[language].items() if code == name] == []
    assert [code for code, name in names["en"].items() if names["zh-hans"][code] == name] == []


def test_chinese_texts_call_a_gpu_hour_what_the_glossary_calls_it() -> None:
    catalogue = read_catalogue(Path(settings.BASE_DIR) / "locale/zh_Hans/LC_MESSAGES/django.po")
    assert [entry.forms for entry in catalogue.entries.values() if "GPU 小时" in "".join(entry.forms)] == []
    hours = [entry for entry in catalogue.entries.values() if "GPU-hour" in entry.text.singular]
    assert len(hours) > 30
    assert [entry.text.singular for entry in hours if "卡时" not in entry.forms[0]] == []
