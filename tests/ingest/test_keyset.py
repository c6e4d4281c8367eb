"""Cursors of facts and batches name a row: nothing repeats or is left out while more comes in."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from ledger.api.parameters import CURSOR
from ledger.services.tokens import create_api_token
from tests.fixtures.made_once import made_once
from tests.ingest.feeding import deliver, occupancy, request, small_world

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

DAY = "2026-10-01"
FACTS = "/api/v1/facts/"
BATCHES = "/api/v1/batches/"


@made_once
def api() -> APIClient:
    small_world()
    for hour in (3, 1, 2):  # out of order, and two of one instant
        at = f"{DAY}T0{hour}:00:00Z"
        deliver(occupancy(f"a-{hour}", at, 1), occupancy(f"b-{hour}", at, 2, workload="wl-2"))
    deliver(*(request(f"r/{n}", f"{DAY}T02:00:00Z", f"{DAY}T01:59:00Z", input_tokens=n) for n in range(5)))
    _, secret = create_api_token("reader", "auditor")
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def _walk(api: APIClient, address: str, to: str = "next") -> list[list[dict[str, Any]]]:
    pages = []
    while address:
        answer = api.get(address)
        assert answer.status_code == 200, answer.content
        pages.append(answer.json()["results"])
        address = answer.json()[to] or ""
        assert len(pages) < 50
    return pages


@pytest.mark.parametrize(
    "question",
    [f"{FACTS}?", f"{FACTS}?kind=request&window={DAY}T00:00:00Z,2026-10-02T00:00:00Z", f"{BATCHES}?"],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_are_the_whole_list_forwards_and_back(api: APIClient, question: str, size: int) -> None:
    whole = api.get(question).json()["results"]
    assert len(whole) >= 4
    pages = _walk(api, f"{question}&page_size={size}")
    assert [row for page in pages for row in page] == whole
    last = api.get(f"{question}&page_size={size}").json()
    while last["next"]:
        last = api.get(last["next"]).json()
    back = _walk(api, last["previous"], "previous")
    assert [row for page in reversed(back) for row in page] == whole[: len(whole) - len(last["results"])]


def test_what_comes_in_meanwhile_neither_repeats_nor_hides_a_row(api: APIClient) -> None:
    whole = [row["batch"] for row in api.get(BATCHES).json()["results"]]
    first = api.get(f"{BATCHES}?page_size=2").json()
    deliver(occupancy("late", f"{DAY}T05:00:00Z", 1))  # the newest stands first in the list
    seen = [row["batch"] for row in first["results"]]
    seen += [row["batch"] for page in _walk(api, first["next"]) for row in page]
    assert seen == whole


def test_a_deep_page_skips_no_rows_one_by_one(api: APIClient) -> None:
    second = api.get(f"{FACTS}?page_size=1").json()["next"]
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert api.get(second).status_code == 200
    assert not any("OFFSET" in query["sql"] for query in queries.captured_queries)


def _cursor(*content: Any) -> str:
    return base64.urlsafe_b64encode(b"k:" + json.dumps(list(content)).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "azp",
        "az" * 3000,
        "az\u00fc",
        _cursor(),
        _cursor(0),
        _cursor(2, "2026-10-01T00:00:00+00:00", 1),
        _cursor(0, "2026-10-01T00:00:00+00:00"),
        _cursor(0, "2026-10-01T00:00:00", 1),
        _cursor(0, "soon", 1),
        _cursor(0, "0001-01-01T00:00:00+14:00", 1),
        _cursor(0, None, None),
        _cursor(0, [], {}),
        _cursor(0, "2026-10-01T00:00:00+00:00", "\x00"),
        _cursor(0, "2026-10-01T00:00:00+00:00", True),
        base64.urlsafe_b64encode(b"k:" + b"[" * 2900).decode(),
        base64.urlsafe_b64encode(b"k:{}").decode(),
        base64.urlsafe_b64encode(b"k:[0,NaN,1]").decode(),
    ],
)
def test_a_cursor_that_is_none_of_ours_is_refused(api: APIClient, cursor: str) -> None:
    for address in (FACTS, BATCHES):
        answer = api.get(address, {"cursor": cursor})
        is_of_their_form = re.search(CURSOR, cursor) is not None
        wanted = 422 if is_of_their_form else 400
        assert (answer.status_code, answer.json()["code"]) == (wanted, "bad_cursor")


def test_a_number_out_of_reach_is_only_the_end_of_the_list(api: APIClient) -> None:
    far = _cursor(0, "2026-10-01T00:00:00+00:00", 10**30)
    assert api.get(FACTS, {"cursor": far}).status_code == 200
