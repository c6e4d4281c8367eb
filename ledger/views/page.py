"""What every page shares: who asks, whether the page exists for them, and in which zone instants are shown."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views import View

from ledger.access import Access, access_of_user
from ledger.models import Ledger
from ledger.selectors.settings import ledger_settings
from ledger.services.audit import Actor

ZONE_COOKIE = "ledger_zone"
THEME_COOKIE = "ledger_theme"
ZONES = ("billing", "utc")
THEMES = ("auto", "light", "dark")

Rule = Callable[[Access], bool]


def anyone_with_a_role(access: Access) -> bool:
    return access.sees_anything


def runs_the_ledger(access: Access) -> bool:
    """Finance, platform and auditors; a tenant has no such page."""
    return access.sees_all_tenants


class Page(View, ABC):
    """One page. `allows` says for whom it exists; for everybody else it is the 404 of a page that does not."""

    template: ClassVar[str]
    allows: ClassVar[staticmethod[[Access], bool]] = staticmethod(anyone_with_a_role)
    http_method_names = ["get", "head", "options"]
    access: Access

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if getattr(request.user, "must_change_password", False):
            return HttpResponseRedirect(reverse("ledger:password"))
        self.access = access_of_user(request.user)
        if not type(self).allows(self.access):
            raise Http404
        with timezone.override(shown_zone(request)):
            return super().dispatch(request, *args, **kwargs)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        return self.answer(request, self.context(**kwargs))

    def context(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """What the template shows, for the arguments of the address."""
        return {}

    @property
    def actor(self) -> Actor:
        """Who acts, for the audit trail."""
        return Actor(self.access.name, str(self.request.META.get("ledger.request_id", "")))

    def answer(self, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
        response = render(request, self.template, {**context, "access": self.access})
        # What one person may see must not be kept for the next one at the same screen.
        response["Cache-Control"] = "private, no-cache"
        return response


def ledger_of(request: HttpRequest) -> Ledger:
    """The ledger's settings, read once per request."""
    found: Ledger | None = getattr(request, "_ledger", None)
    if found is None:
        found = ledger_settings()
        request._ledger = found  # type: ignore[attr-defined]
    return found


def billing_zone(request: HttpRequest) -> str:
    return ledger_of(request).billing_time_zone


def shown_zone(request: HttpRequest) -> ZoneInfo:
    """The zone in which this reader wants to see instants: the billing zone unless UTC was chosen."""
    return ZoneInfo("UTC" if request.COOKIES.get(ZONE_COOKIE) == "utc" else billing_zone(request))
