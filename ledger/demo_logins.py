"""The demo month's accounts as long as they have the password that everybody knows, for `quickstart` to print."""

import functools
from dataclasses import dataclass

from django.contrib.auth.hashers import check_password

from ledger.models import Membership, Role, User

DEMO_PASSWORD = "demo-ledger"


@dataclass(frozen=True)
class DemoLogin:
    role: str
    username: str
    password: str


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
