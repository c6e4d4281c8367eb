"""`manage.py check --deploy` on the settings of production, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from django.conf import settings

PRODUCTION = {
    "LEDGER_DEBUG": "0",
    "LEDGER_SECRET_KEY": "pq3b8V0xk2mYw7Zr9TnL4dFh6JsC1aGuQe5XoKiBtMzNyRvWlD",
    "LEDGER_ALLOWED_HOSTS": "ledger.example.org",
    "LEDGER_HSTS_SECONDS": "31536000",
    "DATABASE_URL": "postgres://ledger@127.0.0.1:1/ledger",
    "BROKER_URL": "redis://127.0.0.1:1/0",
}


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The browser tests of this process set it for themselves.
    inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_ALLOW_ASYNC_UNSAFE"}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=settings.BASE_DIR,
        env={**inherited, **PRODUCTION, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_warned_of() -> None:
    checked = manage("check", "--deploy", "--fail-level", "INFO")
    assert (checked.returncode, checked.stdout.strip()) == (
        0,
        "System check identified no issues (0 silenced).",
    ), checked.stderr


def test_openid_needs_all_its_addresses() -> None:
    checked = manage("check", LEDGER_OIDC_CLIENT_ID="ledger")
    assert checked.returncode != 0
    assert "LEDGER_OIDC_CLIENT_ID needs the four" in checked.stderr


def test_roles_of_groups_are_pairs() -> None:
    checked = manage("check", LEDGER_OIDC_ROLES="finance")
    assert checked.returncode != 0
    assert "LEDGER_OIDC_ROLES must be pairs" in checked.stderr


def test_a_driver_that_does_not_load_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('its library is of another machine')")
    checked = manage("check", PYTHONPATH=str(tmp_path))
    assert checked.returncode == 2
    (line,) = checked.stderr.splitlines()
    assert line.startswith("manage.py: ") and "its library is of another machine" in line
