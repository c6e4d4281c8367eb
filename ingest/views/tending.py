"""Pages on which sources, identities and quarantine are tended, and how their forms give an instant."""

from __future__ import annotations

from datetime import datetime

from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ledger.views.acting import ActingPage, Refused
from ledger.views.page import runs_the_ledger


class TendingPage(ActingPage):
    """Platform and finance may post; an auditor sees the page without the forms."""

    allows = staticmethod(runs_the_ledger)

    def may_act(self) -> bool:
        return self.access.may_tend_sources


def instant_of(form: QueryDict, name: str) -> datetime | None:
    """A date and time as a browser's field gives them, in the zone that the page is shown in; None: left empty.

    Raises `Refused`.
    """
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise Refused(_("“%(text)s” is no date and time.") % {"text": text[:40]})
    try:
        return timezone.make_aware(found) if timezone.is_naive(found) else found
    except (OverflowError, ValueError):
        raise Refused(_("“%(text)s” is no date and time.") % {"text": text[:40]}) from None


def needed_instant(form: QueryDict, name: str) -> datetime:
    """Raises `Refused` where none was given."""
    found = instant_of(form, name)
    if found is None:
        raise Refused(_("Give a date and time."))
    return found
