"""Slurm accounting, controller log and reports (cluster.md section 5), one test per trap."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from ingest.core.adapters import load
from ingest.core.adapters.base import Notice, Refused, SourceConfig
from ingest.core.adapters.slurm_sreport import totals
from tests.core.adapters.running import as_lines, events_of, levels_of, refused_of, run, source_of

HEADER = (
    "Cluster|JobIDRaw|DBIndex|SLUID|Restarts|Account|User|QOS|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|"
    "AllocTRES|Reservation"
)
TRES = "billing=64,cpu=64,gres/gpu:h200=8,gres/gpu=8,mem=512G,node=1"
FIRST = (
    "alpha|4101|990001|s7A0|0|vision|ana|scavenge|gpu|PREEMPTED|2026-09-01T08:00:00|2026-09-01T08:00:00|"
    f"2026-09-01T08:05:00|2026-09-01T10:35:00|9000|{TRES}|"
)
SECOND = (
    "alpha|4101|990044|s7A1|1|vision|ana|scavenge|gpu|COMPLETED|2026-09-01T10:35:41|2026-09-01T10:37:42|"
    f"2026-09-01T13:00:00|2026-09-01T17:00:00|14400|{TRES}|"
)
TAKER = (
    "alpha|4177|990040|s7B0|0|search|bo|prod|gpu|RUNNING|2026-09-01T10:34:00|2026-09-01T10:34:00|"
    f"2026-09-01T10:35:01|Unknown|100|{TRES}|"
)
LOG = "[2026-09-01T10:35:00.412] preempted JobId=4101 has been requeued to reclaim resources for JobId=4177"


def row(**changes: str) -> str:
    fields = dict(zip(HEADER.split("|"), FIRST.split("|"), strict=True))
    return "|".join((fields | changes).values())


def test_two_runs_of_a_requeued_job() -> None:
    outcomes = run("slurm-sacct", [HEADER, FIRST, SECOND])
    assert levels_of(outcomes) == [
        ("2026-09-01T08:05:00Z", "p1", 8),
        ("2026-09-01T10:35:00Z", "p1", 0),
        ("2026-09-01T13:00:00Z", "p1", 8),
        ("2026-09-01T17:00:00Z", "p1", 0),
    ]
    assert [e["data"]["attempt"] for e in events_of(outcomes, "occupancy")] == [1, 1, 2, 2]
    first, last = events_of(outcomes, "preemption")
    assert first["data"]["preemption"] == last["data"]["preemption"] == "alpha/s7A0"
    assert (first["time"], first["data"]["victim"]["attempt"]) == ("2026-09-01T10:35:00Z", 1)
    assert last["data"]["disposition"] == "requeued"
    assert first["data"]["preemptor_source"] == "none"  # no field of accounting names one


def test_planned_understates_the_interruption_and_is_not_used() -> None:
    """Eligible of the next run is pushed past Submit: pending is told for first runs only."""
    waits = [(e["id"], e["time"]) for e in events_of(run("slurm-sacct", [HEADER, FIRST, SECOND]), "pending")]
    assert waits == [
        ("alpha/s7A0/pending/2026-09-01T08:00:00Z", "2026-09-01T08:00:00Z"),
        ("alpha/s7A0/pending/2026-09-01T08:05:00Z", "2026-09-01T08:05:00Z"),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations([FIRST, SECOND, TAKER])))
def test_rows_in_any_order(order: tuple[str, ...]) -> None:
    wanted = {e["id"]: e for e in events_of(run("slurm-sacct", [HEADER, FIRST, SECOND, TAKER]))}
    assert {e["id"]: e for e in events_of(run("slurm-sacct", [HEADER, *order]))} == wanted


def test_cancel_mode_has_no_next_record() -> None:
    last = events_of(run("slurm-sacct", [HEADER, FIRST]), "preemption")[-1]
    assert last["data"]["disposition"] == "stopped"


def test_disposition_waits_for_the_next_record() -> None:
    state: dict[str, Any] = {}
    adapter, source = load("slurm-sacct"), source_of("slurm-sacct")
    run("slurm-sacct", [HEADER, FIRST], state=state)
    ended_ms = 1788258900000
    assert list(adapter.flush(source, state, ended_ms + 60_000)) == []
    state = json.loads(json.dumps(state))
    run("slurm-sacct", [HEADER, SECOND], state=state)
    (one,) = adapter.flush(source, state, ended_ms + 120_000)
    assert one["data"]["disposition"] == "requeued"


def test_requeue_that_is_no_preemption() -> None:
    assert events_of(run("slurm-sacct", [HEADER, row(State="REQUEUED")]), "preemption") == []


def test_export_without_duplicates_is_noticed() -> None:
    def notices(*rows: str) -> list[str]:
        return [o.reason for o in run("slurm-sacct", [HEADER, *rows]) if isinstance(o, Notice)]

    assert notices(SECOND) == ["missing_duplicates"]
    assert notices(FIRST, SECOND) == notices(SECOND, FIRST) == notices(TAKER) == []


def test_keys_without_sluid_and_dbindex() -> None:
    by_index = run("slurm-sacct", [HEADER, row(SLUID="")])
    assert events_of(by_index, "preemption")[0]["data"]["preemption"] == "alpha/990001"
    by_submit = run("slurm-sacct", [HEADER, row(SLUID="", DBIndex="")])
    assert events_of(by_submit, "preemption")[0]["data"]["preemption"] == "alpha/4101@1788249600"
    neither = run("slurm-sacct", [HEADER, row(SLUID="", DBIndex="", Submit="Unknown")])
    assert [r.reason for r in refused_of(neither)] == ["bad_record"]


def test_steps_repeat_their_jobs_gpus_and_are_left_out() -> None:
    steps = [row(JobIDRaw=f"4101.{step}") for step in ("batch", "extern", "0")]
    assert run("slurm-sacct", [HEADER, *steps]) == []


@pytest.mark.parametrize(
    ("tres", "options", "gpus"),
    [
        ("gres/gpu:h200=8,gres/gpu=8", {}, 8),
        ("gres/gpu:h200=4,gres/gpu=8", {}, 8),
        ("gres/gpu:1g.10gb=3,gres/gpu=3", {"gpu_types": {"1g.10gb": 142}}, "0.426"),
        ("gres/gpu:h200=8", {"typed_gpus": True}, 8),
    ],
)
def test_typed_gpus_are_a_subset(tres: str, options: dict[str, Any], gpus: Any) -> None:
    outcomes = run("slurm-sacct", [HEADER, row(AllocTRES=f"cpu=64,{tres}")], options=options)
    assert levels_of(outcomes)[0][2] == gpus


def test_jobs_without_gpus_and_untracked_gres() -> None:
    assert run("slurm-sacct", [HEADER, row(AllocTRES="cpu=64,mem=1T", State="COMPLETED")]) == []
    assert (
        run("slurm-sacct", [HEADER, row(AllocTRES="cpu=1,gres/gpu=0", State="COMPLETED")]) == []
    )  # no_consume
    typed_only = run("slurm-sacct", [HEADER, row(AllocTRES="gres/gpu:h200=8")])
    assert [r.reason for r in refused_of(typed_only)] == ["unknown_resource"]
    by_cpu = run("slurm-sacct", [HEADER, row(AllocTRES="cpu=64")], meters={"p1": "cpu"})
    assert levels_of(by_cpu)[0][2] == 64


def test_resize_continues_in_the_next_record() -> None:
    """0 and 4 at one instant would be two facts for one level."""
    shrunk = row(
        State="RUNNING", SLUID="s7A9", Start="2026-09-01T10:35:00", End="Unknown", AllocTRES="gres/gpu=4"
    )
    assert levels_of(run("slurm-sacct", [HEADER, row(State="RESIZING"), shrunk])) == [
        ("2026-09-01T08:05:00Z", "p1", 8),
        ("2026-09-01T10:35:00Z", "p1", 4),
    ]


def test_suspended_jobs_keep_their_gpus_unless_told_otherwise() -> None:
    header = f"{HEADER}|Suspended"
    done = row(State="COMPLETED") + "|00:35:00"
    assert levels_of(run("slurm-sacct", [header, done]))[-1][0] == "2026-09-01T10:35:00Z"
    outcomes = run("slurm-sacct", [header, done], options={"include_suspended": False})
    assert levels_of(outcomes)[-1][0] == "2026-09-01T10:00:00Z"


def test_local_times_and_the_hour_that_a_clock_shows_twice() -> None:
    zone = {"time_zone": "Europe/Berlin"}
    summer = run("slurm-sacct", [HEADER, FIRST], **zone)
    assert levels_of(summer)[0][0] == "2026-09-01T06:05:00Z"

    def span(elapsed: str, start: str, end: str) -> list[str]:
        one = row(State="COMPLETED", Start=start, End=end, ElapsedRaw=elapsed)
        return [level[0] for level in levels_of(run("slurm-sacct", [HEADER, one], **zone))]

    # 2026-10-25 03:00 CEST goes back to 02:00 CET.
    assert span("1800", "2026-10-25T02:00:00", "2026-10-25T02:30:00") == [
        "2026-10-25T00:00:00Z",
        "2026-10-25T00:30:00Z",
    ]
    assert span("5400", "2026-10-25T02:00:00", "2026-10-25T02:30:00") == [
        "2026-10-25T00:00:00Z",
        "2026-10-25T01:30:00Z",
    ]
    assert span("3600", "2026-10-25T02:30:00", "2026-10-25T03:30:00") == [
        "2026-10-25T01:30:00Z",
        "2026-10-25T02:30:00Z",
    ]
    skipped = run("slurm-sacct", [HEADER, row(Start="2026-03-29T02:30:00")], **zone)
    assert [r.reason for r in refused_of(skipped)] == ["bad_time"]


def test_epoch_times_by_slurm_time_format() -> None:
    epoch = row(Start="1788249900", End="1788258900", Submit="1788249600", Eligible="1788249600")
    assert levels_of(run("slurm-sacct", [HEADER, epoch]))[0][0] == "2026-09-01T08:05:00Z"


@pytest.mark.parametrize("unset", ["Unknown", "None", ""])
def test_unset_times(unset: str) -> None:
    waiting = row(State="PENDING", Start=unset, End=unset, AllocTRES="", SLUID="s9", Partition="other,gpu")
    rows = [f"{HEADER}|ReqTRES", f"{waiting}|gres/gpu=4"]
    (one,) = run("slurm-sacct", rows, pools={"gpu": "bj-h200"})
    assert isinstance(one, dict)
    assert (one["type"], one["data"]["gpus"], one["data"]["pool"]) == ("ledger.pending.v1", 4, "bj-h200")


def test_parsable_with_trailing_delimiter_other_delimiters_and_no_header() -> None:
    wanted = run("slurm-sacct", [HEADER, FIRST])
    assert run("slurm-sacct", [HEADER + "|", FIRST + "|"]) == wanted
    tabs = [HEADER.replace("|", "\t"), FIRST.replace("|", "\t")]
    assert run("slurm-sacct", tabs, options={"delimiter": "\t"}) == wanted
    assert run("slurm-sacct", [FIRST], options={"fields": HEADER.replace("|", ",")}) == wanted
    assert [r.reason for r in refused_of(run("slurm-sacct", [FIRST]))] == ["bad_record"]


def test_free_text_with_delimiters_and_newlines() -> None:
    header = f"{HEADER}|JobName"
    assert refused_of(run("slurm-sacct", [header, f"{FIRST}|a|b|c", f"{SECOND}|plain"])) == []
    named = run("slurm-sacct", [header, f"{FIRST}|a|b|c"])
    assert events_of(named, "occupancy")[0]["data"]["name"] == "a|b|c"
    # In the middle it cannot be told apart: that row goes to quarantine, the next one is booked.
    middle = HEADER.replace("|State", "|JobName|State")
    broken = FIRST.replace("|PREEMPTED", "|two\nlines|PREEMPTED")
    good = SECOND.replace("|COMPLETED", "|x|COMPLETED")
    cut = run("slurm-sacct", [middle, *broken.split("\n"), good])
    assert refused_of(cut) == []
    assert len(events_of(cut, "occupancy")) == 4
    too_many = run("slurm-sacct", [middle, FIRST.replace("|PREEMPTED", "|a|b|PREEMPTED"), good])
    assert [(r.reason, r.position) for r in refused_of(too_many)] == [("bad_record", 2)]
    assert len(events_of(too_many, "occupancy")) == 2
    lost = run("slurm-sacct", [middle, broken.split("\n")[0], good])
    assert [(r.reason, r.position) for r in refused_of(lost)] == [("bad_record", 2)]
    assert len(events_of(lost, "occupancy")) == 2


def test_cancelled_by_somebody() -> None:
    one = row(State="CANCELLED by 1000")
    assert len(levels_of(run("slurm-sacct", [HEADER, one]))) == 2


def test_wait_ends_in_the_pool_where_it_began() -> None:
    """A pending job names several partitions and asks for what it may not get exactly."""
    header = f"{HEADER}|ReqTRES"
    waiting = (
        row(State="PENDING", Start="Unknown", End="Unknown", AllocTRES="", Partition="fast,gpu")
        + "|gres/gpu=4"
    )
    running = row(State="RUNNING", End="Unknown") + "|gres/gpu=4"
    outcomes = run("slurm-sacct", [header, waiting, running], pools={"fast": "h200", "gpu": "a100"})
    waits = [(e["time"], e["data"]["pool"], e["data"]["gpus"]) for e in events_of(outcomes, "pending")]
    assert waits[0] == ("2026-09-01T08:00:00Z", "h200", 4)
    assert waits[-1] == ("2026-09-01T08:05:00Z", "h200", 0)
    assert levels_of(outcomes) == [("2026-09-01T08:05:00Z", "a100", 8)]


def test_a_job_that_is_renamed_or_moved_while_it_runs_began_once() -> None:
    state: dict[str, Any] = {}
    first = events_of(run("slurm-sacct", [HEADER, row(State="RUNNING", End="Unknown")], state))
    moved = row(State="RUNNING", End="Unknown", QOS="urgent")
    assert first != [] and events_of(run("slurm-sacct", [HEADER, moved], state)) == []
    ended = events_of(run("slurm-sacct", [HEADER, row(State="COMPLETED", QOS="urgent")], state))
    assert [e["data"]["gpus"] for e in ended] == [0]


@pytest.mark.parametrize("adapter", ["slurm-sacct", "slurm-sacct-json", "slurmctld-log"])
def test_a_collector_forgets_jobs_that_are_long_over(adapter: str) -> None:
    state: dict[str, Any] = {}
    rows: list[Any] = [HEADER, FIRST, SECOND]
    if adapter == "slurm-sacct-json":
        rows = [{"jobs": [job(restart_cnt=n, sluid=f"s{n}") for n in range(3)]}]
    run(adapter, rows, state)
    assert any(state.values())
    list(load(adapter).flush(source_of(adapter), state, 1_900_000_000_000))
    assert not any(state.values())


# --- JSON ---------------------------------------------------------------------------------------------------


def job(**changes: Any) -> dict[str, Any]:
    set_number = lambda n: {"set": True, "infinite": False, "number": n}  # noqa: E731
    return {
        "job_id": 4101,
        "sluid": "s7A0",
        "restart_cnt": 0,
        "cluster": "alpha",
        "account": "vision",
        "user": "ana",
        "qos": "scavenge",
        "partition": "gpu",
        "nodes": "",
        "name": "",
        "state": {"current": ["PREEMPTED"], "reason": "None"},
        "time": {
            "submission": 1788249600,
            "eligible": 1788249600,
            "start": set_number(1788249900),
            "end": 1788258900,
            "suspended": 0,
        },
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 64},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 8},
                {"type": "gres", "name": "gpu:h200", "id": 1002, "count": 8},
            ],
            "requested": [],
        },
        **changes,
    }


def test_json_says_what_the_text_says() -> None:
    text = run("slurm-sacct", [HEADER, FIRST], uri="/x")
    assert run("slurm-sacct-json", [{"jobs": [job()], "meta": {}}], uri="/x") == text
    old = job(state={"current": "PREEMPTED"}, time={**job()["time"], "start": 1788249900})
    assert run("slurm-sacct-json", json.dumps({"jobs": [old]}, indent=1).splitlines(), uri="/x") == text


def test_json_refuses_one_job_and_books_the_next() -> None:
    outcomes = run("slurm-sacct-json", [{"jobs": [{"job": 1}, job()]}])
    assert [r.reason for r in refused_of(outcomes)] == ["bad_record"]
    assert json.loads(refused_of(outcomes)[0].record) == {"job": 1}
    assert len(levels_of(outcomes)) == 2


@pytest.mark.parametrize("adapter", ["slurm-sacct", "slurmctld-log", "slurm-sacct-json"])
def test_a_refused_run_says_the_same_until_something_happens_to_it(adapter: str) -> None:
    def says(elapsed: int, end: str) -> bytes:
        if adapter == "slurm-sacct-json":
            times = {**job()["time"], "elapsed": elapsed, "end": 1788258900 if end else 0}
            records: list[Any] = [{"jobs": [job(time=times, priority=elapsed, steps=[{"time": elapsed}])]}]
        else:
            record = row(State="COMPLETED" if end else "RUNNING", End=end or "Unknown")
            records = [f"{HEADER}|ElapsedRaw|Suspended", f"{record}|{elapsed}|00:00:{elapsed}"]
        (refused,) = refused_of(run(adapter, records, pools={"elsewhere": "p"}))
        return refused.says

    assert says(10, "") == says(20, "") != b""
    assert says(20, "") != says(20, "2026-09-01T10:35:00")


# --- slurmctld.log ------------------------------------------------------------------------------------------


def test_preemptor_from_the_log_in_any_order() -> None:
    rows = [HEADER, FIRST, SECOND, TAKER]
    for lines in ([LOG, *rows], [*rows, LOG], [HEADER, FIRST, LOG, SECOND, TAKER]):
        (one,) = events_of(run("slurmctld-log", lines))
        assert one["data"]["preemption"] == "alpha/s7A0"  # as slurm-sacct names it
        assert one["data"]["preemptor"] == {
            "workload": "4177",
            "identity": {"kind": "slurm_account", "value": "search"},
        }
        assert (one["data"]["preemptor_source"], one["data"]["disposition"]) == ("parsed", "requeued")
        assert one["time"] == "2026-09-01T10:35:00.412Z"


@pytest.mark.parametrize(
    ("text", "disposition", "preemptor"),
    [
        ("preempted JobId=4101 has been killed to reclaim resources for JobId=4177", "stopped", "4177"),
        ("slurm_job_preempt: preempted JobId=4101 had to be killed", "stopped", None),
        (
            "debug: setting 30 sec preemption grace time for JobId=4101 to reclaim resources for JobId=4177",
            None,
            "4177",
        ),
    ],
)
def test_other_lines(text: str, disposition: str | None, preemptor: str | None) -> None:
    (one,) = events_of(run("slurmctld-log", [f"[2026-09-01T10:34:30.000] {text}", HEADER, FIRST, TAKER]))
    assert one["data"].get("disposition") == disposition
    assert one["data"].get("preemptor", {}).get("workload") == preemptor


@pytest.mark.parametrize("shown", ["4101", "100_7(4101)", "50+1(4101)", "4101_*"])
def test_job_id_formats(shown: str) -> None:
    line = LOG.replace("JobId=4101", f"JobId={shown}")
    (one,) = events_of(run("slurmctld-log", [line, HEADER, FIRST, TAKER]))
    assert one["data"]["victim"]["workload"] == "4101"
    taker = LOG.replace("JobId=4177", "JobId=4170_2(4177)")
    (one,) = events_of(run("slurmctld-log", [taker, HEADER, FIRST, TAKER]))
    assert one["data"]["preemptor"]["workload"] == "4177"


def test_gang_suspension_moves_no_gpus() -> None:
    text = "preempted JobId=4101 suspended by gang scheduler to reclaim resources for JobId=4177"
    (one,) = events_of(
        run("slurmctld-log", [f"[2026-09-01T09:00:00.000] debug: {text}", HEADER, FIRST, TAKER])
    )
    assert (one["data"]["gpus"], one["data"]["lost_gpu_seconds"]) == (0, 0)
    assert one["data"]["preemption"] != "alpha/s7A0"


def test_log_in_local_time_or_with_an_offset() -> None:
    berlin = [HEADER, FIRST, TAKER, LOG]
    (one,) = events_of(run("slurmctld-log", berlin, time_zone="Europe/Berlin"))
    assert one["time"] == "2026-09-01T08:35:00.412Z"
    rfc = LOG.replace("[2026-09-01T10:35:00.412]", "[2026-09-01T12:35:00.412+02:00]")
    (one,) = events_of(run("slurmctld-log", [HEADER, FIRST, TAKER, rfc]))
    assert one["time"] == "2026-09-01T10:35:00.412Z"
    short = LOG.replace("[2026-09-01T10:35:00.412]", "[Sep 01 10:35:00]")
    assert [r.reason for r in refused_of(run("slurmctld-log", [HEADER, FIRST, short]))] == ["bad_time"]


def test_a_job_id_that_came_back_is_matched_by_time() -> None:
    old = row(
        SLUID="s1", Start="2026-08-01T08:05:00", End="2026-08-01T10:35:00", Submit="2026-08-01T08:00:00"
    )
    (one,) = events_of(run("slurmctld-log", [HEADER, old, FIRST, TAKER, LOG]))
    assert one["data"]["preemption"] == "alpha/s7A0"


def test_unknown_preemptor_victim_and_words() -> None:
    (one,) = events_of(run("slurmctld-log", [HEADER, FIRST, LOG]))
    assert one["data"]["preemptor"]["identity"] == {"kind": "label:slurm-job", "value": "4177"}
    noise = "[2026-09-01T10:35:00.000] sched: Allocate JobId=4177 NodeList=gpu-17"
    odd = "[2026-09-01T10:35:00.000] preempted JobId=4101 was asked to leave"
    outcomes = run("slurmctld-log", [noise, LOG, odd])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [
        ("bad_record", 3),
        ("unknown_workload", 2),
    ]


def test_log_waits_for_accounting_over_batches() -> None:
    state: dict[str, Any] = {}
    assert run("slurmctld-log", [LOG], state=state) == []
    state = json.loads(json.dumps(state))
    (one,) = events_of(run("slurmctld-log", [HEADER, FIRST, TAKER], state=state))
    assert one["data"]["preemptor"]["workload"] == "4177"
    assert run("slurmctld-log", [HEADER, FIRST, TAKER], state=state) == []


# --- sreport ------------------------------------------------------------------------------------------------

TITLE = [
    "-" * 80,
    "Cluster Utilization 2026-09-01T10:00:00 - 2026-09-01T10:59:59",
    "Usage reported in TRES Seconds",
    "-" * 80,
]
COLUMNS = "Cluster|TRES Name|Allocated|Down|PLND Down|Idle|Planned|Reported"
UTILISATION = "alpha|gres/gpu|201600|3600|0|46800|36000|288000"


def test_cluster_utilisation_identity() -> None:
    found = list(
        totals(as_lines([*TITLE, COLUMNS, UTILISATION, "alpha|cpu|1|1|1|1|1|5"]), source_of("slurm-sreport"))
    )
    hours = {t.category: t.gpu_us / 3_600_000_000 for t in found}  # type: ignore[union-attr]
    assert hours == {"Allocated": 56, "Down": 1, "PLND Down": 0, "Idle": 13, "Planned": 10, "Reported": 80}
    assert {(t.starts_ms, t.ends_ms) for t in found} == {(1788256800000, 1788260400000)}  # type: ignore[union-attr]


def test_old_column_name_units_and_no_title() -> None:
    old = COLUMNS.replace("Planned", "Reserved")
    minutes = "alpha|gres/gpu|3360|60|0|780|600|4800"
    found = list(totals(as_lines([old, minutes]), source_of("slurm-sreport")))
    assert sum(t.gpu_us for t in found) == 2 * 80 * 3_600_000_000  # type: ignore[union-attr]
    bare = source_of("slurm-sreport", options={"fields": COLUMNS, "unit": "Seconds"})
    assert len(list(totals(as_lines([UTILISATION]), bare))) == 6


def test_percentages_contradictions_and_neighbours() -> None:
    wrong = UTILISATION.replace("288000", "288001")
    percent = "Usage reported in Percentage of Total"
    outcomes = run("slurm-sreport", [percent, *TITLE, COLUMNS, wrong, UTILISATION])
    assert [(r.reason, r.position) for r in refused_of(outcomes)] == [("bad_quantity", 1), ("bad_record", 7)]
    notices = [o for o in outcomes if isinstance(o, Notice)]
    assert {n.reason for n in notices} == {"source_total"} and len(notices) == 6
    assert events_of(outcomes) == []


def test_account_and_reservation_reports() -> None:
    accounts = [
        *TITLE[:1],
        *TITLE[2:],
        "Cluster|Account|Login|Proper Name|TRES Name|Used",
        "alpha|vision|||gres/gpu|72000",
        "alpha|vision|ana|Ana|gres/gpu|72000(25.00%)",
    ]
    reservations = [
        "Cluster|Name|Start|End|TRES Name|Allocated|Idle",
        "alpha|exam|2026-09-01T00:00:00|2026-09-02T00:00:00|gres/gpu|3600|7200",
    ]
    found = list(totals(as_lines([*accounts, *reservations]), source_of("slurm-sreport")))
    assert [(t.report, t.subject, t.category, t.gpu_us // 1_000_000) for t in found] == [  # type: ignore[union-attr]
        ("account", "vision", "Used", 72000),
        ("account", "vision/ana", "Used", 72000),
        ("reservation", "exam", "Allocated", 3600),
        ("reservation", "exam", "Idle", 7200),
    ]


def test_a_refused_row_keeps_its_header_so_that_it_can_be_read_again() -> None:
    header = b"JobIDRaw|Account|Partition|AllocTRES|State|Start|End|Submit|Cluster"
    row = b"4101|acme|gpu|gres/gpu=two|RUNNING|2026-10-01T00:00:00|Unknown|2026-10-01T00:00:00|hpc"
    source = SourceConfig("hpc", "slurm-sacct", "/clusters/hpc/slurm", cluster="hpc", pool="hpc-a100")
    (refused,) = load("slurm-sacct").adapt([header + b"\n", row], source, None)
    assert isinstance(refused, Refused)
    assert refused.record == header + b"\n" + row
    mended = refused.record.replace(b"two", b"2").split(b"\n")
    assert [type(one) for one in load("slurm-sacct").adapt(mended, source, None)] == [dict]
