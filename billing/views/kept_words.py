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
