"""Everything with one command: servers, tables, a demo month, worker, beat and web (interfaces.md)."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection

from ledger.demo_logins import demo_logins
from ledger.embedded import postgres_in, valkey_in
from ledger.management.base import BadInput, CommandFailed, LedgerCommand
from ledger.management.supervisor import Child, ChildFailed, Supervisor
from ledger.management.tables import bring_up_to_date
from ledger.models import Event, Tenant

READY_SECONDS = 60.0
PORTS_TRIED = 50
CELERY = [sys.executable, "-m", "celery", "-A", "ledger.config.celery:app"]


class Command(LedgerCommand):
    needs_tables = False  # it says itself when it makes them
    help = (
        "Start everything: the embedded PostgreSQL and Valkey (unless DATABASE_URL and BROKER_URL name others), "
        "migrations, a demo month if the database is empty, a worker with beat and the web server. "
        "Ctrl-C stops all of it."
    )
    example = "manage.py quickstart --port 8000"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default=settings.WEB_HOST, help="address to listen on (%(default)s)")
        parser.add_argument(
            "--port",
            type=int,
            default=settings.WEB_PORT,
            help="first port to try (%(default)s); a taken one moves it to the next",
        )
        parser.add_argument("--no-demo", action="store_true", help="leave an empty database empty")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 < options["port"] < 65536:
            raise BadInput(f"--port must lie between 1 and 65535, not {options['port']}")
        self.stop = StopRequest()
        with only_one_of(settings.VAR_DIR):
            supervisor = Supervisor(settings.VAR_DIR, settings.BASE_DIR, child_environment())
            left_behind = supervisor.clear_leftovers()
            if left_behind:
                self.say(f"Ended {left_behind} processes that an earlier run left behind")
            try:
                self.run_all(supervisor, options)
            except KeyboardInterrupt:
                pass  # asked to stop while still preparing
            except ChildFailed as error:
                raise CommandFailed(str(error)) from None
            finally:
                self.stop.only_note()
                self.wind_down(supervisor)

    def run_all(self, supervisor: Supervisor, options: dict[str, Any]) -> None:
        self.start_servers()
        self.say("Bringing the tables up to date")
        bring_up_to_date()
        if not options["no_demo"]:
            self.load_demo()
        # From here on a signal is only noted: an exception between fork and bookkeeping would lose a child.
        self.stop.only_note()
        address = self.start_processes(supervisor, options["host"], options["port"])
        if not self.stop.asked.is_set():
            self.welcome(address)
        connection.close()  # the loop below may last for weeks and needs none
        while not self.stop.asked.wait(1):
            supervisor.restart_dead(self.say)
            self.keep_servers()

    def start_servers(self) -> None:
        if settings.DATABASE_URL:
            self.say("Database: the server that DATABASE_URL names")
        else:
            self.say(f"Database: embedded PostgreSQL in {settings.VAR_DIR}")
            postgres_in(settings.VAR_DIR).acquire(self.say)
        if settings.BROKER_URL:
            self.say("Broker: the server that BROKER_URL names")
        else:
            self.say(f"Broker: embedded Valkey in {settings.VAR_DIR}")
            valkey_in(settings.VAR_DIR).acquire(self.say)

    def keep_servers(self) -> None:
        """Bring an embedded server that died back; costs two process look-ups and a ping."""
        if not settings.DATABASE_URL:
            postgres_in(settings.VAR_DIR).acquire(self.say)
        if not settings.BROKER_URL:
            valkey_in(settings.VAR_DIR).acquire(self.say)

    def load_demo(self) -> None:
        # The mark tells a demo month whose loading was cut short from data that somebody brought.
        unfinished = settings.VAR_DIR / "demo_unfinished"
        is_empty = not Event.objects.exists() and not Tenant.objects.exists()
        if not is_empty and not unfinished.exists():
            self.say("The database holds data already; no demo month is loaded")
            return
        self.say("Loading a demo month, and the running one up to now, through the ordinary ingest path")
        unfinished.touch()
        call_command("load_demo_month", running=True, stdout=self.stdout, stderr=self.stderr)
        unfinished.unlink()

    def start_processes(self, supervisor: Supervisor, host: str, first_port: int) -> str:
        """Start worker, beat and web; returns the web address once all of them are ready."""
        self.say("Starting the worker and beat")
        worker = supervisor.start(
            "worker", [*CELERY, "worker", "--concurrency=2", "--loglevel=INFO", "--without-gossip"]
        )
        Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)  # WhiteNoise warns when it is not there
        schedule = settings.VAR_DIR / "celerybeat-schedule"
        supervisor.start("beat", [*CELERY, "beat", "--loglevel=INFO", "--pidfile=", f"--schedule={schedule}"])
        port = self.choose_port(host, first_port)
        self.say(f"Starting the web server on port {port}")
        web = supervisor.start("web", gunicorn(host, port))
        address = f"http://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{port}/"
        is_asked = self.stop.asked.is_set
        supervisor.wait_for(web, lambda: is_asked() or answers(f"{address}healthz/"), READY_SECONDS)
        supervisor.wait_for(worker, lambda: is_asked() or is_consuming(worker), READY_SECONDS)
        return address

    def choose_port(self, host: str, first: int) -> int:
        for port in range(first, min(first + PORTS_TRIED, 65536)):
            if is_free(host, port):
                if port != first:
                    self.say(f"Port {first} is taken; using {port}")
                return port
        raise CommandFailed(f"no free port from {first} on; name one with --port")

    def welcome(self, address: str) -> None:
        self.say(f"\nThe ledger is ready at {address}")
        logins = demo_logins()
        if logins:
            self.say("\nDemo logins:")
            for login in logins:
                self.say(f"  {login.role:<14} {login.username:<14} password {login.password}")
        else:
            self.say("Sign in with an account of yours (manage.py createsuperuser makes one)")
        self.say("\nCtrl-C stops everything; the data stays in " + str(settings.VAR_DIR))

    def wind_down(self, supervisor: Supervisor) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self.say("\nStopping")
        supervisor.stop()
        connection.close()
        # `stop_if_unused` is for a server that was started and not yet joined when the signal came.
        if not settings.BROKER_URL:
            valkey_in(settings.VAR_DIR).release()
            valkey_in(settings.VAR_DIR).stop_if_unused()
        if not settings.DATABASE_URL:
            postgres_in(settings.VAR_DIR).release()
            postgres_in(settings.VAR_DIR).stop_if_unused()
        with contextlib.suppress(OSError):
            self.say("Stopped")

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


class StopRequest:
    """Ctrl-C, a service manager or a closing terminal: each asks to stop, in every phase of the run."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._interrupts = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(signal.SIGHUP, self._receive)

    def only_note(self) -> None:
        """End the phase in which a signal interrupts what is going on."""
        self._interrupts = False

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.asked.set()
        if self._interrupts:
            raise KeyboardInterrupt


@contextlib.contextmanager
def only_one_of(var: Path) -> Iterator[None]:
    """Hold the directory for this run; the kernel lets go of it whatever ends the run."""
    var.mkdir(parents=True, exist_ok=True)
    with (var / "quickstart.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"quickstart already runs on {var}; stop it first or set LEDGER_VAR") from None
        yield


def child_environment() -> dict[str, str]:
    """What worker, beat and web are told: this process's settings, and plain http on this machine."""
    ours = {"LEDGER_SECRET_KEY": settings.SECRET_KEY, "LEDGER_VAR": str(settings.VAR_DIR)}
    defaults = {"LEDGER_DEBUG": "0", "LEDGER_HTTPS": "0", "PYTHONUNBUFFERED": "1"}
    return {**defaults, **os.environ, **ours}


def gunicorn(host: str, port: int) -> list[str]:
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Its control socket would lie in the home directory, one for all ledgers of the account.
    options = [
        "--no-control-socket",
        "--workers=2",
        "--threads=4",
        "--timeout=120",
        "--graceful-timeout=10",
        "--access-logfile=-",
    ]
    return [sys.executable, "-m", "gunicorn", "ledger.config.wsgi", "--bind", bind, *options]


def is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError:
            raise BadInput(f"port {port} needs more rights; choose one above 1023 with --port") from None
        except OSError:
            return False
    return True


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def is_consuming(worker: Child) -> bool:
    return " ready." in worker.log_text()
