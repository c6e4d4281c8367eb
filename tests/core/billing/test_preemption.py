"""Merging and measuring preemptions (domain.md section 6), with numbers small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.core.preemption import (
    FROM_CALIBRATION,
    FROM_OCCUPANCY,
    FROM_REQUESTS,
    NOT_KNOWN,
    REPORTED,
    Known,
    Voided,
    Wait,
    lead_time_ms,
    measure,
    notice_ms,
    released_at_ms,
)
from billing.core.preemption_merge import Preemption, Report, Resume, merge
from billing.core.preemption_workload import Holding
from ledger.core.periods import Span

HOUR = 3_600_000
GPU_HOUR = 3_600_000_000
KEY = ("bj", "p1")


def report(number: int = 1, **said: Any) -> Report:
    base: dict[str, Any] = {
        "ref": ("/k", f"e{number}"),
        "key": KEY,
        "decided_at_ms": 4 * HOUR,
        "pool": "h100",
        "milli_gpus": 4000,
        "cause": "reclaim_own_reservation",
        "victim": "gamma",
        "victim_workload": "wl-g",
    }
    return Report(**base | said)


def resume(number: int = 9, **said: Any) -> Resume:
    base: dict[str, Any] = {
        "ref": ("/k", f"r{number}"),
        "key": KEY,
        "resumed_at_ms": 7 * HOUR,
        "pool": "h100",
    }
    return Resume(**base | said)


def preemption(**said: Any) -> Preemption:
    (one,), _ = merge([report()], [])
    return replace(one, **said)


def holding(*steps: tuple[int, int], pool: str = "h100", attempt: int = 1, **more: Any) -> Holding:
    return Holding(pool, attempt, tuple((hour * HOUR, milli) for hour, milli in steps), **more)


# The worked example: gamma holds 8 from hour 2, loses 4 at 4, has 8 again at 7.
GAMMA = holding((2, 8000), (4, 4000), (7, 8000))


def test_worked_example_without_checkpoint() -> None:
    measures = measure(preemption(), [GAMMA])
    assert measures.lost == Known(8 * GPU_HOUR, FROM_OCCUPANCY)
    assert measures.wait == Wait("h100", 4000, 4 * HOUR, 7 * HOUR)
    assert measures.wait.gpu_us(Span(0, 10 * HOUR)) == 12 * GPU_HOUR
    assert measures.drain_gpu_us == 0
    assert (measures.resumed_at_ms, measures.resumed_pool) == (7 * HOUR, "h100")
    assert measures.recompute == NOT_KNOWN
    assert measures.is_partial
    assert measures.requeued_gpu_us == 8 * GPU_HOUR


# Merging


def test_one_record_from_three_reports_with_the_best_preemptor() -> None:
    found, conflicts = merge(
        [
            report(
                3, preemptor="alpha", preemptor_workload="wl-a", preemptor_source="inferred", confidence_ppm=1
            ),
            report(1, decided_at_ms=5 * HOUR, released_at_ms=6 * HOUR),
            report(2, preemptor="acme", preemptor_workload="wl-9", preemptor_source="parsed"),
        ],
        [resume()],
    )
    (one,) = found
    assert conflicts == []
    assert one.decided_at_ms == 4 * HOUR
    assert (one.preemptor, one.preemptor_workload, one.preemptor_source) == ("acme", "wl-9", "parsed")
    assert one.confidence_ppm is None
    assert one.released_at_ms == 6 * HOUR
    assert one.resumed_at_ms == 7 * HOUR
    assert one.refs == (("/k", "e1"), ("/k", "e2"), ("/k", "e3"), ("/k", "r9"))


def test_a_better_source_that_names_nobody_does_not_hide_a_name() -> None:
    (one,), _ = merge(
        [report(1, preemptor_source="structured"), report(2, preemptor="acme", preemptor_source="parsed")], []
    )
    assert (one.preemptor, one.preemptor_source) == ("acme", "parsed")


def test_of_differing_values_the_smallest_source_and_id_holds() -> None:
    (one,), conflicts = merge([report(2, milli_gpus=8000), report(1, milli_gpus=4000)], [])
    assert one.milli_gpus == 4000
    assert [(conflict.key, conflict.field) for conflict in conflicts] == [(KEY, "milli_gpus")]
    assert conflicts[0].values == ((("/k", "e1"), 4000), (("/k", "e2"), 8000))


def test_a_resume_alone_is_no_preemption() -> None:
    assert merge([], [resume()]) == ([], [])


def test_ids_are_scoped_by_cluster() -> None:
    found, _ = merge([report(1), report(2, key=("sh", "p1"))], [resume()])
    assert [(one.key, one.resumed_at_ms) for one in found] == [(KEY, 7 * HOUR), (("sh", "p1"), None)]


@given(
    st.permutations(
        [
            report(1, lost_gpu_us=5),
            report(2, milli_gpus=1),
            report(3, preemptor="acme", preemptor_source="parsed"),
            report(4, preemptor="beta", preemptor_source="parsed"),
        ]
    ),
    st.permutations([resume(1), resume(2, resumed_at_ms=6 * HOUR), resume(3, recompute_gpu_us=9)]),
)
def test_order_of_arrival_never_matters(reports: list[Report], resumes: list[Resume]) -> None:
    assert merge(reports, resumes) == merge(
        sorted(reports, key=lambda r: r.ref), sorted(resumes, key=lambda r: r.ref)
    )


# Release, drain, waiting


def test_release_falls_back_to_the_next_drop_then_to_the_decision() -> None:
    draining = holding((2, 8000), (4, 8000), (5, 4000))
    assert released_at_ms(preemption(released_at_ms=6 * HOUR), [draining]) == 6 * HOUR
    assert released_at_ms(preemption(), [draining]) == 5 * HOUR
    assert released_at_ms(preemption(), [holding((2, 8000))]) == 4 * HOUR
    assert released_at_ms(preemption(victim_attempt=2), [draining]) == 4 * HOUR
    assert measure(preemption(), [draining]).drain_gpu_us == 4 * GPU_HOUR


def test_a_release_before_the_decision_drains_nothing() -> None:
    assert measure(preemption(released_at_ms=3 * HOUR), [GAMMA]).drain_gpu_us == 0


@pytest.mark.parametrize("disposition", ["stopped", "drained"])
def test_stopped_and_drained_work_never_waits(disposition: str) -> None:
    assert measure(preemption(disposition=disposition), [GAMMA]).wait is None


def test_waiting_ends_with_the_first_of_resume_and_occupancy_in_any_pool() -> None:
    whole = holding((2, 4000), (4, 0))
    elsewhere = holding((6, 4000), pool="a100", attempt=2)
    still = measure(preemption(), [whole])
    assert still.wait == Wait("h100", 4000, 4 * HOUR, None)
    assert still.wait.gpu_us(Span(0, 9 * HOUR)) == 20 * GPU_HOUR
    moved = measure(preemption(), [whole, elsewhere])
    assert moved.wait is not None
    assert moved.wait.ends_ms == 6 * HOUR
    assert (moved.resumed_at_ms, moved.resumed_pool) == (6 * HOUR, "a100")
    reported = measure(preemption(resumed_at_ms=5 * HOUR, resumed_pool="h100"), [whole, elsewhere])
    assert reported.wait is not None
    assert reported.wait.ends_ms == 5 * HOUR


def test_restating_or_shrinking_what_is_left_is_no_resumption() -> None:
    measures = measure(preemption(), [holding((2, 8000), (4, 4000), (5, 4000), (6, 2000), (8, 6000))])
    assert measures.wait == Wait("h100", 4000, 4 * HOUR, 8 * HOUR)


def test_a_new_attempt_during_the_drain_waits_nothing() -> None:
    old, new = holding((2, 4000), (6, 0)), holding((5, 4000), pool="a100", attempt=2)
    measures = measure(preemption(), [old, new])
    assert measures.wait is not None
    assert measures.wait.gpu_us(Span(0, 9 * HOUR)) == 0


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(-5, 30), max_size=5))
def test_waiting_adds_up_over_any_cuts(start: int, length: int, cuts: list[int]) -> None:
    wait = Wait("h100", 3, start, start + length)
    edges = sorted({-5, 45, *cuts})
    parts = [wait.gpu_us(Span(a, b)) for a, b in pairwise(edges)]
    assert sum(parts) == 3 * length


# Lost


def test_lost_counts_from_the_latest_checkpoint_before_the_release() -> None:
    kept = replace(GAMMA, checkpoints_ms=(3 * HOUR, 6 * HOUR))
    assert measure(preemption(), [kept]).lost == Known(4 * GPU_HOUR, FROM_OCCUPANCY)
    saved_while_draining = replace(GAMMA, checkpoints_ms=(5 * HOUR,))
    assert measure(preemption(released_at_ms=6 * HOUR), [saved_while_draining]).lost.gpu_us == 0


def test_a_missing_admission_is_the_start_of_unbroken_occupancy() -> None:
    gap = holding((0, 4000), (1, 0), (3, 4000), (4, 0))
    assert measure(preemption(), [gap]).lost.gpu_us == 4 * GPU_HOUR
    assert measure(preemption(admitted_at_ms=3 * HOUR + HOUR // 2), [gap]).lost.gpu_us == 2 * GPU_HOUR


def test_lost_is_capped_at_what_was_booked_for_the_attempt() -> None:
    assert measure(preemption(admitted_at_ms=0, lost_gpu_us=99 * GPU_HOUR), [GAMMA]).lost == Known(
        16 * GPU_HOUR, REPORTED
    )


def test_lost_of_serving_work_is_that_of_its_voided_requests_or_unknown() -> None:
    replica = replace(GAMMA, serving=True)
    assert measure(preemption(), [replica]).lost == NOT_KNOWN
    assert measure(preemption(), [replica], Voided(3, 500)).lost == Known(500, FROM_REQUESTS)
    assert measure(preemption(), [replica], Voided(3, None)).lost == NOT_KNOWN


def test_a_report_beats_requests_and_requests_beat_occupancy() -> None:
    assert measure(preemption(lost_gpu_us=7), [GAMMA], Voided(1, 500)).lost == Known(7, REPORTED)
    assert measure(preemption(), [GAMMA], Voided(1, 500)).lost == Known(500, FROM_REQUESTS)
    assert measure(preemption(), [GAMMA], Voided(1, None)).lost == Known(8 * GPU_HOUR, FROM_OCCUPANCY)


# Recompute and the rest


def test_recompute_is_reported_or_comes_from_the_calibration_or_is_unknown() -> None:
    tokens = preemption(context_tokens=3000, cached_prefix_tokens=1000)
    assert measure(preemption(recompute_gpu_us=5), [GAMMA]).recompute == Known(5, REPORTED)
    assert measure(tokens, [GAMMA], input_gpu_us_per_1k=120).recompute == Known(240, FROM_CALIBRATION)
    assert measure(tokens, [GAMMA]).recompute == NOT_KNOWN
    no_cache_count = preemption(context_tokens=3000)
    assert measure(no_cache_count, [GAMMA], input_gpu_us_per_1k=120).recompute == NOT_KNOWN


def test_a_deferral_costs_nothing() -> None:
    measures = measure(preemption(queued_only=True), [GAMMA])
    assert (measures.wait, measures.drain_gpu_us, measures.requeued_gpu_us) == (None, 0, 0)
    assert not measures.is_partial


def test_a_request_inside_an_engine_takes_no_gpus() -> None:
    request = preemption(milli_gpus=0, victim_workload=None, victim_request="req-1", recompute_gpu_us=40)
    measures = measure(request, [])
    assert (measures.wait, measures.lost, measures.requeued_gpu_us) == (None, NOT_KNOWN, 40)


def test_lead_time_and_notice_are_unknown_without_shortage_or_announcement() -> None:
    assert (lead_time_ms(100, 40), lead_time_ms(100, None), lead_time_ms(40, 100)) == (60, None, 0)
    assert (notice_ms(100, 40), notice_ms(100, None)) == (60, None)


steps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8, unique_by=lambda step: step[0])


@given(
    steps,
    st.integers(0, 50),
    st.integers(0, 4),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(0, 60),
)
def test_no_measure_is_negative_or_beyond_what_was_booked(
    levels: list[tuple[int, int]], decided: int, milli: int, released: int | None, admitted: int | None
) -> None:
    held = Holding("h100", 1, tuple(sorted(levels)))
    one = preemption(
        decided_at_ms=decided, milli_gpus=milli, released_at_ms=released, admitted_at_ms=admitted
    )
    measures = measure(one, [held])
    assert measures.drain_gpu_us >= 0
    assert measures.wait is None or measures.wait.gpu_us(Span(0, 100)) >= 0
    booked = held.gpu_us_until(max(decided, measures.released_at_ms))
    assert measures.lost.gpu_us is None or 0 <= measures.lost.gpu_us <= booked


@given(steps, st.integers(0, 50), st.data())
def test_cutting_a_level_in_two_changes_nothing(
    levels: list[tuple[int, int]], cut: int, data: st.DataObject
) -> None:
    held = Holding("h100", 1, tuple(sorted(levels)))
    one = preemption(decided_at_ms=data.draw(st.integers(0, 50)), milli_gpus=1)
    restated = dict(held.steps) | {cut: held.at(cut)}
    assert measure(one, [held]) == measure(one, [replace(held, steps=tuple(sorted(restated.items())))])
