"""What somebody may see and do, worked out once per request from memberships or from a token's role.

`Access` is the one answer to "who asks?": pages and API alike pass it to `visible_to` and ask its `may_*`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ledger.models import ApiToken, Role, User

SEES_EVERYTHING = frozenset({Role.FINANCE, Role.PLATFORM, Role.AUDITOR})
TENANT_ROLES = frozenset({Role.TENANT_ADMIN, Role.TENANT_VIEWER})


@dataclass(frozen=True)
class Access:
    """Roles over the whole ledger, and the tenants (holder ids) seen and administered by tenant roles."""

    name: str = ""
    roles: frozenset[str] = frozenset()
    tenant_ids: frozenset[int] = frozenset()
    admin_of: frozenset[int] = frozenset()
    source_ids: frozenset[int] | None = None  # None: any source

    @property
    def sees_all_tenants(self) -> bool:
        return bool(self.roles & SEES_EVERYTHING)

    @property
    def sees_anything(self) -> bool:
        return self.sees_all_tenants or bool(self.tenant_ids)

    @property
    def is_finance(self) -> bool:
        return Role.FINANCE in self.roles

    @property
    def is_platform(self) -> bool:
        return Role.PLATFORM in self.roles

    @property
    def may_ingest(self) -> bool:
        return bool(self.roles & {Role.INGEST, Role.PLATFORM})

    @property
    def may_read_ingest(self) -> bool:
        """Batches, quarantine, sources, raw events: whoever runs or checks the books, not tenants."""
        return self.sees_all_tenants

    @property
    def may_tend_sources(self) -> bool:
        """Sign off and answer for sources, retry quarantine, map identities."""
        return self.is_platform or self.is_finance

    @property
    def sees_people(self) -> bool:
        """Users and tokens: whoever runs or checks the ledger, and a tenant's admin its own."""
        return self.sees_all_tenants or bool(self.admin_of)

    @property
    def manages_people(self) -> bool:
        return self.is_finance or bool(self.admin_of)

    def sees_tenant(self, tenant_id: int | None) -> bool:
        return self.sees_all_tenants or (tenant_id is not None and tenant_id in self.tenant_ids)


NOBODY = Access()


def may_give_token(access: Access, role: str, tenant_ids: Collection[int]) -> bool:
    """Whether a person may make, and end, a token that may do this: never more than it may do itself."""
    if access.is_finance:
        return True
    if role in (Role.PLATFORM, Role.INGEST):
        return access.is_platform
    return role in TENANT_ROLES and bool(tenant_ids) and access.admin_of.issuperset(tenant_ids)


def access_of_user(user: Any) -> Access:
    """The access of a signed-in user (one query); NOBODY for anyone else."""
    if isinstance(user, TokenPrincipal):
        return user.access
    if not isinstance(user, User) or not user.is_active or user.must_change_password:
        return NOBODY
    cached: Access | None = getattr(user, "_access", None)
    if cached is None:
        memberships = list(user.memberships.values_list("role", "tenant_id"))
        cached = Access(
            name=user.get_username(),
            roles=frozenset(role for role, tenant in memberships if tenant is None),
            tenant_ids=frozenset(tenant for _, tenant in memberships if tenant is not None),
            admin_of=frozenset(
                tenant for role, tenant in memberships if tenant and role == Role.TENANT_ADMIN
            ),
        )
        user._access = cached  # type: ignore[attr-defined]
    return cached


def access_of_token(token: ApiToken) -> Access:
    """A token carries one role; a tenant role counts for its tenants, any other for the whole ledger."""
    tenants = frozenset(token.tenants.values_list("pk", flat=True))
    if token.role in TENANT_ROLES:
        admin_of = tenants if token.role == Role.TENANT_ADMIN else frozenset()
        return Access(name=f"token:{token.name}", tenant_ids=tenants, admin_of=admin_of)
    sources = frozenset(token.sources.values_list("pk", flat=True)) if token.role == Role.INGEST else None
    return Access(name=f"token:{token.name}", roles=frozenset({token.role}), source_ids=sources or None)


class TokenPrincipal:
    """Stands for a token where Django and DRF expect a user."""

    is_authenticated = True
    is_active = True
    is_anonymous = False
    is_staff = False
    pk = None

    def __init__(self, token: ApiToken) -> None:
        self.token = token
        self.access = access_of_token(token)

    def get_username(self) -> str:
        return self.access.name

    def __str__(self) -> str:
        return self.access.name
