"""Traps of the sources that describe single requests: engines' spans and logs, and answers of their APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.adapters.running import events_of, notices_of, refused_of, run

Obj = dict[str, Any]
STARTED, FINISHED = "2026-10-03T04:00:00Z", "2026-10-03T04:00:05Z"


def only(outcomes: list[Any], event_type: str = "request") -> Obj:
    (event,) = events_of(outcomes, event_type)
    data: Obj = event["data"]
    return data


def refusal(outcomes: list[Any]) -> str:
    (refused,) = refused_of(outcomes)
    assert events_of(outcomes) == []
    return refused.reason


# --- spans ------------------------------------------------------------------------------------------------


def span(name: Any = "llm_request", **attributes: Any) -> Obj:
    def value(v: Any) -> Obj:
        kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
        return {kinds[type(v)]: str(v) if isinstance(v, int) else v}

    return {
        "name": name,
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "1790000015400000000",
        "endTimeUnixNano": "1790000019730000000",
        "attributes": [{"key": k.replace("__", "."), "value": value(v)} for k, v in attributes.items()],
    }


def test_deprecated_and_new_names_of_span_attributes_are_one() -> None:
    old = {"gen_ai__usage__prompt_tokens": 10, "gen_ai__usage__completion_tokens": 3}
    new = {"gen_ai__usage__input_tokens": 10, "gen_ai__usage__output_tokens": 3}
    model = {"gen_ai__request__model": "m"}
    for attributes in (old, new, old | new):
        data = only(run("vllm-otel", [span(**attributes, **model)]))
        assert (data["input_tokens"], data["output_tokens"]) == (10, 3)
        assert "cached_input_tokens" not in data, "vLLM's span does not say, and that is not 0"


def test_sglang_span_has_cached_tokens() -> None:
    data = only(
        run("vllm-otel", [span(gen_ai__usage__cached_tokens=4, gen_ai__usage__prompt_tokens=9)], options=M)
    )
    assert data["cached_input_tokens"] == 4


M = {"model": "m"}


def test_prefill_and_decode_time_of_a_span_is_never_gpu_time() -> None:
    timed = span(gen_ai__latency__time_in_model_prefill=0.5, gen_ai__latency__time_in_model_decode=2.0)
    assert "gpu_seconds" not in only(run("vllm-otel", [timed], options=M))


def test_a_span_starts_at_arrival_and_its_request_when_it_was_scheduled() -> None:
    data = only(run("vllm-otel", [span(gen_ai__latency__time_in_queue=1.5)], options=M))
    assert data["queued_at"] == "2026-09-21T14:13:35.400Z"
    assert data["started_at"] == "2026-09-21T14:13:36.900Z"


def test_a_queue_time_longer_than_the_request_is_not_believed() -> None:
    data = only(run("vllm-otel", [span(gen_ai__latency__time_in_queue=99.0)], options=M))
    assert data["started_at"] == "2026-09-21T14:13:35.400Z" and "queued_at" not in data


def test_spans_of_other_operations_are_passed_over() -> None:
    assert run("vllm-otel", [span(name="GET /health")]) == []


def test_a_span_without_a_model_needs_one_configured() -> None:
    assert refusal(run("vllm-otel", [span()])) == "bad_record"


def test_a_span_with_an_error_status_or_abort_says_so() -> None:
    assert only(run("vllm-otel", [{**span(), "status": {"code": 2}}], options=M))["outcome"] == "error"
    aborted = span()
    reasons = {"arrayValue": {"values": [{"stringValue": "abort"}]}}
    aborted["attributes"].append({"key": "gen_ai.response.finish_reasons", "value": reasons})
    assert only(run("vllm-otel", [aborted], options=M))["outcome"] == "aborted"


def test_a_broken_span_leaves_the_others_of_its_export() -> None:
    spans = [
        span(gen_ai__request__id="a"),
        {**span(), "endTimeUnixNano": "soon"},
        span(gen_ai__request__id="b"),
    ]
    export = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    outcomes = run("vllm-otel", [export], options=M)
    assert [event["id"] for event in events_of(outcomes)] == ["a", "b"]
    (refused,) = refused_of(outcomes)
    assert refused_of(run("vllm-otel", [refused.record], options=M)) == [refused], (
        "it alone, to be tried again"
    )


# --- SGLang log -------------------------------------------------------------------------------------------


def finish(message: str | None = None, kind: str = "stop", **fields: Any) -> Obj:
    reason = {"type": kind} if message is None else {"type": "abort", "message": message, "status_code": 503}
    times = {"request_received_ts": 1790000000.10, "request_finished_ts": 1790000019.73}
    return {"id": "r-1", "finish_reason": reason, **times, **fields}


def test_retractions_are_preemptions_of_the_request_and_no_extra_output() -> None:
    record = finish(prompt_tokens=900, completion_tokens=410, cached_tokens=256, num_retractions=2)
    outcomes = run("sglang-log", [record], options=M)
    data = only(outcomes)
    assert (data["input_tokens"], data["cached_input_tokens"], data["output_tokens"]) == (900, 256, 410)
    assert (data["preemptions"], data["outcome"]) == (2, "ok")
    preemptions = [event["data"] for event in events_of(outcomes, "preemption")]
    assert len({p["preemption"] for p in preemptions}) == 2
    for preemption in preemptions:
        assert preemption["victim"]["request"] == "r-1"
        assert (preemption["gpus"], preemption["cause"]) == (0, "kv_cache_pressure")
        assert preemption["preemptor_source"] == "none" and "preemptor" not in preemption


def test_a_site_with_priorities_can_say_what_its_retractions_are() -> None:
    options: Obj = {**M, "retraction_cause": "priority"}
    assert (
        only(run("sglang-log", [finish(num_retractions=1)], options=options), "preemption")["cause"]
        == "priority"
    )
    options = {**M, "preemption_records": False}
    assert events_of(run("sglang-log", [finish(num_retractions=1)], options=options), "preemption") == []


def test_no_retraction_count_is_not_no_retraction() -> None:
    assert "preemptions" not in only(run("sglang-log", [finish()], options=M))
    assert only(run("sglang-log", [finish(num_retractions=0)], options=M))["preemptions"] == 0


def test_an_absurd_retraction_count_is_refused() -> None:
    assert refusal(run("sglang-log", [finish(num_retractions=10**9)], options=M)) == "bad_quantity"


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        ("The request queue is full.", ["rejection"]),
        ("The request is aborted by a higher priority request.", ["request", "preemption"]),
        (
            "Retracted under decode memory pressure without a KV backup. Retry later.",
            ["request", "preemption"],
        ),
        ("Some other abort", ["request"]),
    ],
)
def test_a_503_of_sglang_is_told_by_its_reason(message: str, kinds: list[str]) -> None:
    outcomes = run("sglang-log", [finish(message)], options=M)
    assert [event["type"].split(".")[1] for event in events_of(outcomes)] == kinds


def test_a_request_displaced_while_it_waited_is_queued_only() -> None:
    outcomes = run("sglang-log", [finish("The request is aborted by a higher priority request.")], options=M)
    preemption = only(outcomes, "preemption")
    assert (preemption["queued_only"], preemption["gpus"], preemption["cause"]) == (True, 0, "priority")
    running = run("sglang-log", [finish("Retracted under decode memory pressure without")], options=M)
    assert "queued_only" not in only(running, "preemption")
    assert only(running)["outcome"] == "preempted"


def test_the_request_inside_the_record_is_json_text() -> None:
    parameters = json.dumps({"rid": "r-9", "custom_labels": {"team": "vision"}})
    record = {k: v for k, v in finish(request_parameters=parameters).items() if k != "id"}
    options = {**M, "identity_parameter": "custom_labels.team", "identity": "litellm_team"}
    data = only(run("sglang-log", [record], options=options))
    assert data["request"] == "r-9"
    assert data["identity"] == {"kind": "litellm_team", "value": "vision"}
    assert refusal(run("sglang-log", [finish(request_parameters="{broken")], options=M)) == "bad_record"


def test_without_enable_metrics_there_is_no_time_and_the_refusal_says_what_to_do() -> None:
    record = {k: v for k, v in finish().items() if not k.endswith("_ts")}
    (refused,) = refused_of(run("sglang-log", [record], options=M))
    assert refused.reason == "no_instant" and "--enable-metrics" in refused.detail


def test_a_record_that_names_nobody_goes_to_the_identity_of_its_source() -> None:
    assert only(run("sglang-log", [finish()], options=M))["identity"] == {
        "kind": "label:source",
        "value": "test",
    }


# --- Dynamo trace -----------------------------------------------------------------------------------------


def trace(event_type: Any = "request_end", **request: Any) -> Obj:
    request = {"request_id": "d-1", "model": "m", "request_received_ms": 1_790_000_015_400, **request}
    head = {"schema": "dynamo.request.trace.v1", "event_type": event_type}
    return {**head, "event_time_unix_ms": 1_790_000_019_730, "request": request}


def test_omitted_counts_of_the_trace_are_absent() -> None:
    data = only(run("dynamo-trace", [trace(output_tokens=4)]))
    assert data["output_tokens"] == 4
    assert "input_tokens" not in data and "cached_input_tokens" not in data


def test_a_migrated_request_is_one_request_and_its_wall_time_no_gpu_time() -> None:
    worker = {"prefill_worker_id": 7, "decode_worker_id": 9, "decode_dp_rank": 1}
    data = only(run("dynamo-trace", [trace(prefill_time_ms=88.0, total_time_ms=4330.0, worker=worker)]))
    assert data["labels"] == {"prefill_worker": "7/0", "decode_worker": "9/1"}
    assert "gpu_seconds" not in data and "attempt" not in data


def test_a_dropped_stream_is_aborted() -> None:
    finish_reason = {"finish_reason_metadata": {"backend_finish_reason": "cancelled"}}
    assert only(run("dynamo-trace", [trace(**finish_reason)]))["outcome"] == "aborted"
    assert only(run("dynamo-trace", [trace()]))["outcome"] == "ok"


def test_other_events_of_the_trace_are_passed_over_and_unknown_ones_refused() -> None:
    assert run("dynamo-trace", [trace("tool_end"), trace("request_payload")]) == []
    assert refusal(run("dynamo-trace", [trace("request_began")])) == "unknown_kind"
    assert (
        refusal(run("dynamo-trace", [{**trace(), "schema": "dynamo.request.trace.v2"}])) == "unknown_version"
    )


# --- OpenAI-style usage -----------------------------------------------------------------------------------


def answer(usage: Obj | None = None, **fields: Any) -> Obj:
    response = {"id": "chatcmpl-1", "created": 1790000015, "model": "m", "usage": usage}
    return {"request_id": "gw-1", "tenant": "acme", "started_at": STARTED, "finished_at": FINISHED} | {
        "response": response | fields
    }


def test_missing_details_are_absent_and_an_explicit_zero_is_a_fact() -> None:
    data = only(run("openai-usage", [answer({"prompt_tokens": 5, "completion_tokens": 1})]))
    assert "cached_input_tokens" not in data and "reasoning_tokens" not in data
    details = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": None}
    data = only(run("openai-usage", [answer({"prompt_tokens": 5, "completion_tokens": 1, **details})]))
    assert data["cached_input_tokens"] == 0 and "reasoning_tokens" not in data


def test_an_answer_without_usage_is_a_request_without_counts() -> None:
    data = only(run("openai-usage", [answer(None)]))
    assert not any("tokens" in name for name in data)


def test_sglang_reports_reasoning_tokens_at_the_top() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "reasoning_tokens": 4}
    assert only(run("openai-usage", [answer(usage)]))["reasoning_tokens"] == 4


def chunk(completion: int | None, finish_reason: str | None = None, last: bool = False) -> Obj:
    usage: Obj | None = (
        None if completion is None else {"prompt_tokens": 100, "completion_tokens": completion}
    )
    if last and usage is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": 16}
    choices = [] if last else [{"index": 0, "finish_reason": finish_reason}]
    return {"id": "c", "model": "m", "choices": choices, "usage": usage}


def stream(*chunks: Obj) -> Obj:
    return {"tenant": "acme", "started_at": STARTED, "finished_at": FINISHED, "chunks": list(chunks)}


def test_the_last_usage_of_a_stream_counts_and_nothing_is_summed() -> None:
    data = only(run("openai-usage", [stream(chunk(1), chunk(2), chunk(3, "stop"), chunk(3, last=True))]))
    assert (data["input_tokens"], data["output_tokens"], data["cached_input_tokens"]) == (100, 3, 16)
    assert data["outcome"] == "ok"


def test_a_stream_that_asked_for_no_usage_has_none() -> None:
    outcomes = run("openai-usage", [stream(chunk(None), chunk(None, "stop"))])
    assert "output_tokens" not in only(outcomes)
    assert notices_of(outcomes) == []


def test_a_cut_stream_is_aborted_with_what_was_last_said() -> None:
    outcomes = run("openai-usage", [stream(chunk(1), chunk(7))])
    assert (only(outcomes)["outcome"], only(outcomes)["output_tokens"]) == ("aborted", 7)
    assert [n.reason for n in notices_of(outcomes)] == ["incomplete_stream"]


def error(message: str, kind: str = "", status: int = 503) -> Obj:
    failed = {"error": {"message": message, "type": kind}}
    return {"request_id": "gw", "status": status, "finished_at": FINISHED, "model": "m", "response": failed}


@pytest.mark.parametrize(
    ("record", "layer", "reason", "status"),
    [
        (error("The request queue is full."), "capacity", "queue_full", 503),
        (error("limit max_num_queued_reqs reached"), "capacity", "max_num_queued_reqs", 503),
        (error("Slow down", "rate_limit_error", 429), "rate_limit", "rate_limit", 429),
        (error("You exceeded your quota", "insufficient_quota", 429), "quota", "insufficient_quota", 429),
        (
            error("system saturated, sheddable request dropped", "", 429),
            "admission",
            "sheddable_dropped",
            429,
        ),
    ],
)
def test_a_refused_call_is_told_by_its_reason(record: Obj, layer: str, reason: str, status: int) -> None:
    data = only(run("openai-usage", [record]), "rejection")
    assert (data["layer"], data["reason"], data["status"]) == (layer, reason, status)


def test_a_503_without_a_known_reason_is_an_error_and_no_refusal() -> None:
    assert only(run("openai-usage", [error("no healthy upstream")]))["outcome"] == "error"


def test_a_429_that_evicts_running_work_is_a_preemption() -> None:
    outcomes = run("openai-usage", [error("request evicted by flow control", "", 429)])
    assert only(outcomes, "preemption")["cause"] == "priority"
    assert only(outcomes)["outcome"] == "preempted"


def test_an_answer_nobody_timed_is_refused() -> None:
    assert refusal(run("openai-usage", [{"id": "x", "model": "m", "usage": {}}])) == "no_instant"


# --- Anthropic usage --------------------------------------------------------------------------------------


def message(usage: Obj) -> Obj:
    return {"finished_at": FINISHED, "response": {"id": "msg", "model": "m", "usage": usage}}


def test_total_input_is_the_sum_of_three() -> None:
    usage = {"input_tokens": 9, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 21}
    data = only(run("anthropic-usage", [message({**usage, "output_tokens": 5})]))
    assert (data["input_tokens"], data["cached_input_tokens"], data["cache_write_tokens"]) == (100, 70, 21)


def test_cache_fields_that_are_null_are_absent() -> None:
    data = only(run("anthropic-usage", [message({"input_tokens": 9, "cache_read_input_tokens": None})]))
    assert data["input_tokens"] == 9
    assert "cached_input_tokens" not in data and "output_tokens" not in data


def test_cache_creation_by_lifetime_adds_up() -> None:
    usage = {
        "input_tokens": 1,
        "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3},
    }
    assert only(run("anthropic-usage", [message(usage)]))["cache_write_tokens"] == 5


def test_an_overloaded_api_refused_for_want_of_capacity() -> None:
    record = {"request_id": "x", "finished_at": FINISHED, "status": 529}
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    data = only(run("anthropic-usage", [{**record, "response": failed}]), "rejection")
    assert (data["layer"], data["status"], data["origin"]) == ("capacity", 529, "upstream")
