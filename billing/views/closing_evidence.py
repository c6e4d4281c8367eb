"""What blocks a close, and what a close did, in the reader's language.

Evidence is kept as it was seen, in one language: an override names it by its hash. Here it is put into words for
whoever looks; what has no words yet is shown as it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ledger.core.figures import set_digits
from ledger.templatetags.figures import month_name
from ledger.wording import MEASURES, QUARANTINE_REASONS, UNITS, exception_words

Said = Callable[[re.Match[str]], str]


def _of(pattern: str, said: Said) -> tuple[re.Pattern[str], Said]:
    return re.compile(pattern), said


def _clock(iso: str) -> str:
    return f"{timezone.localtime(datetime.fromisoformat(iso)):%Y-%m-%d %H:%M:%S}"


def _measured(match: re.Match[str]) -> str:
    measure, unit = match["measure"], match["unit"]
    return _("%(what)s: %(measure)s differs by %(amount)s %(unit)s") % {
        "what": match["what"],
        "measure": MEASURES.get(measure, measure),
        "amount": set_digits(match["amount"]),
        "unit": _("GPU-hours") if unit == "GPU-hours" else UNITS.get(unit, unit),
    }


def _exception(match: re.Match[str]) -> str:
    what, _remedy = exception_words(match["code"])
    return _("%(what)s, %(pool)s: %(count)s") % {
        "what": what,
        "pool": match["pool"] or "—",
        "count": match["count"],
    }


def _refused(match: re.Match[str]) -> str:
    reason = match["reason"]
    words = _(QUARANTINE_REASONS[reason]) if reason in QUARANTINE_REASONS else reason
    return f"{words}: {match['count']}"


def _credit(match: re.Match[str]) -> str:
    words = {**match.groupdict(), "amount": set_digits(match["amount"])}
    return _("a credit of %(amount)s for %(tenant)s, asked for by %(who)s") % words


def _terms(match: re.Match[str]) -> str:
    words = {"table": TERMS.get(match["table"], match["table"]), "who": match["who"]}
    return _("a change (%(table)s), asked for by %(who)s") % words


# Table of the declarative file -> what stands in it.
TERMS = {
    "rate_card": gettext_lazy("Rate card"),
    "pool_cost": gettext_lazy("pool cost"),
    "policy": gettext_lazy("policy"),
    "service": gettext_lazy("service"),
    "contract": gettext_lazy("contract"),
    "calibration": gettext_lazy("calibration"),
}
_INSTANT = r"(?P<at>\d{4}-\d\d-\d\dT[\d:.]+(?:\+\d\d:\d\d|Z))"
# Item of the checklist -> its kinds of evidence.
_EVIDENCE: dict[str, list[tuple[re.Pattern[str], Said]]] = {
    "order": [_of(r"(?P<month>\d{4}-\d\d)", lambda m: str(month_name(m["month"])))],
    "computed": [
        _of(r"never computed", lambda m: _("never computed")),
        _of(
            rf"computed up to {_INSTANT}",
            lambda m: (
                _("computed up to %(at)s")
                % {"at": f"{timezone.localtime(datetime.fromisoformat(m['at'])):%Y-%m-%d %H:%M:%S}"}
            ),
        ),
        _of(
            r"facts of (?P<pool>.+) are not computed yet",
            lambda m: _("facts of %(pool)s are not computed yet") % {"pool": m["pool"]},
        ),
    ],
    "quarantine": [_of(r"(?P<reason>\w+): (?P<count>\d+)", _refused)],
    "batches": [_of(r"batch (?P<number>\d+)", lambda m: _("batch %(number)s") % {"number": m["number"]})],
    "attribution": [
        _of(
            r"(?P<pool>.+): (?P<hours>[\d.]+) GPU-hours",
            lambda m: (
                _("%(pool)s: %(hours)s GPU-hours") % {"pool": m["pool"], "hours": set_digits(m["hours"])}
            ),
        )
    ],
    "reconciliation": [
        _of(r"(?P<what>.*): (?P<measure>\S+) differs by (?P<amount>-?[\d.]+) (?P<unit>\S+)", _measured)
    ],
    "drafts": [
        _of(
            r"(?P<count>\d+) of (?P<all>\d+)",
            lambda m: _("%(count)s of %(all)s are not approved") % m.groupdict(),
        )
    ],
    "second_person": [
        _of(r"credit (?P<tenant>\S+) (?P<amount>-?[\d.]+), asked for by (?P<who>.+)", _credit),
        _of(
            r"override, asked for by (?P<who>.+)",
            lambda m: _("an override of this checklist, asked for by %(who)s") % m.groupdict(),
        ),
        _of(r"terms (?P<table>\w+), asked for by (?P<who>.+)", _terms),
    ],
    "exceptions": [_of(r"(?P<code>[a-z_]+)(?: (?P<pool>\S+))?: (?P<count>\d+)", _exception)],
}
# What a step of a close says it did.
_DETAILS = [
    _of(
        r"(?P<a>\d+) adjustments, (?P<t>\d+) transfers, (?P<s>\d+) statements changed",
        lambda m: _("adjustments: %(a)s, transfers: %(t)s, statements changed: %(s)s") % m.groupdict(),
    ),
    _of(r"nothing blocks", lambda m: _("nothing blocks")),
    _of(
        r"(?P<s>\d+) statements issued up to booking (?P<cut>\d+)",
        lambda m: _("statements issued: %(s)s, up to booking %(cut)s") % m.groupdict(),
    ),
    _of(r"(?P<n>\d+) mails", lambda m: _("mails: %(n)s") % m.groupdict()),
    _of(
        r"mail could not be sent: (?P<why>.*)", lambda m: _("mail could not be sent: %(why)s") % m.groupdict()
    ),
]


def evidence_words(item: str, text: str) -> str:
    return _said(_EVIDENCE.get(item, ()), text)


def detail_words(text: str) -> str:
    return _said(_DETAILS, text)


def _said(kinds: Sequence[tuple[re.Pattern[str], Said]], text: str) -> str:
    for pattern, said in kinds:
        match = pattern.fullmatch(text)
        if match is not None:
            return said(match)
    return text
