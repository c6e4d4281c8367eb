"""Ending a dated version from the settings: asked for by one person in finance, decided by another."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.models import (
    Approval,
    ApprovalKind,
    Calibration,
    Contract,
    Policy,
    PoolCost,
    RateCard,
    ServicePolicy,
)
from billing.services.proposals import ENDABLE
from ledger.models import Ledger, Membership, ModelName, Role, Tenant, User
from tests.billing.level_facts import hour, make_service
from tests.billing.page_books import NEXT_MONTH, PASSWORD, Books, client_of
from tests.billing.test_views_bill import rows_of

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]

PAGE = "/settings/"
SINCE = datetime(2026, 9, 1, tzinfo=UTC)
DEED = {"deed": "end", "reason": "agreed in November"}
THROUGHPUT = {"model": "qwen", "pool": "bj-h100", "input_tokens_per_minute": 240_000}


@pytest.fixture
def second(people: dict[str, User]) -> User:
    """Somebody else in finance."""
    user = User.objects.create_user("finance-2", password=PASSWORD)
    Membership.objects.create(user=user, role=Role.FINANCE)
    return user


@pytest.fixture
def versions(books: Books) -> dict[str, Any]:
    """table -> one version of it that is in force."""
    model = ModelName.objects.create(name="qwen")
    acme = Tenant.objects.get(holder__slug="acme")
    costs = dict.fromkeys(
        ("input_gpu_us_per_1k", "cached_input_gpu_us_per_1k", "output_gpu_us_per_1k"), 1_000
    )
    throughput = [{**THROUGHPUT, "output_tokens_per_minute": 48_000}]
    return {
        "rate_card": RateCard.objects.latest("valid_from"),
        "policy": Policy.objects.latest("valid_from"),
        "pool_cost": PoolCost.objects.create(pool=books.pool, valid_from=SINCE, cost_micro_per_gpu_hour=1),
        "contract": Contract.objects.create(
            tenant=acme, valid_from=SINCE, kind="tokens", reserved_throughput=throughput
        ),
        "service_policy": ServicePolicy.objects.create(
            service=make_service("chat", acme), valid_from=SINCE, key="shares", shares={"acme": 2, "beta": 1}
        ),
        "calibration": Calibration.objects.create(model=model, gpu_model="H100", valid_from=SINCE, **costs),
    }


def address(table: str, version: Any) -> str:
    return f"{PAGE}?end={table}-{version.pk}"


def test_each_kind_of_version_has_its_way_to_an_end_for_finance_alone(
    people: dict[str, User], versions: dict[str, Any]
) -> None:
    assert set(versions) == set(ENDABLE)
    for who, may in (("finance", True), ("platform", False), ("auditor", False)):
        client = client_of(people[who])
        pages = "".join(client.get(path).content.decode() for path in (PAGE, "/calibration/?window=2026-10"))
        linked = {table for table, one in versions.items() if f'href="{address(table, one)}#end"' in pages}
        assert linked == (set(versions) if may else set())
        asked = client.get(address("policy", versions["policy"])).content.decode()
        assert ('name="ended_at"' in asked) is may
        if not may:
            assert client.post(address("policy", versions["policy"]), DEED).status_code == 403
    assert Approval.objects.count() == 0


def test_an_end_is_asked_for_by_one_person_and_agreed_to_by_another(
    people: dict[str, User], second: User, versions: dict[str, Any]
) -> None:
    """A day is its first instant in the billing zone."""
    Ledger.objects.update(billing_time_zone="Asia/Shanghai")
    finance, other = client_of(people["finance"]), client_of(second)
    for table, version in versions.items():
        typed = "2027-01-01" if table != "policy" else "2027-01-01T00:00:00+08:00"
        answer = finance.post(address(table, version), {**DEED, "ended_at": typed})
        assert (answer.status_code, answer["Location"]) == (303, PAGE)
        approval = Approval.objects.latest("requested_at")
        assert approval.payload["ended_at"] == "2026-12-31T16:00:00+00:00"
        page = finance.get(PAGE).content.decode()
        assert (
            approval.payload["changes"][0]["code"] == "version_ended"
            and "ends at 2027-01-01 00:00:00" in page
        )
        assert finance.get("/calibration/").status_code == 200
        assert finance.get(f"/settings/effect/?approval={approval.pk}").status_code == 200
        form = {"approval": str(approval.pk), "decision": "approved"}
        assert finance.post(PAGE, form).status_code == 422
        assert other.post(PAGE, form).status_code == 303
        version.refresh_from_db()
        assert version.ended_at == datetime(2026, 12, 31, 16, tzinfo=UTC)
    header, *rows = rows_of(finance, PAGE, "policies")
    assert rows[0][header.index("until")] == "2026-12-31T16:00:00Z"


@pytest.mark.parametrize(
    ("table", "typed"),
    [
        ("policy", ""),
        ("policy", "soon"),
        ("policy", "2027-01-01T00:00:00"),
        ("policy", "0001-01-01T00:00:00+14:00"),
        ("policy", "2020-01-01"),
        ("contract", "2027-01-02"),
    ],
)
def test_an_end_that_cannot_be_is_refused_and_nothing_is_asked(
    people: dict[str, User], versions: dict[str, Any], table: str, typed: str
) -> None:
    finance = client_of(people["finance"])
    answer = finance.post(address(table, versions[table]), {**DEED, "ended_at": typed})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode() and DEED["reason"] in answer.content.decode()
    assert Approval.objects.count() == 0


@pytest.mark.parametrize(
    "asked", ["x", "policy", "policy-x", "policy-99999999999999999999", "tenant-1", "policy-0"]
)
def test_an_end_of_nothing_is_no_page(people: dict[str, User], asked: str) -> None:
    assert client_of(people["finance"]).get(PAGE, {"end": asked}).status_code == 404


def test_contracts_tell_the_throughput_they_reserve_and_lead_to_tenant_and_pool(
    people: dict[str, User], versions: dict[str, Any], books: Books
) -> None:
    finance = client_of(people["finance"])
    header, row = rows_of(finance, PAGE, "contracts")[:2]
    told = dict(zip(header, row, strict=True))
    assert told["reserved_throughput"] == "qwen@bj-h100 240000+48000"
    body = finance.get(PAGE).content.decode()
    table = body[body.index('id="table-contracts"') :].split("</table>")[0]
    assert f'<a href="/months/{NEXT_MONTH}/statements/acme/">acme</a>' in table
    assert f'<a href="/pools/{books.pool.slug}/">{books.pool.slug}</a>' in table
    assert "240" in table and "48" in table


def test_what_is_over_has_no_end_any_more(people: dict[str, User], versions: dict[str, Any]) -> None:
    old = Policy.objects.create(valid_from=hour(-9_000))
    body = client_of(people["finance"]).get(PAGE).content.decode()
    assert address("policy", versions["policy"]) in body and address("policy", old) not in body


def test_whoever_decides_reads_in_the_settings_what_it_is_about(
    people: dict[str, User], second: User
) -> None:
    """A credit, an override and a role say as much as a change of terms does: nobody agrees to what is not shown."""
    silent = {"code": "source_to_see_to", "values": {"source": "/gateways/x"}}
    for kind, payload in (
        (ApprovalKind.CREDIT, {"tenant": "acme", "concerns": "2026-10", "amount_micro": "12500000"}),
        (
            ApprovalKind.OVERRIDE,
            {"month": "2026-10", "items": [{"item": "silence", "evidence": [silent]}]},
        ),
    ):
        Approval.objects.create(kind=kind, payload=payload, reason="because", requested_by="finance")
    for client in (client_of(second), client_of(people["finance"])):
        text = client.get(PAGE).content.decode()
        assert "Approval object" not in text
        assert "credit to a tenant" in text and "close over what blocks" in text
        assert "12.50 USD for acme, October 2026" in " ".join(re.sub(r"<[^>]*>", "", text).split())
        assert 'href="/months/2026-10/statements/acme/#finance"' in text
        assert "No source is silent: /gateways/x" in text
        assert 'href="/months/2026-10/#closing"' in text
