"""Sentences that are kept as codes, in the reader's language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext

from ledger.core.figures import set_digits
from ledger.core.sentences import Sentence, on_pages, read
from ledger.templatetags.figures import month_name
from ledger.wording import MEASURES, QUARANTINE_REASONS, ROLES, UNITS, exception_words
from ledger.wording_deeds import object_name


def in_words(told: Any) -> str:
    """What is no `Sentence`, a finished one of before codes, stays as it is."""
    if not isinstance(told, Sentence):
        return str(told)
    return gettext(on_pages(told.code)) % {name: _shown(name, value) for name, value in told.values.items()}


def kept_in_words(stored: Any) -> str:
    """Of a sentence as it is stored, or of a list of them."""
    if isinstance(stored, list):
        return gettext("; ").join(in_words(read(one)) for one in stored)
    return in_words(read(stored))


def gist(code: str) -> str:
    """What sentences of a code say, whatever their values."""
    return gettext(on_pages(code)) % _Anything()


class _Anything(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "…"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Sentence):
        return in_words(value)
    if isinstance(value, tuple):
        return gettext(", ").join(map(in_words, value))
    if name == "at" or name.endswith("_at"):
        return f"{timezone.localtime(datetime.fromisoformat(value)):%Y-%m-%d %H:%M:%S}"
    return VALUES[name](value) if name in VALUES else str(value)


def _word_of(words: Mapping[str, Any]) -> Callable[[Any], str]:
    return lambda code: str(words.get(code, code))


# Values that are codes or figures themselves, by their names; texts and whole numbers stand as they are.
VALUES: dict[str, Callable[[Any], str]] = {
    "month": lambda month: str(month_name(month)),
    "hours": set_digits,
    "amount": lambda amount: set_digits(str(amount)),
    "measure": _word_of(MEASURES),
    "unit": _word_of(UNITS),
    "table": object_name,
    "role": _word_of(ROLES),
    "reason": lambda code: gettext(QUARANTINE_REASONS[code]) if code in QUARANTINE_REASONS else str(code),
    "exception": lambda code: exception_words(code)[0],
}
