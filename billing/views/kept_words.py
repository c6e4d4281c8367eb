"""What is kept in one language, in the reader's: refusals of terms, changes that a person decides on, deviations.

The audit trail, the API and the command line have these texts as they are, so that they can be searched and compared.
Pages put them into words; what has no words yet is shown as it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _

Said = Callable[[dict[str, str]], str]
Kinds = Sequence[tuple[re.Pattern[str], Said]]


def kind(pattern: str, said: Said) -> tuple[re.Pattern[str], Said]:
    """Texts that match the pattern as a whole, and how to say them from its named parts."""
    return re.compile(pattern, re.DOTALL), said


def said(kinds: Kinds, text: str) -> str:
    """The text in words by the first kind that it is of; as it is if it is of none."""
    for pattern, words in kinds:
        match = pattern.fullmatch(text)
        if match is not None:
            return words({name: value or "" for name, value in match.groupdict().items()})
    return text


def _clock(iso: str) -> str:
    return f"{timezone.localtime(datetime.fromisoformat(iso)):%Y-%m-%d %H:%M:%S}"


INSTANT = r"\d{4}-\d\d-\d\dT[\d:.]+(?:\+\d\d:\d\d|Z)"
_VALUE = r"(?P<value>'[^']*'|\"[^\"]*\")"

# Why a document of terms cannot be used (billing.core.configuration and what applies it), without the place.
_REFUSALS: Kinds = [
    kind(rf"{_VALUE} is not a decimal number", lambda m: _("%(value)s is not a decimal number") % m),
    kind(
        rf"{_VALUE} must be a number of at least 0",
        lambda m: _("%(value)s must be a number of at least 0") % m,
    ),
    kind(
        rf"{_VALUE} has more than 6 decimal places",
        lambda m: _("%(value)s has more than 6 decimal places") % m,
    ),
    kind(rf"{_VALUE} must lie between 0 and 1", lambda m: _("%(value)s must lie between 0 and 1") % m),
    kind(
        rf"{_VALUE} is not a duration such as 30m or 2h",
        lambda m: _("%(value)s is not a duration such as 30m or 2h") % m,
    ),
    kind(
        rf"{_VALUE} is not a month such as 2026-10",
        lambda m: _("%(value)s is not a month such as 2026-10") % m,
    ),
    kind(rf"{_VALUE} is not an IANA time zone", lambda m: _("%(value)s is not an IANA time zone") % m),
    kind(rf"unknown tenant {_VALUE}", lambda m: _("there is no tenant %(value)s") % m),
    kind(rf"unknown pool {_VALUE}", lambda m: _("there is no pool %(value)s") % m),
    kind(rf"unknown model {_VALUE}", lambda m: _("there is no model %(value)s") % m),
    kind(
        rf"no calibration of {_VALUE} on (?P<gpu>\S+) is in force at (?P<at>{INSTANT})",
        lambda m: (
            _("no calibration of %(value)s on %(gpu)s is in force at %(at)s") % {**m, "at": _clock(m["at"])}
        ),
    ),
    kind(
        r"has started and cannot be edited; add another version",
        lambda m: _("has started and cannot be edited; add another version"),
    ),
    kind(
        r"has started and cannot be edited; give a later valid_from, or --retroactive",
        lambda m: _("has started and cannot be edited; begin later, or say that it holds for the past too"),
    ),
    kind(
        r"begins in the past of existing versions; give a later valid_from, or --retroactive",
        lambda m: _(
            "begins in the past of existing versions; begin later, or say that it holds for the past too"
        ),
    ),
    kind(r"unknown key", lambda m: _("there is no such field")),
    kind(r"name either pool or gpu_model", lambda m: _("name either pool or gpu_model")),
    kind(r"name either amount or gpu_hours", lambda m: _("name either amount or gpu_hours")),
    kind(r"must be above 0", lambda m: _("must be above 0")),
    kind(r"needs an offset, such as Z", lambda m: _("needs an offset, such as Z")),
    kind(r"is out of reach of the calendar", lambda m: _("is out of reach of the calendar")),
    kind(r"belongs to a contract of kind 'tokens'", lambda m: _("belongs to a contract of kind 'tokens'")),
    kind(
        r"throughput is reserved from the year (?P<year>\d+) on at the earliest",
        lambda m: _("throughput is reserved from the year %(year)s on at the earliest") % m,
    ),
    kind(
        r"name input_tokens_per_minute or output_tokens_per_minute, above 0",
        lambda m: _("name input_tokens_per_minute or output_tokens_per_minute, above 0"),
    ),
    kind(rf"{_VALUE}(?P<where> in .+)? is named twice", lambda m: _("%(value)s is named twice") % m),
    kind(
        rf"{_VALUE} is not a usable slug \(a-z, 0-9, \. _ -\)",
        lambda m: _("%(value)s is not a usable slug (a-z, 0-9, . _ -)") % m,
    ),
    # msgspec's own, of documents that are no tables of terms
    kind(
        r"Object contains unknown field `(?P<field>.+)`",
        lambda m: _("there is no field called “%(field)s”") % m,
    ),
    kind(
        r"Object missing required field `(?P<field>.+)`", lambda m: _("the field “%(field)s” is missing") % m
    ),
    kind(
        r"Expected `(?P<wanted>.+)`, got `(?P<got>.+)`",
        lambda m: _("should be %(wanted)s and is %(got)s") % m,
    ),
    kind(r"Invalid RFC3339 encoded datetime", lambda m: _("is no instant such as 2026-10-01T00:00:00Z")),
    kind(r"Invalid enum value (?P<value>.+)", lambda m: _("%(value)s is none of the choices") % m),
]


def refusal_of_terms(text: str) -> str:
    """Of 'place: problem' the problem in words; the place is a name in the document, and stays."""
    place, separator, problem = text.partition(": ")
    if separator and re.fullmatch(r"[\w.\[\]]+", place):
        return f"{place}: {said(_REFUSALS, problem)}"
    return said(_REFUSALS, text)


_WHAT: Kinds = [
    kind(r"rate card (?P<name>.+)", lambda m: _("rate card %(name)s") % m),
    kind(r"policy", lambda m: _("policy")),
    kind(r"cost of (?P<name>.+)", lambda m: _("cost of pool %(name)s") % m),
    kind(r"pool cost of (?P<name>.+)", lambda m: _("cost of pool %(name)s") % m),
    kind(r"contract of (?P<name>.+)", lambda m: _("contract of %(name)s") % m),
    kind(r"calibration of (?P<name>.+)", lambda m: _("calibration of %(name)s") % m),
    kind(r"policy of service (?P<name>.+)", lambda m: _("policy of service %(name)s") % m),
    kind(r"service policy of (?P<name>.+)", lambda m: _("policy of service %(name)s") % m),
    kind(r"service (?P<name>.+)", lambda m: _("service %(name)s") % m),
    kind(r"tenant (?P<name>.+)", lambda m: _("tenant %(name)s") % m),
    kind(r"alert rule (?P<name>.+)", lambda m: _("alert rule %(name)s") % m),
]


def _what(text: str) -> str:
    return said(_WHAT, text)


# What a proposal would change, as `apply_config` says it.
_CHANGES: Kinds = [
    kind(
        rf"\+ (?P<what>.+) from (?P<at>{INSTANT})",
        lambda m: _("new: %(what)s, from %(at)s") % {"what": _what(m["what"]), "at": _clock(m["at"])},
    ),
    kind(
        rf"~ (?P<what>.+) from (?P<at>{INSTANT}) (?P<field>\w+): (?P<was>.*) -> (?P<now>.*)",
        lambda m: (
            _("%(what)s, from %(at)s: %(field)s %(was)s → %(now)s")
            % {**m, "what": _what(m["what"]), "at": _clock(m["at"])}
        ),
    ),
    kind(
        r"~ (?P<what>.+) (?P<field>\w+): (?P<was>.*) -> (?P<now>.*)",
        lambda m: _("%(what)s: %(field)s %(was)s → %(now)s") % {**m, "what": _what(m["what"])},
    ),
    kind(
        rf"~ (?P<what>.+) from (?P<at>{INSTANT}) ended at (?P<end>{INSTANT})",
        lambda m: (
            _("%(what)s, from %(at)s, ends at %(end)s")
            % {"what": _what(m["what"]), "at": _clock(m["at"]), "end": _clock(m["end"])}
        ),
    ),
    kind(r"\+ (?P<what>.+)", lambda m: _("new: %(what)s") % {"what": _what(m["what"])}),
]


def change_in_words(text: str) -> str:
    return said(_CHANGES, text)
