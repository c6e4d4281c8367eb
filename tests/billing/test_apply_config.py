"""apply_config: idempotent, dated, with a diff; nothing of the past changes by accident."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.core.configuration import ConfigurationError
from billing.models import Contract, GpuPrice, Policy, RateCard, ServicePolicy, Statement
from billing.selectors.checklist import month_checklist
from billing.services.configuration import apply_document
from billing.services.months import compute_month, is_up_to_date
from billing.services.periods import ensure_period
from ledger.core.periods import Month
from ledger.models import Account, Holder, Identity, IdentityMapping, Ledger, Period, Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

PAST = datetime(2020, 1, 1, tzinfo=UTC)
DOCUMENT: dict[str, Any] = {
    "tenant": [
        {"slug": "acme", "identities": [{"kind": "k8s_namespace", "value": "team-acme"}]},
        {"slug": "beta", "parent": "acme"},
    ],
    "pool": [{"slug": "bj-h100", "cluster": "bj", "gpu_model": "H100"}],
    "service": [{"slug": "qwen", "pool": "bj-h100", "owner": "acme", "key": "tokens"}],
    "rate_card": [
        {
            "name": "2020",
            "valid_from": PAST,
            "gpu_hour": [{"pool": "bj-h100", "reserved_used": "2.00", "on_demand": "2.50"}],
        }
    ],
    "policy": [{"valid_from": PAST}],
}


def document(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **changes}


def test_twice_changes_nothing() -> None:
    assert apply_document(document())
    assert apply_document(document()) == []
    assert sorted(Tenant.objects.values_list("holder__slug", "parent__holder__slug")) == [
        ("acme", None),
        ("beta", "acme"),
    ]
    assert set(GpuPrice.objects.values_list("category", "price_micro")) == {
        ("reserved_used", 2_000_000),
        ("on_demand", 2_500_000),
    }
    assert Account.objects.count() == 2 + 1 + 3
    assert set(Identity.objects.values_list("kind", flat=True)) == {"tenant", "service", "k8s_namespace"}


def test_dry_run_shows_and_changes_nothing() -> None:
    diff = apply_document(document(), dry_run=True)
    assert "+ tenant acme" in map(str, diff)
    assert not Holder.objects.exists()
    assert apply_document(document()) == diff


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service": [{"slug": "qwen", "owner": "nobody"}]}, r"service\[0\]\.owner: unknown tenant 'nobody'"),
        ({"service": [{"slug": "qwen", "pool": "nowhere"}]}, r"service\[0\]\.pool: unknown pool 'nowhere'"),
        (
            {
                "rate_card": [
                    {"name": "x", "valid_from": PAST, "gpu_hour": [{"pool": "no", "on_demand": "1"}]}
                ]
            },
            r"rate_card\[0\]\.gpu_hour\[0\]\.pool: unknown pool 'no'",
        ),
        ({"contract": [{"tenant": "no", "valid_from": PAST}]}, r"contract\[0\]\.tenant: unknown tenant 'no'"),
    ],
)
def test_unknown_names_are_refused_with_their_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        apply_document(document(**changes))
    assert not Tenant.objects.exists()


def test_a_started_version_needs_retroactive() -> None:
    apply_document(document())
    edited = document(policy=[{"valid_from": PAST, "unreserved_idle": "even"}])
    with pytest.raises(ConfigurationError, match="has started and cannot be edited"):
        apply_document(edited)
    assert Policy.objects.get().unreserved_idle == "platform"
    assert apply_document(edited, retroactive=True)
    assert Policy.objects.get().unreserved_idle == "even"


def test_a_version_in_the_past_of_others_needs_retroactive_a_future_one_does_not() -> None:
    apply_document(document())
    backdated = document(policy=[{"valid_from": datetime(2021, 1, 1, tzinfo=UTC)}])
    with pytest.raises(ConfigurationError, match="begins in the past"):
        apply_document(backdated)
    future = document(policy=[{"valid_from": datetime(2999, 1, 1, tzinfo=UTC)}])
    apply_document(future)
    assert Policy.objects.count() == 2


def test_a_first_file_may_bring_several_versions_of_the_past() -> None:
    later = datetime(2021, 1, 1, tzinfo=UTC)
    cards = [*DOCUMENT["rate_card"], {"name": "2021", "valid_from": later}]
    first = document(rate_card=cards, policy=[{"valid_from": PAST}, {"valid_from": later}])
    apply_document(first)
    assert (RateCard.objects.count(), Policy.objects.count()) == (2, 2)
    assert apply_document(first) == []


def test_prices_of_a_future_card_can_still_be_edited() -> None:
    future = datetime(2999, 1, 1, tzinfo=UTC)
    card = {"name": "next", "valid_from": future, "gpu_hour": [{"pool": "bj-h100", "on_demand": "3"}]}
    apply_document(document(rate_card=[*DOCUMENT["rate_card"], card]))
    card["gpu_hour"] = [{"pool": "bj-h100", "on_demand": "4"}]
    apply_document(document(rate_card=[*DOCUMENT["rate_card"], card]))
    assert RateCard.objects.count() == 2
    assert list(GpuPrice.objects.filter(rate_card__name="next").values_list("price_micro", flat=True)) == [
        4_000_000
    ]


def test_an_identity_moves_only_with_a_date() -> None:
    apply_document(document())
    moved = document()
    moved["tenant"][0]["identities"] = []
    moved["tenant"][1]["identities"] = [{"kind": "k8s_namespace", "value": "team-acme"}]
    with pytest.raises(ConfigurationError, match=r"tenant\[1\]\.identities\[0\].*already maps to acme"):
        apply_document(moved)
    moved["tenant"][1]["identities"][0]["valid_from"] = PAST
    apply_document(moved)
    assert [
        (mapping.tenant.slug, mapping.validity.lower, mapping.validity.upper)
        for mapping in IdentityMapping.objects.order_by("validity")
    ] == [("acme", None, PAST), ("beta", PAST, None)]


def test_contracts_and_service_policies_are_versions() -> None:
    apply_document(document())
    later = datetime(2999, 1, 1, tzinfo=UTC)
    apply_document(
        document(
            contract=[{"tenant": "acme", "valid_from": later, "kind": "tokens", "token_quota": 5}],
            service=[
                *DOCUMENT["service"],
                {**DOCUMENT["service"][0], "valid_from": later, "key": "gpu_seconds"},
            ],
        )
    )
    assert list(
        Contract.objects.filter(tenant__holder__slug="acme")
        .order_by("valid_from")
        .values_list("kind", flat=True)
    ) == [
        "gpu_time",
        "tokens",
    ]
    assert list(ServicePolicy.objects.order_by("valid_from").values_list("key", flat=True)) == [
        "tokens",
        "gpu_seconds",
    ]


def test_a_file_that_says_nothing_of_the_ledger_leaves_its_settings() -> None:
    """A second file that only adds a tenant must not turn cost recovery into rates, or showback into bills."""
    said = {
        "currency": "CNY",
        "billing_time_zone": "Asia/Shanghai",
        "mode": "cost_recovery",
        "showback": True,
    }
    apply_document(document(ledger=said))
    apply_document({"tenant": [{"slug": "gamma"}]})
    ledger = Ledger.objects.get()
    assert (ledger.currency, ledger.billing_time_zone, ledger.mode) == (
        "CNY",
        "Asia/Shanghai",
        "cost_recovery",
    )
    assert ledger.options["showback"] is True
    # One that does speak of it states all of it.
    apply_document({"ledger": {"currency": "CNY", "billing_time_zone": "Asia/Shanghai"}})
    assert Ledger.objects.get().mode == "rate_card"


MONTH, LATER = Month.parse("2026-10"), datetime(2026, 11, 5, tzinfo=UTC)


def _drafted() -> list[Any]:
    return list(Statement.objects.order_by("number").values_list("number", "currency", "sha256"))


def test_a_changed_heading_is_followed_in_a_ledger_without_pools() -> None:
    """What a bill says beside its figures has nothing to do with pools; until it is drafted, the month cannot close."""
    apply_document({"ledger": {"approvals": False}, "tenant": [{"slug": "beta"}]})
    compute_month(MONTH, horizon=LATER)
    for change in (
        {"ledger": {"showback": True}},
        {"ledger": {"currency": "JPY"}},
        {"ledger": {"mode": "cost_recovery", "options": {"organization": "GPUs for all"}}},
        {"tenant": [{"slug": "beta", "name": "Beta"}]},
    ):
        stood = _drafted()
        apply_document(change)
        assert not is_up_to_date(MONTH, LATER)
        (behind,) = [one for one in month_checklist(Period.objects.get(), LATER) if one.code == "computed"]
        assert [one.code for one in behind.evidence] == ["headings_not_drafted"]
        compute_month(MONTH, horizon=LATER)
        found = _drafted()
        assert is_up_to_date(MONTH, LATER) and found != stood
        compute_month(MONTH, horizon=LATER, everything=True)
        assert _drafted() == found


def test_a_ledger_table_without_the_zone_is_told_which_zone_stays() -> None:
    """It states all settings: whoever leaves the zone out must not have to guess what was asked to change."""
    apply_document({"ledger": {"billing_time_zone": "Asia/Shanghai"}})
    ensure_period(Month.parse("2026-10"))
    with pytest.raises(ConfigurationError, match=r"is Asia/Shanghai and cannot change .* means UTC"):
        apply_document({"ledger": {"showback": True}})
