"""The pages of a month, its platform side and its lending, against the worked example."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client

from billing.models import BillingFinding, PoolCost, PoolSlot, ReconciliationLine, Statement
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import (
    Identity,
    Ledger,
    ModelName,
    Outcome,
    Period,
    UsageHour,
)
from tests.billing.level_facts import hour
from tests.billing.page_books import (
    HOURS_OF_OCTOBER,
    MONTH,
    NEXT_MONTH,
    Books,
)
from tests.billing.page_text import shown_text

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def test_the_month_shows_where_every_gpu_hour_went(finance: Client) -> None:
    response = finance.get(f"/months/{MONTH}/")
    (pool,) = response.context["pools"]
    hours = {part.category: part.gpu_us / GPU_US_PER_GPU_HOUR for part in pool.parts}
    assert hours == {
        "reserved_used": 84,
        "on_demand": 32,
        "borrowed": 20,
        "reserved_idle": 16,
        "undelivered": 0,
        "unreserved_idle": 8,
    }
    assert pool.capacity_gpu_us == 160 * GPU_US_PER_GPU_HOUR
    assert sum(float(part.percent) for part in pool.parts) == pytest.approx(100)
    assert "Reserved, used: 84.00 (52.5\u202f%); On-demand: 32.00 (20.0\u202f%)" in response.content.decode()
    assert [proof.text for proof in response.context["proofs"] if not proof.holds] == []
    assert response.context["preemptions"].requeued_gpu_us == 8 * GPU_US_PER_GPU_HOUR + 640_500_000


def test_a_proof_that_does_not_hold_says_so(books: Books, finance: Client) -> None:
    statement = books.statement("acme")
    Statement.objects.filter(pk=statement.pk).update(total_micro=statement.total_micro + 1)
    month = finance.get(f"/months/{MONTH}/")
    broken = [proof.text for proof in month.context["proofs"] if not proof.holds]
    assert broken == [
        "Statements: the lines of 3 of 4 add up to their total.",
        "Transfers: what 3 of 4 tenants are charged is what stands posted.",
    ]
    assert month.content.decode().count('class="broken"') == 2
    page = finance.get(f"/months/{MONTH}/statements/acme/")
    assert shown_text(page).count("Not proved:") == 2
    Statement.objects.filter(pk=statement.pk).update(sha256="f" * 64)
    assert shown_text(finance.get(f"/months/{MONTH}/statements/acme/")).count("Not proved:") == 3


def test_a_slot_that_is_missing_breaks_the_proof(books: Books, finance: Client) -> None:
    PoolSlot.objects.filter(starts_at=hour(3)).delete()
    broken = [p.text for p in finance.get(f"/months/{MONTH}/").context["proofs"] if not p.holds]
    assert len(broken) == 1
    assert broken[0].startswith("Tenants and services: theirs add up to 152.00 of ")


def test_the_tenants_of_a_month_against_the_month_before(finance: Client) -> None:
    rows = {row.tenant: row for row in finance.get(f"/months/{NEXT_MONTH}/").context["tenants"]}
    assert rows["acme"].before_minor == 12400
    assert rows["acme"].change == "-100.0"
    assert rows["delta"].change is None
    first = {row.tenant: row for row in finance.get(f"/months/{MONTH}/").context["tenants"]}
    assert {slug: row.total_minor for slug, row in first.items()} == {
        "acme": 12400,
        "beta": 8000,
        "delta": 0,
        "gamma": 11600,
    }
    assert first["gamma"].occupied_gpu_us == 52 * GPU_US_PER_GPU_HOUR


def test_the_month_shows_what_others_counted_and_what_nobody_explains(books: Books, finance: Client) -> None:
    path = f"/months/{MONTH}/"
    assert "Reconciliation" not in shown_text(finance.get(path))
    period = Period.objects.get(month=MONTH)
    ReconciliationLine.objects.create(
        period=period, key="k", kind="source_total", measure="preemptions", unit="count", source="kueue-bj",
        subject="wl-7", stated=3, booked=2, reconciled_at=hour(800),
    )  # fmt: skip
    for engine, gpu_us in (
        (None, GPU_US_PER_GPU_HOUR),
        (Identity.objects.get(value="acme"), 3 * GPU_US_PER_GPU_HOUR),
    ):
        UsageHour.objects.create(
            pool=books.pool, hour=hour(1), identity=engine, outcome=Outcome.OK, gpu_us=gpu_us,
            model=ModelName.objects.get_or_create(name="qwen3-32b")[0], input_missing=1, output_missing=1,
            cached_missing=1,
        )  # fmt: skip
    text = shown_text(finance.get(path))
    assert "kueue-bj wl-7 Preemptions 3 2 1 count unexplained: blocks the close" in text
    assert "2026-10-01 bj-h100 qwen3-32b GPU time 1.00 3.00 \u22122.00 GPU-hours" in text
    lines = finance.get(path + "?csv=residuals").getvalue().decode().splitlines()
    assert lines[1].startswith("2026-10-01,bj-h100,qwen3-32b,gpu_us,1,3,-2,gpu_hours,0")


def test_exceptions_say_what_to_do_and_which_block(books: Books, finance: Client) -> None:
    for code, blocks in (("price_missing", True), ("price_missing", True), ("excess", False)):
        BillingFinding.objects.create(
            code=code,
            month=MONTH,
            pool=books.pool,
            quantity=3_600_000_000,
            unit="gpu_us",
            blocks_close=blocks,
        )
    groups = finance.get(f"/months/{MONTH}/").context["exceptions"]
    assert [(group.code, group.count, group.blocks_close) for group in groups] == [
        ("price_missing", 2, True),
        ("excess", 1, False),
    ]
    assert all(group.remedy for group in groups)
    row = finance.get("/months/").context["rows"][1]
    assert (row.period.month, row.exceptions, row.blocking) == (MONTH, 3, 2)


def test_the_platform_s_side_adds_up_to_the_cost(books: Books, finance: Client) -> None:
    PoolCost.objects.create(pool=books.pool, valid_from=hour(-1000), cost_micro_per_gpu_hour=3_000_000)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER), everything=True)
    url = f"/months/{MONTH}/platform/"
    page = finance.get(url)
    (pool,) = page.context["side"].pools
    # 160 GPU-hours at 3. Tenants pay 124 + 80 + 116 (their statements), the platform's idle 8 GPU-hours are at 1.
    assert (pool.cost_micro, pool.amounts["tenants"]) == (480_000_000, 320_000_000)
    assert (pool.amounts["unsold"], pool.amounts["difference"]) == (8_000_000, 152_000_000)
    assert (pool.margin_micro, pool.adds_up, page.context["broken"]) == (-160_000_000, True, [])
    assert "to the millionth" in shown_text(page)
    file = finance.get(url, {"csv": "cost"}).getvalue().decode()
    (row,) = csv.DictReader(io.StringIO(file))
    assert (row["pool"], row["cost"], row["margin"], row["capacity_gpu_hours"]) == (
        books.pool.slug,
        "480",
        "-160",
        "160",
    )
    pool.amounts["suspense"] += 1
    assert not pool.adds_up


def test_lending_is_the_stored_pairs_and_idle_what_reservations_add_up_to(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/lending/")
    assert [(one.lender, one.borrower, one.gpu_us) for one in page.context["tables"]["pairs"].shown] == [
        ("acme", "gamma", 20 * GPU_US_PER_GPU_HOUR)
    ]
    idle = page.context["tables"]["idle"].shown
    assert [
        (one.tenant, one.reserved_gpu_us // GPU_US_PER_GPU_HOUR, one.idle_percent, one.amount_micro)
        for one in idle
    ] == [("acme", 80, "20.0", 16_000_000), ("beta", 40, "0.0", 0)]
    assert "Reserved-but-idle 16.00 = Reserved 80.00 \u2212 used 44.00 \u2212 lent 20.00" in shown_text(page)
    heat = page.context["heat"]
    assert (heat.columns, [(row.name, [cell.step for cell in row.cells]) for row in heat.rows]) == (
        ["gamma"],
        [("acme", [9])],
    )
    (trace,) = heat.chart["data"]
    assert (trace["z"], trace["text"], trace["customdata"]) == ([[9]], [["20.00"]], [[["acme", "gamma"]]])
    assert heat.largest[:2] == ("acme", "gamma")
    paid = finance.get(f"/months/{MONTH}/lending/", {"measure": "paid"}).context["heat"]
    assert 'value="20"' in str(paid.total)


def test_the_matrix_leads_to_its_records(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/preemptions/", {"measure": "count"})
    ((row,), columns) = page.context["heat"].rows, page.context["heat"].columns
    assert (row.name, columns, str(row.cells[0].url)) == (
        "acme",
        ["gamma"],
        f"/months/{MONTH}/preemptions/?preemptor=acme&victim=gamma#table-preemptions",
    )
    assert page.context["heat"].chart["urls"] == [[row.cells[0].url]]
    assert len(finance.get(row.cells[0].url).context["tables"]["preemptions"].shown) == 1


def test_large_sums_in_cny_read_as_chinese_readers_count(books: Books, finance: Client) -> None:
    """The figure is shortened for the eye only: its value stays whole."""
    Ledger.objects.update(currency="CNY")
    Statement.objects.filter(tenant__holder__slug="acme", period=MONTH).update(total_minor=142_676_296)
    whole = '<data class="figure" value="1426958.96" title="1426958.96">'
    assert whole + "1\u202f426\u202f958.96" in finance.get(f"/months/{MONTH}/").content.decode()
    finance.cookies["django_language"] = "zh-hans"
    assert whole + "142.70\u202f万" in finance.get(f"/months/{MONTH}/").content.decode()
