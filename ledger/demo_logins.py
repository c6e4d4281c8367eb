"""Accounts of the demo month, one per role: made once, printed by `quickstart`."""

import functools
from dataclasses import dataclass

from django.contrib.auth.hashers import check_password, make_password
from django.db import transaction

from ledger.models import Membership, Role, Tenant, User

DEMO_PASSWORD = "demo-ledger"


@dataclass(frozen=True)
class DemoLogin:
    role: str
    username: str
    password: str


# User name by role; the tenant roles belong to one tenant of the demo.
USERNAMES = {
    Role.FINANCE: "finance",
    Role.PLATFORM: "platform",
    Role.AUDITOR: "auditor",
    Role.TENANT_ADMIN: "tenant-admin",
    Role.TENANT_VIEWER: "tenant",
}


@transaction.atomic
def make_demo_logins(tenant: Tenant) -> None:
    """Create the accounts that are missing, the tenant roles for `tenant`; safe to repeat."""
    hashed = make_password(DEMO_PASSWORD)  # once for all: hashing is slow by design
    for role, username in USERNAMES.items():
        user, _ = User.objects.get_or_create(username=username, defaults={"password": hashed})
        is_tenant_role = role in {Role.TENANT_ADMIN, Role.TENANT_VIEWER}
        Membership.objects.get_or_create(user=user, role=role, tenant=tenant if is_tenant_role else None)


def demo_logins() -> list[DemoLogin]:
    """The accounts of each role that still have the demo password, by role."""
    logins = []
    is_demo_password = functools.cache(functools.partial(check_password, DEMO_PASSWORD))
    for role in Role:
        members = Membership.objects.filter(role=role, user__is_active=True).order_by("user_id")
        # A real ledger has many accounts: those made first are looked at, as checking a password is slow by design.
        for user in User.objects.filter(id__in=members.values("user_id")[:2]).order_by("id"):
            if is_demo_password(user.password):
                logins.append(DemoLogin(str(role.label), user.username, DEMO_PASSWORD))
    return logins
