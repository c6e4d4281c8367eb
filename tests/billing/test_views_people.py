"""Users and tokens: who may see and do what to whom, and what cannot be got around."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import Approval
from ledger.models import ApiToken, AuditEntry, Membership, Role, Tenant, User
from ledger.services.masters import ensure_books
from ledger.services.tokens import create_api_token
from tests.billing.level_facts import make_tenants
from tests.billing.page_books import PASSWORD, client_of, make_people

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

USERS = "/settings/users/"


@pytest.fixture
def people() -> dict[str, User]:
    ensure_books()
    make_tenants("acme", "beta", "delta", "gamma")
    people = make_people()
    other = User.objects.create_user("finance-2", password=PASSWORD)
    Membership.objects.create(user=other, role=Role.FINANCE)
    return {**people, "finance-2": other}


def _tenant(slug: str) -> Tenant:
    return Tenant.objects.get(holder__slug=slug)


def _page(user: User) -> str:
    return f"{USERS}{user.pk}/"


def _secret(response: Any) -> str:
    found = re.search(r'class="secret">([^<]+)<', response.content.decode())
    assert found is not None, response.content.decode()[-2000:]
    return found.group(1)


def _sign_in(name: str, password: str) -> Client:
    client = Client()
    assert client.post("/login/", {"username": name, "password": password}).status_code == 302
    return client


def _roles(user: User) -> set[tuple[str, str | None]]:
    return set(user.memberships.values_list("role", "tenant__holder__slug"))


def _names(client: Client, table: str) -> set[str]:
    key = "username" if table == "users" else "name"
    return {getattr(row, key) for row in client.get(USERS).context["tables"][table].shown}


def test_a_new_user_gets_in_with_a_password_of_its_own_only(people: dict[str, User]) -> None:
    admin = client_of(people["admin-of-acme"])
    form = {"deed": "user", "name": "ann", "email": "ann@acme.example", "role": "tenant_viewer"}
    response = admin.post(USERS, {**form, "tenant": "acme"})
    assert (response.status_code, response["Cache-Control"]) == (200, "no-store")
    handed_over = _secret(response)
    assert handed_over not in admin.get(USERS).content.decode()
    ann = _sign_in("ann", handed_over)
    for path in ("/", "/months/", "/budgets/"):
        assert ann.get(path)["Location"] == "/password/"
    assert ann.get("/api/v1/tenants/").status_code in (403, 404)
    chosen = {"old_password": handed_over, "new_password1": "12", "new_password2": "12"}
    assert ann.post("/password/", chosen).status_code == 200
    chosen |= {"new_password1": "my own long one", "new_password2": "my own long one"}
    assert ann.post("/password/", chosen).status_code == 302
    assert ann.get("/months/").status_code == 200
    assert _roles(User.objects.get(username="ann")) == {("tenant_viewer", "acme")}
    deeds = AuditEntry.objects.filter(object_id="ann").order_by("pk").values_list("actor", "action")
    assert list(deeds) == [
        ("admin-of-acme", "create_user"),
        ("admin-of-acme", "change_roles"),
        ("ann", "change_password"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "viewer-of-gamma"},
        {"name": "VIEWER-of-gamma"},
        {"name": "system"},
        {"name": "token:gate"},
        {"name": "a" * 151},
        {"name": "\x00"},
        {"email": "no address"},
        {"role": "finance"},
        {"role": "platform"},
        {"role": ""},
        {"tenant": "gamma"},
        {"tenant": "nobody"},
        {"tenant": ""},
    ],
)
def test_an_admin_makes_nobody_beyond_its_tenant(people: dict[str, User], wrong: dict[str, str]) -> None:
    form = {"deed": "user", "name": "ann", "role": "tenant_viewer", "tenant": "acme", **wrong}
    response = client_of(people["admin-of-acme"]).post(USERS, form)
    assert response.status_code == 422
    assert 'role="alert"' in response.content.decode()
    assert User.objects.count() == len(people)


def test_an_admin_knows_its_own_people_and_tokens_only(people: dict[str, User]) -> None:
    both = User.objects.create_user("of-both", password=PASSWORD)
    for slug in ("acme", "gamma"):
        Membership.objects.create(user=both, role=Role.TENANT_VIEWER, tenant=_tenant(slug))
    create_api_token("of-acme", Role.TENANT_VIEWER, tenants=[_tenant("acme")])
    create_api_token("of-two", Role.TENANT_VIEWER, tenants=[_tenant("acme"), _tenant("gamma")])
    of_ledger, _secret_of_it = create_api_token("of-ledger", Role.AUDITOR)
    admin = client_of(people["admin-of-acme"])
    assert _names(admin, "users") == {"admin-of-acme", "viewer-of-acme", "of-both"}
    assert _names(admin, "tokens") == {"of-acme"}
    for address in (USERS, _page(both), f"{USERS}?csv=users", f"{USERS}?csv=tokens"):
        assert "gamma" not in admin.get(address).getvalue().decode()
    assert admin.get(f"{USERS}?users.tenant=gamma").context["tables"]["users"].shown == []
    assert admin.get(f"{USERS}?users.roles=finance").context["tables"]["users"].shown == []
    found = admin.get(f"{USERS}?users.tenant=acme&users.roles=tenant_admin").context["tables"]["users"].shown
    assert [user.username for user in found] == ["admin-of-acme"]
    for hidden in (_page(people["viewer-of-gamma"]), f"/settings/tokens/{of_ledger.pk}/"):
        assert admin.get(hidden).status_code == 404
        assert admin.post(hidden, {"deed": "revoke"}).status_code == 404
    # The account is not acme's to end while gamma's role stands; acme's own role is.
    assert admin.post(_page(both), {"deed": "end"}).status_code == 403
    assert admin.post(_page(both), {"deed": "password"}).status_code == 403
    of_gamma = both.memberships.get(tenant=_tenant("gamma"))
    assert admin.post(_page(both), {"deed": "take", "membership": of_gamma.pk}).status_code == 422
    of_acme = both.memberships.get(tenant=_tenant("acme"))
    response = admin.post(_page(both), {"deed": "take", "membership": of_acme.pk})
    assert (response.status_code, response["Location"]) == (303, USERS)
    assert _roles(both) == {("tenant_viewer", "gamma")}


def test_whoever_may_not_manage_only_looks(people: dict[str, User]) -> None:
    before = (User.objects.count(), ApiToken.objects.count(), Membership.objects.count())
    new = {"deed": "user", "name": "eve", "role": "auditor"}
    token = {"deed": "token", "name": "eve", "role": "auditor", "days": "3"}
    for name in ("auditor", "platform"):
        client = client_of(people[name])
        assert client.get(USERS).status_code == 200
        assert client.post(USERS, new).status_code == 403
        assert client.post(USERS, token).status_code in (403, 422)
        assert client.post(_page(people["viewer-of-acme"]), {"deed": "end"}).status_code == 403
    for name in ("viewer-of-acme", "nobody"):
        assert client_of(people[name]).post(USERS, new).status_code == 404
    assert before == (User.objects.count(), ApiToken.objects.count(), Membership.objects.count())
    assert User.objects.filter(is_active=False).count() == 0


def test_the_role_of_finance_needs_a_second_person(people: dict[str, User]) -> None:
    finance, other, wanted = (people[name] for name in ("finance", "finance-2", "nobody"))
    form = {"deed": "give", "role": "finance", "reason": ""}
    assert client_of(finance).post(_page(wanted), form).status_code == 422
    assert client_of(finance).post(_page(wanted), {**form, "reason": "joins us"}).status_code == 303
    assert _roles(wanted) == set()
    approval = Approval.objects.get()
    assert "nobody gets the role Finance" in client_of(other).get("/settings/").content.decode()
    decision = {"approval": str(approval.pk), "decision": "approved"}
    assert client_of(finance).post("/settings/", decision).status_code == 422
    assert client_of(other).post("/settings/", decision).status_code == 303
    assert _roles(wanted) == {("finance", None)}
    entry = AuditEntry.objects.get(action="change_roles")
    assert (entry.actor, entry.object_id, entry.reason) == ("finance", "nobody", "joins us")


def test_nobody_comes_to_act_as_a_second_person(people: dict[str, User]) -> None:
    finance = client_of(people["finance"])
    hash_before = people["finance-2"].password
    assert finance.post(_page(people["finance-2"]), {"deed": "password"}).status_code == 422
    assert User.objects.get(username="finance-2").password == hash_before
    for deed in ("end", "password"):
        assert finance.post(_page(people["finance"]), {"deed": deed}).status_code == 422
    own = {"deed": "give", "role": "platform"}
    assert finance.post(_page(people["finance"]), own).status_code == 422
    root = User.objects.create_superuser("root", password=PASSWORD)
    for deed in ("end", "password", "give"):
        assert finance.post(_page(root), {"deed": deed, "role": "auditor"}).status_code == 422
    assert _roles(root) == set()


def test_an_ended_account_is_out_and_so_are_its_tokens(people: dict[str, User]) -> None:
    viewer = people["viewer-of-acme"]
    Membership.objects.create(user=viewer, role=Role.PLATFORM)
    signed_in = client_of(viewer)
    _reads, reads = create_api_token("reads", Role.PLATFORM, created_by=viewer)
    _sends, sends = create_api_token("sends", Role.INGEST, created_by=viewer)
    finance = client_of(people["finance"])
    assert finance.post(_page(viewer), {"deed": "end", "reason": "left"}).status_code == 303
    assert signed_in.get("/months/").status_code == 302
    assert Client().post("/login/", {"username": viewer.username, "password": PASSWORD}).status_code == 200
    assert [_opens(reads), _opens(sends)] == [401, 403]
    assert finance.post(_page(viewer), {"deed": "open"}).status_code == 303
    assert _sign_in(viewer.username, PASSWORD).get("/months/").status_code == 200
    actions = AuditEntry.objects.order_by("pk").values_list("action", "reason")
    assert ("deactivate_user", "left") in list(actions)


def test_a_role_that_goes_takes_the_tokens_that_needed_it(people: dict[str, User]) -> None:
    admin = people["admin-of-acme"]
    _token, secret = create_api_token(
        "bills", Role.TENANT_VIEWER, tenants=[_tenant("acme")], created_by=admin
    )
    membership = admin.memberships.get()
    response = client_of(people["finance"]).post(_page(admin), {"deed": "take", "membership": membership.pk})
    assert response.status_code == 303
    assert _opens(secret) == 401


def _opens(secret: str) -> int:
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return int(api.get("/api/v1/tenants/").status_code)


def test_a_new_password_signs_out_and_opens_nothing_else(people: dict[str, User]) -> None:
    viewer = people["viewer-of-acme"]
    signed_in = client_of(viewer)
    password = _secret(client_of(people["admin-of-acme"]).post(_page(viewer), {"deed": "password"}))
    assert signed_in.get("/months/")["Location"].startswith("/login/")
    assert _sign_in(viewer.username, password).get("/months/")["Location"] == "/password/"


def test_a_token_is_shown_once_and_ends_at_a_click(people: dict[str, User]) -> None:
    admin = client_of(people["admin-of-acme"])
    form = {"deed": "token", "name": "bills", "role": "tenant_viewer", "tenants": ["acme"], "days": "30"}
    response = admin.post(USERS, form)
    secret, token = _secret(response), ApiToken.objects.get()
    assert response["Cache-Control"] == "no-store"
    assert secret.startswith(token.prefix)
    assert timedelta(days=29) < token.expires_at - timezone.now() <= timedelta(days=30)
    assert (token.created_by, _opens(secret)) == (people["admin-of-acme"], 200)
    page = f"/settings/tokens/{token.pk}/"
    assert secret not in admin.get(page).content.decode() + str(list(AuditEntry.objects.values()))
    assert admin.post(USERS, form).status_code == 422  # also what a second press of the button is answered
    assert admin.post(page, {"deed": "revoke", "reason": "replaced"}).status_code == 303
    assert _opens(secret) == 401
    assert admin.post(page, {"deed": "revoke"}).status_code == 422
    assert admin.get(f"{USERS}?tokens.state=revoked").context["tables"]["tokens"].count == 1
    assert admin.get(f"{USERS}?tokens.state=in+use").context["tables"]["tokens"].count == 0
    deeds = AuditEntry.objects.filter(object_type="api_token").values_list("actor", "action")
    assert set(deeds) == {("admin-of-acme", "create_api_token"), ("admin-of-acme", "revoke_api_token")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "n" * 101},
        {"role": "auditor"},
        {"role": "finance"},
        {"tenants": ["gamma"]},
        {"tenants": ["acme", "gamma"]},
        {"tenants": []},
        {"sources": ["x"]},
        {"days": ""},
        {"days": "0"},
        {"days": "3651"},
        {"days": "1e3"},
        {"days": "٣"},
    ],
)
def test_no_token_goes_beyond_its_maker(people: dict[str, User], wrong: dict[str, Any]) -> None:
    form = {"deed": "token", "name": "bills", "role": "tenant_admin", "tenants": ["acme"], "days": "3"}
    response = client_of(people["admin-of-acme"]).post(USERS, {**form, **wrong})
    assert response.status_code == 422
    assert ApiToken.objects.count() == 0


def test_platform_makes_and_ends_tokens_of_its_own_kind(people: dict[str, User]) -> None:
    platform = client_of(people["platform"])
    form = {"deed": "token", "name": "gateway", "role": "ingest", "days": "365"}
    assert platform.post(USERS, form).status_code == 200
    token = ApiToken.objects.get()
    of_money, _secret_of_it = create_api_token("money", Role.FINANCE)
    assert platform.post(f"/settings/tokens/{of_money.pk}/", {"deed": "revoke"}).status_code == 403
    assert platform.post(f"/settings/tokens/{token.pk}/", {"deed": "revoke"}).status_code == 303
    auditor = client_of(people["auditor"])
    assert auditor.get(f"/settings/tokens/{of_money.pk}/").status_code == 200
    assert auditor.post(f"/settings/tokens/{of_money.pk}/", {"deed": "revoke"}).status_code == 403
    assert ApiToken.objects.get(pk=of_money.pk).revoked_at is None


@pytest.mark.parametrize("form", [{}, {"deed": "x"}, {"deed": "take", "membership": "x"}, {"deed": "give"}])
def test_nonsense_changes_nothing(people: dict[str, User], form: dict[str, str]) -> None:
    finance = client_of(people["finance"])
    for address in (USERS, _page(people["viewer-of-acme"])):
        assert finance.post(address, form).status_code in (404, 422)
    assert finance.get("/settings/users/99999999999999999999/").status_code == 404
    assert AuditEntry.objects.filter(object_type="user").count() == 0


def test_the_lists_do_not_ask_once_per_row(
    people: dict[str, User], django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        user = User.objects.create_user(f"u-{number}")
        Membership.objects.create(user=user, role=Role.TENANT_VIEWER, tenant=_tenant("acme"))
        create_api_token(f"t-{number}", Role.TENANT_VIEWER, tenants=[_tenant("acme")], created_by=user)
    client = client_of(people["finance"])
    with django_assert_max_num_queries(25):
        client.get(USERS)
