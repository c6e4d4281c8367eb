"""Processes, ports and file modes: what both embedded servers need from the operating system."""

import contextlib
import importlib.util
import os
import pwd
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ledger.embedded.service import EmbeddedServiceError, Report

LOOPBACK = "127.0.0.1"
UNPRIVILEGED_USER = "nobody"

T = TypeVar("T")


def package_directory(package: str) -> Path:
    """Where an installed package lies; importing these two would patch clients, warn and cost time."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServiceError(f"The package {package} is not installed; run `make install`.")
    return Path(spec.submodule_search_locations[0])


def free_port(preferred: int = 0) -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment: the preferred one if it is free."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                return int(probe.getsockname()[1])
    raise EmbeddedServiceError(f"No free port on {LOOPBACK}.")


def remembered_port(note: Path) -> int:
    """The port noted at the last start if it is free, else any free one, which is noted.

    Users that were told the address once, such as a worker by BROKER_URL, thus find a restarted server.
    """
    previous = note.read_text().strip() if note.exists() else ""
    port = free_port(int(previous) if previous.isdigit() else 0)
    note.write_text(f"{port}\n")
    return port


def find_process(pid: int, name: str) -> psutil.Process | None:
    """The live process with this id, unless the id was taken over by some other program."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith(name):
            return None
    except psutil.Error:
        return None
    return process


def stop_process(process: psutil.Process, signals: list[tuple[signal.Signals, float]]) -> None:
    """Send each signal in turn and wait its seconds, until the process is gone."""
    for number, patience_seconds in signals:
        try:
            process.send_signal(number)
            process.wait(patience_seconds)
            return
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            continue


def wait_until(ready: Callable[[], T | None], alive: Callable[[], bool], seconds: float) -> T | None:
    """Poll `ready` until it gives something true; None when the process died or the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        if not alive():
            return None
        time.sleep(0.05)
    return None


def last_lines(path: Path, count: int = 3) -> str:
    """The end of a log in one line, for an error message."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    return " | ".join(line.strip() for line in lines[-count:] if line.strip()) or "the log is empty"


def account_for(directory: Path) -> pwd.struct_passwd | None:
    """The account a server must run as on `directory`; None means the present one.

    PostgreSQL refuses to run as root. Root therefore hands a new directory to `nobody`, which every system
    has, and keeps to the owner of an existing one.
    """
    if os.geteuid() != 0:
        return None
    owner = directory.stat().st_uid if directory.exists() else 0
    try:
        return pwd.getpwuid(owner) if owner else pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        raise EmbeddedServiceError(
            "PostgreSQL refuses to run as root and there is no account to run it as: "
            f"add the account {UNPRIVILEGED_USER!r} or run as an ordinary user."
        ) from None


def run_as(account: pwd.struct_passwd | None) -> dict[str, Any]:
    """Arguments of `subprocess` that make a child run as `account`."""
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def hand_over(directory: Path, account: pwd.struct_passwd) -> None:
    """Give files that root copied or restored to the account that has to use them."""
    if directory.stat().st_uid == account.pw_uid:
        return
    for root, _, files in os.walk(directory):
        for path in [root, *(os.path.join(root, name) for name in files)]:
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def open_the_way(path: Path, report: Report) -> None:
    """Let other accounts pass through (not list) the directories above `path`."""
    for directory in path.resolve().parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            report(f"Letting other accounts pass through {directory}, since PostgreSQL cannot run as root")
            directory.chmod(mode | stat.S_IXOTH)


def open_for_reading(tree: Path) -> None:
    """Let other accounts read and run the programs under `tree` (a strict umask may have closed them)."""
    for root, _, files in os.walk(tree):
        for path in [Path(root), *(Path(root) / name for name in files)]:
            mode = path.stat().st_mode
            wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
            if mode != wanted:
                path.chmod(wanted)
