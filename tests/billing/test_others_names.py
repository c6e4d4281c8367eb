"""What a tenant can search, filter and sort by never finds rows by what others are really called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse

from billing.models import LendingDay, Policy
from ledger.api.views import ListView
from ledger.models import Holder, Tenant, User
from ledger.views.tables import BoundTable
from tests.billing.page_books import MONTH, Books, client_of
from tests.billing.test_api_access import OPERATIONS, address
from tests.billing.test_api_access import RULES as API_RULES
from tests.billing.test_api_conventions import needed
from tests.billing.test_views_access import RULES

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# Who asks -> names, workload ids and their beginnings, all of others; `wl-3/4` is the source's key of a preemption.
OTHERS = {
    "viewer-of-acme": ("gamma", "Gamm", "beta", "wl-2", "wl-3", "wl-3/4"),
    "viewer-of-gamma": ("acme", "Acm", "beta", "wl-1", "wl-2", "wl-4", "wl-4/a"),
    "viewer-of-delta": ("acme", "beta", "gamma", "wl-1", "wl-2", "wl-3", "wl-4", "wl-3/4"),
}
# Parameters that say what the rows are, not which of them.
NOT_FILTERS = {"window", "month", "at", "as_of", "by", "step", "include", "language", "excel"}


def tables_of(client: Client, name: str, books: Books) -> Iterator[BoundTable]:
    for who in ("", "acme", "gamma", "delta"):
        arguments = RULES[name].arguments(books)
        if "tenant" in arguments:
            arguments["tenant"] = who or arguments["tenant"]
        elif who:
            return
        context = client.get(reverse(name, kwargs=arguments)).context
        yield from (context.get("tables") or {}).values() if context is not None else ()


@pytest.mark.parametrize("who", OTHERS)
def test_no_filter_of_a_table_finds_others_by_name(who: str, books: Books, people: dict[str, User]) -> None:
    client, tried, leaks = client_of(people[who]), 0, []
    for name, rule in RULES.items():
        for bound in tables_of(client, name, books) if who in rule.seen_by else ():
            for column in bound.table.columns:
                if column.filter is None:
                    continue
                choices = [code for code, _shown in column.filter.choices()] if column.filter.choices else []
                leaks += [(name, column.key, code) for code in choices if code in OTHERS[who]]
                for secret in OTHERS[who]:
                    asked = QueryDict(mutable=True)
                    asked[bound.table.parameter(column.key)] = secret
                    tried += 1
                    if list(BoundTable(bound.table, asked).matching):
                        leaks.append((name, column.key, secret))
    assert leaks == []
    assert tried > 30


@pytest.mark.parametrize("who", OTHERS)
def test_the_search_box_finds_nobody_else_by_name(who: str, books: Books, people: dict[str, User]) -> None:
    client = client_of(people[who])
    found = {secret: client.get("/search/", {"q": secret}).context["found"] for secret in OTHERS[who]}
    assert {secret: one for secret, one in found.items() if one} == {}


@pytest.mark.parametrize("who", OTHERS)
def test_no_filter_of_the_api_finds_others_by_name(who: str, books: Books, people: dict[str, User]) -> None:
    client, tried, leaks = client_of(people[who]), 0, []
    asker = "stranger" if who == "viewer-of-delta" else "viewer"
    for one in OPERATIONS:
        is_list = one.method == "get" and issubclass(one.view, ListView) and "<" not in one.pattern
        if not is_list or asker not in API_RULES[one.route]["get"]:
            continue
        for parameter in sorted(one.view.parameters - NOT_FILTERS):
            for secret in (OTHERS[who][0], ",".join(OTHERS[who])):
                asked: dict[str, Any] = {**needed(one.view), parameter: secret}
                answer = client.get(address(one.pattern, {}), asked)
                tried += 1
                if answer.status_code < 400 and answer.json()["results"]:
                    leaks.append((one.pattern, parameter, secret))
    assert leaks == []
    assert tried > 50


def test_a_tenant_that_one_does_not_see_is_answered_like_one_that_there_is_not(
    books: Books, people: dict[str, User]
) -> None:
    """In lists and in tables: the same rows, none, in the same words."""
    client, compared = client_of(people["viewer-of-acme"]), 0
    for one in OPERATIONS:
        is_list = one.method == "get" and issubclass(one.view, ListView) and "<" not in one.pattern
        if not is_list or "tenant" not in one.view.parameters or "viewer" not in API_RULES[one.route]["get"]:
            continue
        hidden, missing = (
            client.get(address(one.pattern, {}), {**needed(one.view), "tenant": tenant})
            for tenant in ("gamma", "nobody")
        )
        assert hidden.status_code == missing.status_code, one.pattern
        assert _as_answered(hidden).replace("gamma", "nobody") == _as_answered(missing), one.pattern
        compared += 1
    assert compared > 8
    for page in ("/quota/", "/demand/", f"/months/{MONTH}/lending/"):
        hidden, missing = (
            _as_answered(client.get(page, {"window": MONTH, "tenant": tenant, "pairs.lender": tenant}))
            for tenant in ("gamma", "nobody")
        )
        assert hidden.replace("gamma", "nobody") == missing, page


def _as_answered(response: Any) -> str:
    """Without what is another one each time."""
    return re.sub(r'(csrfmiddlewaretoken" value=|"request_id": ?)"[^"]*"', r"\1", response.content.decode())


def test_what_one_is_shown_one_finds(books: Books, finance: Client, people: dict[str, User]) -> None:
    """Its victim finds a preemption by the source's key and its own work, its cause by the id it is shown."""
    for client, wanted in (
        (finance, "wl-3/4"),
        (client_of(people["viewer-of-gamma"]), "wl-3/4"),
        (client_of(people["viewer-of-gamma"]), "wl-3"),
        (client_of(people["viewer-of-acme"]), str(books.record.pk)),
    ):
        found = client.get("/search/", {"q": wanted}).context["found"]
        assert [record.pk for record in found.preemptions] == [books.record.pk], wanted
    file = client_of(people["viewer-of-acme"]).get(f"/months/{MONTH}/statements/acme/preemptions.csv")
    assert str(books.record.pk) in file.getvalue().decode()


@pytest.mark.parametrize(
    ("who", "other"), [("gamma", "Alpha customer"), ("acme", "another tenant"), ("acme", "gamma")]
)
def test_a_tenant_filters_by_the_names_that_it_reads(
    who: str, other: str, books: Books, people: dict[str, User]
) -> None:
    """Whatever a cell says, to ask for it finds the row: the own slug, another's alias, its name where the policy
    shows names."""
    if other == "gamma":
        Policy.objects.update(names_visible=True)
    client, said = client_of(people[f"viewer-of-{who}"]), set()
    for page in ("preemptions/", "lending/", f"statements/{who}/"):
        for bound in client.get(f"/months/{MONTH}/{page}").context["tables"].values():
            for column in bound.table.columns:
                if column.key not in ("victim", "preemptor", "lender", "borrower") or column.filter is None:
                    continue
                for name in {column.value(row) for row in bound.shown}:
                    for typed in (name, name.upper(), name[1:]):
                        asked = QueryDict(mutable=True)
                        asked[bound.table.parameter(column.key)] = typed
                        found = BoundTable(bound.table, asked).shown
                        assert name in {column.value(row) for row in found}, (page, column.key, typed)
                    said.add(name)
    assert said == {who, other}


def test_a_tenant_asks_the_api_by_the_names_that_it_reads(books: Books, people: dict[str, User]) -> None:
    """An alias is found whole only, also one with a comma in it."""
    Tenant.objects.filter(holder__slug="acme").update(display_alias="Alpha, the customer")
    client = client_of(people["viewer-of-gamma"])

    def found(**filters: str) -> int:
        return len(client.get("/api/v1/preemptions/", {"window": MONTH, **filters}).json()["results"])

    assert found(preemptor="Alpha, the customer") == found(victim="nobody,gamma") == 1
    assert found(preemptor="Alpha, the customer", victim="gamma") == 1
    assert found(preemptor="acme") == found(preemptor="nobody") == found(preemptor="Alpha") == 0


def test_pairs_stand_in_the_order_of_the_names_that_are_shown(books: Books, people: dict[str, User]) -> None:
    """An order of aliases by the names behind them would tell who stands where in the alphabet."""
    acme, beta, gamma = (Holder.objects.get(slug=slug) for slug in ("acme", "beta", "gamma"))
    Tenant.objects.filter(holder=acme).update(display_alias="Zeta customer")
    Tenant.objects.filter(holder=beta).update(display_alias="Alpha customer")
    pair = LendingDay.objects.get(lender=acme, borrower=gamma)
    LendingDay.objects.create(
        pool=pair.pool, starts_at=pair.starts_at, lender=beta, borrower=gamma, gpu_us=pair.gpu_us
    )
    record, share = books.record, books.record.shares.get()
    record.pk, record.preemption, record.preemptor = uuid4(), "another", beta
    record.save(force_insert=True)
    share.pk, share.record = None, record
    share.save(force_insert=True)
    client = client_of(people["viewer-of-gamma"])
    for path, names in (
        ("lending/", ("lender", "borrower")),
        ("preemptions/matrix/", ("preemptor", "victim")),
    ):
        rows = client.get(f"/api/v1/{path}", {"window": MONTH}).json()["results"]
        shown = [tuple(row[name] for name in names) for row in rows]
        assert shown == [("Alpha customer", "gamma"), ("Zeta customer", "gamma")], path
    for path in ("lending", "preemptions"):
        text = client.get(f"/months/{MONTH}/{path}/").content.decode()
        assert "Zeta customer" in text and text.index("Alpha customer") < text.index("Zeta customer")
