"""What beat runs is declared beside the tasks, and only tasks that exist are declared."""

import pytest
from celery import Celery

import billing.tasks
from ledger.config.celery import app, collect_schedules


def test_a_schedule_declared_in_tasks_reaches_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {"billing-example": {"task": "celery.backend_cleanup", "schedule": 60.0}}
    monkeypatch.setattr(billing.tasks, "BEAT_SCHEDULE", declared, raising=False)
    other = Celery("other", set_as_current=False)
    collect_schedules(other)
    assert other.conf.beat_schedule["billing-example"] == declared["billing-example"]


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()
    app.finalize()
    missing = {entry["task"] for entry in app.conf.beat_schedule.values()} - set(app.tasks)
    assert missing == set()
