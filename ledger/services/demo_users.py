"""Accounts for the demo month, one per role (two of finance), with a password that everybody knows."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from ledger.demo_logins import DEMO_PASSWORD
from ledger.models import Membership, Role, Tenant, User


@dataclass(frozen=True)
class DemoUser:
    """tenant: slug of the one tenant that a tenant role sees."""

    username: str
    role: Role
    tenant: str = ""


# The viewer's tenant is the one that others preempt most, the admin's is the one that preempts.
DEMO_USERS = (
    DemoUser("finance", Role.FINANCE),
    # What one person in finance proposes, another one approves.
    DemoUser("finance2", Role.FINANCE),
    DemoUser("platform", Role.PLATFORM),
    DemoUser("auditor", Role.AUDITOR),
    DemoUser("viewer", Role.TENANT_VIEWER, "research"),
    DemoUser("tenantadmin", Role.TENANT_ADMIN, "assistant"),
)


@transaction.atomic
def create_demo_users() -> bool:
    """Make the demo accounts, unless somebody has an account already; returns whether they are there now.

    A ledger with accounts of its own may hold real data: a password that everybody knows must not open it.
    """
    names = {demo.username for demo in DEMO_USERS}
    if User.objects.exclude(username__in=names).exists():
        return False
    for demo in DEMO_USERS:
        user, is_new = User.objects.get_or_create(
            username=demo.username, defaults={"email": f"{demo.username}@example.com"}
        )
        if is_new:
            user.set_password(DEMO_PASSWORD)
            user.save(update_fields=["password"])
            tenant = Tenant.objects.get(holder__slug=demo.tenant) if demo.tenant else None
            Membership.objects.create(user=user, role=demo.role, tenant=tenant)
    return True
