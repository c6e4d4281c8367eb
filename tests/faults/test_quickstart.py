"""`manage.py quickstart` as a user has it: real processes in a copy of the checkout, in a path with a space."""

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.conf import settings

NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "var", "tests", ".*_cache", "__pycache__", "node_modules"
)
pytestmark = pytest.mark.slow

START_SECONDS = 90.0
END_SECONDS = 30.0


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fresh") / "a path with spaces"
    shutil.copytree(settings.BASE_DIR, target, ignore=NOT_COPIED)
    return target


@pytest.fixture
def taken_ports() -> Iterator[int]:
    """Take the usual ports of PostgreSQL and Valkey and one for the web; gives the latter."""
    with contextlib.ExitStack() as stack:
        for usual in (5432, 6379):
            taken = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # somebody else has it: as good
                taken.bind(("127.0.0.1", usual))
                taken.listen()
        web = stack.enter_context(socket.socket())
        web.bind(("127.0.0.1", 0))
        web.listen()
        yield web.getsockname()[1]


def environment(**values: str) -> dict[str, str]:
    """The environment of somebody who configured nothing."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LEDGER_", "DATABASE_URL", "BROKER_URL", "DJANGO_", "PYTEST"))
    }
    return {**kept, **values}


def manage(checkout: Path, *arguments: str, **values: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=environment(**values), capture_output=True, text=True, timeout=60
    )


class Quickstart:
    """One run of the command; its lines arrive through a thread, so that waiting can time out."""

    def __init__(self, checkout: Path, port: int) -> None:
        self.lines: list[str] = []
        self.family: list[psutil.Process] = []
        self.servers: list[psutil.Process] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-u", "manage.py", "quickstart", "--no-demo", f"--port={port}"],
            cwd=checkout,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        ready = self.wait_for("The ledger is ready at ")
        self.address = ready.split()[-1]
        # The servers detach from the command that starts them.
        self.servers = [
            process for process in psutil.process_iter() if works_below(process, checkout / "var")
        ]
        self.family = [*self._own(), *self.servers]

    def _own(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def worker(self) -> psutil.Process:
        """The one that runs, or is about to be started; it and all others that came meanwhile join the family."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            own = self._own()
            self.family = list({*self.family, *own})
            for process in own:
                with contextlib.suppress(psutil.Error):
                    if "worker" in process.cmdline():
                        return process
            time.sleep(0.05)
        raise AssertionError("no worker")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line)
        self._arrived.put(None)

    def wait_for(self, start: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = self._arrived.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                line = None
            if line is None:
                self.kill_everything()
                raise AssertionError("quickstart did not come up:\n" + "".join(self.lines))
            self.lines.append(line)
            if line.startswith(start):
                return line

    def is_healthy(self) -> bool:
        with urllib.request.urlopen(f"{self.address}healthz/", timeout=10) as response:
            return response.status == 200

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)

    def kill_everything(self) -> None:
        for process in [self.process, *self.family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(END_SECONDS)

    def survivors(self, seconds: float) -> list[psutil.Process]:
        """What of the family still runs after at most so many seconds."""
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def works_below(process: psutil.Process, directory: Path) -> bool:
    try:
        return Path(process.cwd()).is_relative_to(directory)
    except psutil.Error:
        return False


@contextlib.contextmanager
def quickstart(checkout: Path, port: int) -> Iterator[Quickstart]:
    run = Quickstart(checkout, port)
    try:
        yield run
    finally:
        run.kill_everything()


def add_user(checkout: Path, name: str) -> None:
    done = manage(
        checkout,
        *("createsuperuser", "--noinput", f"--username={name}", f"--email={name}@example.org"),
        DJANGO_SUPERUSER_PASSWORD="long-enough-2026",
    )
    assert done.returncode == 0, done.stderr


def users(checkout: Path) -> list[str]:
    script = (
        "from ledger.models import User; print(*User.objects.order_by('username').values_list('username'))"
    )
    done = manage(checkout, "shell", "--no-imports", "-c", script)
    assert done.returncode == 0, done.stderr
    return [text.strip("(',)") for text in done.stdout.split()]


def test_a_ledger_is_started_ended_and_killed_and_keeps_its_data(checkout: Path, taken_ports: int) -> None:
    """One ledger through all of it: each start brings up seven processes, so each ending leads to the next start."""
    with quickstart(checkout, taken_ports) as first:
        assert first.is_healthy()
        assert any(line.startswith(f"Port {taken_ports} is taken; using ") for line in first.lines)
        second = manage(checkout, "quickstart")
        assert second.returncode == 2
        assert "already runs" in second.stderr and len(second.stderr.splitlines()) == 1
        add_user(checkout, "ann")  # a command beside the running ledger uses its database
        assert first.end(signal.SIGINT) == 0
        assert first.survivors(30) == []
    assert "ann" in users(checkout)  # a command alone starts the database and stops it again
    assert not [process for process in psutil.process_iter() if works_below(process, checkout / "var")]

    with quickstart(checkout, taken_ports) as again:
        assert again.is_healthy()
        assert not any("Creating" in line for line in again.lines)
        assert "ann" in users(checkout)
        add_user(checkout, "bob")
        again.kill_everything()

    # After kill -9 of everything; then with a killed worker.
    with quickstart(checkout, taken_ports) as third:
        assert third.is_healthy()
        assert "bob" in users(checkout)
        killed = third.worker()
        killed.kill()
        assert third.wait_for("worker ended").strip().endswith("starting it again")
        assert third.worker() != killed

        # kill -9 of the command alone leaves nothing that the next run cannot clear.
        third.process.kill()
        third.process.wait()
        with quickstart(checkout, taken_ports) as last:
            assert last.is_healthy()
            # Only the servers may go on: the new run has joined them.
            assert set(third.survivors(20)) <= set(third.servers)
            assert last.end(signal.SIGTERM) == 0
            assert last.survivors(30) == []


def test_production_without_a_secret_key_refuses_to_start(checkout: Path) -> None:
    done = manage(checkout, "check", LEDGER_DEBUG="0")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "manage.py: LEDGER_SECRET_KEY is not set and debug is off: set it to a long random text."
    ]
    web = subprocess.run(
        [sys.executable, "-c", "import ledger.config.wsgi"],
        cwd=checkout,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert web.returncode != 0
    assert "LEDGER_SECRET_KEY is not set" in web.stderr
