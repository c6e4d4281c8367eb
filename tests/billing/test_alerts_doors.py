"""Alerts over the API and on their pages: who sees what, who may do what, and that no secret comes back."""

from __future__ import annotations

import csv
import io
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from billing.models import Alert, AlertRule, AlertSubscription
from ledger.models import AuditEntry, Membership, Pool, Role, Tenant, User
from tests.billing.level_facts import hour, make_pool, make_tenants
from tests.billing.page_books import alert_of_acme, client_of

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

API = "/api/v1"
TOKEN = "token-in-the-address"
SECRET = "a-very-secret-word"


@pytest.fixture
def pool() -> Pool:
    make_tenants("acme", "gamma")
    return make_pool()


def person(role: Role, tenant: str = "") -> User:
    user = User.objects.create_user(f"{role}-{tenant}")
    Membership.objects.create(
        user=user, role=role, tenant=Tenant.objects.get(holder__slug=tenant) if tenant else None
    )
    return user


def api(role: Role, tenant: str = "") -> APIClient:
    client = APIClient()
    client.force_authenticate(person(role, tenant))
    return client


def drift_of_acme() -> Alert:
    acme = Tenant.objects.get(holder__slug="acme")
    rule = AlertRule.objects.create(name="drift", kind="quota_drift", threshold_micro=0)
    alert = Alert.objects.create(
        rule=rule,
        kind="quota_drift",
        severity="warning",
        subject="tenant:acme#cluster",
        tenant=acme,
        started_at=hour(3),
        opened_at=hour(3),
        last_seen_at=hour(3),
    )
    alert.audience.add(acme)
    return alert


def test_a_list_with_filters_and_as_csv(pool: Pool) -> None:
    short, drift = alert_of_acme(pool), drift_of_acme()
    client = api(Role.PLATFORM)
    found = client.get(f"{API}/alerts/").json()["results"]
    assert [one["id"] for one in found] == [str(drift.pk), str(short.pk)]
    assert found[1]["evidence"] == {"missing": {"value": "12", "unit": "GPU"}}
    assert found[1]["link"] == f"/alerts/{short.pk}/"
    for query, ids in {
        "kind=shortage": [short.pk],
        "kind=shortage,quota_drift&severity=warning": [drift.pk],
        "pool=bj-h100": [short.pk],
        "tenant=acme": [drift.pk],
        "rule=drift": [drift.pk],
        "state=resolved": [],
        "ordering=opened_at": [short.pk, drift.pk],
    }.items():
        results = client.get(f"{API}/alerts/?{query}").json()["results"]
        assert [one["id"] for one in results] == [str(pk) for pk in ids], query
    assert client.get(f"{API}/alerts/?state=shut").status_code == 400
    assert client.get(f"{API}/alerts/?colour=red").status_code == 400
    rows = list(csv.DictReader(io.StringIO(client.get(f"{API}/alerts/?format=csv").content.decode())))
    assert [row["subject"] for row in rows] == ["tenant:acme#cluster", "pool:bj-h100"]


def test_another_tenant_sees_nothing_of_it(pool: Pool) -> None:
    alert, client = alert_of_acme(pool), api(Role.TENANT_ADMIN, "gamma")
    assert client.get(f"{API}/alerts/").json()["results"] == []
    for path in ("", "acknowledge/", "resolve/"):
        theirs, nothing = f"{API}/alerts/{alert.pk}/{path}", f"{API}/alerts/{uuid4()}/{path}"
        answers = [
            client.post(one, {"reason": "x"}, format="json") if path else client.get(one)
            for one in (theirs, nothing)
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].json()["detail"] == answers[1].json()["detail"]


def test_who_may_act(pool: Pool) -> None:
    """Platform on any; a tenant's admin on those about it, not on those of a pool; nobody else, and with a reason."""
    short, drift = alert_of_acme(pool), drift_of_acme()
    body = {"reason": "known"}
    for role, tenant in ((Role.AUDITOR, ""), (Role.TENANT_VIEWER, "acme")):
        assert (
            api(role, tenant).post(f"{API}/alerts/{drift.pk}/resolve/", body, format="json").status_code
            == 403
        )
    admin = api(Role.TENANT_ADMIN, "acme")
    assert admin.post(f"{API}/alerts/{short.pk}/acknowledge/", body, format="json").status_code == 403
    assert admin.post(f"{API}/alerts/{drift.pk}/acknowledge/", {}, format="json").status_code == 400
    answer = admin.post(f"{API}/alerts/{drift.pk}/acknowledge/", body, format="json")
    assert (answer.status_code, answer.json()["state"]) == (200, "acknowledged")
    platform = api(Role.PLATFORM)
    assert (
        platform.post(f"{API}/alerts/{short.pk}/resolve/", body, format="json").json()["state"] == "resolved"
    )
    again = platform.post(f"{API}/alerts/{short.pk}/resolve/", body, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "resolved")


def test_rules(pool: Pool) -> None:
    client, path = api(Role.PLATFORM), f"{API}/alert-rules/"
    body = {"name": "h100 short", "kind": "shortage", "pool": "bj-h100", "threshold": "2.5"}
    made = client.post(path, body, format="json")
    assert (made.status_code, made.json()) == (
        201,
        {
            "name": "h100 short",
            "kind": "shortage",
            "pool": "bj-h100",
            "tenant": None,
            "threshold": "2.5",
            "lasting_s": 0,
            "severity": "critical",
            "enabled": True,
        },
    )
    assert client.post(path, body, format="json").status_code == 409
    for wrong in ({"threshold": "much"}, {"pool": "nowhere"}, {"kind": "weather"}, {"threshold": "-1"}):
        status = 400 if "kind" in wrong else 422
        assert client.post(path, {**body, "name": "x", **wrong}, format="json").status_code == status, wrong
    changed = client.patch(f"{path}h100 short/", {"enabled": False, "threshold": "3"}, format="json")
    assert (changed.json()["enabled"], changed.json()["threshold"]) == (False, "3")
    assert api(Role.AUDITOR).patch(f"{path}h100 short/", {"enabled": True}, format="json").status_code == 403
    assert api(Role.TENANT_ADMIN, "acme").post(path, body, format="json").status_code == 403
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == [
        "create_alert_rule",
        "change_alert_rule",
    ]


def test_subscriptions_keep_their_secrets(pool: Pool) -> None:
    client, path = api(Role.TENANT_ADMIN, "acme"), f"{API}/alert-subscriptions/"
    body: dict[str, Any] = {
        "name": "ops",
        "channel": "webhook",
        "tenant": "acme",
        "url": f"https://hooks.example/{TOKEN}",
        "secret": SECRET,
    }
    made = client.post(path, body, format="json")
    assert made.status_code == 201
    answers = [made, client.get(path), client.get(f"{path}?format=csv")]
    answers.append(client.patch(f"{path}{made.json()['id']}/", {"min_severity": "warning"}, format="json"))
    assert answers[3].status_code == 200
    moved = client.patch(f"{path}{made.json()['id']}/", {"url": "https://evil.example/"}, format="json")
    assert (moved.status_code, moved.json()["code"]) == (422, "needs_secret")
    for answer in answers:
        text = answer.content.decode()
        assert "hooks.example" in text and TOKEN not in text and SECRET not in text
    trail = str(list(AuditEntry.objects.values_list("before", "after")))
    assert TOKEN not in trail and SECRET not in trail
    assert AlertSubscription.objects.get().url.endswith(TOKEN)


def test_who_may_subscribe(pool: Pool) -> None:
    path, url = f"{API}/alert-subscriptions/", "https://hooks.example/"
    body = {"name": "ops", "channel": "webhook", "url": url}
    admin = api(Role.TENANT_ADMIN, "acme")
    for tenant in (None, "gamma", "nobody"):
        assert admin.post(path, {**body, "tenant": tenant}, format="json").status_code == 422
    for wrong in ({"url": "file:///etc/passwd"}, {"url": "http://u:p@x/"}, {"channel": "email"}, {"url": ""}):
        status = admin.post(path, {**body, "tenant": "acme", **wrong}, format="json").status_code
        assert status == (400 if wrong == {"url": ""} else 422), wrong
    assert api(Role.FINANCE).post(path, body, format="json").status_code == 201
    assert admin.get(path).json()["results"] == []
    own = AlertSubscription.objects.get()
    assert admin.patch(f"{path}{own.pk}/", {"enabled": False}, format="json").status_code == 404
    assert api(Role.AUDITOR).patch(f"{path}{own.pk}/", {"enabled": False}, format="json").status_code == 403
    assert (
        api(Role.TENANT_VIEWER, "acme").post(path, {**body, "tenant": "acme"}, format="json").status_code
        == 403
    )


PRIVATE = (
    "http://127.0.0.1:9093/",
    "http://10.2.3.4/",
    "https://[::1]/",
    "http://localhost/",
    "http://2130706433/",
)


def test_an_address_that_delivery_would_refuse_is_not_saved(pool: Pool, settings: Any) -> None:
    """By the rule that delivery goes by; what cannot be looked up now may be found later."""
    settings.WEBHOOK_PRIVATE_NETWORKS = []
    client, page, path = api(Role.FINANCE), client_of(person(Role.PLATFORM)), f"{API}/alert-subscriptions/"
    asked = {"name": "ops", "channel": "webhook", "url": "https://nobody-knows.invalid/"}
    made = client.post(path, asked, format="json")
    assert made.status_code == 201
    own = f"{path}{made.json()['id']}/"
    form = {"deed": "subscribe", "name": "x", "channel": "alertmanager"}
    for url in PRIVATE:
        for answer in (
            client.post(path, {**asked, "name": "x", "url": url}, format="json"),
            client.patch(own, {"url": url}, format="json"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "private_url"), url
            assert "LEDGER_WEBHOOK_PRIVATE_NETWORKS" in answer.json()["detail"]
        refused = page.post("/alerts/", {**form, "reach": url})
        assert refused.status_code == 422, url
        body = refused.content.decode()
        assert "LEDGER_WEBHOOK_PRIVATE_NETWORKS" in body and url not in body
        assert 'maxlength="100" value="x"' in body and '<option value="alertmanager" selected>' in body
    assert AlertSubscription.objects.get().url == asked["url"]
    settings.WEBHOOK_PRIVATE_NETWORKS = ["127.0.0.0/8"]
    assert client.patch(own, {"url": PRIVATE[0]}, format="json").status_code == 200
    # Where the setting was narrowed since, it can be switched off, and not on again.
    settings.WEBHOOK_PRIVATE_NETWORKS = []
    off, on = (client.patch(own, {"enabled": value}, format="json").status_code for value in (False, True))
    assert (off, on) == (200, 422)


def test_the_page_and_its_forms(pool: Pool) -> None:
    alert = alert_of_acme(pool)
    client = client_of(person(Role.PLATFORM))
    body = client.get("/alerts/").content.decode()
    assert f'href="/alerts/{alert.pk}/"' in body and "Missing 12 GPUs" in body
    assert '<span class="badge"><span class="visually-hidden">open: </span>1</span>' in body
    refused = client.post(f"/alerts/{alert.pk}/", {"deed": "acknowledge", "reason": " "})
    assert (refused.status_code, "Give a reason." in refused.content.decode()) == (422, True)
    assert client.post(f"/alerts/{alert.pk}/", {"deed": "acknowledge", "reason": "on it"}).status_code == 303
    assert (Alert.objects.get().state, Alert.objects.get().note) == ("acknowledged", "on it")
    assert 'class="badge"' not in client.get("/alerts/").content.decode()
    changed = {"deed": "rule", "rule": "shortage", "threshold": "4", "enabled": "1", "severity": ""}
    assert client.post("/alerts/", changed).status_code == 303
    assert AlertRule.objects.get().threshold_micro == 4_000_000
    subscribe = {
        "deed": "subscribe",
        "name": "ops",
        "channel": "email",
        "reach": "a@example.com, b@example.com",
    }
    assert client.post("/alerts/", subscribe).status_code == 303
    assert AlertSubscription.objects.get().addresses == ["a@example.com", "b@example.com"]
    switch = {"deed": "switch", "subscription": str(AlertSubscription.objects.get().pk)}
    assert client.post("/alerts/", switch).status_code == 303
    assert not AlertSubscription.objects.get().enabled
    assert client.post(f"/alerts/{alert.pk}/", {"deed": "resolve", "reason": "done"}).status_code == 303
    assert client.get("/alerts/?csv=history").getvalue().decode().splitlines()[1].startswith("shortage,")


def test_what_a_tenant_may_do_on_the_page(pool: Pool) -> None:
    alert = alert_of_acme(pool)
    admin, viewer = (client_of(person(role, "acme")) for role in (Role.TENANT_ADMIN, Role.TENANT_VIEWER))
    assert admin.post(f"/alerts/{alert.pk}/", {"deed": "resolve", "reason": "x"}).status_code == 403
    assert admin.post("/alerts/", {"deed": "rule", "rule": "shortage"}).status_code == 403
    form = {
        "deed": "subscribe",
        "name": "ops",
        "channel": "slack",
        "reach": "https://x.example/",
        "tenant": "acme",
    }
    assert viewer.post("/alerts/", form).status_code == 403
    assert admin.post("/alerts/", {**form, "tenant": "gamma"}).status_code == 404
    assert admin.post("/alerts/", {**form, "tenant": ""}).status_code == 404
    assert admin.post("/alerts/", form).status_code == 303
    assert [one.tenant and one.tenant.slug for one in AlertSubscription.objects.all()] == ["acme"]
    assert client_of(person(Role.TENANT_ADMIN, "gamma")).get(f"/alerts/{alert.pk}/").status_code == 404
