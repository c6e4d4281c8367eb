"""What stands around every page: search, zone, preferences, signing in; and what a page costs with more tenants."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from billing.models import Statement, StatementLine
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.models import (
    Ledger,
    User,
)
from tests.billing.level_facts import hour, identity, make_tenants, occupancy
from tests.billing.page_books import (
    HOURS_OF_OCTOBER,
    MONTH,
    NEXT_MONTH,
    PASSWORD,
    Books,
    client_of,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_search_finds_what_one_may_see(books: Books, finance: Client, people: dict[str, User]) -> None:
    found = finance.get("/search/", {"q": "wl-3"}).context["found"]
    assert [row["workload"] for row in found.workloads] == ["wl-3"]
    assert [record.preemption for record in found.preemptions] == ["wl-3/4"]
    assert [t.slug for t in finance.get("/search/", {"q": "Gam"}).context["found"].tenants] == ["gamma"]
    gamma = client_of(people["viewer-of-gamma"])
    assert [row["workload"] for row in gamma.get("/search/", {"q": "wl-"}).context["found"].workloads] == [
        "wl-3"
    ]


def test_instants_are_shown_in_the_chosen_zone(books: Books, finance: Client) -> None:
    Ledger.objects.update(billing_time_zone="Asia/Shanghai")
    path = f"/preemptions/{books.record.pk}/"
    assert "2026-10-01 12:00:00" in finance.get(path).context["story"]
    finance.post("/preferences/", {"zone": "utc", "next": path})
    page = finance.get(path)
    assert "2026-10-01 04:00:00" in page.context["story"]
    assert 'title="2026-10-01 04:00:00 UTC"' in page.content.decode()


def test_preferences_stay_and_lead_back(people: dict[str, User], finance: Client) -> None:
    response = finance.post("/preferences/", {"language": "zh-hans", "theme": "dark", "next": "/months/"})
    assert (response.status_code, response.headers["Location"]) == (302, "/months/")
    page = finance.get("/months/").content.decode()
    assert 'lang="zh-hans" data-theme="dark"' in page
    assert "2026年10月" in page
    people["finance"].refresh_from_db()
    assert people["finance"].language == "zh-hans"
    for bad in ("https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"):
        assert finance.post("/preferences/", {"next": bad}).headers["Location"] == "/"


def test_sign_in_leads_each_role_to_its_page(people: dict[str, User]) -> None:
    expected = {
        "finance": "/months/",
        "auditor": "/months/",
        "platform": "/cluster/",
        "viewer-of-acme": f"/months/{MONTH}/statements/acme/",
        "nobody": "/",
    }
    for name, path in expected.items():
        client = Client()
        response = client.post("/login/", {"username": name, "password": PASSWORD}, follow=True)
        assert (response.status_code, response.request["PATH_INFO"]) == (200, path)
    assert Client().post("/login/", {"username": "finance", "password": "wrong"}).context["form"].errors
    assert finance_signs_out(people["finance"]) == 302


def test_a_month_that_has_only_begun_is_not_what_a_tenant_comes_for(
    books: Books, people: dict[str, User]
) -> None:
    StatementLine.objects.filter(statement__period=NEXT_MONTH).delete()
    home = client_of(people["viewer-of-acme"]).get("/")
    assert home["Location"] == f"/months/{MONTH}/statements/acme/"


def finance_signs_out(user: User) -> int:
    client = client_of(user)
    assert client.get("/logout/").status_code == 405
    client.post("/logout/")
    return client.get("/months/").status_code


def test_a_page_costs_the_same_with_more_tenants(books: Books, finance: Client) -> None:
    paths = [
        "/months/",
        f"/months/{MONTH}/",
        f"/months/{MONTH}/closing/",
        f"/months/{MONTH}/platform/",
        f"/months/{MONTH}/lending/",
        f"/months/{MONTH}/preemptions/",
        f"/months/{MONTH}/statements/gamma/",
        "/cluster/",
        f"/pools/{books.pool.slug}/",
        "/ingest/",
        "/search/?q=t",
    ]
    before = {path: queries_of(finance, path) for path in paths}
    for number, tenant in enumerate(make_tenants(*[f"tenant-{n}" for n in range(12)])):
        occupancy(books.pool, f"w{number}", identity(tenant.slug), hour(number % 9), 100)
        occupancy(books.pool, f"w{number}", identity(tenant.slug), hour(10), 0)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    assert Statement.objects.filter(period=MONTH).count() == 16
    assert {path: queries_of(finance, path) for path in paths} == before
    # The checklist looks at everything that a close looks at, and is fetched after the month's page.
    assert before.pop(f"/months/{MONTH}/closing/") <= 47
    assert max(before.values()) <= 43


def queries_of(client: Client, path: str) -> int:
    client.get(path)  # what is remembered between requests is remembered now
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(path).status_code == 200
    return len(captured)
