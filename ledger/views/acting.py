"""Pages with forms: what is refused shows the page again with a sentence, what is done leads back to it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, QueryDict

from ledger.services.audit import Actor
from ledger.views.tables import TablePage


class ActingPage(TablePage):
    """`do` takes the form's step and says what it did; it raises one of `refused` where a service says no.

    What must not be kept anywhere, such as a secret that is shown once, `do` answers with a response of its own.
    """

    http_method_names = ["get", "head", "options", "post"]
    refused: ClassVar[tuple[type[Exception], ...]] = ()
    problem = ""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        try:
            done = self.do(request.POST, self.actor, **kwargs)
        except type(self).refused as error:
            self.problem = self.words_for(error)
            response = self.get(request, **kwargs)
            response.status_code = 422
            return response
        if not isinstance(done, str):
            return done
        messages.success(request, done)
        return HttpResponseRedirect(self.way_back(), status=303)

    def way_back(self) -> str:
        return self.request.path

    @property
    def actor(self) -> Actor:
        return Actor(self.access.name, str(self.request.META.get("ledger.request_id", "")))

    def do(self, form: QueryDict, by: Actor, **kwargs: Any) -> str | HttpResponseBase:
        raise NotImplementedError

    def words_for(self, error: Exception) -> str:
        """What happened and what to do, in the reader's language."""
        return str(error)


def text_of(form: QueryDict, name: str, longest: int = 2000) -> str:
    """What was typed, without what no column can hold."""
    return form.get(name, "").replace("\x00", "").strip()[:longest]
