"""`sacct` asked window by window, files as they change, and a log over its rotation."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from ingest.collectors.contract import CollectorError, Window
from ingest.collectors.running import collect
from ingest.collectors.slurm import read_added
from ingest.models import QuarantinedEvent
from ledger.management.base import BadInput, CommandFailed
from ledger.models import Event, Level, LevelKind, PreemptionReport, Source
from tests.ingest.collectors.world import POOL, at, book, configure, instant, run

pytestmark = pytest.mark.django_db

HEADER = (
    "Cluster|JobIDRaw|DBIndex|Account|User|QOS|Partition|State|Submit|Eligible|Start|End|AllocTRES|JobName"
)
TEN = instant("2026-10-01T10:00:00Z")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def row(job: int, start: str, end: str, state: str = "COMPLETED", gpus: str = "gres/gpu=4") -> str:
    """One run on the first of October; the time of submission is that of the start."""
    starts = f"2026-10-01T{start}"
    ends = f"2026-10-01T{end}" if end else "Unknown"
    times = f"{starts}|{starts}|{starts}|{ends}"
    return f"alpha|{job}|{job}|vision|ana|normal|gpu|{state}|{times}|{gpus}|train"


class Sacct:
    """A program that prints what stands in a file, and writes down how it was called."""

    def __init__(self, directory: Path) -> None:
        self.output, self._calls = directory / "output", directory / "calls"
        self.program = directory / "sacct"
        self.program.write_text(
            "#!/bin/sh\n"
            f'echo "TZ=$TZ $*" >> {self._calls}\n'
            f'case "$*" in *SLUID*) if [ -e {directory}/old ]; then\n'
            '  echo "sacct: fatal: Invalid field requested: \\"SLUID\\"" >&2; exit 1; fi;; esac\n'
            f"if [ -e {directory}/down ]; then echo 'slurmdbd: Connection refused' >&2; exit 1; fi\n"
            f"cat {self.output}\n"
        )
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.directory = directory
        self.prints()

    def prints(self, *rows: str) -> None:
        self.output.write_text("\n".join([HEADER, *rows, ""]))

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()

    def spans(self) -> list[tuple[str, str]]:
        words = [call.split() for call in self.calls]
        return [(one[one.index("-S") + 1], one[one.index("-E") + 1]) for one in words]


@pytest.fixture
def sacct(tmp_path: Path) -> Sacct:
    return Sacct(tmp_path)


def occupancy() -> list[tuple[str, str, int]]:
    rows = Level.objects.filter(kind=LevelKind.OCCUPANCY).order_by("starts_at", "subject")
    return [(f"{o.starts_at:%H:%M}", o.subject, o.milli_gpus) for o in rows]


def test_windows_reach_back_and_repeats_are_not_sent_again(sacct: Sacct) -> None:
    source = configure("slurm-sacct", {"command": [str(sacct.program)], "overlap_seconds": 600})
    sacct.prints(row(1, "09:00:00", "", "RUNNING"))
    book(run(source, at(TEN), Window(TEN - HOUR, TEN)))
    sacct.prints(row(1, "09:00:00", "10:05:00"), row(2, "10:01:00", "", "RUNNING"))
    (receipt,) = book(run(source, at(TEN + 10 * MINUTE)))
    assert (receipt.duplicate, receipt.conflict) == (0, 0)  # the start of job 1
    assert sacct.spans() == [
        ("2026-10-01T09:00:00", "2026-10-01T10:00:00"),
        ("2026-10-01T09:50:00", "2026-10-01T10:10:00"),
    ]
    assert all(" -a -X -D " in f" {call} " and call.startswith("TZ=UTC ") for call in sacct.calls)
    assert occupancy() == [("09:00", "1", 4000), ("10:01", "2", 4000), ("10:05", "1", 0)]


def test_a_long_past_is_asked_day_by_day_and_kept_day_by_day(sacct: Sacct) -> None:
    source = configure("slurm-sacct", {"command": [str(sacct.program)], "overlap_seconds": 0})
    steps = collect(source, Window(TEN, TEN + 2 * DAY + HOUR), at(TEN + 3 * DAY))
    assert next(steps).reached_ms == TEN + DAY
    # The process dies here; the next one goes on with the second day.
    assert Source.objects.get(pk=source.pk).state["position"]["until_ms"] == TEN + DAY
    steps.close()
    assert [step.reached_ms for step in run(source, at(TEN + 2 * DAY + HOUR))] == [
        TEN + 2 * DAY,
        TEN + 2 * DAY + HOUR,
    ]


def test_local_times_are_asked_for_in_the_zone_of_the_source(sacct: Sacct) -> None:
    source = configure("slurm-sacct", {"command": [str(sacct.program)]})
    source.config["time_zone"] = "Asia/Shanghai"
    source.save()
    run(source, at(TEN), Window(TEN - HOUR, TEN))
    assert sacct.spans() == [("2026-10-01T17:00:00", "2026-10-01T18:00:00")]
    assert sacct.calls[0].startswith("TZ=Asia/Shanghai ")


def test_an_old_sacct_is_asked_again_without_the_columns_it_does_not_know(sacct: Sacct) -> None:
    (sacct.directory / "old").touch()
    sacct.prints(row(1, "09:00:00", "09:30:00"))
    source = configure("slurm-sacct", {"command": [str(sacct.program)]})
    book(run(source, at(TEN)))
    assert ["SLUID" in call for call in sacct.calls] == [True, False]
    assert occupancy() == [("09:00", "1", 4000), ("09:30", "1", 0)]


def test_what_cannot_be_read_is_kept_once_though_windows_overlap(sacct: Sacct) -> None:
    sacct.prints(row(1, "09:00:00", "09:30:00"), row(2, "09:00:00", "yesterday"))
    source = configure("slurm-sacct", {"command": [str(sacct.program)]})
    book(run(source, at(TEN)))
    book(run(source, at(TEN + MINUTE)))
    quarantined = QuarantinedEvent.objects.get()
    assert quarantined.reason == "bad_time" and b"Tyesterday|" in bytes(quarantined.raw)
    assert len(occupancy()) == 2


def test_a_running_job_in_no_pool_is_kept_once_however_old_it_grows(sacct: Sacct) -> None:
    source = configure("slurm-sacct", {"command": [str(sacct.program)]})
    Source.objects.filter(pk=source.pk).update(
        config={**source.config, "pool": None, "pools": {"other": POOL}}
    )
    source.refresh_from_db()
    for age, (end, state) in enumerate([("", "RUNNING"), ("", "RUNNING"), ("09:59:00", "COMPLETED")]):
        line = f"{row(1, '09:00:00', end, state)[: -len('|train')]}|{age * 60}|train"
        sacct.output.write_text(f"{HEADER.replace('|JobName', '|ElapsedRaw|JobName')}\n{line}\n")
        book(run(source, at(TEN + age * MINUTE)))
    kept = [bytes(one.raw) for one in QuarantinedEvent.objects.order_by("id")]
    assert [b"RUNNING" in raw for raw in kept] == [True, False], "its end is another fact"


def test_a_database_that_is_down_is_its_own_sentence_and_the_place_stays(sacct: Sacct) -> None:
    source = configure("slurm-sacct", {"command": [str(sacct.program)]})
    run(source, at(TEN))
    (sacct.directory / "down").touch()
    with pytest.raises(CollectorError, match=r"sacct ended with 1: slurmdbd: Connection refused"):
        run(source, at(TEN + HOUR))
    assert Source.objects.get(pk=source.pk).state["position"]["until_ms"] == TEN


def test_the_log_adds_the_preemptor_to_the_run_that_accounting_knows(sacct: Sacct, tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_text("[2026-10-01T09:00:00.000] sched: begins\n")
    sacct.prints(row(1, "09:00:00", "09:30:00", "PREEMPTED"), row(2, "09:30:20", "", "RUNNING"))
    table = {"command": [str(sacct.program)], "file": str(log), "overlap_seconds": 600}
    source = configure("slurmctld-log", table)
    book(run(source, at(TEN)))
    assert not PreemptionReport.objects.exists()
    with log.open("a") as file:
        file.write(
            "[2026-10-01T09:30:00.100] preempted JobId=1 has been requeued to reclaim resources for JobId=2\n"
            "[2026-10-01T09:30:00.200] preempted JobId=1 has been req"  # still being written
        )
    book(run(source, at(TEN + 5 * MINUTE)))
    report = Event.objects.get(body__data__has_key="preemption")
    assert report.body["data"]["preemptor"]["workload"] == "2"
    assert not QuarantinedEvent.objects.exists()


def test_a_log_is_read_over_its_rotation(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_bytes(b"one\ntwo\nthr")
    lines, kept = read_added(log, None)
    assert lines == [b"one\n", b"two\n"]
    with log.open("ab") as file:
        file.write(b"ee\nfour\n")
    os.rename(log, tmp_path / "slurmctld.log.1")
    log.write_bytes(b"five\n")
    lines, kept = read_added(log, kept)
    assert lines == [b"three\n", b"four\n", b"five\n"]
    assert read_added(log, kept)[0] == []
    # Emptied in place, as `copytruncate` does.
    log.write_bytes(b"six\n")
    assert read_added(log, kept | {"offset": 500})[0] == [b"six\n"]


def test_a_file_of_accounting_is_read_when_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text("\n".join([HEADER, row(1, "09:00:00", ""), ""]))
    source = configure("slurm-sacct", {"file": str(file)})
    assert [step.events > 0 for step in run(source, at(TEN))] == [True]
    assert [step.events for step in run(source, at(TEN + MINUTE))] == [0]
    file.write_text("\n".join([HEADER, row(1, "09:00:00", "10:00:00"), ""]))
    assert [step.events > 0 for step in run(source, at(TEN + 2 * MINUTE))] == [True]


def test_check_source_sees_that_gpus_are_not_accounted_for(
    sacct: Sacct, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("slurm-sacct", {"command": [str(sacct.program)]})
    sacct.prints(row(1, "09:00:00", "09:30:00", gpus="cpu=64"))
    with pytest.raises(CommandFailed, match="1 of what source 'it' needs"):
        call_command("check_source", "it")
    said = capsys.readouterr().out
    assert "answers; 1 lines" in said and "MISSING  AccountingStorageTRES: no gres/gpu" in said
    sacct.prints(row(1, "09:00:00", "09:30:00"))
    call_command("check_source", "it")
    assert "MISSING" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "needs a command, a file, or both"),
        ({"command": "sacct -a"}, "options.collect.command must be a list of texts"),
        ({"command": ["sacct", 1]}, "options.collect.command must be a list of texts"),
        ({"command": ["sacct"], "overlap": 1}, "options.collect.overlap is not known"),
    ],
)
def test_a_wrong_table_is_one_line(table: dict[str, Any], said: str) -> None:
    configure("slurm-sacct", table)
    with pytest.raises(BadInput, match=said):
        call_command("collect", "it")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"command": ["/no/such/sacct"]}, "/no/such/sacct cannot be run: No such file"),
        ({"file": "/no/such/jobs"}, "/no/such/jobs cannot be read: No such file"),
    ],
)
def test_what_is_not_there_is_one_line(table: dict[str, Any], said: str) -> None:
    configure("slurm-sacct", table)
    with pytest.raises(CommandFailed, match=said):
        call_command("collect", "it")


def test_json_output_is_asked_for_as_json(tmp_path: Path) -> None:
    sacct = Sacct(tmp_path)
    sacct.output.write_text(json.dumps({"jobs": []}))
    source = configure("slurm-sacct-json", {"command": [str(sacct.program)]})
    assert [step.refused for step in run(source, at(TEN))] == [0]
    assert "--json" in sacct.calls[0] and " -P" not in sacct.calls[0]
