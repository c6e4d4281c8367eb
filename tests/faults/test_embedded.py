"""Embedded servers shared by processes that come, go and die."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from django.conf import settings

from ledger.embedded import EmbeddedPostgres, EmbeddedValkey
from ledger.embedded.processes import LOOPBACK
from ledger.embedded.service import Endpoint

USER_PROGRAM = """
import sys
from pathlib import Path
from ledger.embedded import EmbeddedValkey
server = EmbeddedValkey(Path(sys.argv[1]))
print(server.acquire().pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path_factory.mktemp("my server") / "postgres", durable=False)
    yield server
    server.release()


def start_user(home: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that uses the server until its standard input ends; gives it and the server's pid."""
    user = subprocess.Popen(
        [sys.executable, "-c", USER_PROGRAM, str(home)],
        cwd=settings.BASE_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert user.stdout is not None
    return user, int(user.stdout.readline())


def leave(user: subprocess.Popen[str]) -> None:
    user.communicate(timeout=20)
    assert user.returncode == 0


def test_users_share_a_server_and_the_last_one_stops_it(tmp_path: Path) -> None:
    starter, pid = start_user(tmp_path / "valkey")
    joiner, same = start_user(tmp_path / "valkey")
    assert same == pid
    leave(starter)
    assert EmbeddedValkey(tmp_path / "valkey").running() is not None
    leave(joiner)
    assert not psutil.pid_exists(pid)


def test_a_killed_user_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    killed, pid = start_user(tmp_path / "valkey")
    killed.kill()
    killed.wait()
    heir, same = start_user(tmp_path / "valkey")
    assert same == pid
    leave(heir)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def answers(server: EmbeddedPostgres, endpoint: Endpoint) -> bool:
    with psycopg.connect(
        host=LOOPBACK,
        port=endpoint.port,
        user="ledger",
        password=server.password(),
        dbname="ledger",
    ) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def test_postgres_comes_back_after_kill_9_beside_a_pid_that_belongs_to_another_program(
    postgres: EmbeddedPostgres,
) -> None:
    endpoint = postgres.acquire()
    assert answers(postgres, endpoint)
    server = psutil.Process(endpoint.pid)
    family = [server, *server.children(recursive=True)]
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=10)
    pid_file = postgres.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    again = postgres.acquire()
    assert again.pid != endpoint.pid
    assert again.port == endpoint.port
    assert answers(postgres, again)


def test_postgres_wants_its_password_and_sorts_by_bytes(postgres: EmbeddedPostgres) -> None:
    endpoint = postgres.acquire()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(host=LOOPBACK, port=endpoint.port, user="ledger", password="guess", dbname="ledger")
    with psycopg.connect(
        host=LOOPBACK, port=endpoint.port, user="ledger", password=postgres.password(), dbname="ledger"
    ) as connection:
        rows = connection.execute("SELECT x FROM unnest(ARRAY['b', 'B', 'a-1', 'a1', 'é']) x ORDER BY x")
        assert [x for (x,) in rows] == sorted(["b", "B", "a-1", "a1", "é"], key=str.encode)
