"""Pages of demand, quotas, budgets, plans and calibrations: their numbers, and whose they are (domain.md section 9)."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client

from billing.models import Budget, Calibration
from billing.services.quota_standings import refresh_quota_standings
from ledger.models import EventType, Membership, ModelName, Outcome, QuotaLevel, Role, UsageHour, User
from tests.billing.level_facts import hour, identity
from tests.billing.page_books import MONTH, NEXT_MONTH, Books, client_of
from tests.billing.preemption_facts import event
from tests.billing.test_section9 import refused, used

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


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
    assert [row["explicit_share"] for row in rows] == ["", "0.250000"]
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
    booked = finance.get("/demand/", {"window": MONTH}).context["tables"]["refusals"]
    links = [line.cells[0].url for line in booked.lines]
    assert [finance.get(link or "").status_code for link in links] == [200, 200]
    assert file_of(finance, "/demand/", "refusals", **{"refusals.layer": "quota"})[0]["rejections"] == "3"
    (trace, other) = finance.get("/demand/", {"window": MONTH}).context["chart"]["data"]
    assert (trace["x"], trace["y"], other["y"]) == (["2026-10-01"], [2], [3])
    acme = client_of(people["viewer-of-acme"])
    assert [row["tenant"] for row in file_of(acme, "/demand/", "funnel")] == ["acme"]
    assert acme.get("/demand/", {"window": MONTH, "csv": "refusals"}).status_code == 404
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


def test_a_plan_is_in_its_address_and_says_what_the_api_says(books: Books, finance: Client) -> None:
    """acme with 4 instead of 8 GPUs; the numbers are worked out by hand in the tests of budgets."""
    query = {"tenant": "acme", "pool": "bj-h100", "reservation": "4"}
    amounts = file_of(finance, "/plan/", "amounts", **query)
    assert amounts[0] == {"month": MONTH, "as_it_was": "124", "re_rated": "108", "difference": "-16"}
    parts = {
        row["category"]: (row["as_it_was_gpu_hours"], row["re_rated_gpu_hours"], row["difference_gpu_hours"])
        for row in file_of(finance, "/plan/", "parts", **query)
        if row["month"] == MONTH
    }
    assert parts == {
        "reserved_used": ("44", "32", "-12"),
        "on_demand": ("0", "12", "12"),
        "lent": ("20", "0", "-20"),
        "reserved_idle": ("16", "8", "-8"),
        "oversold": ("0", "2936", "2936"),
    }
    page = finance.get("/plan/", query)
    assert [trace["meta"]["category"] for trace in page.context["chart"]["data"]][:2] == [
        "reserved_used",
        "on_demand",
    ]


def test_a_plan_of_another_tenant_is_not_there(
    books: Books, people: dict[str, User], finance: Client
) -> None:
    gamma = client_of(people["viewer-of-gamma"])
    query = {"pool": "bj-h100", "reservation": "4"}
    assert gamma.get("/plan/", {**query, "tenant": "acme"}).status_code == 404
    assert gamma.get("/plan/", query).context["tenant"].slug == "gamma"
    assert finance.get("/plan/", {**query, "tenant": "acme", "pool": "none"}).status_code == 404
    for wrong in ("-1", "1e30", "0.0001", "many"):
        page = finance.get("/plan/", {**query, "tenant": "acme", "reservation": wrong})
        assert (page.status_code, page.context["bad_number"], page.context["months"]) == (200, True, [])


def set_budget(client: Client, **form: str) -> Any:
    return client.post(f"/budgets/?month={MONTH}", {"deed": "set", "kind": "amount", **form})


def test_a_budget_is_set_and_stands_beside_the_month(books: Books, finance: Client) -> None:
    answer = set_budget(finance, tenant="acme", limit="100", thresholds="50%, 80 200")
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/budgets/?month={MONTH}")
    assert set_budget(finance, tenant="acme", kind="gpu_hours", limit="50", month=MONTH).status_code == 303
    amount, hours = file_of(finance, "/budgets/", "budgets", month=MONTH)
    assert amount == {
        "tenant": "acme",
        "for": "",
        "unit": "USD",
        "limit": "100",
        "month_to_date": "124",
        "used_percent": "124.0",
        "left": "-24",
        "expected": "124",
        "high": "124",
        "thresholds": "50, 80, 200",
        "passed": "50, 80",
        "expected_to_pass": "50, 80",
    }
    assert (hours["for"], hours["limit"], hours["month_to_date"]) == (MONTH, "50", "44")
    page = finance.get("/budgets/", {"month": MONTH})
    assert [row.budget.kind for row in page.context["exceeded"]] == ["amount"]
    removed = finance.post("/budgets/", {"deed": "remove", "budget": page.context["removable"][0].pk})
    assert removed.status_code == 303
    assert [row["unit"] for row in file_of(finance, "/budgets/", "budgets", month=MONTH)] == ["GPU-hours"]


def test_who_may_set_which_budget(books: Books, people: dict[str, User], finance: Client) -> None:
    admin = client_of(people["admin-of-acme"])
    assert set_budget(admin, tenant="acme", limit="100").status_code == 303
    assert set_budget(admin, tenant="gamma", limit="100").status_code == 404
    set_budget(finance, tenant="gamma", limit="100")
    gammas = Budget.objects.get(tenant__holder__slug="gamma")
    assert admin.post("/budgets/", {"deed": "remove", "budget": gammas.pk}).status_code == 404
    for name in ("viewer-of-acme", "platform", "auditor"):
        assert set_budget(client_of(people[name]), tenant="acme", limit="1").status_code == 403
    assert [row["tenant"] for row in file_of(admin, "/budgets/", "budgets", month=MONTH)] == ["acme"]


@pytest.mark.parametrize(
    "form", [{"limit": "0"}, {"limit": "many"}, {"limit": "1e40"}, {"month": "2026-13"}, {"thresholds": "0"}]
)
def test_what_is_no_budget_is_refused_with_what_was_typed(
    books: Books, finance: Client, form: dict[str, str]
) -> None:
    answer = set_budget(finance, **{"tenant": "acme", "limit": "123.5", **form})
    assert (answer.status_code, bool(answer.context["problem"])) == (422, True)
    assert answer.context["typed"]["limit"] == form.get("limit", "123.5")
    assert not Budget.objects.exists()


@pytest.fixture
def measured(books: Books) -> None:
    """Four days of qwen3 that each took twice what the calibration says: 1 GPU-s instead of 0.5 per 1000 input."""
    model, _ = ModelName.objects.get_or_create(name="qwen3")
    Calibration.objects.create(
        model=model,
        gpu_model=books.pool.gpu_model,
        valid_from=hour(-1000),
        load_test="replay",
        input_gpu_us_per_1k=500_000,
        cached_input_gpu_us_per_1k=0,
        output_gpu_us_per_1k=2_000_000,
    )
    for day, (tokens, output) in enumerate([(1_000, 0), (2_000, 0), (0, 1_000), (3_000, 1_000)]):
        UsageHour.objects.create(
            pool=books.pool,
            hour=hour(24 * day + 5),
            identity=identity("gamma"),
            model=model,
            outcome=Outcome.OK,
            requests=1,
            input_tokens=tokens,
            output_tokens=output,
            gpu_us=tokens * 1_000 + output * 2_000,
        )


def test_predicted_stands_beside_measured_by_day(measured: None, books: Books, finance: Client) -> None:
    days = file_of(finance, "/calibration/", "days")
    assert [(row["day"], row["deviation_percent"], row["state"]) for row in days] == [
        ("2026-10-01", "100.0", "beyond tolerance"),
        ("2026-10-02", "100.0", "beyond tolerance"),
        ("2026-10-03", "0.0", "within tolerance"),
        ("2026-10-04", "42.9", "beyond tolerance"),
    ]
    (model,) = file_of(finance, "/calibration/", "models")
    # 10 GPU-s measured of 7 predicted.
    assert (model["deviation_percent"], model["days"], model["days_beyond"]) == ("42.9", "4", "3")
    (refit,) = file_of(finance, "/calibration/", "refits")
    assert (refit["input_gpu_seconds_per_1k"], refit["output_gpu_seconds_per_1k"]) == ("1.000000", "2.000000")
    assert (refit["days"], refit["residual_gpu_hours"]) == ("4", "0")


def test_a_refit_takes_two_people_and_a_reason(
    measured: None, books: Books, people: dict[str, User], finance: Client
) -> None:
    path = f"/calibration/?window={MONTH}"
    asked = {
        "deed": "accept",
        "proposal": f"qwen3/{books.pool.gpu_model}",
        "valid_from": "2030-01-01",
        "reason": "the engine was upgraded",
    }
    for name in ("platform", "auditor"):
        assert client_of(people[name]).post(path, asked).status_code == 403
    for wrong in ({"reason": " "}, {"valid_from": "soon"}, {"proposal": "other/H100"}):
        assert finance.post(path, asked | wrong).status_code == 422
    assert finance.post(path, asked).status_code == 303
    (approval,) = finance.get(path).context["asked_by_me"]
    decide = {"deed": "decide", "approval": approval.pk, "decision": "approved", "note": "seen"}
    assert finance.post(path, decide).status_code == 422
    second = client_of(second_person())
    page = second.get(path)
    assert [one.pk for one in page.context["asks_me"]] == [approval.pk]
    # Who decides has to see what it would cost from then on.
    assert ">1<" in page.content.decode() and "GPU-seconds per 1000 tokens:" in page.content.decode()
    assert second.post(path, decide).status_code == 303
    newest = Calibration.objects.order_by("valid_from").last()
    assert newest is not None
    assert (newest.input_gpu_us_per_1k, newest.output_gpu_us_per_1k, newest.reason) == (
        1_000_000,
        2_000_000,
        "the engine was upgraded",
    )
    assert second.post(path, decide).status_code == 422


def second_person() -> User:
    user = User.objects.create_user("second", password="x")
    Membership.objects.create(user=user, role=Role.FINANCE)
    return user


def test_sections_are_those_of_the_role(books: Books, people: dict[str, User]) -> None:
    def sections(name: str) -> list[str]:
        shell = client_of(people[name]).get("/plan/").context["shell"]
        return [one.url.partition("?")[0] for one in shell.sections]

    assert {"/demand/", "/quota/", "/budgets/", "/plan/"} <= set(sections("viewer-of-gamma"))
    assert not {"/calibration/", "/cluster/", "/ingest/"} & set(sections("viewer-of-gamma"))
    assert {"/calibration/", "/cluster/", "/ingest/"} <= set(sections("finance"))
