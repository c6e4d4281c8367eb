"""Pages of demand, quotas, budgets, plans and calibrations: their numbers, and whose they are (domain.md section 9)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from billing.services.quota_standings import refresh_quota_standings
from ledger.models import EventType, Outcome, QuotaLevel, User
from tests.billing.level_facts import hour, identity
from tests.billing.page_books import MONTH, NEXT_MONTH, Books, client_of, make_books, make_people
from tests.billing.preemption_facts import event
from tests.billing.test_section9 import refused, used

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[tuple[Books, dict[str, User]]]:
    """The worked example and its people, built once: tests are rolled back to it."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_books(), make_people()
        transaction.set_rollback(True)


@pytest.fixture
def books(world: tuple[Books, dict[str, User]]) -> Books:
    return world[0]


@pytest.fixture
def people(world: tuple[Books, dict[str, User]]) -> dict[str, User]:
    return world[1]


@pytest.fixture
def finance(people: dict[str, User]) -> Client:
    return client_of(people["finance"])


def file_of(client: Client, path: str, name: str, **query: str) -> list[dict[str, str]]:
    answer = client.get(path, {"csv": name, "window": MONTH, **query})
    assert answer.status_code == 200
    return list(csv.DictReader(io.StringIO(answer.getvalue().decode())))


def quota(who: str, at: float, layer: str, limit: int, used_milli: int) -> None:
    QuotaLevel.objects.create(
        event=event(EventType.QUOTA, hour(at)),
        starts_at=hour(at),
        identity=identity(who),
        layer=layer,
        resource="gpus",
        limit_milli=limit,
        used_milli=used_milli,
    )


@pytest.fixture
def quotas(books: Books) -> None:
    """acme's cluster layer is full from hour 1 on, while its serving layer could take 5 GPUs more; two hours later
    somebody doubles the limit. gamma's layers agree."""
    quota("acme", 1, "serving", 10_000, 5_000)
    quota("acme", 1, "cluster", 8_000, 8_000)
    quota("acme", 3, "cluster", 16_000, 8_000)
    quota("gamma", 1, "cluster", 4_000, 4_000)
    refresh_quota_standings(hour(5))


def test_drift_has_a_direction_gpu_hours_and_a_reaction(quotas: None, finance: Client) -> None:
    (row,) = file_of(finance, "/quota/", "drift")
    assert row == {
        "from": "2026-10-01T01:00:00Z",
        "until": "2026-10-01T03:00:00Z",
        "tenant": "acme",
        "full_layer": "cluster",
        "loose_layer": "serving",
        "lasted": "7200",
        "unused_gpu_hours": "10",
        "reaction": "7200",
    }
    page = finance.get("/quota/", {"window": MONTH})
    assert [trace["y"] for trace in page.context["chart"]["data"]] == [["acme"], []]
    assert (page.context["episodes_ms"], page.context["unreacted"]) == (7_200_000, 0)


def test_both_layers_at_the_windows_end_and_what_is_left(quotas: None, finance: Client) -> None:
    assert file_of(finance, "/quota/", "layers") == [
        {"tenant": "acme", "cluster_percent": "50.0", "serving_percent": "50.0", "state": "in step"},
        {"tenant": "gamma", "cluster_percent": "100.0", "serving_percent": "", "state": "one layer only"},
    ]
    during = file_of(finance, "/quota/", "layers", window="2026-10-01T00:00:00Z,2026-10-01T02:00:00Z")
    assert during[0] == {
        "tenant": "acme",
        "cluster_percent": "100.0",
        "serving_percent": "50.0",
        "state": "held back by the cluster layer",
    }
    assert [
        (row["tenant"], row["left"], row["cluster_left"], row["serving_left"])
        for row in file_of(finance, "/quota/", "left")
    ] == [("acme", "5", "8", "5"), ("gamma", "0", "0", "")]


def test_a_tenant_sees_its_own_quotas_alone(quotas: None, people: dict[str, User]) -> None:
    client = client_of(people["viewer-of-gamma"])
    assert {row["tenant"] for row in file_of(client, "/quota/", "quotas")} == {"gamma"}
    assert file_of(client, "/quota/", "drift") == []
    body = client.get("/quota/", {"window": MONTH}).content.decode()
    assert "acme" not in body
    assert "/events/" not in body


@pytest.fixture
def asked(books: Books) -> None:
    """As in the tests of section 9: 18 asked for by gamma, 5 of them refused; acme's 3 completed."""
    used(books.pool, "gamma", Outcome.OK, 10, input_tokens=9_000, output_tokens=1_000, gpu_us=3_600_000_000)
    used(books.pool, "gamma", Outcome.TIMEOUT, 2)
    used(books.pool, "gamma", Outcome.PREEMPTED, 1)
    used(books.pool, "acme", Outcome.OK, 3)
    refused("gamma", 2, retry_after_us=5_000_000, requested_tokens=3_000)
    refused("gamma", 3, layer="quota", reason="tokens per month", status=503)


def test_the_funnel_adds_up_and_refusing_stands_beside_killing(asked: None, finance: Client) -> None:
    rows = file_of(finance, "/demand/", "funnel")
    assert [row["asked"] for row in rows] == ["3", "18"]
    parts = ("completed", "rejected", "preempted", "timed_out", "aborted", "failed")
    assert [[row[part] for part in parts] for row in rows] == [
        ["3", "0", "0", "0", "0", "0"],
        ["10", "5", "1", "2", "0", "0"],
    ]
    assert [row["explicit"] for row in rows] == ["", "25.0"]
    (cost,) = file_of(finance, "/demand/", "refusing")
    assert (cost["declined"], cost["basis"], cost["killing"]) == ("1.8", "gpu_time", "3.680062")
    page = finance.get("/demand/", {"window": MONTH})
    assert [(part.count, part.percent) for part in page.context["parts"]] == [
        (13, "61.905"),
        (5, "23.809"),
        (1, "4.762"),
        (2, "9.524"),
        (0, "0.000"),
        (0, "0.000"),
    ]


def test_refusals_by_layer_and_reason(asked: None, finance: Client, people: dict[str, User]) -> None:
    rows = file_of(finance, "/demand/", "reasons")
    assert [
        (row["layer"], row["reason"], row["status"], row["rejections"], row["explicit"]) for row in rows
    ] == [
        ("quota", "tokens per month", "503", "3", "0"),
        ("rate_limit", "tokens per minute", "429", "2", "2"),
    ]
    assert file_of(finance, "/demand/", "reasons", **{"reasons.layer": "quota"}) == rows[:1]
    (trace, other) = finance.get("/demand/", {"window": MONTH}).context["chart"]["data"]
    assert (trace["x"], trace["y"], other["y"]) == (["2026-10-01"], [2], [3])
    acme = client_of(people["viewer-of-acme"])
    assert [row["tenant"] for row in file_of(acme, "/demand/", "funnel")] == ["acme"]
    assert "gamma" not in acme.get("/demand/", {"window": MONTH}).content.decode()


@pytest.mark.parametrize("window", ["", "2026-13", "9999-12", "0001-01", "last999d,", "%00", "2026-10-01,x"])
def test_a_window_that_is_none_is_the_newest_month(books: Books, finance: Client, window: str) -> None:
    page = finance.get("/demand/", {"window": window})
    assert (page.status_code, page.context["month"]) == (200, NEXT_MONTH)


def test_the_month_in_sight_is_kept_from_page_to_page(books: Books, finance: Client) -> None:
    shell = finance.get("/quota/", {"window": MONTH}).context["shell"]
    assert shell.later_url == f"/quota/?window={NEXT_MONTH}"
    (section,) = [one for one in shell.sections if one.current]
    assert section.url == f"/quota/?window={MONTH}"
