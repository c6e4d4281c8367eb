"""What the ledger finds, does or refuses: kept as a code with its values, told in words when somebody reads it.

A finished sentence is in one language for ever. So services hand on, and rows keep, a `Sentence`; programs get its
English beside the code, pages the reader's language (`ledger.wording_sentences`). Each app declares its codes once,
with their English, in a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

Kept = dict[str, Any]
BETWEEN, ENDS = ", ", "; "
CODE_OF, CODES_OF = "_code", "_codes"

_ENGLISH: dict[str, str] = {}
_ON_PAGES: dict[str, str] = {}


def declare(words: dict[str, str], on_pages: dict[str, str] | None = None) -> dict[str, str]:
    """Make codes known. words: code -> English, with %(name)s where a value stands. on_pages: codes that people read
    otherwise than programs, which have the bare codes of the values.

    Raises:
        ValueError: a code is declared with other words already.
    """
    for code, english in words.items():
        if _ENGLISH.setdefault(code, english) != english:
            raise ValueError(f"{code} is declared already")
    _ON_PAGES.update(on_pages or {})
    return words


def declared() -> Mapping[str, str]:
    """Every code with its English, as programs get it."""
    return _ENGLISH


def on_pages(code: str) -> str:
    """A code's English on pages: what is looked up in the catalogue of translations."""
    return _ON_PAGES.get(code) or _ENGLISH[code]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A code and the values that stand in its words: texts, numbers, other sentences. `str()` is English.

    Instants are ISO 8601 texts under a name that is, or ends with, `at`.
    """

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return _ENGLISH[self.code] % {name: _plain(value) for name, value in self.values.items()}

    def kept(self) -> Kept:
        """As it is stored and sent: {"code", "values"}."""
        return {"code": self.code, "values": {name: _as_kept(value) for name, value in self.values.items()}}


def sentence(code: str, **values: Any) -> Sentence:
    """A sentence of a declared code; instants are given as datetimes.

    Raises:
        KeyError: the code is not declared, or one of its values is missing.
    """
    told = Sentence(code, {name: _value(value) for name, value in values.items()})
    str(told)  # a missing value shows where it is made, not where it is read
    return told


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):  # sums come so from the database
        return int(value) if value == value.to_integral_value() else str(value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return BETWEEN.join(map(str, value)) if isinstance(value, tuple) else value


def _as_kept(value: Any) -> Any:
    if isinstance(value, Sentence):
        return value.kept()
    return [_as_kept(one) for one in value] if isinstance(value, tuple) else value


def kept_of(told: Iterable[Sentence]) -> list[Kept]:
    return [one.kept() for one in told]


class Told(ValueError):
    """An error that says what is wrong as a sentence; its text is English."""

    def __init__(self, told: Sentence) -> None:
        super().__init__(str(told))
        self.told = told


def is_kept(stored: Any) -> bool:
    return isinstance(stored, dict) and stored.keys() == {"code", "values"} and stored["code"] in _ENGLISH


def read(stored: Any) -> Any:
    """What `kept` gave, as a sentence again; anything else as it is: rows of before codes hold finished sentences."""
    if is_kept(stored):
        return Sentence(stored["code"], {name: read(value) for name, value in stored["values"].items()})
    return tuple(read(one) for one in stored) if isinstance(stored, list) else stored


def kept_sentences(stored: Any) -> list[Kept]:
    """Those of a stored list that have a code; none of a finished text."""
    return [one for one in stored if is_kept(one)] if isinstance(stored, list) else []


def in_english(stored: Any) -> str:
    """A stored sentence, or list of them, as one text; a finished text as it is."""
    return ENDS.join(str(read(one)) for one in stored) if isinstance(stored, list) else str(read(stored))


def spelled_out(stored: Any) -> Any:
    """Stored JSON for a program: each sentence in English under its name, its code beside it under `..._code`, or
    `..._codes` for a list of them."""
    if isinstance(stored, list):
        return [spelled_out(one) for one in stored]
    if not isinstance(stored, dict):
        return stored
    told: dict[str, Any] = {}
    for name, value in stored.items():
        if is_kept(value):
            told |= {name: str(read(value)), f"{name}{CODE_OF}": value}
        elif kept := kept_sentences(value):
            told |= {name: [str(read(one)) for one in value], f"{name}{CODES_OF}": kept}
        else:
            told[name] = spelled_out(value)
    return told
