"""Counters of engines: restarts, gaps, new series, hours, and what each engine's counters mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.core.adapters import load
from ingest.core.adapters.base import State
from tests.core.adapters.running import as_lines, events_of, notices_of, refused_of, run, source_of

HOUR = "2026-10-03T04"
VLLM = 'model_name="m",engine="0"'
SGL = 'model_name="m",engine_type="unified"'


def scrape(minute: str, *samples: str, pod: str = "e-0") -> list[str]:
    return [f'# scraped {HOUR}:{minute}Z pod="{pod}"', *samples]


def prompt(value: int | str, labels: str = VLLM) -> str:
    return f"vllm:prompt_tokens_total{{{labels}}} {value}"


def generated(value: int | str, labels: str = VLLM) -> str:
    return f"vllm:generation_tokens_total{{{labels}}} {value}"


def data_of(outcomes: list[Any]) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(outcomes, "usage")]


def reasons(outcomes: list[Any]) -> list[str]:
    return [notice.reason for notice in notices_of(outcomes) if notice.reason != "counter_unknown_start"]


# --- restarts ---------------------------------------------------------------------------------------------


def test_all_counters_of_a_process_begin_again_together() -> None:
    """`generation` has overtaken its old value after the restart; it is still a restart, not a growth of 2."""
    lines = scrape("00:00", prompt(1000), generated(5)) + scrape("01:00", prompt(200), generated(7))
    outcomes = run("vllm-metrics", lines)
    (data,) = data_of(outcomes)
    assert (data["input_tokens"], data["output_tokens"]) == (200, 7)
    assert reasons(outcomes) == ["counter_reset"]


def test_the_restart_of_one_pod_is_not_that_of_another() -> None:
    lines = scrape("00:00", prompt(1000), pod="e-0") + scrape("00:00", prompt(1000), pod="e-1")
    lines += scrape("01:00", prompt(200), pod="e-0") + scrape("01:00", prompt(1300), pod="e-1")
    outcomes = run("vllm-metrics", lines)
    assert [data["input_tokens"] for data in data_of(outcomes)] == [200, 300]
    assert [n.subject for n in notices_of(outcomes) if n.reason == "counter_reset"] == ["e-0/m/0"]


def test_a_restart_names_the_span_whose_tail_is_lost() -> None:
    outcomes = run("vllm-metrics", scrape("00:00", prompt(9)) + scrape("01:00", prompt(1)))
    (notice,) = [n for n in notices_of(outcomes) if n.reason == "counter_reset"]
    assert notice.ends_ms is not None and notice.starts_ms is not None
    assert notice.ends_ms - notice.starts_ms == 60_000


# --- gaps, hours, first samples ---------------------------------------------------------------------------


def test_a_gap_is_told_and_its_growth_is_booked_whole_where_it_was_seen() -> None:
    outcomes = run("vllm-metrics", scrape("00:00", prompt(0)) + scrape("30:00", prompt(900)))
    assert data_of(outcomes)[0]["input_tokens"] == 900
    assert reasons(outcomes) == ["missed_samples"]


def test_what_a_gap_is_can_be_configured() -> None:
    lines = scrape("00:00", prompt(0)) + scrape("30:00", prompt(900))
    assert reasons(run("vllm-metrics", lines, options={"max_gap_seconds": 1800})) == []


def test_usage_never_crosses_an_hour_and_a_sample_on_the_hour_closes_it() -> None:
    lines = scrape("59:00", prompt(0))
    lines += ['# scraped 2026-10-03T05:00:00Z pod="e-0"', prompt(10)]
    lines += ['# scraped 2026-10-03T05:01:00Z pod="e-0"', prompt(30)]
    spans = [(d["starts_at"], d["ends_at"], d["input_tokens"]) for d in data_of(run("vllm-metrics", lines))]
    assert spans == [
        ("2026-10-03T04:59:00Z", "2026-10-03T05:00:00Z", 10),
        ("2026-10-03T05:00:00Z", "2026-10-03T05:01:00Z", 20),
    ]


def test_growth_across_the_hour_is_booked_in_the_hour_it_was_seen() -> None:
    lines = [*scrape("59:30", prompt(0)), '# scraped 2026-10-03T05:00:30Z pod="e-0"', prompt(10)]
    (data,) = data_of(run("vllm-metrics", lines))
    assert (data["starts_at"], data["ends_at"]) == ("2026-10-03T05:00:00Z", "2026-10-03T05:00:30Z")


def test_a_first_sample_is_a_base_and_not_a_growth() -> None:
    outcomes = run("vllm-metrics", scrape("00:00", prompt(184_220)))
    assert events_of(outcomes) == []
    assert [n.reason for n in notices_of(outcomes)] == ["counter_unknown_start"]


def test_a_source_whose_engines_all_start_fresh_counts_from_zero() -> None:
    outcomes = run("vllm-metrics", scrape("00:30", prompt(500)), options={"counters_start_at_zero": True})
    assert data_of(outcomes)[0]["input_tokens"] == 500
    assert notices_of(outcomes) == []


def test_a_counter_born_in_a_known_process_began_at_zero() -> None:
    aborts = f'vllm:request_success_total{{{VLLM},finished_reason="error"}} 3'
    lines = scrape("00:00", prompt(100)) + scrape("01:00", prompt(150), aborts)
    assert data_of(run("vllm-metrics", lines))[0]["requests"] == 3


def test_a_counter_that_is_not_exported_is_absent_and_zero_growth_is_zero() -> None:
    (data,) = data_of(run("vllm-metrics", scrape("00:00", prompt(7)) + scrape("01:00", prompt(7))))
    assert data["input_tokens"] == 0
    assert "output_tokens" not in data and "cached_input_tokens" not in data


def test_of_two_samples_at_one_instant_the_first_holds() -> None:
    lines = scrape("00:00", prompt(1), prompt(3)) + scrape("01:00", prompt(9))
    assert data_of(run("vllm-metrics", lines))[0]["input_tokens"] == 8


# --- state ------------------------------------------------------------------------------------------------


def test_state_goes_on_where_it_stopped_and_is_json() -> None:
    state: State = {}
    first = run("vllm-metrics", scrape("00:00", prompt(100)) + scrape("01:00", prompt(160)), state)
    assert events_of(first) == [], "the hour is not over"
    state = json.loads(json.dumps(state))
    run("vllm-metrics", scrape("02:00", prompt(200)), state)
    source = source_of("vllm-metrics")
    assert next(iter(load("vllm-metrics").flush(source, state, None)))["data"]["input_tokens"] == 100  # type: ignore[index]
    assert list(load("vllm-metrics").flush(source, state, None)) == [], "an hour is given once"


def test_samples_that_were_seen_are_not_counted_again() -> None:
    state: State = {}
    lines = scrape("00:00", prompt(100)) + scrape("01:00", prompt(160))
    run("vllm-metrics", lines, state)
    run("vllm-metrics", lines, state)
    (event,) = list(load("vllm-metrics").flush(source_of("vllm-metrics"), state, None))
    assert event["data"]["input_tokens"] == 60  # type: ignore[index]


def test_flush_lets_go_of_hours_that_are_over() -> None:
    state: State = {}
    run("vllm-metrics", scrape("00:00", prompt(0)) + scrape("01:00", prompt(5)), state)
    source, flush = source_of("vllm-metrics"), load("vllm-metrics").flush
    hour_ends_ms = 1_791_003_600_000
    assert list(flush(source, state, hour_ends_ms - 1)) == []
    assert len(list(flush(source, state, hour_ends_ms))) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=12), st.integers(1, 11))
def test_cutting_the_input_changes_no_total(growth: list[int], cut: int) -> None:
    total, lines = 0, []
    for minute, grown in enumerate(growth):
        total += grown
        lines.append(scrape(f"{minute:02d}:00", prompt(total)))
    whole = run("vllm-metrics", [line for block in lines for line in block])
    state: State = {}
    adapter, source = load("vllm-metrics"), source_of("vllm-metrics")
    parts = []
    for blocks in (lines[:cut], lines[cut:]):
        parts += list(adapter.adapt(as_lines(line for block in blocks for line in block), source, state))
    parts += list(adapter.flush(source, state, None))
    assert data_of(parts) == data_of(whole)
    assert sum(data["input_tokens"] for data in data_of(whole)) == total - growth[0]


# --- forms of Prometheus ----------------------------------------------------------------------------------


def matrix(*series: tuple[dict[str, str], list[list[Any]]]) -> dict[str, Any]:
    result = [{"metric": metric, "values": values} for metric, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


METRIC = {"__name__": "vllm:prompt_tokens_total", "model_name": "m", "engine": "0", "pod": "e-0"}


def test_query_answers_exports_and_expositions_say_the_same() -> None:
    at = 1_791_000_000
    answer = [matrix((METRIC, [[at, "5"], [at + 60, "9"]]))]
    export = [{"metric": METRIC, "values": [5, 9], "timestamps": [at * 1000, (at + 60) * 1000]}]
    labels = 'model_name="m",engine="0",pod="e-0"'
    millis = [f"{prompt(5, labels)} {at}000", f"{prompt(9, labels)} {at + 60}000"]
    seconds = [f"{prompt(5, labels)} {at}.0", f"{prompt(9, labels)} {at + 60}.0", "# EOF"]
    headed = scrape("00:00", prompt(5)) + scrape("01:00", prompt(9))
    outcomes = [run("vllm-metrics", form) for form in (answer, export, millis, seconds, headed)]
    assert all(events_of(o) == events_of(outcomes[0]) for o in outcomes)
    assert data_of(outcomes[0])[0]["input_tokens"] == 4


def test_a_series_that_is_answered_later_in_one_answer_is_still_in_order() -> None:
    newborn = {**METRIC, "__name__": "vllm:num_preemptions_total"}
    at = 1_791_000_000
    answer = matrix((newborn, [[at + 60, "2"]]), (METRIC, [[at, "5"], [at + 60, "9"]]))
    assert data_of(run("vllm-metrics", [answer]))[0]["preemptions"] == 2


def test_text_without_any_time_is_refused() -> None:
    (refused,) = refused_of(run("vllm-metrics", [prompt(5)]))
    assert refused.reason == "no_instant"


def test_samples_after_a_broken_header_do_not_take_the_old_time() -> None:
    lines = [*scrape("00:00", prompt(5)), "# scraped yesterday", prompt(9)]
    assert [r.reason for r in refused_of(run("vllm-metrics", lines))] == ["bad_time", "no_instant"]


def test_an_error_answer_is_refused_with_its_text() -> None:
    (refused,) = refused_of(run("vllm-metrics", [{"status": "error", "error": "query timed out"}]))
    assert "query timed out" in refused.detail


def test_a_refused_sample_can_be_read_again_by_itself() -> None:
    at = 1_791_000_000
    (refused,) = refused_of(run("vllm-metrics", [matrix((METRIC, [[at, "NaN"], [at + 60, "9"]]))]))
    assert refused.reason == "bad_quantity"
    again = json.loads(refused.record)
    assert again["metric"] == METRIC and again["values"] == [[f"{at}.000", "NaN"]]


def test_label_values_may_hold_anything() -> None:
    labels = r'model_name="a\"b,c}\\ d",engine="0"'
    outcomes = run("vllm-metrics", scrape("00:00", prompt(1, labels)) + scrape("01:00", prompt(2, labels)))
    assert data_of(outcomes)[0]["model"] == 'a"b,c}\\ d'


# --- vLLM -------------------------------------------------------------------------------------------------


def vllm_pair(*pairs: tuple[str, int, int]) -> list[str]:
    first = [f"{name} {before}" for name, before, _ in pairs]
    return scrape("00:00", *first) + scrape("01:00", *[f"{name} {after}" for name, _, after in pairs])


def test_counters_are_known_with_and_without_their_suffix() -> None:
    lines = vllm_pair((prompt("").strip(), 0, 1536), (generated("").strip(), 0, 7))
    older = [line.replace("_total{", "{") for line in lines]
    assert data_of(run("vllm-metrics", older)) == data_of(run("vllm-metrics", lines)) != []


def test_cached_tokens_are_part_of_input() -> None:
    cached = f"vllm:prompt_tokens_cached_total{{{VLLM}}}"
    lines = vllm_pair((prompt("").strip(), 0, 1536), (cached, 0, 1024))
    (data,) = data_of(run("vllm-metrics", lines))
    assert (data["input_tokens"], data["cached_input_tokens"]) == (1536, 1024)


def test_prefix_cache_hits_are_tokens_and_not_blocks() -> None:
    """Where only the older counter is there it is taken as it is; no block size is multiplied in."""
    lines = vllm_pair((f'vllm:prefix_cache_hits_total{{{VLLM},block_size="16"}}', 0, 64))
    assert data_of(run("vllm-metrics", lines))[0]["cached_input_tokens"] == 64


def test_the_two_cached_counters_are_one_fact() -> None:
    by_source = [
        (f'vllm:prompt_tokens_by_source_total{{{VLLM},source="{source}"}}', 0, n)
        for source, n in (("local_compute", 100), ("local_cache_hit", 30), ("external_kv_transfer", 4))
    ]
    assert data_of(run("vllm-metrics", vllm_pair(*by_source)))[0]["cached_input_tokens"] == 34
    with_total = [*by_source, (f"vllm:prompt_tokens_cached_total{{{VLLM}}}", 0, 34)]
    assert data_of(run("vllm-metrics", vllm_pair(*with_total)))[0]["cached_input_tokens"] == 34


def test_histograms_and_gauges_are_not_counters_of_usage() -> None:
    lines = vllm_pair(
        (f"vllm:request_prompt_tokens_sum{{{VLLM}}}", 0, 5),
        (f"vllm:iteration_tokens_total_sum{{{VLLM}}}", 0, 5),
        (f'vllm:request_num_preemptions_bucket{{{VLLM},le="1.0"}}', 0, 5),
        (f"vllm:request_time_per_output_token_seconds_sum{{{VLLM}}}", 0, 5),
    )
    assert run("vllm-metrics", lines) == []


def test_a_full_queue_is_a_503_for_want_of_capacity() -> None:
    name = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_tokens"}'
    (event,) = events_of(run("vllm-metrics", vllm_pair((name, 2, 5))))
    data = event["data"]
    assert (data["layer"], data["status"], data["origin"], data["count"]) == ("capacity", 503, "engine", 3)
    assert data["identity"] == {"kind": "label:model", "value": "m"}
    (named,) = events_of(run("vllm-metrics", vllm_pair((name, 2, 5)), options={"tenant": "acme"}))
    assert named["data"]["tenant"] == "acme"


def test_preemptions_of_an_engine_are_counted_per_model_and_name_nobody() -> None:
    (data,) = data_of(run("vllm-metrics", vllm_pair((f"vllm:num_preemptions_total{{{VLLM}}}", 7, 9))))
    assert data["preemptions"] == 2
    assert "tenant" not in data and "identity" not in data and "recomputed_tokens" not in data


# --- SGLang -----------------------------------------------------------------------------------------------


def sglang_pair(*pairs: tuple[str, Any, Any]) -> list[str]:
    return vllm_pair(*pairs)


def test_sglang_total_cache_source_stands_in_and_is_never_added() -> None:
    def cached(source: str, grown: int) -> tuple[str, int, int]:
        return (f'sglang:cached_tokens_total{{{SGL},cache_source="{source}"}}', 0, grown)

    (data,) = data_of(
        run("sglang-metrics", sglang_pair(cached("device", 40), cached("host", 2), cached("total", 42)))
    )
    assert data["cached_input_tokens"] == 42
    (data,) = data_of(run("sglang-metrics", sglang_pair(cached("total", 42))))
    assert data["cached_input_tokens"] == 42


def test_sglang_recompute_is_prefill_beyond_what_prompts_needed() -> None:
    ran = f'sglang:realtime_tokens_total{{{SGL},mode="prefill_compute"}}'
    needed = f'sglang:prefill_effective_tokens_total{{{SGL},mode="input"}}'
    (data,) = data_of(run("sglang-metrics", sglang_pair((ran, 0, 7_100), (needed, 0, 6_300))))
    assert data["recomputed_tokens"] == 800
    (data,) = data_of(run("sglang-metrics", sglang_pair((ran, 0, 7_100))))
    assert "recomputed_tokens" not in data, "one counter alone says nothing"


def test_sglang_gpu_time_needs_the_size_of_the_engine() -> None:
    busy = f'sglang:forward_execution_seconds_total{{{SGL},category="DECODE"}}'
    lines = sglang_pair((busy, "10.25", "20.5000009"))
    assert data_of(run("sglang-metrics", lines, options={"gpus": 4}))[0]["gpu_seconds"] == "41.000000"
    assert "gpu_seconds" not in data_of(run("sglang-metrics", lines))[0]


def test_sglang_ranks_that_step_together_count_once() -> None:
    def busy(rank: int, dp: int) -> tuple[str, int, int]:
        labels = f'{SGL},tp_rank="{rank}",dp_rank="{dp}",category="DECODE"'
        return (f"sglang:forward_execution_seconds_total{{{labels}}}", 0, 10)

    lines = sglang_pair(busy(0, 0), busy(1, 0), busy(0, 1), busy(1, 1))
    found = data_of(run("sglang-metrics", lines, options={"gpus": 2}))
    assert [data["gpu_seconds"] for data in found] == ["20.000000", "20.000000"], "one per data-parallel rank"


def test_sglang_tenant_label_makes_usage_of_tenants() -> None:
    def tokens(team: str, grown: int) -> tuple[str, int, int]:
        return (f'sglang:prompt_tokens_total{{{SGL},team="{team}"}}', 0, grown)

    options = {"tenant_label": "team", "identity": "litellm_team"}
    found = data_of(run("sglang-metrics", sglang_pair(tokens("a", 3), tokens("b", 4)), options=options))
    assert [(data["identity"]["value"], data["input_tokens"]) for data in found] == [("a", 3), ("b", 4)]
    assert found[0]["identity"]["kind"] == "litellm_team"


# --- hours that cannot be booked yet ----------------------------------------------------------------------


def test_an_hour_whose_pool_is_not_mapped_is_refused_and_booked_once_it_is() -> None:
    lines = scrape("00:00", prompt(0)) + scrape("01:00", prompt(5))
    (refused,) = refused_of(run("vllm-metrics", lines, pools={"other": "p1"}))
    assert refused.reason == "unmapped_pool"
    again = run("vllm-metrics", [refused.record], pools={"m": "p1"})
    assert events_of(again) == events_of(run("vllm-metrics", lines, pools={"m": "p1"}))
    assert (
        refused_of(run("vllm-metrics", [refused.record], pools={"other": "p1"}))[0].record == refused.record
    )
    (broken,) = refused_of(run("vllm-metrics", ['{"counted_hour":7}']))
    assert broken.reason == "bad_record"


def test_a_size_that_is_no_number_is_a_configuration_error() -> None:
    busy = f'sglang:forward_execution_seconds_total{{{SGL},category="DECODE"}}'
    with pytest.raises(ValueError, match="gpus"):
        run("sglang-metrics", sglang_pair((busy, 0, 1)), options={"gpus": "four"})
