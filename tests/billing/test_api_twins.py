"""What is not yours answers exactly like what is not there: status, body, headers; by address, filter and order."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from rest_framework.test import APIClient

from ledger.api.views import ListView
from tests.billing.page_books import MONTH
from tests.billing.test_api_access import (
    OF_ACME,
    OPERATIONS,
    RULES,
    Operation,
    address,
    by_session,
    by_token,
    things,
)
from tests.billing.test_api_conventions import needed

__all__ = ["things"]  # the fixture

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OF_SOMEBODY = [
    one
    for one in OPERATIONS
    if "<" in one.pattern
    and RULES[one.route][one.method] >= OF_ACME - {"auditor"}
    and "stranger" not in RULES[one.route][one.method]  # a month is everybody's; what it says is not
]
# A filter by something of acme's, and by something that never was.
FILTERS = {
    "tenant": ("acme", "nobody-at-all"),
    "victim": ("acme", "nobody-at-all"),
    "preemptor": ("acme", "nobody-at-all"),
    "workload": ("wl-1", "wl-none"),
    "user": ("ada", "nobody-at-all"),
    "api_key": ("88dc28", "000000"),
}


def seen(answer: Any, path: str) -> tuple[Any, ...]:
    """All that the asker gets, without what names the request itself."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("X-Request-Id", "Date")}
    body = answer.getvalue().decode().replace(path, "PATH")
    return answer.status_code, headers, re.sub(r'"request_id":"[0-9a-f]+"', "", body)


def asked(api: APIClient, operation: Operation, path: str, **more: str) -> Any:
    with transaction.atomic():
        if operation.method == "get":
            answer = api.get(path, {**needed(operation.view), **more})
        else:
            answer = getattr(api, operation.method)(path, {}, format="json")
        answer.getvalue()
        transaction.set_rollback(True)
    return answer


def test_each_thing_of_another_tenant_is_as_if_it_were_not(things: dict[str, str]) -> None:
    strangers = (by_token("stranger"), by_session("stranger"))
    nothing = {part: str(uuid4()) if "uuid" in part else value for part, value in things.items()}
    differing = []
    for one in OF_SOMEBODY:
        theirs, none = address(one.pattern, things), address(one.pattern, nothing)
        assert theirs != none or "<uuid" not in one.pattern
        for api in strangers:
            answers = [seen(asked(api, one, path), path) for path in (theirs, none)]
            if answers[0] != answers[1] or answers[0][0] != 404 or "ETag" in answers[0][1]:
                differing.append((one.method, one.pattern, answers))
    assert not differing, differing[:3]
    assert len(OF_SOMEBODY) > 15


def test_no_filter_order_or_file_of_a_list_tells_that_another_tenant_exists(things: dict[str, str]) -> None:
    api = by_token("stranger")
    differing, tried = [], 0
    for one in OPERATIONS:
        if (
            one.method != "get"
            or not issubclass(one.view, ListView)
            or "stranger" not in RULES[one.route]["get"]
        ):
            continue
        path = address(one.pattern, things)
        for name in set(FILTERS) & one.view.parameters:
            for form in ({}, {"format": "csv"}, {"page_size": "1"}):
                answers = []
                for value in FILTERS[name]:
                    got = asked(api, one, path, **{name: value}, **form)
                    answers.append(_without(value, seen(got, path)))
                tried += 1
                if answers[0] != answers[1]:
                    differing.append((path, name, form, answers))
    assert not differing, differing[:3]
    assert tried > 30


def _without(value: str, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What was asked for may be said again (in links); the ETag is of the body with it."""
    status, headers, body = answer
    kept = {name: text.replace(value, "VALUE") for name, text in headers.items() if name != "ETag"}
    kept.pop("Content-Length", None)
    return status, kept, body.replace(value, "VALUE")


SECRETS = ("acme", "beta", "gamma", "wl-1", "wl-2", "wl-3", "wl-4", "Alpha customer")


def test_no_list_of_a_stranger_has_a_trace_of_others(things: dict[str, str]) -> None:
    api = by_token("stranger")
    found = []
    for one in OPERATIONS:
        if one.method != "get" or "stranger" not in RULES[one.route]["get"]:
            continue
        path = address(one.pattern, things)
        for form in ({}, {"format": "csv"}) if issubclass(one.view, ListView) else ({},):
            body = asked(api, one, path, **form).getvalue().decode("utf-8", "replace")
            found += [(path, form, secret) for secret in SECRETS if secret in body]
    assert found == []


PAGES = [
    (f"/demand/?window={MONTH}&tenant=acme", f"/demand/?window={MONTH}&tenant=zzzz"),
    (f"/quota/?window={MONTH}&tenant=acme", f"/quota/?window={MONTH}&tenant=zzzz"),
    (f"/budgets/?month={MONTH}&tenant=acme", f"/budgets/?month={MONTH}&tenant=zzzz"),
    (f"/months/{MONTH}/preemptions/?victim=acme", f"/months/{MONTH}/preemptions/?victim=zzzz"),
    ("/search/?q=acme", "/search/?q=zzzz"),
    (f"/months/{MONTH}/statements/acme/lines/1/", f"/months/{MONTH}/statements/zzzz/lines/1/"),
    (f"/months/{MONTH}/statements/acme/bill.csv", f"/months/{MONTH}/statements/zzzz/bill.csv"),
    ("/plan/?tenant=acme&pool=bj-h100&reservation=2", "/plan/?tenant=zzzz&pool=bj-h100&reservation=2"),
]


def test_pages_charts_and_their_files_tell_no_more(things: dict[str, str]) -> None:
    api, differing = by_session("stranger"), []
    for theirs, none in PAGES:
        pages = []
        for path, value in ((theirs, "acme"), (none, "zzzz")):
            answer = api.get(path)
            text = answer.getvalue().decode().replace(value, "VALUE")
            pages.append(
                (answer.status_code, [one for one in text.splitlines() if "csrf" not in one.lower()])
            )
        if pages[0] != pages[1]:
            differing.append((theirs, pages))
    assert not differing, differing[:2]
