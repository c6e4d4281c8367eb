"""What a newcomer is meant to find in the demo month."""

from __future__ import annotations

from collections import Counter

from ingest.core.demo.calendar import Calendar
from ledger.core.periods import Month
from ledger.core.units import MS_PER_HOUR, MS_PER_MINUTE
from tests.core.demo_books import Event, holder_of, instants, milli, ms, october, october_books

OCTOBER = Calendar(Month(2026, 10), "Asia/Shanghai")


def preemptions() -> list[Event]:
    """One report of each preemption of GPUs: the scheduler's."""
    return [
        e for e in october_books().of("preemption") if "released_at" in e["data"] and e["data"]["gpus"] != 0
    ]


def held_by(holder: str, pool: str, at_ms: int) -> int:
    return sum(
        october_books().level(subject, at_ms)
        for subject, name in october_books().holders.items()
        if name == holder and subject[0] == pool
    )


def test_it_looks_like_a_cluster() -> None:
    events = october_books().events
    kinds = Counter(event["type"].split(".")[1] for event in events)
    assert 8_000 < kinds["occupancy"] + kinds["pending"] + kinds["capacity"] + kinds["reservation"] < 25_000
    assert 200 < len(preemptions()) < 900
    assert len({pool.gpu_model for pool in october().company.pools}) == 4
    assert len({pool.cluster for pool in october().company.pools}) == 2
    assert len(october().company.tenants) == 12
    # Fractions of a GPU are held, too.
    assert any(milli(e["data"]["gpus"]) % 1000 for e in october_books().of("occupancy"))


def test_every_cause_source_and_disposition_occurs() -> None:
    told = [event["data"] for event in october_books().of("preemption")]
    causes = Counter(data["cause"] for data in told)
    assert set(causes) == {
        "reclaim_own_reservation", "priority", "fair_share", "kv_cache_pressure", "capacity_lost", "maintenance",
        "overuse",
    }  # fmt: skip
    assert causes.most_common(1)[0][0] == "reclaim_own_reservation"
    assert {data["preemptor_source"] for data in told} == {"structured", "parsed", "inferred", "none"}
    assert {data.get("disposition") for data in told} >= {"requeued", "stopped", "degraded"}
    assert any(data.get("queued_only") for data in told)
    for data in told:
        assert ("preemptor" in data) == (data["preemptor_source"] != "none")
        assert ("confidence" in data) == (data["preemptor_source"] == "inferred")


def test_ads_ranking_reserves_what_it_leaves_idle_at_night_and_takes_back_in_the_morning() -> None:
    nights = [held_by("ads-ranking", "bj-h100", OCTOBER.at(day, 4)) for day in range(5, 10)]
    noons = [held_by("ads-ranking", "bj-h100", OCTOBER.at(day, 15)) for day in range(12, 17)]
    assert max(nights) < 40_000 < min(noons) < 88_000
    taken_back = [
        OCTOBER.local(ms(event["time"])).hour
        for event in preemptions()
        if event["data"]["cause"] == "reclaim_own_reservation"
        and event["data"].get("preemptor", {}).get("workload", "").startswith("ads-ranker")
    ]
    assert len(taken_back) > 20
    assert sum(7 <= hour < 13 for hour in taken_back) > len(taken_back) // 2


def test_the_launch_preempts_others_in_beijing_while_shanghai_has_the_same_gpus_idle() -> None:
    day = october().launch_day
    assert OCTOBER.local(OCTOBER.at(day, 12)).weekday() == 2
    surges: dict[str, list[Event]] = {}
    for event in preemptions():
        preemptor = event["data"].get("preemptor", {}).get("workload", "")
        if preemptor.startswith("assistant-launch-surge"):
            surges.setdefault(preemptor, []).append(event)
    assert len(surges) == 3
    hit = [event for episode in surges.values() for event in episode]
    assert len({holder_of(event["data"]["victim"]) for event in hit}) >= 2
    for event in hit:
        at_ms = ms(event["time"])
        assert OCTOBER.at(day, 10) <= at_ms < OCTOBER.at(day, 10) + 40 * MS_PER_MINUTE
        elsewhere = [state for state in instants(october_books(), "sh-h100") if state.at_ms < at_ms][-1]
        assert elsewhere.capacity - elsewhere.occupied >= milli(event["data"]["gpus"])
    started = {subject[1] for subject in october_books().occupancy}
    # The third was called off before it ran; its victims had been told to go already.
    assert sorted(name in started for name in surges) == [False, True, True]
    # Some of the work that was sent away waited for hours.
    resumed = {e["data"]["preemption"]: ms(e["time"]) for e in october_books().of("resume")}
    waits = [
        resumed[e["data"]["preemption"]] - ms(e["time"]) for e in hit if e["data"]["preemption"] in resumed
    ]
    assert max(waits) > 6 * MS_PER_HOUR


def test_the_launch_meets_a_full_gateway_and_full_caches() -> None:
    day, crowd = october().launch_day, Counter[bool]()
    for event in october_books().of("rejection"):
        at_ms = ms(event["time"])
        crowd[OCTOBER.at(day, 10) <= at_ms < OCTOBER.at(day, 15)] += event["data"]["count"]
    assert crowd[True] > 5 * crowd[False]
    pressed = [e for e in october_books().of("preemption") if e["data"]["cause"] == "kv_cache_pressure"]
    assert pressed
    requests = {e["data"]["request"] for e in october_books().of("request") if e["data"].get("preemptions")}
    assert {e["data"]["victim"]["request"] for e in pressed} == requests


def test_the_launch_was_rehearsed_the_night_before() -> None:
    tried = [e for e in october_books().of("occupancy") if e["data"].get("purpose") == "load_test"]
    assert [e["data"]["gpus"] for e in tried] == [8, 0]
    assert OCTOBER.local(ms(tried[0]["time"])).day == october().launch_day - 1


def test_tenants_come_go_and_grow() -> None:
    assert (
        held_by("robotics", "sh-h100", OCTOBER.at(11, 15))
        == 0
        < held_by("robotics", "sh-h100", OCTOBER.at(20, 15))
    )
    assert (
        held_by("mobile", "sh-h20", OCTOBER.at(10, 20)) > 0 == held_by("mobile", "sh-h20", OCTOBER.at(25, 20))
    )
    changes = Counter(
        (e["data"]["reservation"].split("/")[1], e["data"]["gpus"]) for e in october_books().reservations
    )
    assert {("vision", 40), ("vision", 56), ("mobile", 16), ("mobile", 0), ("robotics", 40)} <= set(changes)
    fixed = {e["data"]["tenant"] for e in october_books().reservations if not e["data"]["lendable"]}
    assert fixed == {"gov-cloud"}


def test_a_namespace_that_nobody_mapped_holds_a_few_gpus_for_some_days() -> None:
    days = [held_by("genai-hackathon", "sh-h100", OCTOBER.at(day, 15)) for day in (5, 9, 10, 20)]
    assert days[0] == days[3] == 0 < days[1] <= 12_000
    assert days[2] > 0


def test_capacity_is_lost_maintained_and_extended() -> None:
    reasons = Counter(event["data"]["reason"] for event in october_books().of("capacity"))
    assert reasons["node_down"] >= 5
    assert reasons["maintenance"] == reasons["maintenance_done"] == reasons["expansion"] == 1
    maintained = [e for e in preemptions() if e["data"]["cause"] == "maintenance"]
    assert {e["data"]["pool"] for e in maintained} == {"bj-h200"}
    assert all(OCTOBER.local(ms(e["time"])).weekday() == 6 for e in maintained)


def test_work_resumes_in_the_same_and_in_the_other_cluster() -> None:
    lost_in = {event["data"]["preemption"]: event["data"]["pool"] for event in preemptions()}
    moves = Counter()
    for event in october_books().of("resume"):
        if event["data"]["preemption"] in lost_in:
            before, after = lost_in[event["data"]["preemption"]], event["data"]["pool"]
            moves["same" if before == after else "same cluster" if before[:2] == after[:2] else "other"] += 1
    assert moves["same"] > moves["other"] > 5


def test_the_two_quota_layers_disagree_about_code() -> None:
    used: dict[str, list[float]] = {"cluster": [], "serving": []}
    for event in october_books().of("quota"):
        data = event["data"]
        if data["tenant"] == "code" and data.get("pool", "bj-h200") == "bj-h200":
            used[data["layer"]].append(milli(data["used"]) / milli(data["limit"]))
    assert max(used["serving"]) == 1.0
    pairs = list(zip(used["serving"], used["cluster"], strict=True))
    assert sum(serving >= 0.95 and cluster <= 0.7 for serving, cluster in pairs) >= 5
