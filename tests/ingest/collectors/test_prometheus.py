"""Against a real Prometheus: what was scraped is what is booked, once, and what is missing is told."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.core.management import call_command
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.collectors.contract import CollectorError, NotConfigured, Window
from ingest.collectors.prometheus import PrometheusApi, PrometheusCollector
from ingest.collectors.running import adapted, collect
from ingest.collectors.table import CollectTable
from ingest.core.adapters.base import SourceConfig
from ingest.models import Batch
from ledger.management.base import BadInput, CommandFailed
from ledger.models import FactFinding, Request, Source
from tests.ingest.collectors.world import at, book, configure, instant, run

pytestmark = pytest.mark.django_db

MIDNIGHT = instant("2026-10-01T00:00:00Z")
MINUTE = 60_000
HOUR = 60 * MINUTE
Values = Callable[[int], int | None]
"""Minute since midnight -> what the counter stood at, or no sample."""


def past(**counters: Values) -> str:
    """OpenMetrics of the first four hours of a day, one sample a minute."""
    lines = []
    for name, value in counters.items():
        labels = 'model_name="qwen",engine="0",instance="vllm-0"'
        lines.append(f"# TYPE vllm:{name} counter")
        for minute in range(-60, 241):
            if (stands := value(minute)) is not None:
                seconds = MIDNIGHT // 1000 + minute * 60
                lines.append(f"vllm:{name}_total{{{labels}}} {stands} {seconds}")
    return "\n".join([*lines, "# EOF", ""])


def steady(minute: int) -> int:
    return 10_000 + 100 * minute


def twice_as_steady(minute: int) -> int:
    return 2 * steady(minute)


def hours() -> list[tuple[str, str, int | None, int | None]]:
    """What is booked: from, to, input tokens, output tokens."""
    rows = Request.objects.order_by("starts_at").values_list(
        "starts_at", "ends_at", "input_tokens", "output_tokens"
    )
    return [(f"{starts:%H:%M}", f"{ends:%H:%M}", i, o) for starts, ends, i, o in rows]


def test_counters_are_booked_by_the_hour_and_going_on_loses_nothing(prometheus: Any) -> None:
    url = prometheus(past(prompt_tokens=steady, generation_tokens=twice_as_steady))
    source = configure("vllm-metrics", {"url": url, "lag_seconds": 0})
    begin = Window(MIDNIGHT, MIDNIGHT + HOUR + 30 * MINUTE)
    book(run(source, at(MIDNIGHT + 4 * HOUR), begin))
    assert hours() == [("00:00", "01:00", 6000, 12_000)]
    # In one piece or in two, by a clock that moves on: the half hour is not lost.
    book(run(source, at(MIDNIGHT + 2 * HOUR + 7 * MINUTE)))
    book(run(source, at(MIDNIGHT + 3 * HOUR + 1)))
    assert hours() == [
        ("00:00", "01:00", 6000, 12_000),
        ("01:00", "02:00", 6000, 12_000),
        ("02:00", "03:00", 6000, 12_000),
    ]
    assert not FactFinding.objects.exists()


def test_a_restart_and_missed_scrapes_are_told_and_nothing_is_made_up(prometheus: Any) -> None:
    def restarted(minute: int) -> int | None:
        if 90 <= minute < 100:
            return None  # nobody scraped
        return steady(minute) if minute < 150 else 7 * (minute - 150)

    source = configure("vllm-metrics", {"url": prometheus(past(prompt_tokens=restarted)), "lag_seconds": 0})
    book(run(source, at(MIDNIGHT + 3 * HOUR), Window(MIDNIGHT, MIDNIGHT + 3 * HOUR)))
    # The growth over the gap is booked whole where it was seen; of the hour of the restart what came after it counts.
    assert [(starts, tokens) for starts, _, tokens, _ in hours()] == [
        ("00:00", 6000),
        ("01:00", 6000),
        ("02:00", 29 * 100 + 7 * 30),
    ]
    told = {f.code: (f.detail["starts_ms"], f.detail["ends_ms"]) for f in FactFinding.objects.all()}
    assert told == {
        "missed_samples": (MIDNIGHT + 89 * MINUTE, MIDNIGHT + 100 * MINUTE),
        "counter_reset": (MIDNIGHT + 149 * MINUTE, MIDNIGHT + 150 * MINUTE),
    }


def test_backfill_before_what_was_read_meets_it_without_overlap(prometheus: Any) -> None:
    source = configure("vllm-metrics", {"url": prometheus(past(prompt_tokens=steady)), "lag_seconds": 0})
    now = at(MIDNIGHT + 3 * HOUR)
    book(run(source, now, Window(MIDNIGHT + 2 * HOUR, MIDNIGHT + 3 * HOUR)))
    place = Source.objects.get(pk=source.pk).state["position"]
    book(run(source, now, Window(MIDNIGHT, MIDNIGHT + 2 * HOUR)))
    assert [(starts, tokens) for starts, _, tokens, _ in hours()] == [
        ("00:00", 6000),
        ("01:00", 6000),
        ("02:00", 6000),
    ]
    state = Source.objects.get(pk=source.pk).state
    assert state["position"] == place
    assert state["spans"] == [[MIDNIGHT, MIDNIGHT + 3 * HOUR]]


def test_counters_are_not_read_a_second_time(prometheus: Any) -> None:
    source = configure("vllm-metrics", {"url": prometheus(past(prompt_tokens=steady)), "lag_seconds": 0})
    now = at(MIDNIGHT + 3 * HOUR)
    book(run(source, now, Window(MIDNIGHT, MIDNIGHT + 2 * HOUR)))
    with pytest.raises(NotConfigured, match="counters are read once"):
        run(source, now, Window(MIDNIGHT + 30 * MINUTE, MIDNIGHT + 45 * MINUTE))


def test_a_crash_after_reading_repeats_the_window_and_books_it_once(
    prometheus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = configure("vllm-metrics", {"url": prometheus(past(prompt_tokens=steady)), "lag_seconds": 0})
    window, now = Window(MIDNIGHT, MIDNIGHT + 2 * HOUR), at(MIDNIGHT + 3 * HOUR)
    with monkeypatch.context() as broken:
        broken.setattr("ingest.collectors.running.keep_notices", _crash)
        with pytest.raises(OSError, match="pulled the plug"):
            run(source, now, window)
    # Neither the batch nor the place survived alone.
    assert not Batch.objects.exists()
    assert "position" not in Source.objects.get(pk=source.pk).state
    book(run(source, now, window))
    assert [(starts, tokens) for starts, _, tokens, _ in hours()] == [("00:00", 6000), ("01:00", 6000)]


def _crash(*_: object) -> None:
    raise OSError("pulled the plug")


def test_levels_can_be_read_again_and_every_repeat_is_a_duplicate(prometheus: Any) -> None:
    lines = ["# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
    for minute in range(10):
        pod = 'pod="train-0",namespace="team-a",' if 3 <= minute < 7 else ""
        seconds = MIDNIGHT // 1000 + minute * 60
        lines.append(f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1",Hostname="n1",{pod}gpu="0"}} 0 {seconds}')
    url = prometheus("\n".join([*lines, "# EOF", ""]))
    source = configure("dcgm", {"url": url, "lag_seconds": 0})
    window, now = Window(MIDNIGHT - MINUTE, MIDNIGHT + 10 * MINUTE), at(MIDNIGHT + HOUR)
    first = book(run(source, now, window))
    assert [(one.booked, one.duplicate) for one in first] == [(2, 0)]
    # The same bytes are the same batch: nothing is left to book.
    assert book(run(source, now, window)) == []
    again = book(run(source, now, Window(MIDNIGHT - 2 * MINUTE, MIDNIGHT + 9 * MINUTE)))
    assert sum(one.booked for one in again) == 0


# --- a live target ------------------------------------------------------------------------------------------


class Exporter(BaseHTTPRequestHandler):
    text = (
        b'vllm:prompt_tokens_total{model_name="qwen"} 5\nvllm:generation_tokens_total{model_name="qwen"} 6\n'
    )

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def exporter() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_check_source_names_what_is_switched_off(
    prometheus: Any, exporter: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = prometheus(scrape_port=exporter)
    configure("vllm-metrics", {"url": url, "matchers": 'job="engines"'})
    _wait_for_samples(url)
    with pytest.raises(CommandFailed, match="1 of what source 'it' needs is missing"):
        call_command("check_source", "it")
    said = capsys.readouterr().out
    assert "Prometheus 2." in said or "Prometheus 3." in said
    assert "MISSING  vllm:num_preemptions_total: no samples" in said
    assert "ok       vllm:prompt_tokens_total: 1 series would be read" in said
    assert re.search(r"^ok       scrape interval: [0-9.]+ s$", said, re.MULTILINE)


def _wait_for_samples(url: str) -> None:
    api = PrometheusApi(CollectTable("it", {"url": url}))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now_ms = time.time_ns() // 1_000_000
        series = api.samples('{__name__="vllm:prompt_tokens_total"}', now_ms - MINUTE, now_ms)
        if series and len(series[0]["values"]) >= 3:
            return
        time.sleep(0.3)
    pytest.fail("the exporter was not scraped")


def test_a_wrong_query_is_the_servers_own_sentence(prometheus: Any) -> None:
    source = configure("vllm-metrics", {"url": prometheus(), "matchers": "job=oops"})
    with pytest.raises(CollectorError, match=r"answered 400: .*parse error"):
        run(source, at(MIDNIGHT))
    assert "parse error" in Source.objects.get(pk=source.pk).state["last"]["error"]


# --- no server ----------------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_one_line_and_the_place_stays() -> None:
    source = configure("vllm-metrics", {"url": "http://127.0.0.1:9"})
    with pytest.raises(CommandFailed, match=r"cannot be reached: .*refused"):
        call_command("collect", "it")
    state = Source.objects.get(pk=source.pk).state
    assert "position" not in state and state["claimed_until_ms"] == 0
    # It was given free again: the next run meets the same server, not a claim.
    with pytest.raises(CollectorError, match="refused"):
        list(collect(source))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "options.collect.url must be the http"),
        ({"url": "ftp://x"}, "options.collect.url must be the http"),
        ({"url": "http://x", "lag_seconds": "1m"}, "lag_seconds must be a whole number"),
        ({"url": "http://x", "lag_seconds": True}, "lag_seconds must be a whole number"),
        ({"url": "http://x", "step": 5}, "options.collect.step is not known"),
        (
            {"url": "http://x", "token_env": "NO_SUCH_VARIABLE_HERE"},
            "NO_SUCH_VARIABLE_HERE, which is not set",
        ),
        ({"url": "http://x", "token_file": "/no/such/file"}, "token_file cannot be read"),
        ({"url": "http://x", "headers": {"a": 1}}, "headers must be a table of texts"),
    ],
)
def test_a_wrong_table_is_one_line(table: dict[str, Any], said: str) -> None:
    configure("vllm-metrics", table)
    with pytest.raises(BadInput, match=said):
        call_command("check_source", "it")


def test_edges_are_ours_whatever_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus 2 gives both edges of a range, 3 only the later one."""
    values = [[60.0, "1"], [60.001, "2"], [120.0, "3"], [120.5, "4"]]
    answer = {"resultType": "matrix", "result": [{"metric": {"__name__": "m"}, "values": values}]}
    monkeypatch.setattr(PrometheusApi, "_ask", lambda *_: answer)
    collector = PrometheusCollector("dcgm", CollectTable("it", {"url": "http://x"}), at(10 * MINUTE))
    (harvest,) = collector.steps({}, Window(60_000, 120_000))
    assert harvest.lines == [
        b'{"data":{"result":[{"metric":{"__name__":"m"},"values":[[60.001,"2"],[120.0,"3"]]}]}}'
    ]


# --- wherever the windows are cut ---------------------------------------------------------------------------


def _memory_of_a_server(
    values: list[tuple[int, int]],
) -> Callable[[PrometheusApi, str, bytes | None], dict[str, Any]]:
    """Answers range queries from samples (second, value), both edges included, as Prometheus 2 does."""

    def ask(_: PrometheusApi, path: str, body: bytes | None) -> dict[str, Any]:
        query = parse_qs((body or b"").decode())
        until = float(query["time"][0])
        since = until - int(query["query"][0].rpartition("[")[2].removesuffix("ms]")) / 1000
        inside = [[float(second), str(value)] for second, value in values if since <= second <= until]
        metric = {"__name__": "vllm:prompt_tokens_total", "instance": "vllm-0", "model_name": "qwen"}
        return {"resultType": "matrix", "result": [{"metric": metric, "values": inside}] if inside else []}

    return ask


def _booked(values: list[tuple[int, int]], cuts: list[int]) -> dict[str, Any]:
    """What a collector and its adapter make of six hours, read in windows that end at `cuts` (seconds)."""
    config = SourceConfig("it", "vllm-metrics", "/it", pool="bj-h100")
    position: dict[str, Any] = {}
    state: dict[str, Any] = {}
    told: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PrometheusApi, "_ask", _memory_of_a_server(values))
        for cut in [*sorted(cuts), 6 * 3600]:
            table = CollectTable("it", {"url": "http://x", "lag_seconds": 0})
            collector = PrometheusCollector("vllm-metrics", table, at(cut * 1000))
            window = None if position else Window(0, cut * 1000)
            for harvest in collector.steps(position, window):
                told += adapted(config, state, harvest)[0]
                position = harvest.position
    ids = [event["id"] for event in told]
    assert len(ids) == len(set(ids))
    return {event["id"]: event["data"] for event in told}


@settings(max_examples=40)
@given(
    growth=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 50)), min_size=30, max_size=80),
    cuts=st.lists(st.integers(1, 6 * 3600), max_size=8, unique=True),
    restart=st.integers(0, 79),
)
def test_however_the_windows_are_cut_the_same_hours_are_booked(
    growth: list[tuple[int, int]], cuts: list[int], restart: int
) -> None:
    second, value, values = -3600, 1000, []
    for number, (step, tokens) in enumerate(growth):
        second, value = second + step, tokens if number == restart else value + tokens
        values.append((second, value))
    whole = _booked(values, [])
    assert _booked(values, cuts) == whole
    if restart >= len(values):  # then every growth after the first hour began is booked, and nothing else
        stood = [value for second, value in values if second <= 0][-1:]
        ended = [value for second, value in values if second <= 6 * 3600][-1]
        if stood:
            assert sum(data["input_tokens"] for data in whole.values()) == ended - stood[0]
