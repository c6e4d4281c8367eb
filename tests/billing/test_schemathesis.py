"""schemathesis against the served schema, with all its checks, as every role and as nobody.

Cases are made once per operation, the same in every run, and sent as each role in turn; whatever one writes is taken
back. LEDGER_LONG_TESTS=1 sends all that schemathesis can think of (docs/testing.md).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import schemathesis
from django.core import signals
from django.core.handlers.wsgi import WSGIHandler
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.overrides import Override

from billing.services.disputes import open_dispute
from ledger.api.bodies import MAX_TEXT
from ledger.api.parameters import INSTANT
from ledger.models import Role, Source, Tenant
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token
from tests.billing.page_books import MONTH, Books, alert_of_acme, make_books
from tests.billing.test_api_conventions import VIEWS, needed, templated

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.slow]

IS_LONG = bool(os.environ.get("LEDGER_LONG_TESTS"))
# Of each operation: cases by design of schemathesis' coverage, and cases drawn in each mode.
BY_DESIGN, DRAWN = (100_000, 50) if IS_LONG else (3, 1)
FOR_ALL = 2
NOBODY = "nobody"
ROLES = (
    Role.FINANCE,
    Role.PLATFORM,
    Role.AUDITOR,
    Role.TENANT_ADMIN,
    Role.TENANT_VIEWER,
    Role.INGEST,
    NOBODY,
)
METHODS = ("get", "post", "put", "patch", "delete")


class TakenBackError(Exception):
    pass


@pytest.fixture
def connection_stays() -> Iterator[None]:
    """A request that ends closes its connection; here it is the test's own, which is in a transaction."""
    for signal in (signals.request_started, signals.request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (signals.request_started, signals.request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def books() -> Books:
    made = make_books()
    alert_of_acme(made.pool)
    return made


@pytest.fixture
def schema(connection_stays: None, settings: Any, books: Books) -> Any:
    settings.API_REQUESTS_PER_MINUTE = 0
    # The schema gives each instant a pattern; drawing any date and throwing most away would take ages.
    schemathesis.openapi.format("date-time", st.from_regex(INSTANT, fullmatch=True))
    schemathesis.hook("before_load_schema")(short_texts)
    made = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", WSGIHandler())
    # What is refused for its meaning is a 422 here, and documented; which operations may do so is in MEANT.
    accepted = made.config.checks.positive_data_acceptance
    accepted.expected_statuses = [*accepted.expected_statuses, "422"]
    return made


def short_texts(context: Any, raw_schema: Any) -> None:
    """Drops how long a text may be at most: with a pattern it makes drawing ten times as slow."""
    for value in raw_schema.values() if isinstance(raw_schema, dict) else raw_schema:
        if isinstance(value, dict | list):
            short_texts(context, value)
    if isinstance(raw_schema, dict) and raw_schema.get("maxLength") == MAX_TEXT:
        del raw_schema["maxLength"]


def headers_of(role: str) -> dict[str, str]:
    if role == NOBODY:
        return {}
    options: dict[str, Any] = {}
    if role in (Role.TENANT_ADMIN, Role.TENANT_VIEWER):
        options["tenants"] = [Tenant.objects.get(holder__slug="acme")]
    if role == Role.INGEST:
        options["sources"] = [Source.objects.order_by("pk").first()]
    _, secret = create_api_token(f"of {role}", role, **options)
    return {"Authorization": f"Bearer {secret}"}


# Of what the schema calls good, these may still be refused for their meaning (422): what would make them good is no
# matter of a field's form.
MEANT = {
    "POST /api/v1/adjustments/": "an amount of 0 moves nothing",
    "POST /api/v1/alert-subscriptions/": "a webhook needs an address of http, mail needs recipients",
    "POST /api/v1/budgets/": "either an amount or GPU-hours, above 0",
    "POST /api/v1/policies/compare/": "either another policy or a change",
    "POST /api/v1/pools/": "a pool that is new needs a cluster, one that changes does not",
    "POST /api/v1/quarantine/dismiss/": "at least one of what lines are chosen by",
    "GET /api/v1/quota/remaining/": "whoever sees several tenants has to name one",
}
# Fields of queries and bodies that name what there is: drawn names lead nowhere, and only prove that they do.
NAMED = {"tenant": "acme", "pool": "bj-h100", "month": MONTH}


def name_what_there_is(case: Case) -> None:
    for part in (case.query, case.body):
        if isinstance(part, dict):
            part.update({name: NAMED[name] for name in NAMED.keys() & part.keys()})


def is_good(case: Case) -> bool:
    return case.meta is not None and case.meta.generation.mode == GenerationMode.POSITIVE


def known_things(books: Books) -> dict[str, Any]:
    """What is there for the parameters of paths: a name that was drawn leads nowhere."""
    line = books.statement("acme").lines.get(position=1)
    return {
        "statement_id": str(books.statement("acme").pk),
        "preemption_id": str(books.record.pk),
        "dispute_id": str(open_dispute(line, "too much", Actor("viewer", "")).pk),
        "alert_id": str(alert_of_acme(books.pool).pk),
        "batch_id": books.batch.pk,
        "month": MONTH,
    }


def cases_of(operation: Any, known: dict[str, Any]) -> list[Case]:
    """By design and drawn, good and bad; every other one is of things that there are."""
    config = operation.schema.config.generation_for(operation=operation, phase="coverage")
    designed = CoverageGenerator(
        operation=operation,
        generation_modes=list(GenerationMode),
        generation_config=config,
        auth_storage=None,
        override=Override(),
        feedback=NO_FEEDBACK,
        hooks=None,
    )
    cases = list(islice(designed, None if IS_LONG else BY_DESIGN))
    for mode in GenerationMode:
        cases += _drawn(operation, mode)
    for case in filter(is_good, cases):
        name_what_there_is(case)
    for case in cases[::2]:
        meta = case.meta
        if meta is not None and meta.is_negative_at(ParameterLocation.PATH):
            continue
        for name in set(case.path_parameters) & set(known):
            case.path_parameters[name] = known[name]
    return cases


def _drawn(operation: Any, mode: GenerationMode) -> list[Case]:
    found: list[Case] = []

    @hypothesis_settings(
        max_examples=DRAWN,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def draw(case: Case) -> None:
        found.append(case)

    draw()
    return found[:DRAWN]


def faults_of(case: Case, headers: dict[str, str]) -> tuple[int, list[str]]:
    """The status of the answer, and what schemathesis has against it. Nothing stays written."""
    status, faults = 0, []
    try:
        with transaction.atomic():
            answer = case.call(headers=headers)
            status = answer.status_code
            try:
                case.validate_response(answer, headers=headers)
            except FailureGroup as group:
                sent = f"{case.method} {case.path} {case.path_parameters} {dict(case.query)} {case.body!r}"
                faults = [
                    f"{type(one).__name__}: {one.message} | {sent} -> {status} {answer.text[:300]}"
                    for one in group.exceptions
                ]
            raise TakenBackError
    except TakenBackError:
        return status, faults


def test_schemathesis_finds_nothing_whoever_asks(schema: Any, books: Books) -> None:
    known = known_things(books)
    headers = {role: headers_of(role) for role in ROLES}
    asked: dict[str, set[str]] = defaultdict(set)
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    labels = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        labels.add(operation.label)
        for number, case in enumerate(cases_of(operation, known)):
            # Every role asks every operation; who may do most gets all the cases.
            for role in ROLES if IS_LONG or number < FOR_ALL else ROLES[:1]:
                status, wrong = faults_of(case, headers[role])
                statuses[status] += 1
                faults += [f"{role}: {one}" for one in wrong]
                if status == 422 and is_good(case) and operation.label not in MEANT:
                    sent = f"{case.path_parameters} {dict(case.query)} {case.body!r}"
                    faults.append(f"{role}: 422 for what the schema calls good: {operation.label} {sent}")
                if status != 405:  # else it was another method than the operation's
                    asked[role].add(operation.label)
    assert not faults, f"{len(faults)} faults, such as\n" + "\n".join(faults[:40])
    assert labels == {f"{method.upper()} {path}" for method, path in operations_served()}
    assert {role: labels - asked[role] for role in ROLES} == {role: set() for role in ROLES}
    assert statuses[200] > len(labels)


def operations_served() -> set[tuple[str, str]]:
    """Method and path of every operation that the URL configuration serves, as the schema writes paths."""
    served = set()
    for pattern, view in VIEWS:
        path = templated(pattern)
        # `events` without the slash is the same door: a POST cannot be redirected.
        if path != "/api/v1/events":
            served |= {(method, path) for method in METHODS if hasattr(view, method)}
    return served


# Lists of which the books of the tests hold nothing, so that no link leads on from them.
EMPTY = {
    "approvals_list",
    "budgets_list",
    "calibrations_list",
    "contracts_list",
    "alert_subscriptions_list",
    "pool_costs_list",
    "service_policies_list",
}
# What is asked for below a month that is there need not be: a close that nobody began, a difference of that key.
NOT_THERE = {"periods_close_progress", "periods_explain"}


def test_what_one_answer_names_the_next_operation_takes(schema: Any, books: Books) -> None:
    """Stateful: from every answer that the schema's links start from to every operation that they lead to."""
    known_things(books)
    Source.objects.filter(pk=Source.objects.order_by("pk").first().pk).update(name="bj-kueue")
    headers = headers_of(Role.FINANCE)
    operations = [found.ok() for found in schema.get_all_operations()]
    by_id = {one.definition.raw["operationId"]: one for one in operations}
    views = {templated(pattern): view for pattern, view in VIEWS}
    empty, faults, followed = set(), [], 0
    for name, source in by_id.items():
        links = [
            link
            for answer in source.definition.raw["responses"].values()
            for link in answer.get("links", {}).values()
        ]
        if not links or source.method != "get":
            continue
        query = needed(views[source.path])
        rows = source.Case(query=query, path_parameters={}).call(headers=headers).json()["results"]
        if not rows:
            empty.add(name)
            continue
        for link in links:
            [(parameter, expression)] = link["parameters"].items()
            target = by_id[link["operationId"]]
            view, method = views[target.path], target.method
            parameters = {parameter: rows[0][expression.rpartition("/")[2]]}
            if "{name}" in target.path and "name" not in parameters:
                parameters["name"] = "focus-1.4"
            case = target.Case(path_parameters=parameters, query=needed(view) if method == "get" else {})
            if method in view.examples:
                case.body, case.media_type = view.examples[method], "application/json"
            status, wrong = faults_of(case, headers)
            followed += 1
            faults += [f"{name} -> {target.label}: {one}" for one in wrong]
            is_there = status == 200 if method == "get" else status != 404
            if not is_there and link["operationId"] not in NOT_THERE:
                faults.append(f"{name} -> {target.label}: {status}")
    assert not faults, "\n".join(faults)
    assert empty == EMPTY
    assert followed > 35
