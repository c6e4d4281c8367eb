"""Rates, policies and contracts through the API: proposed by one person, in force by a second one's word."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone

from billing.models import Contract, MonthLine, Policy, PoolCost, RateCard, ServicePolicy
from billing.selectors.terms import contracts_of, rating_policies
from billing.services import configuration
from billing.services.as_of import month_as_of
from billing.services.months import compute_month
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import AuditEntry, Booking, Ledger, Pool, Tenant
from tests.billing.closed_months import NOVEMBER, NOVEMBER_5, OCTOBER, closable_ledger
from tests.billing.level_facts import hour, identity, occupancy
from tests.billing.test_periods_api import client, get, post

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.usefixtures("no_broker")]

LATER = "2100-01-01T00:00:00Z"
ENDABLE_PATHS = ("rate-cards", "pool-costs", "policies", "contracts", "calibrations", "service-policies")
POLICY = {"valid_from": LATER, "unreserved_idle": "even", "reason": "agreed in the tenants' meeting"}


@pytest.fixture
def pool() -> Pool:
    return closable_ledger()


def decide(name: str, approval: str, status: int, decision: str = "approved") -> Any:
    return post(client("finance", by=name), f"approvals/{approval}/decide/", status, decision=decision)


def test_a_proposed_policy_is_in_force_only_after_a_second_person(pool: Pool) -> None:
    anna = client("finance", by="anna")
    proposal = post(anna, "policies/", 202, **POLICY)
    assert (proposal["state"], proposal["changes"]) == (
        "waiting",
        [
            "+ policy from 2100-01-01T00:00:00+00:00",
            "~ policy from 2100-01-01T00:00:00+00:00 unreserved_idle: platform -> even",
        ],
    )
    assert post(anna, "policies/", 202, **POLICY)["approval"] == proposal["approval"]
    assert len(rating_policies()) == len(get(anna, "policies/")["results"]) == 1
    assert decide("anna", proposal["approval"], 409)["code"] == "same_person"
    assert len(rating_policies()) == 1
    assert decide("bo", proposal["approval"], 200)["decision"] == "approved"
    assert [policy.unreserved_idle for policy in rating_policies()] == ["platform", "even"]
    policy = Policy.objects.latest("valid_from")
    assert (policy.recorded_by, policy.reason) == ("anna", POLICY["reason"])
    trail = [(entry.actor, entry.action) for entry in AuditEntry.objects.order_by("pk")]
    # Whoever made the tokens is in the trail as well.
    assert [one for one in trail if "token" not in one[1]] == [
        ("anna", "request_approval"),
        ("bo", "decide_approval"),
        ("anna", "change_policy"),
    ]


def test_what_a_policy_leaves_out_stays_as_it_is_by_then_and_whoever_agrees_sees_the_rest(pool: Pool) -> None:
    """It had fallen back to what is usual, and the second person saw nothing of it."""
    Policy.objects.update(lend_credit="0.5", min_confidence_ppm=800_000, purpose_payers={"drill": "platform"})
    first = post(client("finance", by="anna"), "policies/", 202, **POLICY)
    decide("bo", first["approval"], 200)
    later = {"valid_from": "2100-02-01T00:00:00Z", "min_confidence": "0.9", "reason": "surer"}
    second = post(client("finance", by="anna"), "policies/", 202, **later)
    assert second["changes"] == [
        "+ policy from 2100-02-01T00:00:00+00:00",
        "~ policy from 2100-02-01T00:00:00+00:00 min_confidence: 0.8 -> 0.9",
    ]
    decide("bo", second["approval"], 200)
    stands = Policy.objects.latest("valid_from")
    assert (stands.unreserved_idle, stands.lend_credit, stands.min_confidence_ppm) == ("even", "0.5", 900_000)
    assert stands.purpose_payers == {"drill": "platform"}


def test_whoever_agrees_to_a_rate_card_sees_the_prices_that_it_changes(pool: Pool) -> None:
    anna = client("finance", by="anna")
    usual = {"pool": pool.slug, "reserved_used": "2", "on_demand": "3"}
    for year, prices in (("2100", usual), ("2101", {**usual, "on_demand": "3.5", "borrowed": "1"})):
        card = {"name": year, "valid_from": f"{year}-01-01T00:00:00Z", "gpu_hour": [prices], "reason": "new"}
        made = post(anna, "rate-cards/", 202, **card)
        decide("bo", made["approval"], 200)
    assert made["changes"] == [
        "+ rate card 2101 from 2101-01-01T00:00:00+00:00",
        f"~ rate card 2101 from 2101-01-01T00:00:00+00:00 {pool.slug} borrowed: - -> 1",
        f"~ rate card 2101 from 2101-01-01T00:00:00+00:00 {pool.slug} on_demand: 3 -> 3.5",
    ]


def test_a_rejected_proposal_changes_nothing(pool: Pool) -> None:
    proposal = post(client("finance", by="anna"), "policies/", 202, **POLICY)
    decide("bo", proposal["approval"], 200, decision="rejected")
    assert Policy.objects.count() == 1


def test_where_the_ledger_needs_no_second_person_it_holds_at_once(pool: Pool) -> None:
    Ledger.objects.update(options={"approvals": False})
    made = post(client("finance"), "policies/", 201, **POLICY)
    assert (made["state"], made["approval"]) == ("in_force", None)
    assert Policy.objects.count() == 2


def test_a_rate_card_of_the_past_needs_a_reason_and_edits_nothing(pool: Pool) -> None:
    finance = client("finance", by="anna")
    card = {"name": "2020", "valid_from": "2020-01-01T00:00:00Z"}
    card |= {"gpu_hour": [{"pool": pool.slug, "reserved_used": "2.50"}]}  # type: ignore[dict-item]
    post(finance, "rate-cards/", 400, **card)
    assert post(finance, "rate-cards/", 400, **card, reason=" ")["status"] == 400
    proposal = post(
        finance, "rate-cards/", 202, **card, reason="the price of the first year was never booked"
    )
    decide("bo", proposal["approval"], 200)
    assert RateCard.objects.earliest("valid_from").gpu_prices.get().price_micro == 2_500_000
    card["gpu_hour"] = [{"pool": pool.slug, "reserved_used": "9"}]  # type: ignore[assignment]
    refused = post(finance, "rate-cards/", 422, **card, reason="dearer after all")
    assert refused["code"] == "bad_terms" and "cannot be edited" in refused["detail"]
    assert post(finance, "rate-cards/", 422, **{**card, "gpu_hour": [{"pool": "x"}]}, reason="r")[
        "detail"
    ] == ("rate_card[0].gpu_hour[0].pool: unknown pool 'x'")


def test_a_proposal_whose_day_has_come_is_proposed_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = post(client("finance", by="anna"), "policies/", 202, **POLICY)

    class Clock:
        @staticmethod
        def now() -> Any:
            return datetime.fromisoformat("2100-01-02T00:00:00+00:00")

    monkeypatch.setattr(configuration, "timezone", Clock)
    assert decide("bo", proposal["approval"], 409)["code"] == "outdated"
    assert Policy.objects.count() == 1
    assert decide("bo", proposal["approval"], 200, decision="rejected")["decision"] == "rejected"


def test_a_contract_changes_at_a_months_start_and_is_seen_by_its_tenant_only(pool: Pool) -> None:
    finance = client("finance", by="anna")
    contract = {
        "tenant": "acme",
        "valid_from": "2100-01-02T00:00:00Z",
        "reason": "ramp",
        "delay_credit": "0.5",
    }
    assert post(finance, "contracts/", 409, **contract)["code"] == "not_month_start"
    contract["valid_from"] = LATER
    decide("bo", post(finance, "contracts/", 202, **contract)["approval"], 200)
    decide("bo", post(finance, "contracts/", 202, **{**contract, "tenant": "beta"})["approval"], 200)
    assert Contract.objects.count() == 2
    assert [row["tenant"] for row in get(client("tenant_viewer", "acme"), "contracts/")["results"]] == [
        "acme"
    ]
    assert get(client("tenant_viewer", "acme"), "contracts/?tenant=beta")["results"] == []
    assert post(finance, "contracts/", 409, **contract)["code"] == "no_change"


def test_a_service_keeps_what_a_change_does_not_name(pool: Pool) -> None:
    finance = client("finance", by="anna")
    service = {"slug": "qwen", "owner": "acme", "key": "tokens", "valid_from": "2026-01-01T00:00:00Z"}
    decide("bo", post(finance, "services/", 202, **service, reason="new")["approval"], 200)
    change = {"slug": "qwen", "service_basis": "measured", "valid_from": LATER, "reason": "fairer"}
    decide("bo", post(finance, "services/", 202, **change)["approval"], 200)
    latest = ServicePolicy.objects.latest("valid_from")
    assert (latest.service.owner.slug, latest.key, latest.basis) == ("acme", "tokens", "measured")


def test_masters_change_by_role_and_are_audited(pool: Pool) -> None:
    finance, platform = client("finance", by="anna"), client("platform")
    row = {"slug": "acme", "cost_center": "K-17"}
    assert post(finance, "tenants/", 201, **row)["changes"] == ["~ tenant acme cost_center:  -> K-17"]
    assert post(finance, "tenants/", 201, **row)["changes"] == []
    tenant = Tenant.objects.get(holder__slug="acme")
    assert (tenant.cost_center, tenant.showback) == ("K-17", False)
    assert post(finance, "tenants/", 422, slug="acme", parent="nobody")["code"] == "bad_terms"
    assert post(platform, "pools/", 201, slug="new", cluster="c", gpu_model="H100")["changes"] == [
        "+ pool new (H100 in c)"
    ]
    assert AuditEntry.objects.get(action="change_tenant").actor == "anna"
    assert AuditEntry.objects.get(action="change_pool").object_id == "new"


@pytest.mark.parametrize("role", ["platform", "auditor", "tenant_admin", "tenant_viewer"])
def test_only_finance_proposes(pool: Pool, role: str) -> None:
    api = client(role, *(["beta"] if role.startswith("tenant") else []))
    for path in (
        *("policies/", "rate-cards/", "contracts/", "calibrations/", "services/", "tenants/"),
        *("pool-costs/", *(f"{name}/1/end/" for name in ENDABLE_PATHS)),
    ):
        assert post(api, path, 403, **POLICY)["code"] == "not_allowed"
    if role != "platform":
        assert post(api, "pools/", 403, slug="new")["code"] == "not_allowed"


def test_a_pools_cost_is_proposed_listed_and_ended_by_two_people(pool: Pool) -> None:
    finance, cost = client("finance", by="anna"), {"pool": pool.slug, "cost_per_gpu_hour": "1.25"}
    cost |= {"valid_from": "2026-09-01T00:00:00Z", "reason": "lease"}
    made = post(finance, "pool-costs/", 202, **cost)
    assert get(finance, "pool-costs/")["results"] == []
    decide("bo", made["approval"], 200)
    (row,) = get(client("auditor"), f"pool-costs/?pool={pool.slug}")["results"]
    assert (row["pool"], row["cost_per_gpu_hour"], row["ended_at"], row["reason"]) == (
        pool.slug,
        "1.25",
        None,
        "lease",
    )
    assert get(finance, "pool-costs/?pool=other")["results"] == []
    for role, slug in (("tenant_admin", "acme"), ("tenant_viewer", "acme")):
        assert get(client(role, slug), "pool-costs/", 403)["code"] == "not_allowed"
    path = f"pool-costs/{row['id']}/end/"
    assert post(finance, path, 409, ended_at="2026-08-01T00:00:00Z", reason="r")["code"] == (
        "ends_before_it_begins"
    )
    assert post(finance, "pool-costs/99999/end/", 404, ended_at=LATER, reason="r")["code"] == (
        "unknown_version"
    )
    end = post(finance, path, 202, ended_at="2026-10-16T00:00:00Z", reason="handed back")
    assert end["changes"] == [
        f"~ cost of pool {pool.slug} from 2026-09-01T00:00:00+00:00 ended at 2026-10-16T00:00:00+00:00"
    ]
    decide("anna", end["approval"], 409)
    assert PoolCost.objects.get().ended_at is None
    decide("bo", end["approval"], 200)
    assert get(finance, "pool-costs/")["results"][0]["ended_at"] == "2026-10-16T00:00:00Z"
    assert post(finance, path, 409, ended_at=LATER, reason="r")["code"] == "ended"
    entry = AuditEntry.objects.get(action="end_pool_cost")
    assert (entry.actor, entry.reason) == ("anna", "handed back")


def ended(path: str, version: int, ended_at: str) -> None:
    finance = client("finance", by="anna")
    asked = post(finance, f"{path}/{version}/end/", 202, ended_at=ended_at, reason="over")
    decide("bo", asked["approval"], 200)


def test_what_an_ended_policy_said_is_over_and_was_not_before_it_was_told(pool: Pool) -> None:
    """beta's 4 GPUs stay; the 4 unreserved are shared evenly by acme and beta until the 16th, then the platform's."""
    Policy.objects.update(unreserved_idle="even")
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    Booking.objects.update(booked_at=timezone.now())
    before, told = idle_of_beta(), timezone.now()
    assert before
    ended("policies", Policy.objects.get().pk, "2026-10-01T05:00:00Z")
    assert [one.unreserved_idle for one in rating_policies()] == ["even", "platform"]
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    # Of 744 hours only the first 5 are left, of which beta has half of the idle time as before.
    assert 0 < idle_of_beta() < before / 100
    with month_as_of(OCTOBER, told):
        assert idle_of_beta() == before


def idle_of_beta() -> int:
    lines = MonthLine.objects.filter(account__tenant__holder__slug="beta", category="unreserved_idle")
    return sum(int(line.quantity) for line in lines)


def test_a_contract_ends_at_a_months_start(pool: Pool) -> None:
    tenant = Tenant.objects.get(holder__slug="beta")
    start = datetime.fromisoformat("2026-08-01T00:00:00+00:00")
    contract = Contract.objects.create(tenant=tenant, valid_from=start, kind="tokens", token_quota=7)
    path = f"contracts/{contract.pk}/end/"
    refused = post(client("finance"), path, 409, ended_at="2026-10-02T00:00:00Z", reason="over")
    assert refused["code"] == "not_month_start"
    ended("contracts", contract.pk, "2026-11-01T00:00:00Z")
    assert set(contracts_of(OCTOBER, "UTC")) == {"beta"}
    assert contracts_of(NOVEMBER, "UTC") == {}


def test_a_services_policy_is_listed_and_ended_by_two_people(pool: Pool) -> None:
    finance = client("finance", by="anna")
    service = {"slug": "qwen", "owner": "beta", "key": "shares", "shares": {"acme": 3, "beta": 1}}
    service |= {"valid_from": "2026-10-01T00:00:00Z"}
    decide("bo", post(finance, "services/", 202, **service, reason="new")["approval"], 200)
    (row,) = get(finance, "service-policies/?service=qwen")["results"]
    assert (row["key"], row["service_basis"], row["shares"]) == ("shares", "spread", {"acme": 3, "beta": 1})
    assert (row["recorded_by"], row["reason"]) == ("anna", "new")
    assert get(finance, "service-policies/?service=other")["results"] == []
    (seen,) = get(client("tenant_viewer", "acme"), "service-policies/")["results"]
    assert (seen["shares"], seen["recorded_by"], seen["reason"]) == ({"acme": 3}, "", "")
    ended("service-policies", row["id"], "2026-10-01T05:00:00Z")
    assert get(finance, "service-policies/")["results"][0]["ended_at"] == "2026-10-01T05:00:00Z"
    entry = AuditEntry.objects.get(action="end_service_policy")
    assert entry.object_id == "policy of service qwen from 2026-10-01T00:00:00+00:00"


def test_time_of_a_service_without_a_policy_is_its_owners(pool: Pool) -> None:
    """qwen holds 4 GPUs for ten hours, of which acme has 3/4 by its share: 30 GPU-hours, and half of it once the
    policy has ended after five; from then on the time is idle time of the service, which beta owns."""
    service = {"slug": "qwen", "owner": "beta", "key": "shares", "shares": {"acme": 3, "beta": 1}}
    finance = client("finance", by="anna")
    made = post(finance, "services/", 202, **service, valid_from="2026-10-01T00:00:00Z", reason="new")
    decide("bo", made["approval"], 200)
    for at, milli in ((0, 4_000), (10, 0)):
        occupancy(pool, "replica", identity("qwen", "service"), hour(at), milli)
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    assert (of_service("acme"), of_service("beta")) == (30 * GPU_US_PER_GPU_HOUR, 10 * GPU_US_PER_GPU_HOUR)
    ended("service-policies", ServicePolicy.objects.get().pk, "2026-10-01T05:00:00Z")
    compute_month(OCTOBER, horizon=NOVEMBER_5)
    assert (of_service("acme"), of_service("beta")) == (15 * GPU_US_PER_GPU_HOUR, 25 * GPU_US_PER_GPU_HOUR)


def of_service(slug: str) -> int:
    lines = MonthLine.objects.filter(account__tenant__holder__slug=slug, service="qwen", unit="gpu_us")
    return sum(int(line.quantity) for line in lines)
