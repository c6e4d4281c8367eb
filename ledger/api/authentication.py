"""Bearer tokens: looked up by the hash of the secret, never stored or logged in clear."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from ledger.access import TokenPrincipal
from ledger.models import ApiToken, Source, Tenant, User

PREFIX = "gl_"
# Writing "last used" at every request would make every read a write; a minute is fine enough for a person.
LAST_USED_STEP = timedelta(minutes=1)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create_api_token(
    name: str,
    role: str,
    *,
    tenants: list[Tenant] | None = None,
    sources: list[Source] | None = None,
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is not kept and cannot be shown again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        name=name,
        prefix=secret[:8],
        secret_sha256=hash_secret(secret),
        role=role,
        expires_at=expires_at,
        created_by=created_by,
    )
    token.tenants.set(tenants or [])
    token.sources.set(sources or [])
    return token, secret


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


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = BearerAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
