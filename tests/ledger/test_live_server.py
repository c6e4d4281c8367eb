"""The server of tests with a browser (tests/fixtures/live_server.py)."""

from __future__ import annotations

import time
from http.client import HTTPConnection

import pytest
from django.db import connection
from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

END_SECONDS = 30.0


def sessions() -> int:
    """Others' of this database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def test_a_server_that_stops_leaves_no_session_though_its_client_stays_connected() -> None:
    before = sessions()
    server = LiveServer("localhost")
    client = HTTPConnection(server.thread.host, server.thread.port, timeout=END_SECONDS)
    try:
        client.request("GET", "/healthz/")
        answer = client.getresponse()
        answer.read()
        assert (answer.status, answer.will_close) == (200, False)
        assert sessions() == before + 1
        server.stop()
        deadline = time.monotonic() + END_SECONDS  # the database's own process ends a moment after its client
        while sessions() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sessions() == before
    finally:
        client.close()
