"""Every route of the URL configuration, asked for by everybody. A route without a rule fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from billing.exports.files import FORMATS, MONTH_FORMATS
from ledger.models import Membership, Role, User
from tests.billing.page_books import (
    MONTH,
    PEOPLE,
    Books,
    alert_of_acme,
    client_of,
    dispute_of_acme,
    line_position,
    token_of_acme,
    verification_run,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

RUNNERS = ("finance", "platform", "auditor")
ACME = ("admin-of-acme", "viewer-of-acme")
GAMMA = ("viewer-of-gamma",)
WITH_A_ROLE = (*RUNNERS, *ACME, *GAMMA, "viewer-of-delta")
EVERYBODY = tuple(PEOPLE)

Arguments = Callable[[Books], dict[str, Any]]


@dataclass(frozen=True)
class Rule:
    """Who gets an answer. To others the page does not exist; the unknown visitor is sent to sign in."""

    seen_by: tuple[str, ...]
    arguments: Arguments = field(default=lambda books: {})


def _statement(**more: Any) -> Arguments:
    return lambda books: {"month": MONTH, "tenant": "acme", **more}


RULES: dict[str, Rule] = {
    "billing:home": Rule(EVERYBODY),
    "billing:months": Rule(WITH_A_ROLE),
    "billing:month": Rule(WITH_A_ROLE, lambda books: {"month": MONTH}),
    "billing:month-file": Rule(WITH_A_ROLE, lambda books: {"month": MONTH, "name": "focus-1.2"}),
    "billing:month-closing": Rule(RUNNERS, lambda books: {"month": MONTH}),
    "billing:month-platform": Rule(RUNNERS, lambda books: {"month": MONTH}),
    "billing:month-lending": Rule(WITH_A_ROLE, lambda books: {"month": MONTH}),
    "billing:month-preemptions": Rule(WITH_A_ROLE, lambda books: {"month": MONTH}),
    "billing:statement": Rule((*RUNNERS, *ACME), _statement()),
    "billing:statement-file": Rule((*RUNNERS, *ACME), _statement(name="bill")),
    "billing:statement-pdf": Rule((*RUNNERS, *ACME), _statement()),
    "billing:statement-line": Rule(
        (*RUNNERS, *ACME),
        lambda books: {
            "month": MONTH,
            "tenant": "acme",
            "position": line_position(books.statement("acme"), "reserved_used"),
        },
    ),
    "billing:statement-dispute": Rule(
        ("finance", "auditor", *ACME),
        lambda books: {"month": MONTH, "tenant": "acme", "dispute_id": dispute_of_acme(books).pk},
    ),
    "billing:preemption": Rule((*RUNNERS, *ACME, *GAMMA), lambda books: {"preemption_id": books.record.pk}),
    "billing:workload": Rule(
        (*RUNNERS, *ACME), lambda books: {"pool": books.pool.slug, "workload": "wl-4/a"}
    ),
    "billing:alerts": Rule(WITH_A_ROLE),
    "billing:alert": Rule((*RUNNERS, *ACME), lambda books: {"alert_id": alert_of_acme(books.pool).pk}),
    "billing:cluster": Rule(RUNNERS),
    "billing:pool": Rule(RUNNERS, lambda books: {"pool": books.pool.slug}),
    "billing:quota": Rule(WITH_A_ROLE),
    "billing:demand": Rule(WITH_A_ROLE),
    "billing:budgets": Rule(WITH_A_ROLE),
    "billing:plan": Rule(WITH_A_ROLE),
    "billing:audit": Rule(RUNNERS),
    "billing:verification": Rule(RUNNERS, lambda books: {"run_id": verification_run().pk}),
    "billing:settings": Rule(RUNNERS),
    "billing:rates": Rule(WITH_A_ROLE),
    "billing:effect": Rule(RUNNERS),
    "billing:users": Rule((*RUNNERS, "admin-of-acme")),
    "billing:user": Rule(
        (*RUNNERS, "admin-of-acme"),
        lambda books: {"user_id": User.objects.get(username="viewer-of-acme").pk},
    ),
    "billing:token": Rule(
        (*RUNNERS, "admin-of-acme"), lambda books: {"token_id": token_of_acme("reads-bills").pk}
    ),
    "ledger:password": Rule(EVERYBODY),
    "billing:calibration": Rule(RUNNERS),
    "billing:search": Rule(WITH_A_ROLE),
    "ingest:overview": Rule(RUNNERS),
    "ingest:batch": Rule(RUNNERS, lambda books: {"batch_id": books.batch.pk}),
    "ingest:source": Rule(RUNNERS, lambda books: {"source_id": books.event("acme-holds-2").source_id}),
    "ingest:quarantine": Rule(RUNNERS),
    "ingest:identities": Rule(RUNNERS),
    "ledger:event": Rule(
        (*RUNNERS, *ACME),
        lambda books: {"source_id": books.event("acme-holds-2").source_id, "event_id": "acme-holds-2"},
    ),
    "api-docs": Rule(EVERYBODY),
}
# Before anybody has signed in, or without anything of the ledger in the answer.
OPEN_TO_ALL = {
    "healthz",
    "ledger:openid-start",
    "ledger:openid-callback",
    "ledger:login",
    "ledger:logout",
    "ledger:preferences",
    "set_language",
    "schema",
}
# Whole branches with a rule of their own: Django's admin wants staff, the API answers in status codes.
ADMIN, API = "admin/", "api/v1/"


@dataclass(frozen=True)
class Route:
    pattern: str
    name: str


def routes(
    patterns: list[URLPattern | URLResolver] | None = None, prefix: str = "", namespace: str = ""
) -> Iterator[Route]:
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            inner = f"{namespace}{entry.namespace}:" if entry.namespace else namespace
            yield from routes(entry.url_patterns, pattern, inner)
        else:
            yield Route(pattern, f"{namespace}{entry.name or ''}")


PAGES = [route for route in routes() if not route.pattern.startswith((ADMIN, API))]
API_ROUTES = [route for route in routes() if route.pattern.startswith(API) and route.name != "schema"]


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.pattern or "/")
def test_every_page_has_a_rule(route: Route) -> None:
    assert route.name in OPEN_TO_ALL or route.name in RULES, f"{route.pattern} has no rule of access"


@pytest.mark.slow
def test_every_page_answers_whom_its_rule_names_and_nobody_else(
    books: Books, people: dict[str, User]
) -> None:
    wrong = []
    clients = {person: client_of(user) for person, user in people.items()}
    for name, rule in RULES.items():
        path = reverse(name, kwargs=rule.arguments(books))
        for person, client in clients.items():
            status = client.get(path).status_code
            is_answered = status in (200, 302) if name in ("billing:home", "billing:month") else status == 200
            if is_answered != (person in rule.seen_by) or (not is_answered and status != 404):
                wrong.append((name, person, status))
    assert wrong == []


def test_the_unknown_visitor_is_sent_to_sign_in_from_every_page(
    books: Books, people: dict[str, User]
) -> None:
    wrong = []
    for name, rule in RULES.items():
        path = reverse(name, kwargs=rule.arguments(books))
        response = Client().get(path)
        if name == "api-docs":
            continue
        if response.status_code != 302 or not response.headers["Location"].startswith("/login/?next="):
            wrong.append((name, response.status_code))
    assert wrong == []


def _filled(pattern: str) -> str:
    """A path that the pattern matches; whether the thing exists does not matter to who is let in."""
    path = pattern
    for converter, value in (("uuid", str(uuid4())), ("int", "1"), ("str", "2026-10"), ("slug", "x")):
        while f"<{converter}:" in path:
            start = path.index(f"<{converter}:")
            path = path[:start] + value + path[path.index(">", start) + 1 :]
    return "/" + path


@pytest.fixture
def nobody(people: dict[str, User]) -> User:
    return people["nobody"]


def test_no_endpoint_answers_the_unknown_visitor_or_a_user_without_a_role(nobody: User) -> None:
    unknown, without_role = Client(), client_of(nobody)
    wrong = []
    for route in API_ROUTES:
        path = _filled(route.pattern)
        answers = (unknown.get(path).status_code, without_role.get(path).status_code)
        if answers[0] not in (401, 403) or answers[1] not in (403, 404, 405):
            wrong.append((route.pattern, answers))
    assert len(API_ROUTES) > 10
    assert wrong == []


def test_the_admin_is_for_staff(nobody: User) -> None:
    Membership.objects.create(user=nobody, role=Role.FINANCE)
    response = client_of(nobody).get("/admin/")
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/login/?next=/admin/")


def test_what_is_not_yours_looks_exactly_like_what_is_not_there(
    books: Books, people: dict[str, User]
) -> None:
    client = client_of(people["viewer-of-delta"])
    event = books.event("acme-holds-2")
    pairs = [
        (f"/months/{MONTH}/statements/acme/", f"/months/{MONTH}/statements/never/"),
        (f"/months/{MONTH}/statements/acme/bill.csv", f"/months/{MONTH}/statements/never/bill.csv"),
        (f"/preemptions/{books.record.pk}/", f"/preemptions/{uuid4()}/"),
        (f"/workloads/{books.pool.slug}/wl-1/", f"/workloads/{books.pool.slug}/wl-none/"),
        (f"/events/{event.source_id}/acme-holds-2/", f"/events/{event.source_id}/no-such-event/"),
        (f"/ingest/batches/{books.batch.pk}/", "/ingest/batches/987654/"),
    ]
    for theirs, nothing in pairs:
        answers = [client.get(path) for path in (theirs, nothing)]
        assert [answer.status_code for answer in answers] == [404, 404]
        bodies = [
            _without_the_request(answer.content, path)
            for answer, path in zip(answers, (theirs, nothing), strict=True)
        ]
        assert bodies[0] == bodies[1], theirs


def _without_the_request(body: bytes, path: str) -> str:
    """The page knows where it was asked for, and each answer has its own token against forgery."""
    lines = body.decode().replace(path, "PATH").splitlines()
    return "\n".join(line for line in lines if "csrfmiddlewaretoken" not in line)


# What would tell delta that acme, beta or gamma exist.
SECRETS = ("acme", "Acme", "beta", "Beta", "gamma", "Gamma", "wl-1", "wl-2", "wl-3", "wl-4", "Alpha customer")


def test_a_tenant_that_has_nothing_to_do_with_others_finds_no_trace_of_them(
    books: Books, people: dict[str, User]
) -> None:
    client = client_of(people["viewer-of-delta"])
    paths = [
        "/months/",
        f"/months/{MONTH}/preemptions/",
        f"/months/{MONTH}/preemptions/?csv=preemptions",
        f"/months/{MONTH}/lending/",
        f"/months/{MONTH}/lending/?csv=pairs",
        f"/months/{MONTH}/lending/?csv=idle",
        f"/quota/?window={MONTH}",
        f"/demand/?window={MONTH}",
        f"/budgets/?month={MONTH}",
        "/plan/?tenant=delta&pool=bj-h100&reservation=2",
        f"/months/{MONTH}/statements/delta/",
        *[f"/months/{MONTH}/statements/delta/{name}.csv" for name in FORMATS],
        *[f"/months/{MONTH}/{name}.csv" for name in MONTH_FORMATS],
    ]
    for path in paths:
        response = client.get(path)
        assert response.status_code == 200
        body = response.getvalue().decode()
        assert [secret for secret in SECRETS if secret in body] == [], path
    for wanted in ("acme", "wl-", "Acme", "wl-3/4"):
        response = client.get("/search/", {"q": wanted})
        assert response.context["found"].tenants == []
        assert not response.context["found"]


def test_the_victim_sees_who_took_its_gpus_by_alias_only(books: Books, people: dict[str, User]) -> None:
    client = client_of(people["viewer-of-gamma"])
    paths = [
        f"/preemptions/{books.record.pk}/",
        f"/months/{MONTH}/preemptions/",
        f"/months/{MONTH}/preemptions/?csv=preemptions",
        f"/months/{MONTH}/lending/",
        f"/months/{MONTH}/lending/?csv=pairs",
        f"/months/{MONTH}/statements/gamma/",
    ]
    for path in paths:
        body = client.get(path).getvalue().decode()
        assert "Alpha customer" in body
        assert [secret for secret in ("acme", "Acme", "wl-4", "report-1") if secret in body] == [], path


def test_the_preemptor_sees_its_victim_without_a_name(books: Books, people: dict[str, User]) -> None:
    body = client_of(people["viewer-of-acme"]).get(f"/preemptions/{books.record.pk}/").content.decode()
    assert "another tenant" in body
    assert [secret for secret in ("gamma", "Gamma", "wl-3") if secret in body] == []


def test_asking_for_another_tenant_by_name_tells_nothing(books: Books, people: dict[str, User]) -> None:
    client = client_of(people["viewer-of-gamma"])
    for filters in ({"preemptor": "acme"}, {"victim": "acme"}, {"preemptor": "nobody-at-all"}):
        assert _shown_preemptions(client, filters) == []
    assert len(_shown_preemptions(client, {"victim": "gamma"})) == 1


def _shown_preemptions(client: Client, filters: dict[str, str]) -> list[Any]:
    shown: list[Any] = (
        client.get(f"/months/{MONTH}/preemptions/", filters).context["tables"]["preemptions"].shown
    )
    return shown


def test_a_tenant_cannot_sort_by_the_names_of_others(books: Books, people: dict[str, User]) -> None:
    url = f"/months/{MONTH}/preemptions/"
    can_sort = {}
    for name in ("finance", "viewer-of-gamma"):
        heads = client_of(people[name]).get(url).context["tables"]["preemptions"].heads
        can_sort[name] = {head.column.key for head in heads if head.url}
    assert can_sort["finance"] - can_sort["viewer-of-gamma"] == {"victim", "preemptor", "waiting_gpu_hours"}
