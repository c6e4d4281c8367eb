"""The demo month's accounts: shown as long as anybody could know their password, and never made over real ones."""

import pytest

from ledger.demo_logins import DEMO_PASSWORD, demo_logins
from ledger.models import Holder, HolderKind, Membership, Tenant, User
from ledger.services.demo_users import create_demo_users

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def tenants() -> None:
    for slug in ("research", "assistant"):
        holder = Holder.objects.create(kind=HolderKind.TENANT, slug=slug)
        Tenant.objects.create(holder=holder, name=slug.title())


def test_every_role_of_a_person_has_logins_however_often_they_are_asked_for() -> None:
    assert create_demo_users() and create_demo_users()
    assert [(login.role, login.username) for login in demo_logins()] == [
        ("Finance", "finance"),
        ("Finance", "finance2"),
        ("Platform", "platform"),
        ("Auditor", "auditor"),
        ("Tenant Admin", "tenantadmin"),
        ("Tenant Viewer", "viewer"),
    ]
    assert Membership.objects.count() == 6


def test_an_account_whose_password_was_changed_is_not_shown() -> None:
    create_demo_users()
    finance = User.objects.get(username="finance")
    assert finance.check_password(DEMO_PASSWORD)
    finance.set_password("something else entirely")
    finance.save()
    assert "finance" not in [login.username for login in demo_logins()]


def test_a_ledger_with_accounts_of_its_own_gets_none() -> None:
    User.objects.create_user("ann", password="correct horse battery")
    assert not create_demo_users()
    assert demo_logins() == []
