"""Signing in and out, and how a person wants to read: language, time zone, theme."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, PasswordChangeView
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import check_for_language
from django.utils.translation import gettext as _
from django.views import View

from ledger.models import User
from ledger.services.audit import Actor
from ledger.services.sign_ins import forget_failures, note_failure, seconds_to_wait
from ledger.services.users import change_password
from ledger.views.page import THEME_COOKIE, THEMES, ZONE_COOKIE, ZONES

A_YEAR_S = 365 * 24 * 3600


class SignIn(LoginView):
    template_name = "ledger/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        name, address = request.POST.get("username", ""), client_address(request)
        if wait_s := seconds_to_wait(name, address, timezone.now()):
            return self._locked(wait_s)
        return super().post(request, *args, **kwargs)

    def _locked(self, wait_s: int) -> HttpResponse:
        """The same for a right and a wrong password, and for a name that nobody has."""
        context = self.get_context_data(form=AuthenticationForm(self.request), wait_minutes=-(-wait_s // 60))
        return self.render_to_response(context, status=429, headers={"Retry-After": str(wait_s)})

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(
            has_openid=bool(settings.OIDC_RP_CLIENT_ID), was_refused="refused" in self.request.GET, **context
        )

    def form_invalid(self, form: Any) -> HttpResponse:
        if form.data.get("username"):
            note_failure(form.data["username"], client_address(self.request), timezone.now())
        return super().form_invalid(form)

    def form_valid(self, form: Any) -> HttpResponse:
        response = super().form_valid(form)
        forget_failures(form.cleaned_data["username"], client_address(self.request))
        user = self.request.user
        if isinstance(user, User) and user.language:
            _remember(response, settings.LANGUAGE_COOKIE_NAME, user.language)
        return response


def client_address(request: HttpRequest) -> str:
    """Where a request comes from. What our proxy saw stands last; what stands before it anybody can write."""
    forwarded = request.headers.get("X-Forwarded-For", "") if settings.IS_BEHIND_PROXY else ""
    return (forwarded.rpartition(",")[2].strip() or request.META.get("REMOTE_ADDR", ""))[:45]


class PasswordPage(PasswordChangeView):
    """A person's own password; where somebody else chose it, this is the only page there is."""

    template_name = "ledger/password.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(has_password=self._has_password(), **context)

    def _has_password(self) -> bool:
        return self.request.user.is_authenticated and self.request.user.has_usable_password()

    def form_valid(self, form: Any) -> HttpResponse:
        user: User = form.user
        request_id = str(self.request.META.get("ledger.request_id", ""))
        change_password(user, form.cleaned_data["new_password1"], Actor(user.get_username(), request_id))
        update_session_auth_hash(self.request, user)
        messages.success(self.request, _("The password is changed; elsewhere you are signed out."))
        return HttpResponseRedirect("/")


class SignOut(LogoutView):
    """By POST only, so that no link and no prefetch signs anybody out."""


class Preferences(View):
    """Remembers a choice in a cookie (the language also with the user) and goes back to where the reader was."""

    http_method_names = ["post", "options"]

    def post(self, request: HttpRequest) -> HttpResponse:
        response = HttpResponseRedirect(_way_back(request))
        language = request.POST.get("language", "")
        if language in dict(settings.LANGUAGES) and check_for_language(language):
            _remember(response, settings.LANGUAGE_COOKIE_NAME, language)
            if isinstance(request.user, User):
                User.objects.filter(pk=request.user.pk).update(language=language)
        if request.POST.get("zone") in ZONES:
            _remember(response, ZONE_COOKIE, request.POST["zone"])
        if request.POST.get("theme") in THEMES:
            _remember(response, THEME_COOKIE, request.POST["theme"])
        return response


def _remember(response: HttpResponse, cookie: str, value: str) -> None:
    response.set_cookie(
        cookie, value, max_age=A_YEAR_S, samesite="Lax", secure=settings.SESSION_COOKIE_SECURE, httponly=True
    )


def _way_back(request: HttpRequest) -> str:
    wanted = request.POST.get("next", "/")
    ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if ours and wanted.startswith("/") else "/"
