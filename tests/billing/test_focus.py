"""FOCUS files: what others' validators say of them, and what those cannot see."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from billing.core.focus_columns import COST_AND_USAGE, EXTENSIONS, FOCUS_1_2, FOCUS_1_4
from billing.exports.files import month_file
from billing.models import (
    Allocation,
    Contract,
    GpuPrice,
    Policy,
    RateCard,
    Statement,
    StatementAnnex,
    StatementDetail,
)
from billing.services.adjustments import adjust_closed_months
from billing.services.months import compute_month
from ledger.access import Access
from ledger.models import Ledger, Period, Pool, Role, Source, Tenant
from ledger.services.tokens import create_api_token
from tests.billing.closed_months import (
    DECEMBER_5,
    NOVEMBER,
    NOVEMBER_5,
    OCTOBER,
    booked,
    close,
    findings,
    hold,
)
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    reservation,
)
from tests.billing.preemption_facts import preemption
from tests.billing.tampering import issued_as_before_version_2
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

AUDITOR = Access(name="test", roles=frozenset({Role.AUDITOR}))
Rows = list[dict[str, str]]
HOURS = 10
LATE_BATCH = 7


@made_once
def october() -> None:
    """October, ready to be closed: acme reserves 8 of 16, beta bursts on them and is preempted, prices change."""
    pool = make_pool()
    make_tenants("acme", "beta", "gamma")
    Tenant.objects.filter(holder__slug="acme").update(
        cost_center="42", gl_code="6001", tags={"team": "search", "formula": "=1+1"}
    )
    Ledger.objects.update(options={"organization": "Example Corp", "approvals": False})
    capacity(pool, hour(0), 16_000)
    capacity(pool, hour(HOURS), 0)
    reservation(pool, "acme", hour(0), 8_000)
    reservation(pool, "acme", hour(HOURS), 0)
    hold(pool, "wl-a", "acme", 0, 4, 2_000)
    hold(pool, "wl-a2", "acme", 4, HOURS - 0.5, 5_333)
    hold(pool, "wl-b", "beta", 1, 4, 11_001)
    hold(pool, "wl-b2", "beta", 6, HOURS, 3_000)
    preemption(
        pool,
        hour(4),
        "wl-b",
        identity("beta"),
        3_000,
        admitted_at=hour(1),
        preemptor_identity=identity("acme"),
        preemptor_workload="wl-a2",
        preemptor_source="structured",
    )
    for name, valid_from, factor in (("2026", hour(-1000), 1_000_003), ("autumn", hour(5), 1_333_333)):
        card = RateCard.objects.create(name=name, valid_from=valid_from)
        for category, price in (("reserved_used", 2), ("on_demand", 3), ("borrowed", 1)):
            GpuPrice.objects.create(rate_card=card, pool=pool, category=category, price_micro=price * factor)
    Policy.objects.create(
        valid_from=hour(-1000), unreserved_idle="proportional", preemption_charged_to="preemptor"
    )
    Contract.objects.create(
        tenant=Tenant.objects.get(holder__slug="acme"), valid_from=hour(0), reserved_idle_ramp=[25, 50]
    )
    Source.objects.update(watermark_at=DECEMBER_5, complete_until=DECEMBER_5)
    compute_month(OCTOBER, horizon=hour(31 * 24))


@pytest.fixture
def books(october: None) -> Pool:
    return Pool.objects.get()


def late_facts(pool: Pool) -> None:
    """After the close it turns out that gamma held 2 GPUs for an hour."""
    booked(LATE_BATCH)
    hold(pool, "wl-late", "gamma", 8, 9, 2_000)
    adjust_closed_months(NOVEMBER_5 + timedelta(days=1))
    compute_month(NOVEMBER, horizon=NOVEMBER_5)


def content(name: str, month: str = MONTH, access: Access = AUDITOR) -> bytes:
    return b"".join(month_file(Period.objects.get(month=month), name, access))


def rows_of(data: bytes) -> Rows:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def toolkit(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "focus_data_toolkit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_toolkit_accepts_every_dataset_of_a_closed_month_and_of_its_corrections(
    books: Pool, tmp_path: Path
) -> None:
    close()
    late_facts(books)
    for month in (MONTH, str(NOVEMBER)):
        directory = tmp_path / month
        directory.mkdir()
        for name, dataset in (
            ("focus-1.4", "cost-and-usage"),
            ("focus-1.4-billing-period", "billing-period"),
            ("focus-1.4-invoice-detail", "invoice-detail"),
        ):
            file = directory / f"{name}.csv"
            file.write_bytes(content(name, month))
            done = toolkit("validate", file, "--dataset", dataset)
            assert done.returncode == 0, done.stdout + done.stderr
        done = toolkit("validate-bundle", "--directory", directory)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [FOCUS_1_2, FOCUS_1_4])
def test_row_by_row_what_no_validator_looks_at(books: Pool, version: str) -> None:
    close()
    rows = rows_of(content(f"focus-{version}"))
    assert tuple(rows[0]) == COST_AND_USAGE[version]
    assert tuple(rows[0])[-len(EXTENSIONS) :] == tuple(sorted(EXTENSIONS))
    assert {row["x_Category"] for row in rows} >= {
        "reserved_used",
        "on_demand",
        "borrowed",
        "lent",
        "lend_credit",
        "reserved_idle",
        "unreserved_idle",
        "preempted",
        "preemption_lost",
    }
    for row in rows:
        problems = [problem for check in CHECKS for problem in check(row)]
        assert problems == [], row
        assert not any(value in ("N/A", "None", "null") for value in row.values())


ENUMS = {
    "ChargeCategory": {"Usage", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"Usage-Based", "One-Time"},
    "CapacityReservationStatus": {"", "Used", "Unused"},
    "PricingCategory": {"", "Standard", "Dynamic", "Other"},
    "ServiceCategory": {"Compute", "AI and Machine Learning"},
    "ServiceSubcategory": {"Other (Compute)", "Generative AI"},
    "PricingUnit": {"", "Hours", "GPU-Hours", "1000000 Tokens"},
    "ConsumedUnit": {"", "Hours", "GPU-Hours", "Tokens"},
    "SubAccountType": {"Tenant"},
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
NUMBER = re.compile(r"-?(0|[1-9]\d*)\.\d{6,}")
DECIMALS = ("Cost", "UnitPrice", "Quantity", "GpuHours")


def enums(row: dict[str, str]) -> list[str]:
    return [f"{name}: {row[name]}" for name, allowed in ENUMS.items() if row[name] not in allowed]


def times(row: dict[str, str]) -> list[str]:
    names = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
    bad = [f"{name}: {row[name]}" for name in names if not TIME.fullmatch(row[name])]
    if row["ChargePeriodStart"] >= row["ChargePeriodEnd"]:
        bad.append("the charge period is empty")
    return bad


def numbers(row: dict[str, str]) -> list[str]:
    named = [name for name in row if name.endswith(DECIMALS)]
    return [f"{name}: {row[name]}" for name in named if row[name] and not NUMBER.fullmatch(row[name])]


def price_times_quantity(row: dict[str, str]) -> list[str]:
    if not row["ListUnitPrice"]:
        return []
    quantity = Decimal(row["PricingQuantity"])
    bad = []
    for cost, price in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
        if quantity * Decimal(row[price]) != Decimal(row[cost]):
            bad.append(f"{cost} is not {price} x quantity")
    # Printing moves a line by less than a cent.
    if abs(Decimal(row["BilledCost"]) - Decimal(row["ContractedCost"])) >= Decimal("0.01"):
        bad.append("billed is not what was agreed")
    return bad


def pairs(row: dict[str, str]) -> list[str]:
    bad = []
    for one, other in (
        ("PricingQuantity", "PricingUnit"),
        ("ConsumedQuantity", "ConsumedUnit"),
        ("CapacityReservationId", "CapacityReservationStatus"),
        ("SkuPriceId", "ListUnitPrice"),
        ("ResourceId", "ResourceType"),
    ):
        if bool(row[one]) != bool(row[other]):
            bad.append(f"{one} without {other}")
    if (row["ChargeCategory"] == "Usage") != bool(row["PricingQuantity"]):
        bad.append("usage has a quantity, nothing else has")
    if row["CapacityReservationStatus"] == "Unused" and Decimal(row["ConsumedQuantity"]) != 0:
        bad.append("an unused reservation consumed something")
    return bad


CHECKS = (enums, times, numbers, price_times_quantity, pairs)


@pytest.mark.parametrize("version", [FOCUS_1_2, FOCUS_1_4])
def test_every_invoice_adds_up_to_the_minor_unit(books: Pool, version: str) -> None:
    close()
    late_facts(books)
    for month in (MONTH, str(NOVEMBER)):
        billed: defaultdict[str, Decimal] = defaultdict(Decimal)
        for row in rows_of(content(f"focus-{version}", month)):
            billed[row["InvoiceId"]] += Decimal(row["BilledCost"])
            assert row["EffectiveCost"] == row["BilledCost"]
        statements = Statement.objects.filter(period=month)
        totals = {one.number: Decimal(one.total_minor) / 100 for one in statements if one.total_minor}
        assert {number: total for number, total in billed.items() if total} == totals
        details: defaultdict[str, Decimal] = defaultdict(Decimal)
        for row in rows_of(content("focus-1.4-invoice-detail", month)):
            details[row["InvoiceId"]] += Decimal(row["BilledCost"])
        assert details == billed


def test_used_and_unused_are_what_was_reserved_hour_by_hour(books: Pool) -> None:
    reserved: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in rows_of(content("focus-1.4")):
        if row["CapacityReservationId"]:
            assert row["CapacityReservationId"] == "bj-h100/acme"
            reserved[row["ChargePeriodStart"]] += Decimal(row["PricingQuantity"])
    expected = {f"2026-10-01T{number:02d}:00:00Z": Decimal(8) for number in range(HOURS)}
    assert {at: round(hours, 8) for at, hours in reserved.items()} == expected


def test_what_focus_has_no_word_for(books: Pool) -> None:
    rows = rows_of(content("focus-1.4"))
    (hit,) = [row for row in rows if row["x_Category"] == "preempted"]
    assert (hit["SubAccountId"], hit["BilledCost"]) == ("beta", "0.000000")
    # Three GPUs for the three hours since it was admitted, and two hours until beta ran again.
    assert (hit["x_RequeuedGpuHours"], hit["ChargePeriodStart"]) == ("9.000000", "2026-10-01T04:00:00Z")
    moved = [row for row in rows if row["x_Category"] == "preemption_lost"]
    assert {row["x_PreemptionId"] for row in moved} == {hit["x_PreemptionId"]}
    assert {row["SubAccountId"]: row["BilledCost"][0] == "-" for row in moved} == {
        "acme": False,
        "beta": True,
    }
    borrowed = [row for row in rows if row["x_Category"] == "borrowed"]
    assert {row["x_Lender"] for row in borrowed} == {"acme"}
    tenant = Tenant.objects.get(holder__slug="beta")
    seen = Access(name="beta", tenant_ids=frozenset({tenant.pk}))
    own = rows_of(content("focus-1.4", access=seen))
    assert {row["SubAccountId"] for row in own} == {"beta"}
    assert {row["x_Lender"] for row in own if row["x_Category"] == "borrowed"} == {"another tenant"}


def test_an_alias_that_changes_leaves_a_closed_month_s_bytes(books: Pool) -> None:
    close()
    tenant = Tenant.objects.get(holder__slug="beta")
    seen = Access(name="beta", tenant_ids=frozenset({tenant.pk}))
    before = [content("focus-1.4", access=access) for access in (seen, AUDITOR)]
    assert {row["x_Lender"] for row in rows_of(before[0])} == {"", "another tenant"}
    assert {row["x_Lender"] for row in rows_of(before[1])} == {"", "acme"}
    Tenant.objects.update(display_alias="somebody")
    assert [content("focus-1.4", access=access) for access in (seen, AUDITOR)] == before


def test_a_ramp_is_an_agreed_price_below_the_list(books: Pool) -> None:
    idle = [row for row in rows_of(content("focus-1.2")) if row["x_Category"] == "reserved_idle"]
    assert idle
    for row in idle:
        assert Decimal(row["ContractedUnitPrice"]) == round(Decimal(row["ListUnitPrice"]) / 4, 6)


def test_tags_and_organisation_are_those_of_the_close(books: Pool) -> None:
    close()
    Tenant.objects.update(cost_center="other", tags={}, name="Renamed")
    Ledger.objects.update(options={"organization": "Another Corp"})
    row = next(row for row in rows_of(content("focus-1.4")) if row["SubAccountId"] == "acme")
    assert row["Tags"] == '{"cost_center":"42","formula":"=1+1","gl_code":"6001","team":"search"}'
    assert (row["SubAccountName"], row["InvoiceIssuerName"]) == ("Acme", "Example Corp")


def test_a_closed_month_keeps_its_bytes_when_late_facts_come(books: Pool) -> None:
    close()
    names = ("focus-1.2", "focus-1.4", "focus-1.4-billing-period", "focus-1.4-invoice-detail")
    before = {name: content(name) for name in names}
    slots = list(Allocation.objects.order_by("pool", "starts_at", "holder").values())
    late_facts(books)
    assert list(Allocation.objects.order_by("pool", "starts_at", "holder").values()) != slots
    assert {name: content(name) for name in names} == before
    assert StatementAnnex.objects.filter(name="slots").count() == 3
    assert not StatementDetail.objects.exists()


def test_a_statement_issued_without_its_slots_keeps_them_before_late_facts(books: Pool) -> None:
    close()
    issued_as_before_version_2()
    assert findings() == []
    before = content("focus-1.4")
    late_facts(books)
    assert content("focus-1.4") == before
    assert StatementDetail.objects.count() == 3
    assert findings() == []


def test_corrections_are_deltas_of_the_time_they_concern_on_a_later_invoice(books: Pool) -> None:
    close()
    late_facts(books)
    rows = [row for row in rows_of(content("focus-1.4", str(NOVEMBER))) if row["ChargeClass"]]
    assert rows
    assert {row["ChargeClass"] for row in rows} == {"Correction"}
    assert {row["x_ConcernsMonth"] for row in rows} == {MONTH}
    assert {row["BillingPeriodStart"] for row in rows} == {"2026-11-01T00:00:00Z"}
    assert all(
        row["ChargePeriodStart"].startswith("2026-10") and row["ChargePeriodEnd"] <= row["BillingPeriodStart"]
        for row in rows
    )
    assert all(not row["SkuPriceId"] and not row["ListUnitPrice"] for row in rows)
    details = rows_of(content("focus-1.4-invoice-detail", str(NOVEMBER)))
    corrected = {row["InvoiceDetailId"] for row in rows}
    assert {row["ReferenceInvoiceId"] for row in details if row["InvoiceDetailId"] in corrected} == {
        f"{MONTH}-{slug}" for slug in {row["SubAccountId"] for row in rows}
    }


def test_the_same_bytes_through_every_door_with_their_hash(books: Pool, tmp_path: Path) -> None:
    close()
    statement = Statement.objects.get(tenant__holder__slug="acme", period=MONTH)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('a', 'auditor')[1]}")
    for name in ("focus-1.2", "focus-1.4", "focus-1.4-billing-period", "focus-1.4-invoice-detail"):
        answer = client.get(f"/api/v1/statements/{statement.pk}/{name}.csv")
        data = b"".join(answer.streaming_content)
        out = tmp_path / f"{name}.csv"
        call_command("export_statement", MONTH, "acme", "--format", name, "-o", str(out))
        assert out.read_bytes() == data
        said = client.get(f"/api/v1/statements/{statement.pk}/{name}.csv.sha256").content.decode()
        assert said == f"{hashlib.sha256(data).hexdigest()}  acme-{MONTH}-{name}.csv\n"
        month = b"".join(client.get(f"/api/v1/periods/{MONTH}/{name}.csv").streaming_content)
        assert month == content(name)
        said = client.get(f"/api/v1/periods/{MONTH}/{name}.csv.sha256").content.decode()
        assert said.split()[0] == hashlib.sha256(month).hexdigest()
    assert client.get(f"/api/v1/periods/{MONTH}/nothing.csv.sha256").status_code == 404
    assert client.get("/api/v1/periods/2031-01/focus-1.2.csv").status_code == 404


def test_a_tenant_without_a_statement_finds_no_month(books: Pool) -> None:
    Statement.objects.filter(tenant__holder__slug="gamma").delete()
    token = create_api_token("g", "tenant_viewer", tenants=list(Tenant.objects.filter(holder__slug="gamma")))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token[1]}")
    answers = [client.get(f"/api/v1/periods/{month}/focus-1.4.csv") for month in (MONTH, "2031-01")]
    assert [answer.status_code for answer in answers] == [404, 404]


def test_duckdb_reads_every_file_without_options(books: Pool, tmp_path: Path) -> None:
    close()
    for name in ("focus-1.2", "focus-1.4", "bill", "usage", "preemptions"):
        call_command("export_statement", MONTH, "beta", "--format", name, "-o", str(tmp_path / f"{name}.csv"))
    total = Decimal(Statement.objects.get(tenant__holder__slug="beta", period=MONTH).total_minor) / 100
    for name in ("focus-1.2", "focus-1.4"):
        costs = duckdb.read_csv(str(tmp_path / f"{name}.csv"))
        assert tuple(costs.columns) == COST_AND_USAGE[name.removeprefix("focus-")]
        (found,) = duckdb.sql("SELECT sum(BilledCost), typeof(min(ChargePeriodStart)) FROM costs").fetchall()
        assert (round(found[0], 2), found[1][:9]) == (float(total), "TIMESTAMP")
    bill = duckdb.read_csv(str(tmp_path / "bill.csv"))
    (found,) = duckdb.sql("SELECT sum(amount) FILTER (kind <> 'total') FROM bill").fetchall()
    assert round(found[0], 2) == float(total)
    usage = duckdb.read_csv(str(tmp_path / "usage.csv"))
    assert duckdb.sql("SELECT typeof(min(gpu_us)), typeof(min(hour)) FROM usage").fetchall()[0][0] == "BIGINT"
    assert len(duckdb.read_csv(str(tmp_path / "preemptions.csv")).fetchall()) == 1
    assert bill.columns[0] == "statement" and "hour" in usage.columns


def test_for_spreadsheets_everywhere(books: Pool) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {create_api_token('a', 'auditor')[1]}")
    statement = Statement.objects.get(tenant__holder__slug="acme", period=MONTH)
    chinese = {"HTTP_ACCEPT_LANGUAGE": "zh-hans"}
    for path, heading in (
        (f"statements/{statement.pk}/bill.csv?excel=1", "单价"),
        (f"statements/{statement.pk}/focus-1.4.csv?excel=1", "BilledCost"),
        (f"periods/{MONTH}/focus-1.2.csv?excel=1", "BilledCost"),
        (f"periods/{MONTH}/journal.csv?excel=1", "借方"),
        (f"statements/{statement.pk}/lines/?format=csv&excel=1", "单价"),
    ):
        answer = client.get(f"/api/v1/{path}", **chinese)
        assert answer.status_code == 200, path
        first = answer.getvalue().decode().splitlines()[0]
        assert first.startswith("\ufeff"), path
        assert heading in first, path
    assert client.get(f"/api/v1/statements/{statement.pk}/bill.csv?excel=yes").status_code == 400


VALIDATOR = shutil.which("focus-validator")
# Rules of the official model that no file avoids.
NO_FILE_AVOIDS = {
    "InvoiceId-C-004-C",
    *(f"CapacityReservationStatus-C-00{number}-C" for number in (0, 2, 3, 4)),
}
SUPPORTED = (
    "ACCOUNT_NAMING",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES",
    "CAPACITY_RESERVATION",
    "MULTIPLE_BILLING_ACCOUNT_TYPES",
    "MULTIPLE_PRICING_CATEGORIES",
    "MULTIPLE_SUB_ACCOUNT_TYPES",
    "NEGOTIATED_PRICING",
    "PRICING_BILLING_CURRENCY_DIFFERENCES",
    "PUBLIC_PRICE_LIST",
    "REGION",
    "RESOURCE_TYPE_ASSIGNMENT",
    "SUB_ACCOUNT",
    "TAGGING",
    "UNIT_PRICING",
    "USAGE_MEASUREMENT",
)


@pytest.mark.skipif(
    VALIDATOR is None,
    reason="NOT CHECKED: the official focus-validator (2.2.1, Python 3.12 or newer, pyarrow<22) is not on the path",
)
def test_the_official_validator_finds_what_no_file_avoids_and_nothing_else(
    books: Pool, tmp_path: Path
) -> None:
    close()
    data, report = tmp_path / "focus.csv", tmp_path / "report.xml"
    data.write_bytes(content("focus-1.2"))
    assert VALIDATOR is not None
    # It opens a list of currencies relative to its own packages.
    packages = next(Path(VALIDATOR).resolve().parent.parent.glob("lib/python3*/site-packages"))
    command = [VALIDATOR, "--data-file", str(data), "--validate-version", "1.2"]
    command += ["--focus-dataset", "CostAndUsage", "--block-download", "--show-violations"]
    command += ["--applicability-criteria", ",".join(f"{name}_SUPPORTED" for name in SUPPORTED)]
    command += ["--output-type", "unittest", "--output-destination", str(report)]
    subprocess.run(command, cwd=packages, check=True, capture_output=True)
    failed = {
        case.get("name", "").split(" :: ")[0]
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("failure") is not None
    }
    assert failed == NO_FILE_AVOIDS
