"""Steps of engines as GPU time: forward-pass metrics and vLLM's log of iterations."""

from __future__ import annotations

import json
from typing import Any

from ingest.core.adapters import load
from ingest.core.adapters.base import State
from tests.core.adapters.running import events_of, notices_of, refused_of, run, source_of


def data_of(outcomes: list[Any]) -> list[dict[str, Any]]:
    return [event["data"] for event in events_of(outcomes, "usage")]


def reasons(outcomes: list[Any]) -> list[str]:
    return [notice.reason for notice in notices_of(outcomes)]


# --- forward-pass metrics ---------------------------------------------------------------------------------


def step(number: int, at: float, wall: float = 0.01, **fields: Any) -> dict[str, Any]:
    message = {"version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": number, "wall_time": wall}
    return {"received_at": at, "model": "m", "message": {**message, **fields}}


AT = 1_791_000_000.0


def test_missing_steps_are_told_and_not_estimated() -> None:
    outcomes = run("dynamo-fpm", [step(1, AT + 1), step(5, AT + 2)], options={"gpus": 8})
    assert data_of(outcomes)[0]["gpu_seconds"] == "0.160000"
    (notice,) = notices_of(outcomes)
    assert (notice.reason, notice.detail) == ("missed_steps", "w/0: 3 steps are missing")


def test_a_step_delivered_twice_counts_once() -> None:
    outcomes = run("dynamo-fpm", [step(1, AT + 1), step(2, AT + 2), step(1, AT + 1)], options={"gpus": 1})
    assert data_of(outcomes)[0]["gpu_seconds"] == "0.020000"
    assert notices_of(outcomes) == []


def test_a_worker_that_counts_anew_is_a_restart() -> None:
    outcomes = run("dynamo-fpm", [step(9, AT + 1), step(0, AT + 60)], options={"gpus": 1})
    assert data_of(outcomes)[0]["gpu_seconds"] == "0.020000"
    assert reasons(outcomes) == ["counter_reset"]


def test_heartbeats_are_steps_of_no_length() -> None:
    outcomes = run("dynamo-fpm", [step(1, AT + 1, wall=0), step(2, AT + 2, wall=0)], options={"gpus": 1})
    assert data_of(outcomes)[0]["gpu_seconds"] == "0.000000"
    assert notices_of(outcomes) == []


def test_positional_messages_are_read_by_version_one_only() -> None:
    positional = {"received_at": AT + 1, "model": "m", "message": [1, "w", 0, 1, 0.5, [], []]}
    assert data_of(run("dynamo-fpm", [positional], options={"gpus": 2}))[0]["gpu_seconds"] == "1.000000"
    (refused,) = refused_of(run("dynamo-fpm", [step(1, AT, version=2)]))
    assert refused.reason == "unknown_version"


def test_steps_without_a_time_of_receipt_are_refused() -> None:
    (refused,) = refused_of(run("dynamo-fpm", [step(1, AT)["message"]], options={"model": "m"}))
    assert refused.reason == "no_instant"


def test_steps_go_on_from_state_and_hours_are_given_once() -> None:
    state: State = {}
    run("dynamo-fpm", [step(1, AT + 1)], state, options={"gpus": 1})
    state = json.loads(json.dumps(state))
    outcomes = run("dynamo-fpm", [step(2, AT + 3_700)], state, options={"gpus": 1})
    assert [data["gpu_seconds"] for data in data_of(outcomes)] == ["0.010000"], "the first hour is over"
    rest = list(load("dynamo-fpm").flush(source_of("dynamo-fpm", options={"gpus": 1}), state, None))
    assert [data["gpu_seconds"] for data in data_of(rest)] == ["0.010000"]


# --- vLLM's log of iterations -----------------------------------------------------------------------------


def iteration(number: int, at: str = "04:00:01", elapsed: str = "31.40", engine: str = "000") -> str:
    said = "1 context requests, 1000 context tokens, 23 generation requests, 23 generation tokens"
    head = f"2026-10-03T{at}.5Z INFO Engine {engine}: Iteration({number}): {said}"
    return f"{head}, iteration elapsed time: {elapsed} ms, GPU KV cache usage: 87.2%"


LOG = {"model": "m", "gpus": 4}


def test_steps_of_the_log_are_gpu_time_of_all_its_gpus() -> None:
    lines = [iteration(1), "2026-10-03T04:00:01Z INFO something else", iteration(2, elapsed="18.60")]
    outcomes = run("vllm-step-log", lines, options=LOG)
    assert data_of(outcomes)[0]["gpu_seconds"] == "0.200000"
    assert notices_of(outcomes) == []


def test_engines_of_one_log_count_by_themselves() -> None:
    lines = [iteration(7, engine="000"), iteration(1, engine="001"), iteration(8, engine="000")]
    outcomes = run("vllm-step-log", lines, options=LOG)
    assert len(data_of(outcomes)) == 2 and notices_of(outcomes) == []


def test_a_line_of_the_log_that_was_lost_is_missed_time() -> None:
    assert reasons(run("vllm-step-log", [iteration(1), iteration(4)], options=LOG)) == ["missed_steps"]


def test_a_log_without_timestamps_or_in_other_words_is_refused() -> None:
    bare = "INFO 10-03 04:00:00 [loggers.py:1] " + iteration(1).partition(" INFO ")[2]
    other = "2026-10-03T04:00:00Z Engine 000: Iteration(1): it took 31 ms"
    outcomes = run("vllm-step-log", [bare, other], options=LOG)
    assert [r.reason for r in refused_of(outcomes)] == ["no_instant", "bad_record"]


def test_a_collectors_json_names_the_pod() -> None:
    time, _, log = iteration(1).partition(" ")
    records = [{"time": time, "log": log, "pod": pod} for pod in ("vllm-0", "vllm-1")]
    found = events_of(run("vllm-step-log", records, options=LOG))
    assert [event["id"].split("/")[0] for event in found] == ["vllm-0", "vllm-1"]
