"""Pages of a month or a window on which some may act: refused, they show again what was typed."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict

from ledger.views.acting import ActingPage


class Refused(Exception):
    """What was asked for in a form cannot be done; the message is shown above it."""


class FormPage(ActingPage):
    """Who may not act sees the page without its forms. A deed leads back to the same month or window."""

    refused = (Refused,)

    def may_act(self) -> bool:
        raise NotImplementedError

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not self.may_act():
            raise PermissionDenied
        return super().post(request, **kwargs)

    def way_back(self) -> str:
        return self.request.get_full_path()

    def answer(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        typed = request.POST if self.problem else QueryDict()
        return super().answer(request, {**context, "problem": self.problem, "typed": typed})
