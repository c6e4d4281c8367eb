"""Predicted against measured GPU time per day, the re-fit, and its acceptance by two people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from billing.models import Calibration
from ledger.models import Ledger, Membership, ModelName, Outcome, Pool, Role, UsageHour, User
from tests.billing.level_facts import hour, make_pool, make_tenants
from tests.billing.page_books import client_of
from tests.billing.test_periods_api import client, get, post

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture
def pool(no_broker: None) -> Pool:
    """Three days whose requests cost 3000 gpu_us per 1000 input and 6000 per 1000 output tokens; the first is booked
    half, by requests that stated no GPU time."""
    pool = make_pool()
    make_tenants("acme")
    model = ModelName.objects.create(name="qwen")
    Calibration.objects.create(
        model=model,
        gpu_model=pool.gpu_model,
        valid_from=hour(-1000),
        input_gpu_us_per_1k=2_000,
        cached_input_gpu_us_per_1k=0,
        output_gpu_us_per_1k=6_000,
        concurrency_per_gpu_milli=2_500,
        tolerance_ppm=200_000,
    )
    for day, (read, written) in enumerate([(1_000_000, 0), (1_000_000, 1_000_000), (0, 1_000_000)]):
        UsageHour.objects.create(
            pool=pool,
            hour=hour(24 * day + 1),
            model=model,
            outcome=Outcome.OK,
            requests=1,
            input_tokens=read,
            output_tokens=written,
            gpu_us=3 * read + 6 * written,
        )
    UsageHour.objects.create(
        pool=pool,
        hour=hour(2),
        model=model,
        outcome=Outcome.OK,
        requests=1,
        gpu_missing=1,
        input_tokens=9,
        gpu_us=0,
    )
    return pool


def test_days_are_those_of_the_billing_zone(pool: Pool) -> None:
    UsageHour.objects.filter(gpu_us=0).delete()
    window = f"{hour(0).isoformat()},{hour(72).isoformat()}".replace("+00:00", "Z")
    for zone, days in (("UTC", [0, 1, 2]), ("America/New_York", [-1, 0, 1])):
        Ledger.objects.update(billing_time_zone=zone)
        rows = get(client("auditor"), f"calibrations/deviation/?window={window}")["results"]
        assert [row["day"] for row in rows] == [f"{hour(24 * day):%Y-%m-%d}" for day in days]


def test_deviation_by_day(pool: Pool) -> None:
    rows = get(client("auditor"), "calibrations/deviation/?window=2026-10")["results"]
    assert [
        (row["predicted_gpu_us"], row["measured_gpu_us"], row["deviation"], row["beyond_tolerance"])
        for row in rows
    ] == [
        ("2000000", "3000000", "0.5", True),
        ("8000000", "9000000", "0.125", False),
        ("6000000", "6000000", "0", False),
    ]
    assert {row["tolerance"] for row in rows} == {"0.2"}
    get(client("tenant_admin", "acme"), "calibrations/deviation/?window=2026-10", 403)


def test_a_refit_is_accepted_by_two_people(pool: Pool) -> None:
    finance = client("finance", by="anna")
    (proposal,) = get(finance, "calibrations/refits/?window=2026-10")["results"]
    assert (proposal["input_gpu_us_per_1k"], proposal["output_gpu_us_per_1k"]) == ("3000", "6000")
    assert (proposal["residual_gpu_us"], proposal["days"], proposal["days_beyond_tolerance"]) == ("0", 3, 1)
    body = {"model": "qwen", "gpu_model": pool.gpu_model, "window": "2026-10", "reason": "measured"}
    body["valid_from"] = (hour(0) + timedelta(days=40_000)).isoformat()
    waiting = post(finance, "calibrations/accept/", 202, **body)
    assert Calibration.objects.count() == 1
    post(client("finance", by="bo"), f"approvals/{waiting['approval']}/decide/", 200, decision="approved")
    accepted = Calibration.objects.latest("valid_from")
    assert (accepted.input_gpu_us_per_1k, accepted.output_gpu_us_per_1k) == (3_000, 6_000)
    assert (accepted.tolerance_ppm, accepted.concurrency_per_gpu_milli) == (200_000, 2_500)
    assert (accepted.load_test, accepted.reason) == ("re-fit over 2026-10", "measured")
    auditor = client_of(User.objects.create_user("zh"))
    Membership.objects.create(user=User.objects.get(username="zh"), role=Role.AUDITOR)
    page = auditor.get("/calibration/", headers={"Accept-Language": "zh-hans"}).content.decode()
    assert "按 2026-10 重新拟合" in page and "re-fit over" not in page
    assert post(finance, "calibrations/accept/", 409, **{**body, "model": "x"})["code"] == "no_refit"
    post(client("platform"), "calibrations/accept/", 403, **body)
