"""What comes late, in review and after the close: hand-checked adjustments; what was closed stays byte for byte.

October: acme reserves 8 of 16 GPUs and holds 2 for ten hours, beta holds 4 on demand. At the usual prices acme owes
20 x 2 + 60 x 1 = 100, beta 40 x 3 = 120.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import import_module
from typing import Any

import pytest
from django.db import connection, transaction

from billing.core.sentences import Sentence
from billing.models import (
    Approval,
    BillingFinding,
    CloseRun,
    Decision,
    GpuPrice,
    PreemptionRecord,
    StatementLine,
)
from billing.selectors.checklist import month_checklist
from billing.services.adjustments import closed_months_that_changed
from billing.services.closing import STEPS, run_close, start_close
from billing.services.deeds import decide
from billing.services.disputes import adjust_dispute, open_dispute
from billing.services.months import compute_month, is_up_to_date
from billing.services.overrides import request_override
from billing.services.periods import open_review
from billing.tasks import recompute_open_months
from ledger.core.periods import Month
from ledger.core.units import MICRO_PER_UNIT
from ledger.models import Ledger, Period, Source, Tenant
from ledger.services.masters import map_identity
from tests.scenarios.golden import (
    ANNA,
    BO,
    DECEMBER_5,
    MONTH,
    NEXT_MONTH,
    NOVEMBER_5,
    adjust,
    adjustments,
    at,
    billed,
    close,
    correction,
    cost,
    frozen,
    holds,
    policy,
    preempted,
    proved,
    rates,
    reserves,
    resumed,
    served,
    tell,
    terms,
    totals,
    world,
)

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OCTOBER_TOTALS = {"acme": 100, "beta": 120, "gamma": 0}


@pytest.fixture
def october() -> Iterator[None]:
    """The month above, not computed yet; whatever a test does, what verify_ledger checks holds at its end."""
    world(16, "acme", "beta", "gamma")
    tell(
        reserves("acme", 0, 8),
        reserves("acme", 10, 0),
        holds("acme", 0, 2),
        holds("acme", 10, 0),
        holds("beta", 0, 4, event_id="beta-starts"),
        holds("beta", 10, 0, event_id="beta-ends"),
    )
    yield
    proved()


def test_late_in_review_the_draft_follows_and_nothing_is_adjusted(october: None) -> None:
    open_review(MONTH, ANNA, now=NOVEMBER_5)
    assert totals() == OCTOBER_TOTALS
    tell(holds("gamma", 2, 3), holds("gamma", 4, 0))
    compute_month(MONTH, horizon=NOVEMBER_5)
    # 6 GPU-hours on demand at 3.
    assert totals() == OCTOBER_TOTALS | {"gamma": 18}
    close()
    assert totals() == OCTOBER_TOTALS | {"gamma": 18}
    adjust()
    assert adjustments() == {}


def test_late_after_the_close_moves_what_others_paid_too(october: None) -> None:
    """gamma held 6 for 2 hours. The 8 unreserved GPUs are now shared 4 : 6 with beta: 3.2 and 4.8 on demand.

    The other 0.8 of beta and 1.2 of gamma run on acme's idle reservation: 4 GPU-hours that earn it the borrowed 1.
    """
    close()
    before = frozen()
    tell(holds("gamma", 2, 6), holds("gamma", 4, 0))
    adjust()
    assert adjustments() == {
        ("gamma", "2026-10", "on_demand"): (9.6, 28.8),
        ("gamma", "2026-10", "borrowed"): (2.4, 2.4),
        ("beta", "2026-10", "on_demand"): (-1.6, -4.8),
        ("beta", "2026-10", "borrowed"): (1.6, 1.6),
        # No longer idle at 1 but lent at 2, less the credit: 0 in sum.
        ("acme", "2026-10", "reserved_idle"): (-4, -4),
        ("acme", "2026-10", "lent"): (0, 8),
        ("acme", "2026-10", "lend_credit"): (0, -4),
    }
    assert totals("2026-11") == {"acme": 0, "beta": -3.2, "gamma": 31.2}
    assert frozen() == before
    close(NEXT_MONTH, DECEMBER_5)
    assert frozen() == before


def test_a_correction_after_the_close(october: None) -> None:
    """beta ended at hour 8 and not at 10: 8 GPU-hours less, at 3."""
    close()
    before = frozen()
    tell(correction("beta-ends", holds("beta", 8, 0, event_id="beta-ends-corrected")))
    adjust()
    assert adjustments() == {("beta", "2026-10", "on_demand"): (-8, -24)}
    assert totals("2026-11") == {"acme": 0, "beta": -24, "gamma": 0}
    assert frozen() == before
    # A correction of the correction: 9 and not 8.
    tell(correction("beta-ends-corrected", holds("beta", 9, 0, event_id="beta-ends-at-last")))
    adjust()
    assert adjustments() == {("beta", "2026-10", "on_demand"): (-4, -12)}
    assert frozen() == before


def test_a_withdrawal_after_the_close(october: None) -> None:
    """beta never ran: all of its 40 GPU-hours go back, at 3."""
    close()
    before = frozen()
    tell(correction("beta-starts"))
    adjust()
    assert adjustments() == {("beta", "2026-10", "on_demand"): (-40, -120)}
    close(NEXT_MONTH, DECEMBER_5)
    assert totals("2026-11") == {"acme": 0, "beta": -120, "gamma": 0}
    assert frozen() == before


def test_a_re_attribution_after_the_close(october: None) -> None:
    """Who u-7 is was known to be beta until hour 6; from then on it is gamma, as is said later: 2 x 4 GPU-hours."""
    who = {"identity": {"kind": "user", "value": "u-7"}}
    tell(holds("u-7", 0, 2, **who), holds("u-7", 10, 0, **who))
    map_identity("user", "u-7", Tenant.objects.get(holder__slug="beta"))
    close()
    before = frozen()
    assert totals() == {"acme": 100, "beta": 180, "gamma": 0}
    map_identity("user", "u-7", Tenant.objects.get(holder__slug="gamma"), valid_from=at(6))
    adjust()
    assert adjustments() == {
        ("beta", "2026-10", "on_demand"): (-8, -24),
        ("gamma", "2026-10", "on_demand"): (8, 24),
    }
    assert frozen() == before


def calibrated(valid_from: float, output: int) -> None:
    terms(
        calibration=[
            {
                "model": "qwen",
                "gpu_model": "H100",
                "valid_from": at(valid_from),
                "input_gpu_us_per_1k": 100,
                "cached_input_gpu_us_per_1k": 10,
                "output_gpu_us_per_1k": output,
            }
        ]
    )


def test_a_calibration_with_an_earlier_validity_after_the_close(october: None) -> None:
    """chat holds 4 on demand for 4 hours and serves by tokens: acme 1000 in, beta 1000 out, each hour.

    Output at 300 per 1000, input at 100: 1 : 3, so 4 and 12 GPU-hours. Later the output of hours 2 and 3 is known to
    have cost 900: 1 : 9, so acme has 1 + 1 + 0.4 + 0.4 and beta 3 + 3 + 3.6 + 3.6.
    """
    terms(service=[{"slug": "chat", "pool": "h100", "key": "tokens"}])
    calibrated(-9, 300)
    chat = {"workload": "chat-0", "service": "chat"}
    tell(
        holds("chat", 0, 4, **chat),
        holds("chat", 4, 0, **chat),
        *(served("chat", "acme", hour, input_tokens=1000, output_tokens=0) for hour in range(4)),
        *(served("chat", "beta", hour, input_tokens=0, output_tokens=1000) for hour in range(4)),
    )
    close()
    before = frozen()
    assert totals() == {"acme": 100 + 12, "beta": 120 + 36, "gamma": 0}
    calibrated(2, 900)
    adjust()
    # What changed its version alone is no line; 1.2 GPU-hours at 3 move.
    assert adjustments() == {
        ("acme", "2026-10", "on_demand"): (-1.2, -3.6),
        ("beta", "2026-10", "on_demand"): (1.2, 3.6),
    }
    assert totals("2026-11") == {"acme": -3.6, "beta": 3.6, "gamma": 0}
    assert frozen() == before


def test_a_rate_with_an_earlier_validity_after_the_close(october: None) -> None:
    """On demand cost 4 from hour 5 on, as is said later: beta's 20 GPU-hours after it at 1 more."""
    close()
    before = frozen()
    rates(at(5), on_demand="4")
    adjust()
    # Money alone: no GPU time moves but from one version of the prices to the other, and acme owes what it owed.
    assert adjustments() == {("beta", "2026-10", "on_demand"): (0, 20)}
    assert frozen() == before


def test_a_preemption_that_comes_to_light_after_the_close(october: None) -> None:
    """beta lost 4 on-demand GPUs for gamma at hour 6: 5 GPU-hours at 3 are gamma's by the policy of the month."""
    policy(preemption_charged_to="preemptor")
    close()
    before = frozen()
    tell(preempted(6, "beta", 4, by="gamma", lost_gpu_seconds=5 * 3600, disposition="stopped"))
    adjust()
    found = adjustments()
    assert {key: amount for key, (_, amount) in found.items()} == {
        ("beta", "2026-10", "preemption_lost"): -15,
        ("gamma", "2026-10", "preemption_lost"): 15,
    }
    assert totals("2026-11") == {"acme": 0, "beta": -15, "gamma": 15}
    assert frozen() == before


def test_a_dispute_that_is_accepted(october: None) -> None:
    """beta disputes its 120; two people grant 36 of it: the next bill says so, and the closed one stays."""
    close()
    before = frozen()
    line = StatementLine.objects.get(statement__number="2026-10-beta")
    dispute = open_dispute(line, "twelve of those hours were a failed node", BO)
    adjust_dispute(dispute, 36 * MICRO_PER_UNIT, "so they were", ANNA)
    assert adjustments() == {}
    decide(Approval.objects.get().pk, Decision.APPROVED, BO)
    Source.objects.update(complete_until=DECEMBER_5)
    recompute_open_months()
    assert adjustments() == {("beta", "2026-10", "dispute_adjustment"): (0, -36)}
    assert totals("2026-11") == {"acme": 0, "beta": -36, "gamma": 0}
    # What beta is spared is the platform's.
    assert billed("2026-11")["platform", "dispute_adjustment"] == 36
    assert frozen() == before


def test_a_resume_before_the_close_of_a_preemption_after_it(
    october: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """beta loses 4 GPUs in November and, it is told just before that month is issued, ran again in October: the
    2 GPU-hours that were computed again, at 2 as beta held no more than was its own, move in October and are
    November's adjustment."""
    policy(preemption_charged_to="preemptor")
    close()
    before = frozen()
    tell(preempted(750, "beta", 4, by="gamma", event_id="lost", lost_gpu_seconds=0))

    check = STEPS["check"]

    def told_after_the_check(run: CloseRun, now: datetime) -> Sentence:
        tell(resumed(9, "p-750", recompute_gpu_seconds=2 * 3600))
        return check(run, now)

    monkeypatch.setitem(STEPS, "check", told_after_the_check)
    close(NEXT_MONTH, DECEMBER_5)
    assert {key: amount for key, (_, amount) in adjustments().items()} == {
        ("beta", "2026-10", "preemption_recompute"): -4,
        ("gamma", "2026-10", "preemption_recompute"): 4,
    }
    assert totals("2026-11") == {"acme": 0, "beta": -4, "gamma": 4}
    assert frozen() == before
    # Nothing is left for later.
    adjust(DECEMBER_5)
    assert adjustments("2026-12") == {}


CHAT = {"slug": "chat", "pool": "h100", "key": "tokens", "service_basis": "measured"}
WITHOUT_DATE = {
    "mode": {"ledger": {"approvals": False, "mode": "cost_recovery"}},
    "owner": {"service": [CHAT | {"owner": "beta"}]},
    "no owner": {"service": [CHAT | {"owner": "platform"}]},
}


@pytest.mark.parametrize("changed", WITHOUT_DATE)
def test_what_has_no_date_counts_for_a_closed_month_as_it_was(october: None, changed: str) -> None:
    """acme owns chat, which holds 3 for six hours, one of them used, is preempted and preempts. Its adjustments are
    those of a ledger in which nothing changed after the close; November follows the change."""
    terms(ledger={"approvals": False}, service=[CHAT | {"owner": "acme"}])
    policy(preemption_charged_to="preemptor")
    cost("1.5")
    calibrated(-9, 300)
    chat = {"workload": "chat-0", "service": "chat"}
    tell(
        holds("chat", 0, 3, **chat),
        holds("chat", 6, 0, **chat),
        served("chat", "beta", 1, input_tokens=1000, output_tokens=0, gpu_seconds=3600),
        # Still waits when everything else is over, so that every month measures it again.
        preempted(5, "acme", 1, by="beta", victim=chat, lost_gpu_seconds=3600),
        holds("beta", 744, 1),
    )
    close()
    before = frozen()
    _kept_alike_by_the_migration()

    def adjusted() -> tuple[dict[tuple[str, str, str], tuple[float, float]], list[dict[str, Any]]]:
        tell(
            holds("gamma", 2, 6),
            holds("gamma", 4, 0),
            preempted(
                3,
                "beta",
                1,
                event_id="late",
                preemptor=chat,
                preemptor_source="structured",
                lost_gpu_seconds=7200,
            ),
        )
        for _ in range(2):
            adjust()
            compute_month(NEXT_MONTH, horizon=NOVEMBER_5)
        proved()
        assert frozen() == before
        # Computing the one month and the other leaves nothing to do for either.
        assert closed_months_that_changed() == [] and is_up_to_date(NEXT_MONTH, NOVEMBER_5)
        return adjustments(), list(PreemptionRecord.objects.order_by("pk").values())

    with transaction.atomic():
        expected = adjusted()
        unchanged = billed("2026-11")
        transaction.set_rollback(True)
    assert expected[0]
    terms(**WITHOUT_DATE[changed])
    assert adjusted() == expected
    assert changed != "mode" or billed("2026-11") != unchanged


def _kept_alike_by_the_migration() -> None:
    """Months that were closed before keep what holds when the field comes."""
    october = Period.objects.filter(pk="2026-10")
    kept = october.get().closed_with
    october.update(closed_with=None)
    with connection.cursor() as cursor:
        cursor.execute(import_module("ledger.migrations.0013_closed_with").KEEP)
    assert october.get().closed_with == kept


def _evidence(month: str, now: datetime, *codes: str) -> list[str]:
    items = month_checklist(Period.objects.get(pk=month), now)
    return [str(one) for item in items if item.code in codes for one in item.evidence]


def _exceptions_of(month: str, now: datetime) -> list[str]:
    return _evidence(month, now, "exceptions")


def _answered_for(month: Month, now: datetime) -> None:
    """Reviewed, and closed by somebody who answers for whatever blocks it."""
    Ledger.objects.update(options={"approvals": False})
    Source.objects.update(complete_until=now)
    open_review(month, ANNA, now=now)
    request_override(Period.objects.get(pk=str(month)), "known", ANNA, now=now)
    close(month, now)


def test_a_contradiction_told_after_the_close_blocks_the_next_one(october: None) -> None:
    """gamma's level ended in October, so no later month has it: its conflict stands on November's checklist, as does
    that of two reports of a preemption, and once November was closed over it not on December's."""
    close()
    tell(
        holds("gamma", 5, 1, event_id="one"),
        holds("gamma", 5, 2, event_id="other"),
        holds("gamma", 6, 0),
        preempted(3, "beta", 1, event_id="said", lost_gpu_seconds=60),
        preempted(3, "beta", 2, event_id="unsaid", lost_gpu_seconds=60),
    )
    adjust()
    Source.objects.update(complete_until=DECEMBER_5)
    open_review(NEXT_MONTH, ANNA, now=DECEMBER_5)
    seen = ["2026-10, closed: level_conflict h100: 1", "2026-10, closed: merge_conflict h100: 1"]
    assert _exceptions_of("2026-11", DECEMBER_5) == seen
    run = run_close(start_close(NEXT_MONTH, ANNA).pk, now=DECEMBER_5)
    assert run.state == "blocked"
    # In another transaction: somebody answers for it, and the next month is not asked again.
    with transaction.atomic():
        Ledger.objects.update(options={"approvals": False})
        request_override(Period.objects.get(pk="2026-11"), "the sources are gone", ANNA, now=DECEMBER_5)
        close(NEXT_MONTH, DECEMBER_5)
        assert _exceptions_of("2026-12", DECEMBER_5) == []
        transaction.set_rollback(True)
    tell(correction("one"))
    adjust(DECEMBER_5)
    assert _exceptions_of("2026-11", DECEMBER_5) == seen[1:]
    tell(correction("unsaid"))
    adjust(DECEMBER_5)
    close(NEXT_MONTH, DECEMBER_5)


def test_a_contradiction_that_was_closed_over_is_told_of_once(october: None) -> None:
    tell(holds("gamma", 5, 1, event_id="one"), holds("gamma", 5, 2, event_id="other"), holds("gamma", 6, 0))
    Ledger.objects.update(options={"approvals": False})
    open_review(MONTH, ANNA, now=NOVEMBER_5)
    Source.objects.update(complete_until=NOVEMBER_5)
    request_override(Period.objects.get(pk="2026-10"), "known", ANNA, now=NOVEMBER_5)
    close()
    tell(holds("gamma", 7, 1), holds("gamma", 8, 0))
    adjust()
    assert _exceptions_of("2026-11", NOVEMBER_5) == []


NOBODY = {"kind": "user", "value": "nobody"}
COMPUTED = ("exceptions", "attribution", "prices")


def _late_without_capacity(hour: float) -> None:
    terms(pool=[{"slug": "new", "cluster": "bj", "gpu_model": "H100"}])
    tell(holds("gamma", hour, 1, "wl-new", pool="new"), holds("gamma", hour + 1, 0, "wl-new", pool="new"))


def _late_of_nobody(hour: float) -> None:
    workload = f"wl-who-{hour}"
    tell(holds("", hour, 1, workload, identity=NOBODY), holds("", hour + 1, 0, workload, identity=NOBODY))


def _late_without_price(hour: float) -> None:
    # No card prices what beta and gamma then hold, on demand.
    GpuPrice.objects.filter(category__in=("on_demand", "borrowed")).delete()
    tell(holds("gamma", hour, 1), holds("gamma", hour + 1, 0))


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (_late_without_capacity, ["2026-10, closed: capacity_unknown new: 1"]),
        (_late_of_nobody, ["2026-10, closed: h100: 1 GPU-hours"]),
        (_late_without_price, ["2026-10: tenant:beta on_demand", "2026-10: tenant:gamma on_demand"]),
    ],
    ids=["capacity", "tenant", "price"],
)
def test_what_a_late_fact_lacks_blocks_the_next_close_once(
    october: None, late: Callable[[float], None], told: list[str]
) -> None:
    close()
    late(5)
    adjust()
    Source.objects.update(complete_until=DECEMBER_5)
    open_review(NEXT_MONTH, ANNA, now=DECEMBER_5)
    assert _evidence("2026-11", DECEMBER_5, *COMPUTED) == told
    assert run_close(start_close(NEXT_MONTH, ANNA).pk, now=DECEMBER_5).state == "blocked"
    _answered_for(NEXT_MONTH, DECEMBER_5)
    # October is computed once more, and finds the same as what was answered for.
    tell(holds("acme", 5, 1, "wl-more"), holds("acme", 6, 0, "wl-more"))
    adjust(DECEMBER_5)
    assert _evidence("2026-12", DECEMBER_5, *COMPUTED) == []


def test_what_comes_on_top_of_what_a_month_was_closed_over_is_told(october: None) -> None:
    """An hour of nobody's was answered for in October. The one that came after its close was not; and once the first
    is mapped away, as much again is new."""
    _late_of_nobody(5)
    _answered_for(MONTH, NOVEMBER_5)
    adjust()
    assert _evidence("2026-11", NOVEMBER_5, *COMPUTED) == []
    _late_of_nobody(6)
    adjust()
    assert _evidence("2026-11", NOVEMBER_5, *COMPUTED) == ["2026-10, closed: h100: 1 GPU-hours"]
    map_identity("user", "nobody", Tenant.objects.get(holder__slug="gamma"))
    adjust()
    assert _evidence("2026-11", NOVEMBER_5, *COMPUTED) == []
    close(NEXT_MONTH, DECEMBER_5)


def test_findings_of_months_that_were_closed_before_were_seen_but_for_prices_that_lack_since(
    october: None,
) -> None:
    _late_of_nobody(5)
    _answered_for(MONTH, NOVEMBER_5)
    _late_without_price(7)
    adjust()
    asked = _evidence("2026-11", NOVEMBER_5, *COMPUTED)
    assert "2026-10: tenant:gamma on_demand" in asked
    BillingFinding.objects.update(seen_quantity=0)
    with connection.cursor() as cursor:
        cursor.execute(import_module("billing.migrations.0030_seen_findings").SEEN)
    assert _evidence("2026-11", NOVEMBER_5, *COMPUTED) == asked
