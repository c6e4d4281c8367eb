"""A real worker on a real broker and the test's own database."""

import time

from ledger.config.celery import app
from tests.fixtures.services import WorkerFactory


def test_a_task_sent_while_no_worker_runs_is_done_by_the_next_one(worker_factory: WorkerFactory) -> None:
    first = worker_factory()
    first.kill()
    app.send_task("ledger.unknown_on_purpose")
    second = worker_factory()
    deadline = time.monotonic() + 15
    while "ledger.unknown_on_purpose" not in second.log_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "Received unregistered task" in second.log_text()
