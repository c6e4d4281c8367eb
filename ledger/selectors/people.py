"""Which users and tokens somebody may know of and manage (interfaces.md, Roles).

Whoever runs or checks the ledger sees all of them. A tenant's admin sees the users that have a role of its tenants,
with those roles alone, and the tokens that are for its tenants and for nobody else.
"""

from __future__ import annotations

from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone

from ledger.access import Access, may_give_token
from ledger.models import ApiToken, Membership, Role, Tenant, User
from ledger.models.access import TENANT_ROLES
from ledger.querysets import visible_to

OF_THE_LEDGER = (Role.AUDITOR, Role.PLATFORM, Role.FINANCE)
OF_A_TENANT = (Role.TENANT_VIEWER, Role.TENANT_ADMIN)
TOKEN_STATES = ("in use", "expired", "revoked")


def memberships_for(access: Access) -> QuerySet[Membership]:
    rows = Membership.objects.select_related("tenant__holder").order_by("role", "tenant__holder__slug")
    return rows if access.sees_all_tenants else rows.filter(tenant__in=access.admin_of)


def users_for(access: Access) -> QuerySet[User]:
    """In order of name, each with `memberships` as far as the asker may know of them."""
    mine = memberships_for(access)
    rows = User.objects.order_by("username")
    if not access.sees_all_tenants:
        rows = rows.filter(pk__in=mine.order_by().values("user"))
    return rows.prefetch_related(Prefetch("memberships", queryset=mine))


def users_with(rows: QuerySet[User], access: Access, condition: Q) -> QuerySet[User]:
    """Of these those that have a role, within what the asker may know of, for which the condition holds."""
    return rows.filter(pk__in=memberships_for(access).filter(condition).order_by().values("user"))


def tokens_for(access: Access) -> QuerySet[ApiToken]:
    """Newest first, with what each may do."""
    rows = ApiToken.objects.select_related("created_by").order_by("-pk")
    if not access.sees_all_tenants:
        of_others = ApiToken.tenants.through.objects.exclude(tenant__in=access.admin_of).values("apitoken")
        of_mine = ApiToken.tenants.through.objects.filter(tenant__in=access.admin_of).values("apitoken")
        rows = rows.filter(role__in=TENANT_ROLES, pk__in=of_mine).exclude(pk__in=of_others)
    return rows.prefetch_related("tenants__holder", "sources")


def tokens_in_state(rows: QuerySet[ApiToken], state: str) -> QuerySet[ApiToken]:
    is_over = Q(expires_at__lte=timezone.now())
    if state == "revoked":
        return rows.filter(revoked_at__isnull=False)
    rows = rows.filter(revoked_at=None)
    return rows.filter(is_over) if state == "expired" else rows.exclude(is_over)


def token_state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    is_over = token.expires_at is not None and token.expires_at <= timezone.now()
    return "expired" if is_over else "in use"


def tenants_to_give(access: Access) -> list[Tenant]:
    """Of which the asker gives out roles and tokens."""
    rows = visible_to(Tenant.objects.select_related("holder").order_by("holder__slug"), access)
    if access.is_finance:
        return list(rows)
    return list(rows.filter(pk__in=access.admin_of)) if access.admin_of else []


def roles_to_give(access: Access) -> list[Role]:
    """Roles of people, the least first; finance also needs a second person for its own."""
    if access.is_finance:
        return [*OF_A_TENANT, *OF_THE_LEDGER]
    return list(OF_A_TENANT) if access.admin_of else []


def token_roles_to_give(access: Access) -> list[Role]:
    least_first = (*OF_A_TENANT, Role.INGEST, *OF_THE_LEDGER)
    return [role for role in least_first if may_give_token(access, role, access.admin_of)]


def may_take(access: Access, membership: Membership) -> bool:
    return access.is_finance or membership.tenant_id in access.admin_of


def may_manage(access: Access, user: User) -> bool:
    """Whether the account as a whole is the asker's to end or to open: not while it has a role elsewhere."""
    if access.is_finance:
        return True
    rows = Membership.objects.filter(user=user)
    elsewhere = rows.filter(Q(tenant=None) | ~Q(tenant__in=access.admin_of))
    return bool(access.admin_of) and rows.exists() and not elsewhere.exists()


def may_end_token(access: Access, token: ApiToken) -> bool:
    return may_give_token(access, token.role, {tenant.pk for tenant in token.tenants.all()})
