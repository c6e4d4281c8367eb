"""The demo month: the same for the same arguments, consistent in itself, and with its stories in it."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cache

import pytest

from billing.core import configuration
from billing.core.quota_drift import QuotaFact, drift_episodes
from ingest.core.demo import DemoMonth, DemoSize, batches, generate
from ingest.core.parse import Rejected, parse_body
from ledger.core.periods import Month
from ledger.core.units import MS_PER_HOUR
from tests.core.demo_books import Books, instants, milli, ms, october, october_books, read

SMALL = DemoSize(tenants=6, gpus=128, requests=400)
# A short month, a month whose clock changes in a zone off the hour, a big company with invented tenants.
CASES: dict[str, tuple[str, str, DemoSize, int]] = {
    "small": ("2027-02", "UTC", SMALL, 2),
    "dst": ("2026-10", "Australia/Lord_Howe", SMALL, 3),
    "large": ("2026-03", "Europe/Berlin", DemoSize(tenants=14, gpus=640, requests=200), 4),
}
in_every_case = pytest.mark.parametrize("case", ["default", *CASES])


@cache
def month_of(case: str) -> DemoMonth:
    if case == "default":
        return october()
    month, zone, size, seed = CASES[case]
    return generate(Month.parse(month), zone, size, seed)


@cache
def books_of(case: str) -> Books:
    return october_books() if case == "default" else read(month_of(case))


def test_same_arguments_same_bytes() -> None:
    month, zone, size, seed = CASES["small"]
    again = generate(Month.parse(month), zone, size, seed)
    assert again.events == month_of("small").events
    assert again.configuration == month_of("small").configuration


def test_another_seed_is_another_month_and_more_requests_are_the_same_month_busier() -> None:
    month, zone, size, seed = CASES["small"]
    other = generate(Month.parse(month), zone, size, seed + 1)
    assert read(other).occupancy != books_of("small").occupancy
    fewer = generate(Month.parse(month), zone, DemoSize(size.tenants, size.gpus, requests=50), seed)
    assert read(fewer).occupancy == books_of("small").occupancy
    assert len(read(fewer).of("request")) + 300 < len(books_of("small").of("request"))


@in_every_case
def test_capacity_backs_all_occupancy_at_every_instant(case: str) -> None:
    books = books_of(case)
    assert set(books.capacity) == {pool.slug for pool in month_of(case).company.pools}
    for pool in books.capacity:
        states = instants(books, pool)
        assert max(state.occupied for state in states) > 0
        overfull = [state for state in states if state.occupied > state.capacity or state.excess]
        assert overfull == []


@in_every_case
def test_reservations_are_never_sold_beyond_a_whole_pool(case: str) -> None:
    for pool in month_of(case).company.pools:
        for state in instants(books_of(case), pool.slug):
            assert sum(state.lendable.values()) + sum(state.fixed.values()) <= pool.gpus * 1000


@in_every_case
def test_levels_are_one_per_subject_and_instant_and_end_with_the_month(case: str) -> None:
    books, ends_ms = books_of(case), month_of(case).month.span(month_of(case).zone).end_ms
    for kind in (books.occupancy, books.pending):
        assert kind
        for subject, levels in kind.items():
            times = [time_ms for time_ms, _ in levels]
            assert times == sorted(set(times)), subject
            assert levels[-1][1] == 0, subject
            assert times[-1] <= ends_ms + 1


@in_every_case
def test_a_new_attempt_begins_after_the_old_one_has_ended(case: str) -> None:
    attempts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for (_, workload, attempt), levels in books_of(case).occupancy.items():
        attempts[workload].append((attempt, levels[0][0], levels[-1][0]))
    for workload, spans in attempts.items():
        spans.sort()
        assert [attempt for attempt, _, _ in spans] == list(range(1, len(spans) + 1)), workload
        for (_, _, ended), (_, starts, _) in itertools.pairwise(spans):
            assert ended <= starts, workload


@in_every_case
def test_every_preemption_has_a_victim_that_held_its_gpus_until_released(case: str) -> None:
    books, seen = books_of(case), 0
    for event in books.of("preemption"):
        data = event["data"]
        if "workload" not in data["victim"] or data.get("queued_only") or "released_at" not in data:
            continue
        seen += 1
        subject = (data["pool"], data["victim"]["workload"], data["victim"]["attempt"])
        decided_ms, released_ms = ms(event["time"]), ms(data["released_at"])
        assert books.level(subject, decided_ms - 1) == milli(data["gpus"]) > 0
        assert books.level(subject, released_ms) == 0
        assert books.level(subject, released_ms - 1) == milli(data["gpus"])
        assert books.occupancy[subject][0][0] == ms(data["admitted_at"]) < decided_ms
    assert seen > 10


@in_every_case
def test_reports_of_one_preemption_do_not_contradict_each_other(case: str) -> None:
    reports = defaultdict(list)
    for event in books_of(case).of("preemption"):
        reports[event["data"]["preemption"]].append(event["data"])
    assert case != "default" or sum(len(told) == 2 for told in reports.values()) > 20
    for first, *others in reports.values():
        for other in others:
            apart = {"preemptor_source", "confidence"}
            shared = (first.keys() & other.keys()) - apart
            assert {name: first[name] for name in shared} == {name: other[name] for name in shared}


@in_every_case
def test_resumes_come_after_their_preemption_and_find_the_workload_running(case: str) -> None:
    books = books_of(case)
    released = {
        e["data"]["preemption"]: e["data"] for e in books.of("preemption") if "released_at" in e["data"]
    }
    resumes = books.of("resume")
    assert len({event["data"]["preemption"] for event in resumes}) == len(resumes) > 0
    for event in resumes:
        data = event["data"]
        assert ms(event["time"]) > ms(released[data["preemption"]]["released_at"])
        if "workload" in data:
            assert books.level((data["pool"], data["workload"], data["attempt"]), ms(event["time"])) > 0


@in_every_case
def test_what_was_requeued_is_resumed(case: str) -> None:
    books = books_of(case)
    resumed = {event["data"]["preemption"] for event in books.of("resume")}
    for event in books.of("preemption"):
        data = event["data"]
        if "released_at" in data and data["disposition"] in ("requeued", "degraded"):
            assert data["preemption"] in resumed


@in_every_case
def test_what_was_lost_is_less_than_what_ran(case: str) -> None:
    reported = [e for e in books_of(case).of("preemption") if "lost_gpu_seconds" in e["data"]]
    for event in reported:
        ran_ms = ms(event["time"]) - ms(event["data"]["admitted_at"])
        assert 0 < float(event["data"]["lost_gpu_seconds"]) <= milli(event["data"]["gpus"]) * ran_ms / 1e6


def test_losses_come_with_every_kind_of_evidence() -> None:
    books = books_of("default")
    preemptions = books.of("preemption")
    checkpoints = [e for e in books.of("occupancy") if "last_checkpoint_at" in e["data"]]
    assert any("lost_gpu_seconds" in event["data"] for event in preemptions)
    assert any(event["data"].get("requests_voided", 0) > 1 for event in preemptions)
    assert len(checkpoints) > 50
    for event in checkpoints:
        assert ms(event["data"]["last_checkpoint_at"]) <= ms(event["time"])
        assert milli(event["data"]["gpus"]) > 0


def test_voided_requests_ended_while_their_replica_drained() -> None:
    books = books_of("default")
    stopped = defaultdict(list)
    for event in books.of("request"):
        if event["data"]["outcome"] == "preempted":
            stopped[event["data"]["workload"]].append(ms(event["time"]))
    victims = [e for e in books.of("preemption") if e["data"]["victim"].get("workload") in stopped]
    victims = [e for e in victims if "released_at" in e["data"]]
    assert victims
    for event in victims:
        decided_ms, released_ms = ms(event["time"]), ms(event["data"]["released_at"])
        inside = [t for t in stopped[event["data"]["victim"]["workload"]] if decided_ms <= t <= released_ms]
        assert len(inside) == event["data"]["requests_voided"]


@in_every_case
def test_measured_gpu_time_fits_into_what_its_service_held(case: str) -> None:
    books = books_of(case)
    measured: Counter[int] = Counter()
    for event in books.of("request") + books.of("usage"):
        data = event["data"]
        if data["service"] == "qwen3-235b":
            at_ms = ms(data["starts_at"]) if "starts_at" in data else ms(event["time"])
            measured[at_ms // MS_PER_HOUR] += int(float(data["gpu_seconds"]) * 1e6)
    held: Counter[int] = Counter()
    for (_, workload, _), levels in books.occupancy.items():
        if workload.startswith("qwen3-235b"):
            for (start, amount), (end, _) in itertools.pairwise(levels):
                for hour in range(start // MS_PER_HOUR, (end - 1) // MS_PER_HOUR + 1):
                    inside = min(end, (hour + 1) * MS_PER_HOUR) - max(start, hour * MS_PER_HOUR)
                    held[hour] += amount * inside
    assert measured
    assert [hour for hour, amount in measured.items() if amount > held[hour]] == []
    assert sum(measured.values()) > 0.3 * sum(held.values())


@in_every_case
def test_requests_and_usage_are_whole(case: str) -> None:
    books, span = books_of(case), month_of(case).month.span(month_of(case).zone)
    for event in books.of("request"):
        data = event["data"]
        assert span.start_ms <= ms(data["started_at"]) <= ms(event["time"]) < span.end_ms
        assert 0 <= data["cached_input_tokens"] <= data["input_tokens"]
        assert 0 <= data.get("reasoning_tokens", 0) <= data["output_tokens"]
    for event in books.of("usage"):
        starts_ms, ends_ms = ms(event["data"]["starts_at"]), ms(event["data"]["ends_at"])
        assert starts_ms // MS_PER_HOUR == (ends_ms - 1) // MS_PER_HOUR
        assert span.start_ms <= starts_ms < ends_ms == ms(event["time"]) <= span.end_ms
    assert {event["data"]["outcome"] for event in books_of("default").of("request")} == {
        "ok", "aborted", "error", "timeout", "preempted",
    }  # fmt: skip


@in_every_case
def test_every_line_is_an_event_of_the_contract(case: str) -> None:
    month = month_of(case)
    after_ms = month.month.span(month.zone).end_ms
    parsed = list(parse_body(batches(month.events, 2000), "", "application/x-ndjson", after_ms))
    # One is wrong on purpose (docs/demo.md).
    assert {event.reason for event in parsed if isinstance(event, Rejected)} == {"unknown_field"}
    assert len({event.id for event in parsed if isinstance(event, Rejected)}) == 1
    assert len(parsed) == len(month.events)


@in_every_case
def test_event_keys_are_unique(case: str) -> None:
    keys = Counter((event["source"], event["id"]) for event in books_of(case).events)
    assert max(keys.values()) == 1


def test_some_come_late_and_some_twice() -> None:
    month = month_of("default")
    lines = Counter(event.line for event in month.events)
    twice = sum(1 for count in lines.values() if count > 1) / len(lines)
    assert 0.007 < twice < 0.013
    newest, late = 0, 0
    for event in month.events:
        late += event.time_ms < newest - MS_PER_HOUR
        # What is planned is sent before its time and must not make everything after it look late.
        if b"/capacity/manager" not in event.line:
            newest = max(newest, event.time_ms)
    assert 0.007 < late / len(month.events) < 0.02


@in_every_case
def test_a_delivery_of_nodes_is_planned_beyond_the_next_month(case: str) -> None:
    month = month_of(case)
    after_next = month.month.next().next().span(month.zone)
    planned = [event for event in month.events if event.time_ms >= after_next.start_ms]
    assert {event.time_ms for event in planned} == {after_next.start_ms + 10 * MS_PER_HOUR}
    assert all(event.sent_ms < month.month.span(month.zone).end_ms for event in planned)
    data = json.loads(planned[0].line)["data"]
    assert (
        milli(data["gpus"])
        > next(pool.gpus for pool in month.company.pools if pool.slug == data["pool"]) * 1000
    )


def test_quotas_drift_apart_on_three_days_for_one_tenant_and_never_for_another() -> None:
    month, facts = month_of("default"), defaultdict(list)
    for event in books_of("default").of("quota"):
        data = event["data"]
        scope = data.get("pool") or data["service"]
        limit, used = milli(data["limit"]), milli(data["used"])
        assert used <= limit
        fact = QuotaFact(ms(event["time"]), data["layer"], data["resource"], scope, limit, used)
        facts[data["tenant"]].append(fact)
    drifts = {tenant: drift_episodes(of, month.month.span(month.zone)) for tenant, of in facts.items()}
    assert {tenant: len(of) for tenant, of in drifts.items()} == {
        "assistant": 0, "code": 3, "search": 0, "ads-ranking": 0,
    }  # fmt: skip
    assert {one.full_layer for one in drifts["code"]} == {"serving"}
    assert [one.reaction_ms is None for one in drifts["code"]] == [True, True, False]


def test_batches_hold_every_line_once() -> None:
    month = month_of("small")
    bodies = list(batches(month.events, 1000))
    assert len(bodies) == -(-len(month.events) // 1000)
    assert b"".join(bodies) == b"".join(event.line for event in month.events)
    assert all(json.loads(line) for line in bodies[-1].splitlines())


@in_every_case
def test_configuration_is_usable_and_names_all_that_the_events_name(case: str) -> None:
    month, books = month_of(case), books_of(case)
    wanted = configuration.parse(month.configuration)
    assert tomllib.loads(month.configuration)["ledger"]["billing_time_zone"] == month.zone
    identities = {(i.kind, i.value) for tenant in wanted.tenant for i in tenant.identities}
    named = {tuple(e["data"]["identity"].values()) for e in books.events if "identity" in e["data"]}
    assert {value for _, value in named - identities} == {"genai-hackathon"}
    assert {e["data"]["pool"] for e in books.events if "pool" in e["data"]} == {
        pool.slug for pool in wanted.pool
    }
    assert {e["source"] for e in books.events} <= {source.uri for source in wanted.source}
    slugs = {tenant.slug for tenant in wanted.tenant} | {service.slug for service in wanted.service}
    assert {row.tenant for row in wanted.contract} | {row.tenant for row in wanted.budget} <= slugs
    # The pilot that nobody has configured yet.
    assert {e["data"]["service"] for e in books.of("usage")} - slugs == {"qwen3-coder"}
    assert {
        holder for e in books.reservations for holder in [e["data"].get("tenant") or e["data"]["service"]]
    } <= slugs


@in_every_case
def test_a_pool_with_prices_of_its_own_has_them_for_every_class_that_its_gpu_model_prices(case: str) -> None:
    """Else the pool's general price stands in for the class's, and cheaper work becomes dear unannounced."""
    month = month_of(case)
    said = tomllib.loads(month.configuration)
    gpu_models = {pool["slug"]: pool["gpu_model"] for pool in said["pool"]}
    of_pools = 0
    for card in said["rate_card"]:
        prices = {
            (row.get("pool") or row["gpu_model"], row.get("service_class", ""), name): Decimal(row[name])
            for row in card["gpu_hour"]
            for name in ("reserved_used", "reserved_idle", "on_demand", "borrowed")
            if name in row
        }
        for pool, gpu_model in gpu_models.items():
            for scope, klass, name in prices:
                if scope == gpu_model and klass and (pool, "", name) in prices:
                    of_pools += 1
                    general = prices[gpu_model, "", name]
                    assert prices[pool, klass, name] - prices[gpu_model, klass, name] == (
                        prices[pool, "", name] - general
                    ), (card["name"], pool, klass, name)
    assert of_pools


@pytest.mark.parametrize(
    ("size", "problem"), [(DemoSize(tenants=5), "6 tenants"), (DemoSize(gpus=64), "128 GPUs")]
)
def test_too_small_a_company_is_refused(size: DemoSize, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        generate(Month(2026, 9), size=size)
