"""Whatever happens in a month, and however much of it comes to light only after its close: generated histories.

Each is told twice: once all of October's facts are there when it is closed; once the late ones come after the close,
and November's close posts them. Over both months every account must end up with the same money and GPU time, what was
closed must not change, and everything that verify_ledger checks (conservation, posted = target, seals, chains, books
that follow from the facts) must hold after every step.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing.models import Statement, StatementAnnex
from billing.selectors import detail
from billing.selectors.annexes import annex_pieces
from billing.selectors.focus_lines import billed_lines
from billing.selectors.names import Names
from billing.services.months import compute_month
from ledger.access import Access
from ledger.core.csv_stream import csv_pieces
from ledger.models import Role, Transfer
from tests.scenarios.golden import (
    DECEMBER_5,
    MONTH,
    NEXT_MONTH,
    Fact,
    adjust,
    capacity,
    close,
    correction,
    frozen,
    holds,
    policy,
    preempted,
    proved,
    reserves,
    resumed,
    served,
    tell,
    terms,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres, pytest.mark.slow]

FROM_2021 = datetime(2021, 1, 1, tzinfo=UTC)
TENANTS = st.sampled_from(["acme", "beta", "gamma"])
HOURS = st.integers(0, 30)
# What happens: its kind, to whom, from which hour on, for how many hours, with how many GPUs.
HAPPENINGS = st.tuples(
    st.sampled_from(["works", "reserves", "asks", "loses", "breaks"]),
    TENANTS,
    HOURS,
    st.integers(1, 9),
    st.integers(1, 8),
)
POLICIES = st.fixed_dictionaries(
    {
        "preemption_charged_to": st.sampled_from(["entitlement", "victim", "preemptor", "platform"]),
        "unreserved_idle": st.sampled_from(["platform", "proportional", "even"]),
        "lend_credit": st.sampled_from(["borrower_paid", "0.5", "0"]),
    }
)
Happening = tuple[str, str, int, int, int]


def facts_of(happening: Happening, name: str) -> list[Fact]:
    """Events of one happening, under names of its own."""
    kind, tenant, start, length, gpus = happening
    match kind:
        case "works":
            return [
                holds(tenant, start, gpus, name, event_id=f"{name}-from"),
                holds(tenant, start + length, 0, name, event_id=f"{name}-to"),
            ]
        case "reserves":
            return [
                reserves(tenant, start, gpus, reservation=name, lendable=gpus % 2 == 0),
                reserves(tenant, start + length, 0, reservation=name),
            ]
        case "asks":
            asked = served("chat", tenant, start, gpu_seconds=gpus * 900, input_tokens=gpus, output_tokens=1)
            return [asked | {"data": {**asked["data"], "usage": name}}]
        case "loses":
            others = {"acme": "beta", "beta": "gamma", "gamma": "acme"}
            lost = preempted(start, tenant, gpus, by=others[tenant], lost_gpu_seconds=gpus * 60)
            lost["data"]["preemption"] = name
            return [lost, resumed(start + length, name, recompute_gpu_seconds=gpus)]
        case _:
            # Each at minutes of its own, and not the world's: two facts of one instant would contradict each other.
            own = start + (1 + int(name[-1])) / 10 + name.startswith("late") / 20
            return [capacity(own, 24 - gpus), capacity(own + length, 24)]


def tell_all(happenings: list[Happening], name: str) -> None:
    for number, happening in enumerate(happenings):
        tell(*facts_of(happening, f"{name}-{number}"))


def withdraw(early: list[Happening]) -> None:
    """The first work that was told of before never was."""
    work = next((number for number, one in enumerate(early) if one[0] == "works"), None)
    if work is not None:
        tell(*(correction(f"early-{work}-{end}") for end in ("from", "to")))


def net() -> dict[tuple[int, str], int]:
    """(unit, account) -> what it received less what it gave."""
    sums: Counter[tuple[int, str]] = Counter()
    for one in Transfer.objects.select_related("debit__tenant__holder", "credit__tenant__holder"):
        sums[one.unit, str(one.debit)] += one.quantity
        sums[one.unit, str(one.credit)] -= one.quantity
    return {key: value for key, value in sums.items() if value}


@hypothesis_settings(max_examples=4)
@given(
    policy_of=POLICIES,
    basis=st.sampled_from(["spread", "measured"]),
    early=st.lists(HAPPENINGS, max_size=6),
    late=st.lists(HAPPENINGS, min_size=1, max_size=4),
    withdrawn=st.booleans(),
)
def test_what_is_late_is_posted_later_and_nothing_else_changes(
    policy_of: dict[str, Any],
    basis: str,
    early: list[Happening],
    late: list[Happening],
    withdrawn: bool,
) -> None:
    def told(*, all_in_time: bool) -> dict[tuple[int, str], int]:
        with transaction.atomic():
            world(24, "acme", "beta", "gamma")
            terms(service=[{"slug": "chat", "pool": "h100", "owner": "beta", "service_basis": basis}])
            policy(FROM_2021, **policy_of)
            tell(reserves("acme", 0, 8), holds("", 0, 4, "replica", service="chat"))
            tell(holds("", 40, 0, "replica", service="chat"))
            tell_all(early, "early")
            if all_in_time:
                later(early, late, withdrawn)
            close()
            assert files_issued() == files_row_by_row()
            before = frozen()
            assert compute_month(NEXT_MONTH, horizon=DECEMBER_5).transfers >= 0
            if not all_in_time:
                later(early, late, withdrawn)
                adjust(DECEMBER_5)
                assert compute_month(NEXT_MONTH, horizon=DECEMBER_5).transfers == 0
            close(NEXT_MONTH, DECEMBER_5)
            assert frozen() == before
            proved()
            sums = net()
            transaction.set_rollback(True)
        return sums

    assert told(all_in_time=True) == told(all_in_time=False)


def files_issued() -> dict[tuple[str, str], bytes]:
    """The files of slots and hits of the closed month, by statement."""
    annexes = StatementAnnex.objects.filter(statement__period=str(MONTH), name__in=["slots", "hits"])
    return {
        (annex.statement.number, annex.name): b"".join(annex_pieces(annex))
        for annex in annexes.select_related("statement")
    }


def files_row_by_row() -> dict[tuple[str, str], bytes]:
    """The same as detail tells it of one statement at a time, as long as nothing was computed again."""
    everything = Access(roles=frozenset({Role.AUDITOR}))
    found = {}
    for one in Statement.objects.filter(period=str(MONTH)).select_related("period", "tenant"):
        own = Names(everything, at=one.period.starts_at).of(Access(tenant_ids=frozenset({one.tenant_id})))
        slots = detail.slot_rows(detail.slices(one, billed_lines(one)), own)
        found[one.number, "slots"] = b"".join(csv_pieces(detail.SLOT_COLUMNS, slots))
        found[one.number, "hits"] = b"".join(
            csv_pieces(detail.HIT_COLUMNS, detail.hit_rows(detail.hits(one)))
        )
    return found


def later(early: list[Happening], late: list[Happening], withdrawn: bool) -> None:
    tell_all(late, "late")
    if withdrawn:
        withdraw(early)
