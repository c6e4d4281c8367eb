"""Who may use the API: what is done to tokens, and to the roles of users, is on record (domain.md section 10)."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from ledger.models import ApiToken, User
from ledger.services.audit import Actor, record


class TokenError(ValueError):
    """There is no such token, or not only one."""


def record_new_token(token: ApiToken, by: Actor) -> None:
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
    token = found[0]
    token.revoked_at = timezone.now()
    token.save(update_fields=["revoked_at"])
    after = {"name": token.name, "role": token.role}
    record(by, "revoke_api_token", "api_token", token.prefix, after=after, reason=reason)
    return token


def record_roles(user: User, before: Iterable[str], after: Iterable[str], by: Actor) -> None:
    """One entry where a user's roles changed; a role of a tenant is written `role:tenant`."""
    old, new = sorted(before), sorted(after)
    if old != new:
        name = user.get_username()
        record(by, "change_roles", "user", name, before={"roles": old}, after={"roles": new})
