"""The cases C1 to C29 of the corpus of public faults, as far as an adapter decides them.

Where the ledger or a bill has the last word (C17, C19, C21, C23, C27), the test here holds what the adapter must hand
over so that they can.
"""

from __future__ import annotations

from typing import Any

from ingest.core.residual import ABORTED, engine_totals, explained_totals, residuals
from tests.core.adapters.running import events_of, notices_of, refused_of, run

Obj = dict[str, Any]


def spend_row(**fields: Any) -> Obj:
    row: Obj = {
        "litellm_call_id": "call-1",
        "request_id": "chatcmpl-213",
        "team_id": "team-vision",
        "api_key": "88dc28",
        "prompt_tokens": 1536,
        "completion_tokens": 212,
        "total_tokens": 1748,
        "startTime": "2026-10-31T23:59:58.120Z",
        "endTime": "2026-10-31T23:59:59.450Z",
        "model": "qwen3-32b",
        "status": "success",
        "metadata": {},
    }
    return {**row, **fields}


def data_of(outcomes: list[Any]) -> list[Obj]:
    return [event["data"] for event in events_of(outcomes)]


def vllm_scrape(at: str, prompt: int, finished_prompt: int, ok: int) -> list[str]:
    labels = 'model_name="qwen3-32b",engine="0"'
    return [
        f'# scraped {at} pod="vllm-0"',
        f"vllm:prompt_tokens_total{{{labels}}} {prompt}",
        f"vllm:request_prompt_tokens_sum{{{labels}}} {finished_prompt}",
        f'vllm:request_success_total{{{labels},finished_reason="stop"}} {ok}',
    ]


def aborted_streams() -> list[Obj]:
    lines = vllm_scrape("2026-10-03T04:00:00Z", 10_000, 9_000, 5)
    lines += vllm_scrape("2026-10-03T04:01:00Z", 13_010, 9_000, 5)
    return events_of(run("vllm-metrics", lines))


def test_c1_tokens_of_aborted_clients_are_a_line_of_their_own() -> None:
    engine = aborted_streams()
    assert engine[0]["data"]["input_tokens"] == 3010
    assert engine[0]["data"]["requests"] == 0
    (line,) = residuals(engine_totals(engine), explained_totals([]))
    assert (line.kind, line.unattributed, line.reason) == ("input_tokens", 3010, ABORTED)


def test_c1_a_gateway_that_counted_them_explains_them_per_tenant() -> None:
    engine = aborted_streams()
    columns = {
        "id": "id",
        "request": "id",
        "time": "at",
        "started_at": "at",
        "tenant": "tenant",
        "input_tokens": "in",
    }
    options = {"columns": columns, "constants": {"outcome": "aborted", "model": "qwen3-32b"}}
    rows = ["id,at,tenant,in"] + [f"gw-{n},2026-10-03T04:00:30Z,t{n},602" for n in range(5)]
    gateway = events_of(run("csv", rows, options=options))
    assert [e["data"]["outcome"] for e in gateway] == ["aborted"] * 5
    (line,) = residuals(engine_totals(engine), explained_totals(gateway))
    assert line.unattributed == 0


def test_c3_a_negative_counter_is_refused_and_its_neighbours_are_booked() -> None:
    labels = 'model_name="m",engine="0"'
    lines = [
        '# scraped 2026-10-03T04:00:00Z pod="vllm-0"',
        f"vllm:prompt_tokens_total{{{labels}}} 0",
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} 0',
        '# scraped 2026-10-03T04:01:00Z pod="vllm-0"',
        f"vllm:prompt_tokens_total{{{labels}}} 17050",
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} -7680',
    ]
    outcomes = run("vllm-metrics", lines)
    (refused,) = refused_of(outcomes)
    assert (refused.reason, refused.position) == ("bad_quantity", 6)
    assert "-7680" in refused.detail
    assert data_of(outcomes)[0]["input_tokens"] == 17050


def test_c3_a_request_with_more_cached_than_input_is_refused_alone() -> None:
    bad = spend_row(
        litellm_call_id="bad",
        prompt_tokens=768,
        metadata={"usage_object": {"prompt_tokens_details": {"cached_tokens": 8448}}},
    )
    outcomes = run("litellm-spendlogs", [spend_row(litellm_call_id="a"), bad, spend_row(litellm_call_id="b")])
    assert [r.reason for r in refused_of(outcomes)] == ["impossible_tokens"]
    assert [e["id"] for e in events_of(outcomes)] == ["a", "b"]


def test_c5_cumulative_anthropic_usage_is_not_added_twice() -> None:
    usage = {"input_tokens": 9, "cache_read_input_tokens": 1}
    events = [
        {
            "type": "message_start",
            "message": {"id": "msg", "model": "claude", "usage": {**usage, "output_tokens": 1}},
        },
        {"type": "message_delta", "usage": {**usage, "output_tokens": 20}},
        {"type": "message_delta", "usage": {**usage, "output_tokens": 42}},
        {"type": "message_stop"},
    ]
    record = {"events": events, "started_at": "2026-10-03T04:00:00Z", "finished_at": "2026-10-03T04:00:01Z"}
    (data,) = data_of(run("anthropic-usage", [record]))
    assert (data["input_tokens"], data["cached_input_tokens"], data["output_tokens"]) == (10, 1, 42)


def test_c7_cache_creation_is_charged_once() -> None:
    usage = {"cache_creation_input_tokens": 12304, "cache_read_input_tokens": 0}
    row = spend_row(prompt_tokens=12307, completion_tokens=550, metadata={"usage_object": usage})
    (data,) = data_of(run("litellm-spendlogs", [row]))
    uncached = data["input_tokens"] - data["cached_input_tokens"] - data["cache_write_tokens"]
    micro_per_token_x100 = 300 * uncached + 375 * data["cache_write_tokens"] + 1500 * data["output_tokens"]
    assert micro_per_token_x100 == 54_399 * 100


def test_c7_the_raw_anthropic_shape_gives_the_same_counts() -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }
    record = {"response": {"id": "msg", "model": "m", "usage": usage}, "finished_at": "2026-10-03T04:00:01Z"}
    (data,) = data_of(run("anthropic-usage", [record]))
    assert (data["input_tokens"], data["cached_input_tokens"], data["cache_write_tokens"]) == (
        12307,
        0,
        12304,
    )


def test_c9_reused_response_ids_are_three_rows() -> None:
    rows = [spend_row(litellm_call_id=f"call-{n}", prompt_tokens=n) for n in range(3)]
    assert [e["id"] for e in events_of(run("litellm-spendlogs", rows))] == ["call-0", "call-1", "call-2"]


def test_c9_an_id_that_says_none_is_no_id() -> None:
    for nothing in ("None", "", "null", None):
        outcomes = run("litellm-spendlogs", [spend_row(litellm_call_id=nothing, request_id=nothing)])
        assert [r.reason for r in refused_of(outcomes)] == ["bad_record"]
        assert events_of(outcomes) == []
        (event,) = events_of(run("litellm-spendlogs", [spend_row(request_id=nothing)]))
        assert event["id"] == "call-1"


def test_c9_a_call_id_that_a_client_chose_twice_shows_as_two_contents_of_one_key() -> None:
    rows = [spend_row(completion_tokens=1), spend_row(completion_tokens=2)]
    first, second = events_of(run("litellm-spendlogs", rows))
    assert (first["source"], first["id"]) == (second["source"], second["id"])
    assert first["data"] != second["data"], "the ledger sees a conflict, and drops neither in silence"


def test_c11_a_row_that_says_it_cost_nothing_is_rated_by_its_tokens() -> None:
    row = spend_row(spend=0, total_tokens=7267, metadata={"cost_breakdown": {"total_cost": 0.06}})
    outcomes = run("litellm-spendlogs", [row])
    (data,) = data_of(outcomes)
    assert (data["input_tokens"], data["output_tokens"]) == (1536, 212)
    assert not any("spend" in name or "cost" in name for name in data)
    assert [n.reason for n in notices_of(outcomes)] == ["spend_mismatch"]


def test_c11_rounding_is_no_mismatch() -> None:
    row = spend_row(spend=0.0600001, metadata={"cost_breakdown": {"total_cost": 0.06}})
    assert notices_of(run("litellm-spendlogs", [row])) == []


def cut_stream(**fields: Any) -> Obj:
    chunk = {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 7},
    }
    times = {"started_at": "2026-10-03T04:00:00Z", "finished_at": "2026-10-03T04:00:01Z"}
    return {"request_id": "gw-2", "tenant": "acme", "chunks": [chunk], **times, **fields}


def test_c13_a_cut_stream_is_provisional_and_later_corrected_not_overwritten() -> None:
    final = {"id": "c", "model": "m", "usage": {"prompt_tokens": 100, "completion_tokens": 511}}
    settled = {k: v for k, v in cut_stream(settles=True, response=final).items() if k != "chunks"}
    outcomes = run("openai-usage", [cut_stream(provisional=True), settled])
    provisional, correction = events_of(outcomes)
    assert provisional["data"]["output_tokens"] == 7
    assert provisional["data"]["outcome"] == "aborted"
    assert correction["type"] == "ledger.correction.v1"
    assert correction["data"]["supersedes"] == {"source": provisional["source"], "id": provisional["id"]}
    replacement = correction["data"]["event"]
    assert replacement["data"]["output_tokens"] == 511
    assert replacement["id"] not in (provisional["id"], correction["id"])
    assert [n.reason for n in notices_of(outcomes)] == ["incomplete_stream"]


def test_c15_a_flat_charge_is_no_request_and_tokens_keep_their_counts() -> None:
    flat = spend_row(api_key="__ptu_flat_cost__", spend=5040.0, model="gpt-4.1")
    outcomes = run("litellm-spendlogs", [flat, spend_row(spend=0)])
    (data,) = data_of(outcomes)
    assert data["input_tokens"] == 1536, "the value of tokens stays visible beside the flat charge"
    assert [n.reason for n in notices_of(outcomes)] == ["flat_cost_row"]


def test_c17_the_same_input_twice_gives_the_same_keys_and_contents() -> None:
    rows = [spend_row(litellm_call_id=f"call-{n}") for n in range(100)]
    assert run("litellm-spendlogs", rows) == run("litellm-spendlogs", rows)


def test_c19_two_emitters_with_one_id_are_two_keys() -> None:
    (a,) = events_of(run("litellm-spendlogs", [spend_row()], uri="/tenants/a/svc"))
    (b,) = events_of(run("litellm-spendlogs", [spend_row()], uri="/tenants/b/svc"))
    assert a["id"] == b["id"]
    assert a["source"] != b["source"]


def test_c21_a_retry_under_a_new_id_keeps_the_request_id_that_gives_it_away() -> None:
    def trace(request_id: str) -> Obj:
        request = {"request_id": request_id, "x_request_id": "gw-551", "model": "m", "input_tokens": 5}
        return {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": 1_790_000_019_730,
            "request": {**request, "request_received_ms": 1_790_000_015_400},
        }

    first, second = events_of(run("dynamo-trace", [trace("d-1"), trace("d-2")]))
    assert first["id"] != second["id"], "nothing is dropped here"
    assert first["data"]["labels"] == second["data"]["labels"] == {"x_request_id": "gw-551"}


def test_c21_a_proxy_hands_the_callers_id_through() -> None:
    answer = {"model": "m", "created": 1790000015, "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    records = [{"request_id": f"r-{n}", "x_request_id": "gw-551", "response": answer} for n in range(2)]
    first, second = events_of(run("openai-usage", records))
    assert first["id"] != second["id"]
    assert first["data"]["labels"] == second["data"]["labels"] == {"x_request_id": "gw-551"}


def test_c23_the_last_second_of_a_month_keeps_its_own_time() -> None:
    (event,) = events_of(run("litellm-spendlogs", [spend_row()]))
    assert event["time"] == "2026-10-31T23:59:59.450Z"


def test_c25_a_restart_gives_the_new_value_and_a_notice() -> None:
    labels = 'model_name="m",engine="0"'
    lines = [
        '# scraped 2026-10-03T04:00:00Z pod="vllm-0"',
        f"vllm:prompt_tokens_total{{{labels}}} 1000",
        '# scraped 2026-10-03T04:01:00Z pod="vllm-0"',
        f"vllm:prompt_tokens_total{{{labels}}} 200",
    ]
    outcomes = run("vllm-metrics", lines)
    assert data_of(outcomes)[0]["input_tokens"] == 200
    assert "counter_reset" in [n.reason for n in notices_of(outcomes)]


def test_c27_refused_calls_are_rejections_without_tokens_or_gpu_time() -> None:
    error = {"error_code": "429", "error_rate_limit_category": "litellm_rate_limit"}
    refused = {"error_information": {**error, "error_rate_limit_type": "requests"}}
    rows = [spend_row(litellm_call_id=f"ok-{n}") for n in range(5)]
    rows += [
        spend_row(litellm_call_id=f"no-{n}", status="failure", total_tokens=0, metadata=refused)
        for n in range(5)
    ]
    outcomes = run("litellm-spendlogs", rows)
    served, rejected = events_of(outcomes, "request"), events_of(outcomes, "rejection")
    assert (len(served), len(rejected)) == (5, 5)
    for event in rejected:
        data = event["data"]
        assert (data["layer"], data["reason"], data["status"]) == ("rate_limit", "requests", 429)
        assert not any("tokens" in name or "gpu" in name for name in data)


def test_c29_each_attempt_of_a_fallback_chain_keeps_its_model() -> None:
    payload: Obj = {
        "litellm_call_id": "call-1",
        "trace_id": "trace-1",
        "status": "success",
        "prompt_tokens": 20,
        "completion_tokens": 50,
        "startTime": 1790000016.0,
        "endTime": 1790000017.0,
        "model": "model-y",
        "model_id": "dep-y",
        "model_group": "chat",
        "metadata": {"user_api_key_team_id": "t"},
    }
    first = {
        **payload,
        "status": "failure",
        "model": "model-x",
        "model_id": "dep-x",
        "startTime": 1790000014.0,
        "endTime": 1790000015.9,
        "completion_tokens": 299,
        "total_tokens": 319,
    }
    empty = {**first, "model_id": "dep-z", "completion_tokens": 0, "prompt_tokens": 0, "total_tokens": 0}
    declined, silent, answered = data_of(run("litellm-payload", [first, empty, payload]))
    assert (declined["model"], declined["output_tokens"]) == ("model-x", 299)
    assert (answered["model"], answered["output_tokens"]) == ("model-y", 50)
    assert "output_tokens" not in silent, "an attempt without output states none, and costs none"
    assert len({declined["request"], silent["request"], answered["request"]}) == 3
    assert {d["parent_request"] for d in (declined, silent, answered)} == {"trace-1"}, "one logical request"
