"""Every list of the API keeps the conventions of interfaces.md; the lists come from the URL configuration itself."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.translation import gettext, override
from rest_framework.request import Request
from rest_framework.test import APIClient, APIRequestFactory

from billing.api.masters import RowsView
from billing.models import Alert, PreemptionRecord, Statement
from ingest.api.facts import FactsView
from ingest.models import Batch
from ledger.api import keyset, whole_lists
from ledger.api.views import ListView, _row_fields
from ledger.models import Event, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.page_books import MONTH, Books, alert_of_acme, make_books
from tests.billing.tampering import unguarded
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# What a list cannot do without.
AT = "2026-10-20T00:00:00Z"
NEEDED = {"window": MONTH, "as_of": "2026-10-20T00:00:00Z", "id": "acme-holds-2", "source": "", "at": AT}
ODD = ["\x00", "9" * 40, "-1", "\ud7ff\U0001f600\u202e", "%", "'\"", "1e400", "../..", "a" * 3000]


def api_views(
    patterns: list[URLPattern | URLResolver] | None = None, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for entry in get_resolver().url_patterns if patterns is None else patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from api_views(entry.url_patterns, pattern)
        elif pattern.startswith("api/v1/") and entry.name != "schema":
            yield "/" + pattern, entry.callback.view_class


VIEWS = list(api_views())
LISTS = [
    (pattern, view)
    for pattern, view in VIEWS
    if issubclass(view, ListView) and hasattr(view, "get") and pattern.endswith("/")
]


@made_once
def books() -> Books:
    made = make_books()
    alert_of_acme(made.pool)
    return made


def api_of(role: str = "finance", *tenants: Tenant) -> APIClient:
    _, secret = create_api_token("conventions", role, tenants=tenants)
    api = APIClient(raise_request_exception=True)
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def templated(pattern: str) -> str:
    """A route as the schema writes it: `<uuid:statement_id>` is `{statement_id}`."""
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", pattern)


def filled(pattern: str) -> str:
    """The address of something that is there."""
    for part, value in {
        "<uuid:statement_id>": str(Statement.objects.get(tenant__holder__slug="acme", period=MONTH).pk),
        "<uuid:preemption_id>": str(PreemptionRecord.objects.get().pk),
        "<str:month>": MONTH,
        "<int:batch_id>": str(Batch.objects.get().pk),
    }.items():
        pattern = pattern.replace(part, value)
    return pattern


def needed(view: Any) -> dict[str, str]:
    wanted = {name: value for name, value in NEEDED.items() if name in view.parameters}
    if view.__name__ in ("AllocationsView", "FactsView", "QuarantineView"):
        wanted = {name: value for name, value in wanted.items() if name in ("window",)}
    if "source" in wanted:
        wanted["source"] = Event.objects.get(event_id="acme-holds-2").source.uri
    if view.__name__ == "PlanView":
        wanted |= {"tenant": "acme", "pool": "bj-h100", "reservation": "8"}
    return wanted


def table(answer: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(answer.content.decode(), newline="")))


@pytest.mark.slow
def test_every_list_keeps_the_conventions(books: Books) -> None:
    api, wrong = api_of(), []
    for pattern, view in LISTS:
        path, asked = filled(pattern), needed(view)
        if view.__name__ == "PlanView":
            asked["pool"] = books.pool.slug
        answer = api.get(path, asked)
        if answer.status_code != 200:
            wrong.append((pattern, "is no list", answer.content[:200]))
            continue
        wrong += [(pattern, *found) for found in _faults(api, path, asked, answer)]
    assert not wrong, "\n".join(str(one)[:1500] for one in wrong)
    assert len(LISTS) > 40


def test_csv_without_a_page_asked_for_is_the_whole_of_every_list(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pages or reads it takes; a page that is asked for stays one, and says where the next is."""
    monkeypatch.setattr("ledger.api.views.PAGE_SIZE", 1)
    monkeypatch.setattr("ledger.api.whole_lists.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("ledger.api.whole_lists.COMPUTED_AT_ONCE", 1)
    api, wrong, longer = api_of(), [], 0
    for pattern, view in LISTS:
        asked = {**needed(view), "format": "csv"}
        if view.__name__ == "PlanView":
            asked["pool"] = books.pool.slug
        expected = api.get(filled(pattern), {**asked, "page_size": "10000"})
        rows = len(table(expected))
        answer = api.get(filled(pattern), asked)
        found = answer.getvalue()
        if answer.status_code != 200 or found != expected.content or "Link" in answer:
            wrong.append((pattern, rows, answer.status_code, found[:300], expected.content[:300]))
        if rows > 1:
            longer += 1
            page = api.get(filled(pattern), {**asked, "page_size": "1"})
            if len(table(page)) != 1 or 'rel="next"' not in page.headers.get("Link", ""):
                wrong.append((pattern, "page", page.headers.get("Link")))
            ordered = api.get(filled(pattern), {**asked, "ordering": found.decode().split(",")[0]})
            if len(list(csv.reader(io.StringIO(ordered.getvalue().decode(), newline="")))) != rows + 1:
                wrong.append((pattern, "ordered"))
    assert wrong == []
    assert longer > 10


def test_a_file_that_is_computed_first_waits_on_disk_and_is_not_sent_twice(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = "/api/v1/allocations/", {"window": MONTH, "by": "tenant", "format": "csv"}
    expected = api_of().get(path, asked).content
    monkeypatch.setattr("ledger.api.whole_lists.COMPUTED_AT_ONCE", 1)
    monkeypatch.setattr("ledger.api.whole_lists._SENT_AT_ONCE", 7)
    answer = api_of().get(path, asked)
    pieces = list(answer.streaming_content)
    assert b"".join(pieces) == expected
    assert {len(piece) for piece in pieces[:-1]} == {7}
    again = api_of().get(path, asked, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = api_of().get(path, {**asked, "by": "pool,tenant"})
    assert other.getvalue() != expected
    assert other.headers["ETag"] != answer.headers["ETag"]


# What an answer reads and never changes, or what only tells which rows are meant.
UNCHANGING = {"ledger_event", "ledger_booking", "ledger_ledger", "ledger_period"}
# Rows that are made of prices, policies and names as well; masters are never so many that they are not held at once.
UNTAGGED = {"PreemptionsView"}


def test_a_list_that_is_read_while_it_is_sent_has_an_etag_of_all_that_it_is_made_of(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known before any row is read; it changes with every row of every table that the answer is read from."""
    monkeypatch.setattr("ledger.api.whole_lists.ROWS_AT_ONCE", 1)
    tagged: list[list[Any]] = []
    tag_of = whole_lists.tag_of

    def noted(rows: Any, also: Any, said: object) -> str:
        tagged.append([rows.model, *also])
        return tag_of(rows, also, said)

    untagged = set()
    page_of = ListView.page_of

    def watched(view: Any, rows: Any, to_row: Any, also: Any = None) -> Any:
        if also is None and keyset.suits(rows):
            untagged.add(type(view).__name__)
        return page_of(view, rows, to_row, also)

    monkeypatch.setattr("ledger.api.whole_lists.tag_of", noted)
    monkeypatch.setattr(ListView, "page_of", watched)
    api, other, wrong = api_of(), api_of("auditor"), []
    kinds = [
        ("/api/v1/facts/", view, {"kind": kind})
        for kind in ("preemption", "request")
        for view in (FactsView,)
    ]
    for pattern, view, more in [*((*one, {}) for one in LISTS), *kinds]:
        path, asked = filled(pattern), {**needed(view), **more, "format": "csv"}
        if view.__name__ == "PlanView":
            asked["pool"] = books.pool.slug
        tagged.clear()
        with CaptureQueriesContext(connection) as made:
            answer = api.get(path, asked)
            answer.getvalue()
        if not tagged:
            continue
        tag = answer.headers["ETag"]
        tables = {model._meta.db_table for model in tagged[0]}
        asked_of = [one["sql"] for one in made if "ledger_apitoken" not in one["sql"]]
        read = {table for sql in asked_of for table in re.findall(r'(?:FROM|JOIN) "(\w+)"', sql)}
        if read - tables - UNCHANGING:
            wrong.append((pattern, more, "reads more than its ETag is of", read - tables))
        with CaptureQueriesContext(connection) as made:
            again = api.get(path, asked, headers={"If-None-Match": tag})
        if (again.status_code, again.content, again.headers["ETag"]) != (304, b"", tag):
            wrong.append((pattern, "no 304", again.status_code))
        rows = f'"{tagged[0][0]._meta.db_table}"'
        if any(f"FROM {rows}" in one["sql"] and "hashtextextended" not in one["sql"] for one in made):
            wrong.append((pattern, "reads rows first"))
        if other.get(path, asked).headers["ETag"] == tag:
            wrong.append((pattern, "another who asks"))
        for table in tables:
            if _tag_once_touched(table, api, path, asked) == tag:
                wrong.append((pattern, "is the same after a change", table))
    assert wrong == []
    tagged.clear()
    mine = api_of("tenant_viewer", Tenant.objects.get(holder__slug="acme"))
    for path in ("/api/v1/facts/", "/api/v1/alerts/"):
        assert len(mine.get(path, {"format": "csv"}).getvalue().splitlines()) > 1
    assert tagged == []  # nothing tells it when a row of others changes
    masters = {view.__name__ for _pattern, view in LISTS if issubclass(view, RowsView)}
    assert untagged - masters == UNTAGGED


def _tag_once_touched(table: str, api: APIClient, path: str, asked: dict[str, str]) -> str:
    """With one more version of each row of a table; something else where it has none."""
    with transaction.atomic():
        with unguarded(table), connection.cursor() as cursor:
            cursor.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "AND attgenerated = '' ORDER BY attnum LIMIT 1",
                [table],
            )
            (column,) = cursor.fetchone()
            cursor.execute(f'UPDATE "{table}" SET "{column}" = "{column}"')
            is_touched = cursor.rowcount > 0
        found = api.get(path, asked).headers["ETag"] if is_touched else "no row"
        transaction.set_rollback(True)
    return found


def test_a_list_too_long_to_compute_as_one_file_says_so(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.api.whole_lists.COMPUTED_AT_ONCE", 1)
    path, asked = "/api/v1/allocations/", {"window": MONTH, "by": "tenant", "format": "csv"}
    rows = len(table(api_of().get(path, {**asked, "page_size": "10000"})))
    monkeypatch.setattr("ledger.api.whole_lists.MAX_COMPUTED", rows)
    assert len(api_of().get(path, asked).getvalue().decode().splitlines()) == rows + 1
    monkeypatch.setattr("ledger.api.whole_lists.MAX_COMPUTED", rows - 1)
    refused = api_of().get(path, asked)
    assert (refused.status_code, refused.json()["code"]) == (422, "too_many_rows")


def _faults(api: APIClient, path: str, asked: dict[str, str], answer: Any) -> Iterator[tuple[object, ...]]:
    document = answer.json()
    if set(document) != {"next", "previous", "results"}:
        yield ("document", set(document))
    rows = document["results"]
    file = api.get(path, {**asked, "format": "csv"})
    columns = file.content.decode().split("\r\n")[0].split(",")
    if not file.headers.get("Content-Type", "").startswith("text/csv") or columns == [""]:
        yield ("CSV", file.headers.get("Content-Type"), columns)
    if b"+00:00" in answer.content + file.content:
        yield ("an instant that does not end with Z", answer.content[:500])
    if len(table(file)) != len(rows):
        yield ("CSV rows", len(table(file)), len(rows))
    empty = api.get(path, {**asked, "format": "csv", "cursor": "o999999"})
    if empty.content.decode().strip().split(",") != columns or "Content-Type" not in empty.headers:
        yield ("CSV without rows", empty.content[:200], columns)
    first = columns[0]
    some = api.get(path, {**asked, "fields": first}).json()
    if "results" not in some:
        yield ("fields", some)
        return
    if [list(row) for row in some["results"]] != [[first]] * len(rows):
        yield ("fields", some)
    for name in columns:
        both = [
            api.get(path, {**asked, "ordering": sign + name, "fields": name}).json() for sign in ("", "-")
        ]
        if any("results" not in one for one in both):
            yield ("ordering", name, both)
        elif sorted(map(str, both[0]["results"])) != sorted(map(str, both[1]["results"])):
            yield ("ordering loses rows", name)
    for parameter, value in {
        "colour": "red",
        "fields": "colour",
        "ordering": "colour",
        "cursor": "x",
        "page_size": "0",
        "excel": "2",
    }.items():
        refused = api.get(path, {**asked, parameter: value})
        body = refused.json()
        if (refused.status_code, body.get("parameter")) != (400, parameter):
            yield ("refusal", parameter, refused.status_code)
        elif body["request_id"] != refused.headers["X-Request-Id"]:
            yield ("request id", body)
    if api.get(path, asked, headers={"If-None-Match": answer.headers["ETag"]}).status_code != 304:
        yield ("304",)
    if api.head(path, asked).status_code != 200 or api.options(path).status_code != 200:
        yield ("HEAD or OPTIONS",)
    if len(rows) > 1:
        yield from _page_faults(api, path, asked, rows)


def _page_faults(api: APIClient, path: str, asked: dict[str, str], rows: list[Any]) -> Iterator[Any]:
    one = api.get(path, {**asked, "page_size": "1"}).json()
    two = api.get(one["next"]).json()
    back = api.get(two["previous"]).json()
    if one["previous"] is not None or (one["results"] + two["results"]) != rows[:2]:
        yield ("pages", one, two)
    if back["results"] != one["results"]:
        yield ("previous", back)


def test_nothing_odd_is_a_fault_of_ours(books: Books) -> None:
    """In the query, the path and the body; the client of the tests raises what a server would answer with 500."""
    api = api_of()
    odd = ODD if os.environ.get("LEDGER_LONG_TESTS") else ODD[:4]
    for pattern, view in VIEWS:
        path = filled(pattern)
        if "<" in path:
            path = path.split("<")[0] + "\ud7ff%00" + path.rsplit(">")[-1]
        for text in odd:
            if hasattr(view, "get"):
                for name in [*view.parameters, "cursor", "fields", "ordering", "page_size", "format"]:
                    answer = api.get(path, {**needed(view), name: text})
                    assert answer.status_code < 500, (path, name, text)
        for body in (b"{", b"[]", b"null", b"\xff", b'{"a\\u0000": "\\ud800"}'):
            for method in ("post", "patch"):
                if hasattr(view, method):
                    answer = getattr(api, method)(path, data=body, content_type="application/json")
                    assert answer.status_code < 500, (path, body)
                    if answer.status_code >= 400:
                        assert answer.headers["Content-Type"] == "application/problem+json", (path, body)


def test_another_method_is_a_problem_that_says_which_there_are() -> None:
    answer = api_of().delete("/api/v1/tenants/")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert {"GET", "HEAD", "OPTIONS", "POST"} <= set(answer.headers["Allow"].split(", "))


@pytest.mark.parametrize("path", ["/api/v1/nothing/", "/api/v1/batches/x/", "/api/v1/statements/1/"])
def test_what_no_route_has_is_a_problem_document_too(path: str) -> None:
    answer = api_of().get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_rows_are_ordered_by_what_is_shown(books: Books) -> None:
    path = f"/api/v1/allocations/?window={MONTH}&by=tenant&ordering="
    for ordering in ("gpu_hours", "-gpu_hours"):
        hours = [float(row["gpu_hours"]) for row in api_of().get(path + ordering).json()["results"]]
        assert len(hours) > 1
        assert hours == sorted(hours, reverse=ordering.startswith("-"))


def test_headings_for_spreadsheets_are_in_the_readers_language_and_names_else(books: Books) -> None:
    """One rule for every list, with rows and without: `excel=1` translates, and nothing else does."""
    api, wrong = api_of(), []
    for pattern, view in LISTS:
        asked = needed(view)
        if view.__name__ == "PlanView":
            asked["pool"] = books.pool.slug
        for cursor in ({}, {"cursor": "o999999"}):
            headers = {}
            for excel in ("0", "1"):
                answer = api.get(
                    filled(pattern),
                    {**asked, **cursor, "format": "csv", "excel": excel},
                    headers={"Accept-Language": "zh-hans"},
                )
                headers[excel] = answer.content.decode("utf-8-sig").split("\r\n")[0].split(",")
            names, headings = headers["0"], headers["1"]
            if any(not re.fullmatch(r"[a-z0-9_]+", name) for name in names):
                wrong.append((pattern, "names", names))
            same = [
                name for name, shown in zip(names, headings, strict=True) if shown == name.replace("_", " ")
            ]
            if same and same != ["sha256"]:
                wrong.append((pattern, "not translated", same))
    assert wrong == []


def test_every_column_of_every_list_has_a_heading() -> None:
    """Also those that only some questions bring along."""
    missing = set()
    for _pattern, view in LISTS:
        asked = view()
        asked.request = Request(APIRequestFactory().get("/"))
        asked.format_kwarg, asked.args, asked.kwargs = None, (), {}
        with override("zh-hans"):
            words = [name.replace("_", " ") for name in _row_fields(asked)]
            missing |= {word for word in words if gettext(word) == word and word != "sha256"}
    assert missing == set()


def test_a_row_that_comes_in_meanwhile_neither_repeats_nor_hides_one(books: Books) -> None:
    """Of lists whose newest stands first; the rows that come in are newer than all."""
    api, alert = api_of(), alert_of_acme(books.pool)
    older = [_another_alert(alert, days) for days in (3, 2, 1)]
    whole = [str(alert.pk), *(str(one.pk) for one in reversed(older))]
    assert _ids(api.get("/api/v1/alerts/").json()) == whole
    first = api.get("/api/v1/alerts/", {"page_size": "2"}).json()
    _another_alert(alert, -1)
    second = api.get(first["next"]).json()
    assert _ids(first) + _ids(second) == whole
    assert _ids(api.get(second["previous"]).json()) == whole[:2]


def _another_alert(alert: Alert, days_before: int) -> Alert:
    at = alert.opened_at - timedelta(days=days_before)
    return Alert.objects.create(
        rule=alert.rule,
        subject=f"pool:{days_before}",
        kind=alert.kind,
        severity=alert.severity,
        started_at=at,
        opened_at=at,
        last_seen_at=at,
    )


def _ids(document: dict[str, Any]) -> list[str]:
    return [row["id"] for row in document["results"]]
