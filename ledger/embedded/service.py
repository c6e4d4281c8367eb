"""How processes share an embedded server: whoever needs it first starts it, the last one out stops it.

Every user holds a shared `flock` on `<name>.users` while it lives. The kernel drops the lock when a process
dies, whatever killed it, so the file never tells of users that are gone. A server that outlived a `kill -9`
of all its users is simply found running by the next one. Starting, joining and leaving happen one at a
time, under an exclusive `flock` on `<name>.lock`.
"""

import atexit
import contextlib
import fcntl
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Report = Callable[[str], None]


class EmbeddedServiceError(Exception):
    """An embedded server cannot be started; the message says why in one line."""


@dataclass(frozen=True)
class Endpoint:
    """Where a running server listens, always on 127.0.0.1."""

    pid: int
    port: int


def say_nothing(line: str) -> None:
    """A `Report` for callers that have no screen."""


class EmbeddedService(ABC):
    """One server in one directory. Safe to use from threads, and again after a fork."""

    name: str

    def __init__(self, home: Path) -> None:
        self.home = home
        self._guard = threading.Lock()
        self._users_fd: int | None = None
        self._user_pid: int | None = None

    # What a concrete server adds.

    @abstractmethod
    def running(self) -> Endpoint | None:
        """Return the endpoint of a server that runs on this directory, waiting for one that is starting."""

    @abstractmethod
    def launch(self, report: Report) -> Endpoint:
        """Clear what a dead server left behind and start one; called under the exclusive lock."""

    @abstractmethod
    def shut_down(self, endpoint: Endpoint) -> None:
        """Stop the server and wait until it is gone; called under the exclusive lock."""

    # What users call.

    def acquire(self, report: Report = say_nothing) -> Endpoint:
        """Join the server, starting it if need be. Repeating it is cheap and notices a server that died."""
        with self._guard, self._exclusive():
            endpoint = self.running() or self.launch(report)
            self._join()
            return endpoint

    def release(self) -> None:
        """Leave; the last user out stops the server. A forked child leaves its parent's hold alone."""
        with self._guard:
            if self._users_fd is None or self._user_pid != os.getpid():
                return
            with self._exclusive():
                if _nobody_else_holds(self._users_fd):
                    endpoint = self.running()
                    if endpoint is not None:
                        self.shut_down(endpoint)
                os.close(self._users_fd)
                self._users_fd = None

    def stop_if_unused(self) -> None:
        """Stop a server whose users all died without leaving."""
        with self._guard, self._exclusive():
            endpoint = self.running()
            fd = os.open(self.home / f"{self.name}.users", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if endpoint is not None and _nobody_else_holds(fd):
                    self.shut_down(endpoint)
            finally:
                os.close(fd)

    def password(self) -> str:
        """The random password of this server: other accounts of the machine can reach its port."""
        return (self.home / "password").read_text().strip()

    def write_password(self) -> None:
        path = self.home / "password"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24))

    # The locks.

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.home / f"{self.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:
            raise EmbeddedServiceError(
                f"{self.home} belongs to another user; set LEDGER_VAR to a directory of your own."
            ) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _join(self) -> None:
        if self._users_fd is not None and self._user_pid == os.getpid():
            return
        # After a fork the inherited descriptor stays open on purpose: closing it changes nothing for the
        # parent, but this process needs a hold of its own to be counted by itself.
        self._users_fd = os.open(self.home / f"{self.name}.users", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._users_fd, fcntl.LOCK_SH)
        self._user_pid = os.getpid()
        atexit.register(self.release)


def _nobody_else_holds(users_fd: int) -> bool:
    """Whether an exclusive lock is to be had; the caller's own shared one becomes it."""
    try:
        fcntl.flock(users_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
