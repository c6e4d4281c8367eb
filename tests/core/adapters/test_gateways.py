"""Traps of gateways: LiteLLM, Envoy AI Gateway and llm-d."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.adapters.running import events_of, notices_of, refused_of, run

Obj = dict[str, Any]


def only(outcomes: list[Any], event_type: str = "request") -> Obj:
    (event,) = events_of(outcomes, event_type)
    data: Obj = event["data"]
    return data


# --- LiteLLM spend logs -----------------------------------------------------------------------------------


def row(**fields: Any) -> Obj:
    base: Obj = {
        "litellm_call_id": "call-1",
        "request_id": "chatcmpl-1",
        "team_id": "team-vision",
        "api_key": "88dc28",
        "prompt_tokens": 1536,
        "completion_tokens": 212,
        "total_tokens": 1748,
        "startTime": "2026-10-31T23:59:58.120Z",
        "endTime": "2026-11-01T00:00:02.450Z",
        "model": "hosted_vllm/qwen3-32b",
        "model_group": "qwen3",
        "status": "success",
        "metadata": {},
    }
    return {**base, **fields}


def failed(code: str, **error: Any) -> Obj:
    information = {"error_code": code, **error}
    return row(status="failure", total_tokens=0, prompt_tokens=0, completion_tokens=0) | {
        "metadata": {"error_information": information}
    }


def test_cached_tokens_are_no_column_and_already_part_of_the_prompt() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 1024}, "cache_read_input_tokens": 1024}
    data = only(run("litellm-spendlogs", [row(metadata={"usage_object": usage})]))
    assert (data["input_tokens"], data["cached_input_tokens"]) == (1536, 1024)
    assert "cached_input_tokens" not in only(run("litellm-spendlogs", [row()]))


def test_metadata_may_be_an_object_or_its_text() -> None:
    text = '{"usage_object":{"prompt_tokens_details":{"cached_tokens":7}}}'
    assert only(run("litellm-spendlogs", [row(metadata=text)]))["cached_input_tokens"] == 7


def test_times_without_offset_are_in_the_zone_of_the_source() -> None:
    naive = row(startTime="2026-11-01 00:00:00.5", endTime="2026-11-01 00:00:01")
    assert only(run("litellm-spendlogs", [naive]))["started_at"] == "2026-11-01T00:00:00.500Z"
    shanghai = only(run("litellm-spendlogs", [naive], time_zone="Asia/Shanghai"))
    assert shanghai["started_at"] == "2026-10-31T16:00:00.500Z"


def test_an_answer_from_the_gateways_cache_used_no_gpu() -> None:
    data = only(run("litellm-spendlogs", [row(cache_hit="True")]))
    assert (data["input_tokens"], data["output_tokens"], data["gpu_seconds"]) == (0, 0, 0)
    assert data["labels"] == {"cache_hit": "true"}
    assert only(run("litellm-spendlogs", [row(cache_hit="False")]))["input_tokens"] == 1536


def test_a_billed_retry_belongs_to_its_logical_request() -> None:
    retry = row(
        litellm_call_id="call-1-attempt-1", completion_tokens=40, metadata={"billed_retry_attempt": True}
    )
    final = row(metadata={"attempted_retries": 1})
    first, last = (event["data"] for event in events_of(run("litellm-spendlogs", [retry, final])))
    assert (first["parent_request"], first["output_tokens"], first["labels"]) == (
        "call-1",
        40,
        {"estimated": "true"},
    )
    assert (last["request"], last["attempt"], last["outcome"]) == ("call-1", 2, "ok")
    assert "parent_request" not in last and first["outcome"] == "error"


def test_a_suffix_without_the_mark_is_just_an_id() -> None:
    data = only(run("litellm-spendlogs", [row(litellm_call_id="call-attempt-1")]))
    assert data["request"] == "call-attempt-1" and "parent_request" not in data


@pytest.mark.parametrize(
    ("error", "layer", "reason", "origin"),
    [
        (
            {"error_rate_limit_category": "litellm_rate_limit", "error_rate_limit_type": "tokens"},
            "rate_limit",
            "tokens",
            "gateway",
        ),
        (
            {"error_rate_limit_category": "vendor_rate_limit", "error_rate_limit_type": "requests"},
            "rate_limit",
            "requests",
            "upstream",
        ),
        (
            {"error_rate_limit_category": "litellm_rate_limit", "error_rate_limit_type": "budget"},
            "budget",
            "budget",
            "gateway",
        ),
        (
            {"error_rate_limit_category": "litellm_rate_limit", "error_rate_limit_type": "max_iterations"},
            "quota",
            "max_iterations",
            "gateway",
        ),
        ({"error_class": "BudgetExceededError"}, "budget", "budget", "gateway"),
        ({"error_budget_entity_type": "team"}, "budget", "budget", "gateway"),
        ({}, "rate_limit", "rate_limit", "gateway"),
    ],
)
def test_the_limit_that_refused_is_told_apart(error: Obj, layer: str, reason: str, origin: str) -> None:
    data = only(run("litellm-spendlogs", [failed("429", **error)]), "rejection")
    assert (data["layer"], data["reason"], data["origin"], data["status"]) == (layer, reason, origin, 429)


def test_an_engines_full_queue_seen_through_the_gateway_is_the_engines() -> None:
    data = only(
        run("litellm-spendlogs", [failed("503", error_message="The request queue is full.")]), "rejection"
    )
    assert (data["layer"], data["origin"], data["status"]) == ("capacity", "engine", 503)


def test_failures_that_are_no_refusals_are_requests_without_counts() -> None:
    for code, name, outcome in (
        ("408", "Timeout", "timeout"),
        ("500", "InternalServerError", "error"),
        ("499", "ClientDisconnect", "aborted"),
        ("503", "ServiceUnavailableError", "error"),
    ):
        data = only(run("litellm-spendlogs", [failed(code, error_class=name)]))
        assert data["outcome"] == outcome
        assert "input_tokens" not in data, "the 0 of a failed row is the default of its column"


def test_who_asked_is_the_team_then_the_key_then_the_source() -> None:
    def who(**fields: Any) -> Obj:
        found: Obj = only(run("litellm-spendlogs", [row(**fields)]))["identity"]
        return found

    assert who() == {"kind": "litellm_team", "value": "team-vision"}
    assert who(team_id="None") == {"kind": "api_key_hash", "value": "88dc28"}
    assert who(team_id=None, api_key="") == {"kind": "label:source", "value": "test"}


def test_the_model_that_answered_is_rated_without_its_provider() -> None:
    def model(**fields: Any) -> str:
        options = fields.pop("options", {})
        return str(only(run("litellm-spendlogs", [row(**fields)], options=options))["model"])

    assert model() == "qwen3-32b"
    assert model(model="Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"
    assert model(model="hosted_vllm/Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"
    assert model(model="acme/x", custom_llm_provider="acme") == "x"
    assert model(options={"model_from": "group"}) == "qwen3"
    assert model(options={"models": {"qwen3-32b": "qwen"}}) == "qwen"


def test_pools_and_services_go_by_deployment_group_or_model() -> None:
    pools = {"dep-1": "a", "qwen3": "b"}
    options = {"services": {"qwen3": "chat"}}
    data = only(run("litellm-spendlogs", [row(model_id="dep-1")], pools=pools, options=options))
    assert (data["pool"], data["service"]) == ("a", "chat")
    assert only(run("litellm-spendlogs", [row()], pools=pools))["pool"] == "b"
    outcomes = run("litellm-spendlogs", [row(model_group="x", model="y"), row()], pools=pools)
    assert [r.reason for r in refused_of(outcomes)] == ["unmapped_pool"]
    assert len(events_of(outcomes)) == 1


# --- LiteLLM payload --------------------------------------------------------------------------------------


def payload(**fields: Any) -> Obj:
    base: Obj = {
        "litellm_call_id": "call-1",
        "id": "chatcmpl-1",
        "status": "success",
        "prompt_tokens": 1536,
        "completion_tokens": 212,
        "startTime": 1790000015.4,
        "endTime": 1790000019.73,
        "model": "qwen3-32b",
        "cache_hit": False,
        "metadata": {"user_api_key_team_id": "team-vision"},
    }
    return {**base, **fields}


def test_times_are_unix_seconds_and_cache_hit_a_boolean_here() -> None:
    data = only(run("litellm-payload", [payload()]))
    assert data["started_at"] == "2026-09-21T14:13:35.400Z"
    assert only(run("litellm-payload", [payload(cache_hit=True)]))["gpu_seconds"] == 0


def test_an_array_of_payloads_is_read_whole() -> None:
    batch = json.dumps([payload(), payload(litellm_call_id="call-2")])
    assert [event["id"] for event in events_of(run("litellm-payload", [batch]))] == ["call-1", "call-2"]


def test_a_broken_payload_leaves_the_others_of_its_array() -> None:
    batch = json.dumps([payload(), payload(endTime="soon"), payload(litellm_call_id="call-2")])
    outcomes = run("litellm-payload", [batch])
    assert [event["id"] for event in events_of(outcomes)] == ["call-1", "call-2"]
    (refused,) = refused_of(outcomes)
    assert json.loads(refused.record)["endTime"] == "soon"


def test_a_trace_that_is_a_session_is_no_logical_request() -> None:
    assert only(run("litellm-payload", [payload(trace_id="t")]))["parent_request"] == "t"
    assert "parent_request" not in only(run("litellm-payload", [payload(trace_id="s", session_id="s")]))


def test_attempts_that_share_a_call_id_are_told_apart() -> None:
    error = {"error_code": "500", "error_class": "InternalServerError"}
    first = payload(status="failure", model_id="dep-1", startTime=1790000014.0, error_information=error)
    rows = events_of(run("litellm-payload", [first, payload()]))
    assert len({event["id"] for event in rows}) == 2
    assert rows[0]["data"]["parent_request"] == rows[1]["data"]["request"] == "call-1"


# --- Envoy AI Gateway and llm-d ---------------------------------------------------------------------------


def line(**fields: Any) -> Obj:
    base: Obj = {
        "start_time": "2026-11-01T00:00:02.101Z",
        "response_code": 200,
        "response_flags": "-",
        "duration": 4330,
        "x-request-id": "gw-1",
        "x-tenant-id": "team-vision",
        "gen_ai.request.model": "qwen3",
        "gen_ai.response.model": "qwen3-32b",
        "gen_ai.usage.input_tokens": 1536,
        "gen_ai.usage.output_tokens": 212,
        "gen_ai.usage.total_tokens": 1748,
    }
    return {**base, **fields}


def test_a_client_that_left_is_aborted_and_its_counts_are_absent() -> None:
    nulls = {"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None}
    data = only(run("envoy-ai-gateway", [line(response_flags="DC", **nulls)]))
    assert data["outcome"] == "aborted"
    assert not any("tokens" in name for name in data)


@pytest.mark.parametrize(
    ("status", "flags", "layer", "origin"),
    [
        (429, "RL", "rate_limit", "gateway"),
        (429, "-", "rate_limit", "upstream"),
        (503, "UO", "capacity", "gateway"),
    ],
)
def test_refusals_are_told_by_flag(status: int, flags: str, layer: str, origin: str) -> None:
    data = only(run("envoy-ai-gateway", [line(response_code=status, response_flags=flags)]), "rejection")
    assert (data["layer"], data["origin"], data["status"]) == (layer, origin, status)


def test_a_refusal_needs_no_model_and_a_wrong_path_is_no_fact() -> None:
    bare = {"gen_ai.request.model": None, "gen_ai.response.model": None}
    assert only(run("envoy-ai-gateway", [line(response_code=429, response_flags="RL", **bare)]), "rejection")
    assert run("envoy-ai-gateway", [line(response_code=404, response_flags="NR", **bare)]) == []


def test_a_dead_upstream_is_an_error_and_a_slow_one_a_timeout() -> None:
    assert only(run("envoy-ai-gateway", [line(response_code=503, response_flags="UF")]))["outcome"] == "error"
    assert (
        only(run("envoy-ai-gateway", [line(response_code=504, response_flags="UT")]))["outcome"] == "timeout"
    )


def test_no_answer_at_all_is_no_success() -> None:
    assert only(run("envoy-ai-gateway", [line(response_code=0, response_flags="-")]))["outcome"] == "error"
    assert only(run("envoy-ai-gateway", [line(response_code=0, response_flags="DC")]))["outcome"] == "aborted"
    assert (
        only(run("envoy-ai-gateway", [line(response_code=499, response_flags="-")]))["outcome"] == "aborted"
    )


def test_an_aborted_stream_without_a_model_is_kept_for_a_person() -> None:
    bare = {"gen_ai.request.model": None, "gen_ai.response.model": None, "response_flags": "DC"}
    (refused,) = refused_of(run("envoy-ai-gateway", [line(**bare)]))
    assert "options.model" in refused.detail
    assert only(run("envoy-ai-gateway", [line(**bare)], options={"model": "m"}))["outcome"] == "aborted"


def test_the_operator_names_the_fields() -> None:
    named = {k: v for k, v in line().items() if k != "gen_ai.usage.output_tokens"} | {
        "out": "212",
        "team": "a",
    }
    options = {"fields": {"output": "out"}, "identity_field": "team", "identity": "litellm_team"}
    data = only(run("envoy-ai-gateway", [named], options=options))
    assert data["output_tokens"] == 212
    assert data["identity"] == {"kind": "litellm_team", "value": "a"}


def test_the_dash_of_the_access_log_is_absent() -> None:
    data = only(run("envoy-ai-gateway", [line(**{"x-tenant-id": "-", "gen_ai.usage.input_tokens": "-"})]))
    assert data["identity"]["kind"] == "label:source" and "input_tokens" not in data


def dropped(reason: str | None, status: int, **fields: Any) -> Obj:
    header = {} if reason is None else {"x-llm-d-request-dropped-reason": reason}
    base = {"ts": "2026-11-01T00:00:05Z", "status": status, "x-request-id": "gw-1", "model": "m"}
    return {**base, "x-gateway-inference-fairness-id": "team-batch", **header, **fields}


@pytest.mark.parametrize(
    ("reason", "status", "kinds"),
    [
        ("rejected-saturated", 429, ["rejection"]),
        ("rejected-ttl-expired", 503, ["rejection"]),
        ("rejected-context-cancelled", 503, ["request"]),
        ("evicted", 429, ["preemption", "request"]),
        ("evicted-queue-pressure", 429, ["preemption", "request"]),
    ],
)
def test_the_dropped_reason_decides_and_not_the_status(reason: str, status: int, kinds: list[str]) -> None:
    found = events_of(run("llm-d", [dropped(reason, status)]))
    assert [event["type"].split(".")[1] for event in found] == kinds


def test_an_eviction_stops_a_running_request_for_an_unknown_preemptor() -> None:
    outcomes = run("llm-d", [dropped("evicted", 429, priority=-10)])
    preemption = only(outcomes, "preemption")
    assert (preemption["gpus"], preemption["disposition"], preemption["preemptor_source"]) == (
        0,
        "stopped",
        "none",
    )
    assert (only(outcomes)["outcome"], only(outcomes)["service_class"]) == ("preempted", "preemptible")


def test_the_legacy_admission_sends_no_header_but_a_body() -> None:
    legacy = dropped(None, 429, body="system saturated, sheddable request dropped")
    data = only(run("llm-d", [legacy]), "rejection")
    assert (data["layer"], data["reason"]) == ("admission", "sheddable_dropped")


def test_a_reason_that_is_not_known_is_refused_and_not_guessed() -> None:
    (refused,) = refused_of(run("llm-d", [dropped("evicted-for-fun", 429)]))
    assert "evicted-for-fun" in refused.detail


def test_the_default_flow_is_nobody() -> None:
    outcomes = run("llm-d", [dropped("evicted", 429, **{"x-gateway-inference-fairness-id": "default-flow"})])
    assert only(outcomes)["identity"]["kind"] == "label:source"


def test_nothing_is_noticed_where_all_is_said() -> None:
    assert notices_of(run("litellm-spendlogs", [row()])) == []
