"""Accounts of the demo month, one per role; `load_demo_month` makes them, `quickstart` prints them."""

from dataclasses import dataclass

from ledger.models import Membership, Role, User

DEMO_PASSWORD = "demo-ledger"


@dataclass(frozen=True)
class DemoLogin:
    role: str
    username: str
    password: str


def demo_logins() -> list[DemoLogin]:
    """The first account of each role that still has the demo password; costs one hash per role."""
    logins = []
    for role in Role:
        members = Membership.objects.filter(role=role, user__is_active=True).order_by("user_id")
        user = User.objects.filter(id__in=members.values("user_id")[:1]).first()
        if user is not None and user.check_password(DEMO_PASSWORD):
            logins.append(DemoLogin(str(role.label), user.username, DEMO_PASSWORD))
    return logins
