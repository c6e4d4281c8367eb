"""Who may use the API: what is done to tokens, and to the roles of users, is on record (domain.md section 10)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from ledger.models import ApiToken, Source, Tenant, User
from ledger.services.audit import SYSTEM, Actor, record

PREFIX = "gl_"


class TokenError(ValueError):
    """There is no such token, or not only one."""


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def create_api_token(
    name: str,
    role: str,
    *,
    tenants: Sequence[Tenant] | None = None,
    sources: Sequence[Source] | None = None,
    expires_at: datetime | None = None,
    created_by: User | None = None,
    by: Actor | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is not kept and cannot be shown again.

    created_by: the person in whose name it acts. by: who stands in the audit trail, that person by default.
    """
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
    _record_new_token(token, by or Actor(SYSTEM if created_by is None else created_by.get_username()))
    return token, secret


def _record_new_token(token: ApiToken, by: Actor) -> None:
    """One entry beside the token; never its secret."""
    after = {
        "name": token.name,
        "role": token.role,
        "tenants": sorted(tenant.slug for tenant in token.tenants.select_related("holder")),
        "sources": sorted(str(source) for source in token.sources.all()),
        "expires_at": None if token.expires_at is None else token.expires_at.isoformat(),
    }
    record(by, "create_api_token", "api_token", token.prefix, after=after)


@transaction.atomic
def revoke_api_token(name: str, by: Actor, reason: str = "") -> ApiToken:
    """End a token, named by its name or by the first characters of its secret; it opens nothing from now on.

    Raises:
        TokenError: no token in use is called so, or several are: then name it by its prefix.
    """
    in_use = ApiToken.objects.select_for_update().filter(revoked_at=None)
    found = list(in_use.filter(prefix=name) or in_use.filter(name=name))
    if len(found) != 1:
        how_many = f"{len(found)} tokens are" if found else "no token in use is"
        raise TokenError(f"{how_many} called '{name}'; name it by the first 8 characters of its secret")
    _end(found[0], by, reason)
    return found[0]


@transaction.atomic
def revoke_token(token: ApiToken, by: Actor, reason: str = "") -> bool:
    """End this token; False if it had ended already."""
    in_use = ApiToken.objects.select_for_update().filter(pk=token.pk, revoked_at=None).first()
    if in_use is None:
        return False
    _end(in_use, by, reason)
    return True


def _end(token: ApiToken, by: Actor, reason: str) -> None:
    token.revoked_at = timezone.now()
    token.save(update_fields=["revoked_at"])
    after = {"name": token.name, "role": token.role}
    record(by, "revoke_api_token", "api_token", token.prefix, after=after, reason=reason)


def record_roles(
    user: User, before: Iterable[str], after: Iterable[str], by: Actor, reason: str = ""
) -> None:
    """One entry where a user's roles changed; a role of a tenant is written `role:tenant`."""
    old, new = sorted(before), sorted(after)
    if old != new:
        name = user.get_username()
        record(by, "change_roles", "user", name, before={"roles": old}, after={"roles": new}, reason=reason)
