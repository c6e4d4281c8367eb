"""Pages on which somebody may do something: the form's deed, what came of it, and who may."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ledger.services.audit import Actor
from ledger.views.page import runs_the_ledger
from ledger.views.tables import TablePage


class Refused(Exception):
    """What was asked for in a form cannot be done; the message is shown above it."""


class TendingPage(TablePage):
    """A page of tables with forms. Platform and finance may post; an auditor sees the page without the forms.

    A deed ends in a redirect with a sentence of what was done; one that is refused shows the page again, with what
    was typed.
    """

    allows = staticmethod(runs_the_ledger)
    http_method_names = ["get", "head", "options", "post"]
    problem = ""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not self.access.may_tend_sources:
            raise PermissionDenied
        try:
            messages.success(request, self.do(request.POST, self.actor(request), **kwargs))
        except Refused as refused:
            self.problem = str(refused)
            response = self.get(request, **kwargs)
            # htmx puts no answer in place that says of itself that it is an error.
            response.status_code = 200 if request.headers.get("HX-Request") == "true" else 422
            return response
        return HttpResponseRedirect(self.way_back(request), status=303)

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str:
        """Do what the form asks for and say what was done. Raises `Refused`."""
        raise NotImplementedError

    def way_back(self, request: HttpRequest) -> str:
        return request.get_full_path()

    def actor(self, request: HttpRequest) -> Actor:
        return Actor(self.access.name, str(request.META.get("ledger.request_id", "")))

    def answer(self, request: HttpRequest, context: dict[str, Any]) -> Any:
        typed = request.POST if self.problem else QueryDict()
        return super().answer(request, {**context, "problem": self.problem, "typed": typed})


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


def text_of(form: QueryDict, name: str) -> str:
    return form.get(name, "").replace("\x00", "").strip()
