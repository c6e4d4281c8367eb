"""Bearer tokens: looked up by the hash of the secret, never stored or logged in clear."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from drf_spectacular.authentication import SessionScheme
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import (
    BaseAuthentication,
    CSRFCheck,
    SessionAuthentication,
    get_authorization_header,
)
from rest_framework.request import Request

from ledger.access import TokenPrincipal
from ledger.models import ApiToken
from ledger.services.tokens import hash_secret

# Writing "last used" at every request would make every read a write; a minute is fine enough for a person.
LAST_USED_STEP = timedelta(minutes=1)


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer gl_…`."""

    def authenticate(self, request: Request) -> tuple[TokenPrincipal, ApiToken] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != b"bearer":
            return None
        if len(words) != 2:
            raise exceptions.AuthenticationFailed("The Authorization header must be 'Bearer <token>'.")
        secret = words[1].decode("ascii", "replace")
        token = ApiToken.objects.filter(secret_sha256=hash_secret(secret), revoked_at=None).first()
        now = timezone.now()
        if token is None or (token.expires_at is not None and token.expires_at <= now):
            raise exceptions.AuthenticationFailed("This token is unknown, revoked or expired.")
        if token.last_used_at is None or now - token.last_used_at > LAST_USED_STEP:
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
        return TokenPrincipal(token), token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="ledger"'


class BrowserAuthentication(SessionAuthentication):
    """Who is signed in at the pages."""

    def enforce_csrf(self, request: Request) -> None:
        """Ask Django's request: DRF's `POST` parses the body, which the events door reads in forms of its own."""
        plain = request._request
        check = CSRFCheck(lambda _request: None)  # type: ignore[arg-type, return-value]
        check.process_request(plain)
        reason = check.process_view(plain, None, (), {})  # type: ignore[arg-type]
        if reason:
            raise exceptions.PermissionDenied(f"CSRF Failed: {reason}")


class BrowserScheme(SessionScheme):
    target_class = "ledger.api.authentication.BrowserAuthentication"


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BearerAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
