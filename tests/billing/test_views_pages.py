"""What the pages say, against the worked example; and that they cost the same with more tenants."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from billing.models import BillingFinding, PoolCost, PoolSlot, ReconciliationLine, Statement, StatementLine
from billing.services.months import compute_month
from ledger.core.periods import Month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import (
    Identity,
    Ledger,
    LevelKind,
    Membership,
    ModelName,
    Outcome,
    Period,
    Role,
    Source,
    Tenant,
    UsageHour,
    User,
)
from tests.billing.level_facts import book, hour, identity, make_tenants, occupancy
from tests.billing.page_books import (
    HOURS_OF_OCTOBER,
    MONTH,
    NEXT_MONTH,
    PASSWORD,
    Books,
    client_of,
    line_position,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def shown_text(response: Any) -> str:
    """The page as it reads: no tags, runs of white space as one space."""
    body = re.sub(r"<script.*?</script>", "", response.content.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def figures(response: Any) -> list[str]:
    """Exact values of the figures of a page, in order."""
    return re.findall(r'<data class="figure" value="([^"]*)"', response.content.decode())


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


def test_a_statement_prints_what_its_bill_says(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/statements/acme/")
    bill = finance.get(f"/months/{MONTH}/statements/acme/bill.csv").getvalue().decode()
    rows = list(csv.DictReader(io.StringIO(bill)))
    printed = figures(page)
    assert rows[-1]["amount"] == "124.00" and printed[0] == rows[-1]["amount"]
    for row in rows[:-1]:
        assert row["amount"] in printed
        assert row["quantity"] in printed
    lines = page.context["lines"]
    assert [group.pool for group in lines.pools] == ["bj-h100"]
    assert [line.category for line in lines.pools[0].lines] == [
        "reserved_used",
        "lent",
        "reserved_idle",
        "lend_credit",
    ]
    assert lines.pools[0].amount_minor == 12400
    assert all(proof.holds for proof in page.context["proofs"])
    assert "The parts add up to 80.00 of 80.00 GPU-hours." in shown_text(page)


def test_the_download_is_the_same_bytes_as_from_the_api(books: Books, finance: Client) -> None:
    statement = books.statement("acme")
    for name in ("bill", "usage", "preemptions"):
        page = finance.get(f"/months/{MONTH}/statements/acme/{name}.csv")
        api = finance.get(f"/api/v1/statements/{statement.pk}/{name}.csv")
        assert page.getvalue() == api.getvalue()
        assert page.headers["Content-Disposition"] == f'attachment; filename="acme-{MONTH}-{name}.csv"'
    assert finance.get(f"/months/{MONTH}/statements/acme/ledger.csv").status_code == 404


def test_the_chart_is_the_table(finance: Client) -> None:
    page = finance.get(f"/months/{MONTH}/statements/gamma/")
    (text,) = re.findall(
        r'<script id="daily-figure" type="application/json">(.*?)</script>', page.content.decode()
    )
    traces = {
        trace["meta"]["category"]: trace for trace in json.loads(text)["data"] if "category" in trace["meta"]
    }
    assert {name: trace["y"] for name, trace in traces.items()} == {"on_demand": [32.0], "borrowed": [20.0]}
    assert traces["borrowed"]["x"] == ["2026-10-01"]
    assert page.context["days"].gpu_us["on_demand"] == 32 * GPU_US_PER_GPU_HOUR


def test_a_line_is_the_sum_of_its_slots_and_the_day_of_its_work(books: Books, finance: Client) -> None:
    position = line_position(books.statement("gamma"), "borrowed")
    page = finance.get(f"/months/{MONTH}/statements/gamma/lines/{position}/")
    detail = page.context["detail"]
    assert detail.gpu_us == page.context["line"].quantity == 20 * GPU_US_PER_GPU_HOUR
    assert [slot.gpu_us // GPU_US_PER_GPU_HOUR for slot in detail.chosen.slots] == [4, 4, 4, 4, 4]
    assert [(part.workload.workload, part.gpu_us) for part in detail.workloads] == [
        ("wl-3", 20 * GPU_US_PER_GPU_HOUR)
    ]
    assert f"/workloads/{books.pool.slug}/wl-3/" in page.content.decode()


def test_from_a_workload_to_its_event_and_its_batch(books: Books, finance: Client) -> None:
    workload = finance.get(f"/workloads/{books.pool.slug}/wl-1/")
    (event,) = re.findall(r'href="(/events/\d+/acme-holds-2/)"', workload.content.decode())
    page = finance.get(event)
    assert f'href="/ingest/batches/{books.batch.pk}/"' in page.content.decode()
    assert '{"id":"acme-holds-2"}' in finance.get(f"/ingest/batches/{books.batch.pk}/").context["raw"]


def test_every_line_of_every_statement_leads_somewhere(finance: Client) -> None:
    for line in StatementLine.objects.select_related("statement__tenant__holder"):
        path = f"/months/{line.statement.period_id}/statements/{line.statement.tenant.slug}/"
        assert finance.get(f"{path}lines/{line.position}/").status_code == 200
    assert finance.get(f"/months/{MONTH}/statements/acme/lines/99/").status_code == 404


def test_a_preemption_reads_like_a_story(books: Books, finance: Client, people: dict[str, User]) -> None:
    path = f"/preemptions/{books.record.pk}/"
    story = finance.get(path).context["story"]
    assert story == (
        "acme reclaimed 4 GPUs from gamma's wl-3 at 2026-10-01 04:00:00; "
        "it waited 3\u202fh, lost 8.00 GPU-hours of work and redid 640.5 GPU-seconds; "
        "no other pool could have given 4 GPUs of the same model."
    )
    sources = {event["event_id"] for event in finance.get(path).context["events"]}
    assert "report-1" in sources and len(sources) == 2
    gamma = client_of(people["viewer-of-gamma"]).get(path)
    assert gamma.context["story"].startswith("Alpha customer reclaimed 4 GPUs from gamma's wl-3")
    assert gamma.context["events"] == []
    acme = client_of(people["viewer-of-acme"]).get(path)
    assert acme.context["story"].startswith("acme reclaimed 4 GPUs from another tenant at")


def test_the_cluster_now_is_the_newest_level_of_each_subject(books: Books, finance: Client) -> None:
    late = hour(11)
    book(books.pool, LevelKind.CAPACITY, "", late, 24_000)
    occupancy(books.pool, "wl-9", identity("beta"), late, 16_000)
    occupancy(books.pool, "wl-9", identity("beta"), late, 5_000, attempt=2)
    book(books.pool, LevelKind.PENDING, "queue", late, 20_000, identity=identity("acme"))
    book(
        books.pool,
        LevelKind.RESERVATION,
        "r-9",
        late,
        7_000,
        identity=identity("acme"),
        ends_at=hour(12),
    )
    (pool,) = finance.get("/cluster/").context["pools"]
    assert (pool.capacity_milli, pool.held_milli, pool.reserved_milli) == (24_000, 5_000, 0)
    assert (pool.pending_milli, pool.free_milli, pool.is_short) == (20_000, 19_000, True)
    assert [(one.name, one.held_milli, one.pending_milli) for one in pool.holders] == [
        ("acme", 0, 20_000),
        ("beta", 5_000, 0),
    ]


def test_a_higher_attempt_that_is_over_has_ended_the_lower_ones(books: Books, finance: Client) -> None:
    occupancy(books.pool, "wl-9", identity("beta"), hour(11), 16_000)
    occupancy(books.pool, "wl-9", identity("beta"), hour(12), 16_000, attempt=2)
    occupancy(books.pool, "wl-9", identity("beta"), hour(13), 0, attempt=2)
    (pool,) = finance.get("/cluster/").context["pools"]
    assert (pool.held_milli, pool.holders) == (0, [])
    assert finance.get(f"/pools/{books.pool.slug}/").context["tables"]["workloads"].shown == []
    occupancy(books.pool, "wl-8", identity("beta"), hour(12), 3_000)
    (row,) = finance.get(f"/pools/{books.pool.slug}/").context["tables"]["workloads"].shown
    assert (row.subject, row.last_milli_gpus) == ("wl-8", 3_000)


def test_a_minute_is_a_part_of_its_hour_and_an_hour_of_its_day(books: Books, finance: Client) -> None:
    """By the minute the facts are split anew; the sums are what the books hold, category by category."""
    sums = {}
    for zoom in ("month", "day", "hour"):
        page = finance.get(f"/pools/{books.pool.slug}/", {"zoom": zoom, "at": hour(4).isoformat()})
        buckets = page.context["tables"]["buckets"].matching
        sums[zoom] = {bucket.starts_at: bucket.gpu_us for bucket in buckets}
        assert all(bucket.difference_gpu_us == 0 for bucket in buckets)
    day = page.context["frame"]
    stored = PoolSlot.objects.get(pool=books.pool, starts_at=hour(4))
    for name in ("capacity", "reserved_used", "on_demand", "borrowed", "reserved_idle", "undelivered"):
        of_hour = sum(minute[name] for minute in sums["hour"].values())
        assert of_hour == getattr(stored, f"{name}_gpu_us"), name
        of_day = [minute[name] for at, minute in sums["day"].items() if hour(4) <= at < hour(5)]
        assert sum(of_day) == of_hour
    assert (len(sums["hour"]), day.starts_at) == (60, hour(4))
    whole = next(iter(sums["month"].values()))
    assert whole["capacity"] == sum(minute["capacity"] for minute in sums["day"].values())


def test_a_pool_leads_closer_earlier_and_later_and_forgives_wrong_addresses(
    books: Books, finance: Client
) -> None:
    url = f"/pools/{books.pool.slug}/"
    page = finance.get(url, {"zoom": "month", "at": hour(4).isoformat()})
    assert len(page.context["chart"]["urls"]) == len(page.context["tables"]["buckets"].matching)
    closer = finance.get(url + page.context["chart"]["urls"][0])
    assert (closer.context["frame"].zoom, closer.context["bucket"]) == ("day", "minute")
    assert (
        finance.get(url + page.context["earlier_url"]).context["frame"].ends_at
        == page.context["frame"].starts_at
    )
    assert finance.get(url, {"zoom": "month", "at": "2027-03-01T00:00:00Z"}).context["chart"] is None
    for query in (
        "?at=x",
        "?zoom=year&at=9999-12-31T00:00:00Z",
        "?at=2026-10-01",
        "?zoom=day&at=0001-01-01T00:00:00Z",
    ):
        assert finance.get(url + query).status_code == 200
    assert finance.get("/pools/no-such-pool/").status_code == 404


def test_the_cluster_names_who_preempts_and_who_is_hit(books: Books, finance: Client) -> None:
    Source.objects.update(watermark_at=hour(10))
    book(books.pool, LevelKind.CAPACITY, "", hour(11), 16_000)
    page = finance.get("/cluster/")
    tables = page.context["tables"]
    assert [(row.preemptions, row.milli_gpus, row.victims) for row in tables["preempting"].shown] == [
        (1, 4000, 1)
    ]
    assert tables["victims"].shown == []
    assert [side.record.preemption for side in tables["recent"].shown] == ["wl-3/4"]
    (row,) = csv.DictReader(io.StringIO(finance.get("/cluster/?csv=pools").getvalue().decode()))
    assert (row["pool"], row["capacity"], row["headroom"]) == (books.pool.slug, "16", "16")
    assert int(row["unreserved"]) + int(row["lendable"]) + int(row["preemptible"]) == int(row["headroom"])


def test_search_finds_what_one_may_see(books: Books, finance: Client, people: dict[str, User]) -> None:
    found = finance.get("/search/", {"q": "wl-3"}).context["found"]
    assert [row["workload"] for row in found.workloads] == ["wl-3"]
    assert [record.preemption for record in found.preemptions] == ["wl-3/4"]
    assert [t.slug for t in finance.get("/search/", {"q": "Gam"}).context["found"].tenants] == ["gamma"]
    gamma = client_of(people["viewer-of-gamma"])
    assert [row["workload"] for row in gamma.get("/search/", {"q": "wl-"}).context["found"].workloads] == [
        "wl-3"
    ]


def test_instants_are_shown_in_the_chosen_zone(books: Books, finance: Client) -> None:
    Ledger.objects.update(billing_time_zone="Asia/Shanghai")
    path = f"/preemptions/{books.record.pk}/"
    assert "2026-10-01 12:00:00" in finance.get(path).context["story"]
    finance.post("/preferences/", {"zone": "utc", "next": path})
    page = finance.get(path)
    assert "2026-10-01 04:00:00" in page.context["story"]
    assert 'title="2026-10-01 04:00:00 UTC"' in page.content.decode()


def test_preferences_stay_and_lead_back(people: dict[str, User], finance: Client) -> None:
    response = finance.post("/preferences/", {"language": "zh-hans", "theme": "dark", "next": "/months/"})
    assert (response.status_code, response.headers["Location"]) == (302, "/months/")
    page = finance.get("/months/").content.decode()
    assert 'lang="zh-hans" data-theme="dark"' in page
    assert "2026年10月" in page
    people["finance"].refresh_from_db()
    assert people["finance"].language == "zh-hans"
    for bad in ("https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"):
        assert finance.post("/preferences/", {"next": bad}).headers["Location"] == "/"


def test_sign_in_leads_each_role_to_its_page(people: dict[str, User]) -> None:
    expected = {
        "finance": "/months/",
        "auditor": "/months/",
        "platform": "/cluster/",
        "viewer-of-acme": f"/months/{MONTH}/statements/acme/",
        "nobody": "/",
    }
    for name, path in expected.items():
        client = Client()
        response = client.post("/login/", {"username": name, "password": PASSWORD}, follow=True)
        assert (response.status_code, response.request["PATH_INFO"]) == (200, path)
    assert Client().post("/login/", {"username": "finance", "password": "wrong"}).context["form"].errors
    assert finance_signs_out(people["finance"]) == 302


def test_a_month_that_has_only_begun_is_not_what_a_tenant_comes_for(
    books: Books, people: dict[str, User]
) -> None:
    StatementLine.objects.filter(statement__period=NEXT_MONTH).delete()
    home = client_of(people["viewer-of-acme"]).get("/")
    assert home["Location"] == f"/months/{MONTH}/statements/acme/"


def finance_signs_out(user: User) -> int:
    client = client_of(user)
    assert client.get("/logout/").status_code == 405
    client.post("/logout/")
    return client.get("/months/").status_code


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


def test_a_page_costs_the_same_with_more_tenants(books: Books, finance: Client) -> None:
    paths = [
        "/months/",
        f"/months/{MONTH}/",
        f"/months/{MONTH}/closing/",
        f"/months/{MONTH}/platform/",
        f"/months/{MONTH}/lending/",
        f"/months/{MONTH}/preemptions/",
        f"/months/{MONTH}/statements/gamma/",
        "/cluster/",
        f"/pools/{books.pool.slug}/",
        "/ingest/",
        "/search/?q=t",
    ]
    before = {path: queries_of(finance, path) for path in paths}
    for number, tenant in enumerate(make_tenants(*[f"tenant-{n}" for n in range(12)])):
        occupancy(books.pool, f"w{number}", identity(tenant.slug), hour(number % 9), 100)
        occupancy(books.pool, f"w{number}", identity(tenant.slug), hour(10), 0)
    compute_month(Month.parse(MONTH), horizon=hour(HOURS_OF_OCTOBER))
    assert Statement.objects.filter(period=MONTH).count() == 16
    assert {path: queries_of(finance, path) for path in paths} == before
    # The checklist looks at everything that a close looks at, and is fetched after the month's page.
    assert before.pop(f"/months/{MONTH}/closing/") <= 47
    assert max(before.values()) <= 42


def queries_of(client: Client, path: str) -> int:
    client.get(path)  # what is remembered between requests is remembered now
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


def test_large_sums_in_cny_read_as_chinese_readers_count(books: Books, finance: Client) -> None:
    """The figure is shortened for the eye only: its value stays whole."""
    Ledger.objects.update(currency="CNY")
    Statement.objects.filter(tenant__holder__slug="acme", period=MONTH).update(total_minor=142_676_296)
    whole = '<data class="figure" value="1426958.96" title="1426958.96">'
    assert whole + "1\u202f426\u202f958.96" in finance.get(f"/months/{MONTH}/").content.decode()
    finance.cookies["django_language"] = "zh-hans"
    assert whole + "142.70\u202f万" in finance.get(f"/months/{MONTH}/").content.decode()


def test_the_timeline_s_bars_are_the_instants_of_the_record(books: Books, finance: Client) -> None:
    page = finance.get(f"/preemptions/{books.record.pk}/")
    record = page.context["record"]
    bars = {bar["name"]: bar for bar in page.context["chart"]["data"]}
    waited_ms = int((record.resumed_at - record.released_at).total_seconds() * 1000)
    assert bars["Waited"]["x"] == [waited_ms]
    assert bars["Runs again"]["base"] == [f"{record.resumed_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.000"]
    assert bars["Ran"]["x"][0] <= waited_ms


def test_preemptions_of_a_statement_are_sorted_and_downloaded(books: Books, finance: Client) -> None:
    page = f"/months/{MONTH}/statements/gamma/"
    tables = finance.get(page).context["tables"]
    assert (tables["as_victim"].count, tables["as_cause"].count) == (1, 0)
    lines = finance.get(f"{page}?csv=as_victim").getvalue().decode().splitlines()
    assert lines[0].startswith("preemption,decided_at,victim,preemptor,cause,pool,gpus")
    assert lines[1].startswith(str(books.record.pk))
    caused = finance.get(f"/months/{MONTH}/statements/acme/?as_cause.sort=-gpus").context["tables"]
    assert [side.role for side in caused["as_cause"].shown] == ["cause"]
    assert [head.direction for head in caused["as_cause"].heads if head.direction] == ["descending"]
    delta = finance.get(f"/months/{MONTH}/statements/delta/").content.decode()
    assert "No work of this tenant lost its GPUs" in delta


def test_tables_of_a_workload_are_sorted_and_downloaded_by_who_sees_it(books: Books, finance: Client) -> None:
    page = f"/workloads/{books.pool.slug}/wl-3/"
    assert finance.get(page).context["tables"]["facts"].count == 4
    assert len(finance.get(f"{page}?csv=preemptions").getvalue().decode().splitlines()) == 2
    days = finance.get(f"{page}?csv=days&days.sort=-borrowed_gpu_hours").getvalue().decode().splitlines()
    assert days[0] == (
        "day,attempt,user,reserved_used_gpu_hours,on_demand_gpu_hours,borrowed_gpu_hours,excess_gpu_hours"
    )
    assert len(days) > 1
    stranger = User.objects.create_user("of-delta")
    delta = Tenant.objects.get(holder__slug="delta")
    Membership.objects.create(user=stranger, role=Role.TENANT_VIEWER, tenant=delta)
    for name in ("preemptions", "days", "facts"):
        assert client_of(stranger).get(f"{page}?csv={name}").status_code == 404
