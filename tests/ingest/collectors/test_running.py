"""One runner at a time, commands that say one line, and the tasks of beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from ingest.collectors import tasks
from ingest.collectors.configured import present_ms
from ingest.collectors.running import Busy, collect
from ingest.models import Batch
from ledger.config.celery import app
from ledger.management.base import BadInput, CommandFailed
from ledger.models import Level, LevelKind, Source
from tests.ingest.collectors.test_slurm import HEADER, TEN, row
from tests.ingest.collectors.world import at, configure, run

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(tmp_path: Path) -> Source:
    file = tmp_path / "jobs.txt"
    file.write_text("\n".join([HEADER, row(1, "09:00:00", "09:30:00"), ""]))
    return configure("slurm-sacct", {"file": str(file)})


def test_only_one_process_collects_a_source(source: Source) -> None:
    first = collect(source, clock=at(TEN))
    next(first)
    with pytest.raises(Busy, match="another process"):
        run(source, at(TEN + 1))
    list(first)  # it ends, and the source is free
    assert run(source, at(TEN + 2)) != []


def test_one_that_was_taken_for_dead_keeps_nothing_more(source: Source, tmp_path: Path) -> None:
    slow = configure("slurm-sacct", {"command": ["true"], "file": str(tmp_path / "jobs.txt")})
    state = {"position": {"until_ms": TEN - 2 * 86_400_000}}
    Source.objects.filter(pk=slow.pk).update(state=state)
    first = collect(slow, clock=at(TEN))
    next(first)
    later = Source.objects.get(pk=slow.pk).state["claimed_until_ms"] + 1
    second = run(slow, at(later))
    batches = Batch.objects.count()
    with pytest.raises(Busy, match="took over"):
        list(first)
    assert len(second) == 2 and Batch.objects.count() == batches
    assert Source.objects.get(pk=slow.pk).state["position"]["until_ms"] == later


def test_collect_books_here_and_ends_with_counts(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("collect", "it")
    assert capsys.readouterr().out == "received 2, booked 2, duplicate 0, conflict 0, quarantined 0\n"
    assert Level.objects.filter(kind=LevelKind.OCCUPANCY).count() == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "no source is called 'nobody'"),
        (["it", "--until", "2026-10-01"], "--until needs --since"),
        (["it", "--since", "yesterday"], "--since 'yesterday' is neither an instant"),
        (["it", "--since", "2026-10-01T00:00:00"], "has no offset"),
        (
            ["it", "--since", "2026-10-02", "--until", "2026-10-01"],
            "the window from 2026-10-02 to 2026-10-01 is empty",
        ),
        (["it", "--since", "2026-10-01", "--until", "2026-10-02"], "keeps no past"),
    ],
)
def test_bad_arguments_are_one_line(source: Source, arguments: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        call_command("collect", *arguments)


def test_sources_that_cannot_be_collected_say_why() -> None:
    plain = configure("slurm-sacct", {"file": "x"})
    Source.objects.filter(pk=plain.pk).update(adapter="csv")
    with pytest.raises(BadInput, match="csv cannot be collected, only dcgm, "):
        call_command("check_source", "it")
    Source.objects.filter(pk=plain.pk).update(adapter="slurm-sacct", config={"options": {}})
    with pytest.raises(BadInput, match=r"options\.collect is missing"):
        call_command("check_source", "it")
    Source.objects.filter(pk=plain.pk).update(config={"options": {"collect": "x"}})
    with pytest.raises(BadInput, match=r"options\.collect must be a table"):
        call_command("check_source", "it")
    Source.objects.filter(pk=plain.pk).update(config={"options": {"collect": {"file": "/no/such"}}})
    with pytest.raises(CommandFailed, match="cannot be read"):
        call_command("check_source", "it")


# --- tasks --------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ids of the sources that were asked for."""
    ids: list[int] = []
    monkeypatch.setattr(tasks.collect_source, "delay", ids.append)
    yield ids


def test_beat_asks_for_each_source_when_its_time_has_come(source: Source, sent: list[int]) -> None:
    tasks.collect_sources()
    assert sent == [source.pk]
    for state, again in [
        ({"last": {"at_ms": present_ms()}}, False),
        ({"last": {"at_ms": present_ms() - 61_000}}, True),
        ({"claimed_until_ms": present_ms() + 60_000}, False),
        ({"claimed_until_ms": present_ms() - 1}, True),
    ]:
        sent.clear()
        Source.objects.filter(pk=source.pk).update(state=state)
        tasks.collect_sources()
        assert bool(sent) is again, state


def test_sources_without_a_collect_table_are_left_alone(source: Source, sent: list[int]) -> None:
    Source.objects.filter(pk=source.pk).update(config={"options": {}})
    tasks.collect_sources()
    assert sent == []


def test_the_task_books_and_survives_a_source_that_is_away(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.collect_source(source.pk)
    assert Level.objects.filter(kind=LevelKind.OCCUPANCY).count() == 2
    Source.objects.filter(pk=source.pk).update(config={"options": {"collect": {"file": "/no/such"}}})
    tasks.collect_source(source.pk)
    assert "/no/such cannot be read" in caplog.text
    assert "cannot be read" in Source.objects.get(pk=source.pk).state["last"]["error"]


def test_workers_and_beat_know_the_tasks() -> None:
    app.loader.import_default_modules()
    app.finalize()
    named: Callable[[str], Any] = app.tasks.__getitem__
    assert named("ingest.collect_source") and named("ingest.collect_sources")
    assert "ingest.collect_sources" in {entry["task"] for entry in app.conf.beat_schedule.values()}
