"""Starts the processes of `quickstart`, restarts what dies, and lets none of them outlive it."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

GRACE_SECONDS = 15.0
RESTARTS_PER_MINUTE = 5
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ChildFailed(Exception):
    """A process dies as soon as it is started; the message names it and its log."""


def _die_with_parent() -> None:
    # The kernel ends the child even when the supervisor is killed with -9. Only Linux has it; elsewhere
    # `clear_leftovers` of the next run does.
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Child:
    name: str
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: list[float] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Supervisor:
    def __init__(self, directory: Path, working_directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.working_directory = working_directory
        self.environment = environment
        self.children: list[Child] = []
        self._record = directory / "quickstart.json"

    def clear_leftovers(self) -> int:
        """End processes that a killed run left behind; returns how many there were."""
        found = list(filter(None, map(_same_process, self._recorded())))
        for process in found:
            _end_group(process.pid, lambda process=process: process.is_running())  # type: ignore[misc]
        self._record.unlink(missing_ok=True)
        return len(found)

    def start(self, name: str, command: Sequence[str]) -> Child:
        child = Child(name, command, self.directory / "log" / f"{name}.log")
        child.log.parent.mkdir(parents=True, exist_ok=True)
        child.log.unlink(missing_ok=True)
        self.children.append(child)
        self._spawn(child)
        return child

    def wait_for(self, child: Child, ready: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if not child.is_alive:
                raise ChildFailed(f"{child.name} ended while starting; its log is {child.log}")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{child.name} is not ready after {seconds:.0f} s; its log is {child.log}")
            time.sleep(0.1)

    def restart_dead(self, report: Callable[[str], None]) -> None:
        for child in self.children:
            if child.is_alive:
                continue
            recent = [instant for instant in child.started_at if instant > time.monotonic() - 60]
            if len(recent) > RESTARTS_PER_MINUTE:
                raise ChildFailed(f"{child.name} keeps ending; its log is {child.log}")
            assert child.process is not None
            report(f"{child.name} ended (exit {child.process.returncode}); starting it again")
            # What the dead one forked is of no use to its successor.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            self._spawn(child)

    def stop(self) -> None:
        """End the children, the last started first, each with time to finish what it does."""
        for child in reversed(self.children):
            if child.process is not None:
                _end_group(child.process.pid, lambda child=child: child.is_alive)  # type: ignore[misc]
                child.process.poll()
        self._record.unlink(missing_ok=True)

    def _spawn(self, child: Child) -> None:
        with child.log.open("ab") as log:
            child.process = subprocess.Popen(
                child.command,
                cwd=self.working_directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A group of its own: Ctrl-C reaches the supervisor only, and it can end all that a child forked.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        child.started_at.append(time.monotonic())
        self._write_record()

    def _write_record(self) -> None:
        processes = [child.process for child in self.children if child.process is not None]
        record = []
        for process in processes:
            with contextlib.suppress(psutil.Error):
                record.append({"pid": process.pid, "created": psutil.Process(process.pid).create_time()})
        self._record.write_text(json.dumps(record))

    def _recorded(self) -> list[dict[str, float]]:
        try:
            entries = json.loads(self._record.read_text())
        except (OSError, ValueError):
            return []
        return entries if isinstance(entries, list) else []


def _same_process(entry: dict[str, float]) -> psutil.Process | None:
    """The recorded process if it still runs; process ids are used again, creation times are not."""
    try:
        process = psutil.Process(int(entry["pid"]))
        is_same = abs(process.create_time() - entry["created"]) < 1.0
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, KeyError, TypeError):
        return None


def _end_group(pid: int, is_alive: Callable[[], bool]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
