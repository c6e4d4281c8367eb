"""Episodes and the preemption balance of a month, from its records (domain.md section 6)."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import Any

import pytest
from django.db import connection

from billing.core.episodes import Balance
from billing.models import GpuPrice, RateCard
from billing.selectors import episodes as selector
from billing.selectors.episodes import MonthOfPreempting, preempting, preempting_of
from billing.services.months import compute_month
from ledger.core.periods import Month, Span, to_ms
from ledger.core.units import GPU_US_PER_GPU_HOUR
from ledger.models import Membership, Period, PeriodState, Pool, Role, Tenant, User
from tests.billing.level_facts import (
    MONTH,
    capacity,
    hour,
    identity,
    make_pool,
    make_tenants,
    occupancy,
    reservation,
)
from tests.billing.page_books import client_of
from tests.billing.preemption_facts import preemption
from tests.billing.test_periods_api import client, get

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


def one_episode() -> Pool:
    """acme takes 4 + 4 from gamma at hour 2, starts 6 at hour 3 and runs them until the horizon at hour 10."""
    pool = make_pool()
    make_tenants("acme", "gamma")
    acme, gamma = identity("acme"), identity("gamma")
    capacity(pool, hour(0), 8_000)
    reservation(pool, "acme", hour(0), 8_000)
    for name in ("g-1", "g-2"):
        occupancy(pool, name, gamma, hour(0), 4_000)
        occupancy(pool, name, gamma, hour(2), 0)
        preemption(
            pool,
            hour(2),
            name,
            gamma,
            4_000,
            preemptor_workload="a-1",
            preemptor_identity=acme,
            preemptor_source="structured",
            disposition="stopped",
        )
    occupancy(pool, "a-1", acme, hour(3), 6_000)
    compute_month(Month.parse(MONTH), horizon=hour(10))
    return pool


def test_two_victims_of_one_preemptor_are_one_episode() -> None:
    pool = one_episode()
    month = preempting(Span(to_ms(hour(0)), to_ms(hour(10))))
    (episode,) = month.episodes
    assert (episode.preemptor, episode.preemptor_workload, len(episode.preemptions)) == ("acme", "a-1", 2)
    assert (episode.taken_milli_gpus, episode.overshoot_milli_gpus) == (8_000, 2_000)
    # All 8 for an hour, and the 2 that nobody needed until the horizon.
    assert episode.unused_gpu_us == 22 * GPU_US_PER_GPU_HOUR
    assert episode.hits == (("g-1", 1), ("g-2", 1))
    hours = GPU_US_PER_GPU_HOUR
    # 6 GPUs for 7 hours, and gamma's 8 borrowed for 2; two times 8 GPU-hours of gamma's work are lost.
    assert month.balances == {
        "bj-h100": Balance(
            gained=(42 + 16) * hours,
            lost=16 * hours,
            recomputed=0,
            drained=0,
            unused=22 * hours,
            undelivered=0,
        )
    }
    assert month.balances["bj-h100"].net == 20 * hours

    api = client("auditor")
    (row,) = get(api, "episodes/?window=2026-10")["results"]
    assert (row["preemptor"], row["needed_gpus"], row["taken_gpus"]) == ("acme", "6", "8")
    assert (row["overshoot_gpus"], row["unused_gpu_hours"], row["ran"]) == ("2", "22", True)
    assert row["victims"] == [{"workload": "g-1", "times": 1}, {"workload": "g-2", "times": 1}]
    (row,) = get(api, "preemptions/balance/?window=2026-10")["results"]
    assert (row["net_gpu_hours"], row["price"], row["net_amount"]) == ("20", None, None)
    card = RateCard.objects.create(name="2026", valid_from=hour(-1000))
    GpuPrice.objects.create(rate_card=card, pool=pool, category="reserved_used", price_micro=2_500_000)
    (row,) = get(api, "preemptions/balance/?window=2026-10")["results"]
    assert (row["price"], row["gained_amount"], row["lost_amount"]) == ("2.5", "145", "40")
    assert (row["unused_amount"], row["net_amount"]) == ("55", "50")
    get(client("tenant_admin", "acme"), "episodes/?window=2026-10", 403)
    get(client("tenant_admin", "acme"), "preemptions/balance/?window=2026-10", 403)


def test_released_gpus_are_unused_only_until_anybody_occupies_them() -> None:
    """acme takes 8 at hour 2 and never runs: delta starts 4 at hour 3, gamma itself resumes on 2 at hour 5; delta's 4
    ending at hour 6 leaves GPUs idle that were occupied since. 8 for an hour, 4 for two and 2 for five: 26."""
    pool = make_pool()
    make_tenants("acme", "gamma", "delta")
    acme, gamma, delta = identity("acme"), identity("gamma"), identity("delta")
    capacity(pool, hour(0), 8_000)
    occupancy(pool, "g-1", gamma, hour(0), 8_000)
    occupancy(pool, "g-1", gamma, hour(2), 0)
    preemption(
        pool,
        hour(2),
        "g-1",
        gamma,
        8_000,
        preemptor_workload="a-1",
        preemptor_identity=acme,
        preemptor_source="structured",
        disposition="requeued",
    )
    occupancy(pool, "d-1", delta, hour(3), 4_000)
    occupancy(pool, "g-1", gamma, hour(5), 2_000)
    occupancy(pool, "d-1", delta, hour(6), 0)
    compute_month(Month.parse(MONTH), horizon=hour(10))
    month = preempting(Span(to_ms(hour(0)), to_ms(hour(10))))
    (episode,) = month.episodes
    assert (episode.ran, episode.unused_gpu_us) == (False, 26 * GPU_US_PER_GPU_HOUR)
    assert month.balances["bj-h100"].unused == 26 * GPU_US_PER_GPU_HOUR


def test_a_month_without_preemptions_has_an_empty_balance(db: None) -> None:
    pool = make_pool()
    capacity(pool, hour(0), 8_000)
    compute_month(Month.parse(MONTH), horizon=hour(2))
    month = preempting(Span(to_ms(hour(0)), to_ms(hour(2))))
    assert month.episodes == []
    assert month.balances == {"bj-h100": Balance(0, 0, 0, 0, 0, 0)}


def test_a_closed_month_is_remembered_of_its_own_database_and_computation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What another database, month or computation holds is never taken for it; an open month is read every time."""
    monkeypatch.setattr(selector, "_REMEMBERED", OrderedDict())
    monkeypatch.setattr(selector, "preempting", lambda span: MonthOfPreempting([], {}))
    closed = Period(
        month=MONTH,
        starts_at=hour(0),
        ends_at=hour(744),
        horizon_at=hour(744),
        computed_at=hour(745),
        state=PeriodState.CLOSED,
    )

    def again(**changes: Any) -> MonthOfPreempting:
        period = copy(closed)
        for name, value in changes.items():
            setattr(period, name, value)
        found = preempting_of(period)
        assert (preempting_of(period) is found) is (period.state == PeriodState.CLOSED)
        return found

    seen = [again(), again(month="2026-09"), again(computed_at=hour(746)), again(state=PeriodState.OPEN)]
    for part in ("NAME", "HOST", "PORT"):
        with monkeypatch.context() as elsewhere:
            elsewhere.setitem(connection.settings_dict, part, "7")
            seen.append(again())
    assert len({id(one) for one in seen}) == len(seen)
    assert again() is seen[0]
    for number in range(20):
        again(computed_at=hour(800 + number))
    assert again() is not seen[0]
    assert len(selector._REMEMBERED) == 12


def test_what_is_remembered_for_finance_is_never_a_tenants_to_see() -> None:
    """acme and gamma themselves had part in the episode: the month's page shows it to finance, and to them neither on
    the page nor as a file, whoever has looked before."""
    one_episode()
    Period.objects.filter(month=MONTH).update(state=PeriodState.CLOSED, cut_sequence=0, closed_at=hour(745))
    finance, tenants = User.objects.create_user("fay"), User.objects.create_user("tom")
    Membership.objects.create(user=finance, role=Role.FINANCE)
    for tenant in Tenant.objects.all():
        Membership.objects.create(user=tenants, role=Role.TENANT_ADMIN, tenant=tenant)
    page = f"/months/{MONTH}/"
    for name in ("episodes", "balance"):
        address = f"{page}?csv={name}"
        assert b"".join(client_of(finance).get(address).streaming_content).count(b"\n") >= 2
        assert client_of(tenants).get(address).status_code == 404
    shown, hidden = client_of(finance).get(page), client_of(tenants).get(page)
    assert (shown.status_code, hidden.status_code) == (200, 200)
    assert b'id="table-tenants"' in hidden.content
    for mark in (b'id="table-episodes"', b'id="table-balance"', b"a-1"):
        assert mark in shown.content
        assert mark not in hidden.content
