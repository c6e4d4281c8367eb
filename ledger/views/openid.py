"""The two addresses of OpenID Connect; without a provider they do not exist."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from mozilla_django_oidc.views import OIDCAuthenticationCallbackView, OIDCAuthenticationRequestView


class OpenIdStart(OIDCAuthenticationRequestView):  # type: ignore[misc]
    """Sends the visitor to the provider."""

    def __init__(self, **options: Any) -> None:
        if settings.OIDC_RP_CLIENT_ID:  # the package asks for its settings at once
            super().__init__(**options)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        _must_be_configured()
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response


class OpenIdCallback(OIDCAuthenticationCallbackView):  # type: ignore[misc]
    """Takes what the provider sends back."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        _must_be_configured()
        try:
            response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        except SuspiciousOperation:  # a state that this browser was not given
            response = self.login_failure()
        return response


def _must_be_configured() -> None:
    if not settings.OIDC_RP_CLIENT_ID:
        raise Http404
