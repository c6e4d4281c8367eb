"""The first command on a machine where nothing was run before, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg import sql

CONFIG = """
[[tenant]]
slug = "acme"
"""
EMPTY = "ledger_without_tables"


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.endswith(("DATABASE_URL", "BROKER_URL"))
    }
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=settings.BASE_DIR,
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_first_commands_at_once_make_the_tables_once_and_work(tmp_path: Path) -> None:
    config = tmp_path / "ledger.toml"
    config.write_text(CONFIG)
    var = {"LEDGER_VAR": str(tmp_path / "var")}
    both = [start("apply_config", str(config), **var), start("verify_ledger", **var)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert "+ tenant acme" in answers[0][0]
    assert all("Traceback" not in errors for _, errors in answers)
    again = start("apply_config", str(config), **var)
    output, errors = again.communicate(timeout=120)
    assert (again.returncode, errors) == (0, ""), output


@pytest.fixture
def empty_database(django_db_setup: None) -> str:
    values = connection.get_connection_params()
    address = {name: values[name] for name in ("host", "port", "user", "password") if values.get(name)}
    with psycopg.connect(**address, dbname="postgres", autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(EMPTY)))
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(EMPTY)))
    who = f"{address['user']}:{address['password']}" if "password" in address else address["user"]
    return f"postgres://{who}@{address['host']}:{address['port']}/{EMPTY}"


@pytest.mark.postgres
def test_a_database_that_others_tend_is_left_alone_and_named_in_one_line(empty_database: str) -> None:
    process = start("verify_ledger", DATABASE_URL=empty_database)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert errors == "verify_ledger: the database's tables are not up to date; run manage.py migrate first\n"
