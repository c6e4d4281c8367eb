"""Pages with forms: what is refused shows the page again with what was typed, what is done leads back to it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, QueryDict
from django.utils.translation import gettext as _

from ledger.services.audit import Actor
from ledger.views.tables import TablePage


class Refused(Exception):
    """What was asked for in a form cannot be done; the message is shown above it."""


class ActingPage(TablePage):
    """`do` takes the form's step and says what it did; `Refused`, or one of `refused` of a service, says why not.

    Who may not act sees the page without its forms. What must not be kept anywhere, such as a secret that is shown
    once, `do` answers with a response of its own.
    """

    http_method_names = ["get", "head", "options", "post"]
    refused: ClassVar[tuple[type[Exception], ...]] = ()
    problem = ""

    @abstractmethod
    def may_act(self) -> bool:
        """Whether a form is answered at all; a deed may ask for more."""

    @abstractmethod
    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str | HttpResponseBase:
        """Do what the form asks for and say what was done."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not self.may_act():
            raise PermissionDenied
        refusals: tuple[type[Exception], ...] = (Refused, *type(self).refused)
        try:
            refuse_nul(request.POST)
            done = self.do(request.POST, self.actor, **kwargs)
        except refusals as error:
            self.problem = str(error) if isinstance(error, Refused) else self.words_for(error)
            response = self.get(request, **kwargs)
            # htmx puts no answer in place that says of itself that it is an error.
            response.status_code = 200 if request.headers.get("HX-Request") == "true" else 422
            return response
        if not isinstance(done, str):
            return done
        messages.success(request, done)
        return HttpResponseRedirect(self.way_back(), status=303)

    def way_back(self) -> str:
        """The same page, with its month, window and filters."""
        return self.request.get_full_path()

    def words_for(self, error: Exception) -> str:
        """What happened and what to do, in the reader's language."""
        return str(error)

    def answer(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        typed = request.POST if self.problem else QueryDict()
        return super().answer(request, {"problem": self.problem, "typed": typed, **context})


def refuse_nul(form: QueryDict) -> None:
    """Raises Refused: no column can hold it, and what is kept is what was typed or nothing."""
    if any("\x00" in value for _name, values in form.lists() for value in values):
        raise Refused(_("Text cannot contain the character NUL (U+0000)."))


def text_of(form: QueryDict, name: str, longest: int = 2000) -> str:
    """What was typed, without white space around it."""
    return form.get(name, "").strip()[:longest]
