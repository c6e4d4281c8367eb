"""What an entry of the audit trail says stood before and after, for people: names and sentences in their language.

Files and programs have it as it is kept; the values themselves are codes, hashes and figures, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from ledger.core.sentences import declared, is_kept
from ledger.wording import APPROVAL_KINDS, ROLES
from ledger.wording_deeds import object_name
from ledger.wording_sentences import gist, kept_in_words

# Names of what is recorded that no column of a file has (`ledger.api.headings`, `billing.exports.headings`).
NAMES = (
    gettext_noop("active"),
    gettext_noop("alert rule"),
    gettext_noop("amount micro"),
    gettext_noop("approvals"),
    gettext_noop("billing time zone"),
    gettext_noop("borrowed"),
    gettext_noop("budget"),
    gettext_noop("cached input"),
    gettext_noop("calibration"),
    gettext_noop("chain head"),
    gettext_noop("changes"),
    gettext_noop("concurrency per gpu"),
    gettext_noop("contract"),
    gettext_noop("cut sequence"),
    gettext_noop("deviations"),
    gettext_noop("display alias"),
    gettext_noop("dispute"),
    gettext_noop("email"),
    gettext_noop("ends"),
    gettext_noop("excess"),
    gettext_noop("expires at"),
    gettext_noop("holders"),
    gettext_noop("identities"),
    gettext_noop("input"),
    gettext_noop("input tokens per minute"),
    gettext_noop("items"),
    gettext_noop("lasting"),
    gettext_noop("mappings"),
    gettext_noop("mode"),
    gettext_noop("on demand"),
    gettext_noop("options"),
    gettext_noop("output"),
    gettext_noop("output tokens per minute"),
    gettext_noop("pool cost"),
    gettext_noop("rate card"),
    gettext_noop("reasoning"),
    gettext_noop("region"),
    gettext_noop("reserved idle"),
    gettext_noop("reserved used"),
    gettext_noop("retroactive"),
    gettext_noop("roles"),
    gettext_noop("row"),
    gettext_noop("rows"),
    gettext_noop("runs"),
    gettext_noop("silence after"),
    gettext_noop("sources"),
    gettext_noop("statements"),
    gettext_noop("table"),
    gettext_noop("tenants"),
    gettext_noop("time zone"),
    gettext_noop("until at"),
    gettext_noop("validity"),
)


def audit_lines(kept: Any) -> list[str]:
    """One line per name of what was recorded: 'Name: value'; none where nothing was."""
    if kept is None:
        return []
    if not isinstance(kept, dict) or is_kept(kept):
        return [_inline(kept)]
    changes_first = sorted(kept.items(), key=lambda one: one[0] != "changes")
    return [_told(name, value) for name, value in changes_first]


def label(name: str) -> str:
    """A field by the name that its column has in files, an item of the checklist by its title."""
    item = f"checklist_{name}"
    return gist(item) if item in declared() else _(name.replace("_", " "))


# Codes among the values that have words of their own, by the name that they stand under.
CODES: dict[str, Callable[[str], str]] = {
    "table": object_name,
    "kind": lambda code: str(APPROVAL_KINDS.get(code, code)),
    "role": lambda code: str(ROLES.get(code, code)),
}


def _told(name: str, value: Any) -> str:
    told = CODES[name](value) if name in CODES and isinstance(value, str) else _inline(value)
    return f"{label(name)}{_(': ')}{told}"


def _inline(value: Any) -> str:
    if is_kept(value):
        return kept_in_words(value)
    if isinstance(value, dict):
        return "{" + _(", ").join(_told(name, one) for name, one in value.items()) + "}"
    if isinstance(value, list):
        return _("; ").join(map(_inline, value)) or "—"
    if value is None or value == "":
        return "—"
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return str(value)
