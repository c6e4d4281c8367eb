"""One account per role for whoever looks at the demo month."""

import pytest

from ledger.demo_logins import DEMO_PASSWORD, demo_logins, make_demo_logins
from ledger.models import Holder, HolderKind, Membership, Tenant, User


@pytest.mark.django_db
def test_every_role_of_a_person_gets_one_login_however_often_it_is_asked_for() -> None:
    tenant = Tenant.objects.create(
        holder=Holder.objects.create(kind=HolderKind.TENANT, slug="acme"), name="Acme"
    )
    make_demo_logins(tenant)
    make_demo_logins(tenant)
    assert [(login.role, login.username) for login in demo_logins()] == [
        ("Finance", "finance"),
        ("Platform", "platform"),
        ("Auditor", "auditor"),
        ("Tenant Admin", "tenant-admin"),
        ("Tenant Viewer", "tenant"),
    ]
    assert Membership.objects.filter(tenant=tenant).count() == 2


@pytest.mark.django_db
def test_an_account_whose_password_was_changed_is_not_shown() -> None:
    tenant = Tenant.objects.create(
        holder=Holder.objects.create(kind=HolderKind.TENANT, slug="acme"), name="Acme"
    )
    make_demo_logins(tenant)
    finance = User.objects.get(username="finance")
    assert finance.check_password(DEMO_PASSWORD)
    finance.set_password("something else entirely")
    finance.save()
    assert "finance" not in [login.username for login in demo_logins()]
