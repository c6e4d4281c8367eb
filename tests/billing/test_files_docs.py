"""What docs/files.md shows of reading the files runs as it stands there: curl, DuckDB, pandas where there is one."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from django.conf import settings
from pytest_django.live_server_helper import LiveServer

from ledger.models import Role
from ledger.services.tokens import create_api_token
from tests.billing.page_books import MONTH, make_books

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def shown(reader: str) -> str:
    """The block of code under `reader:`, three lines at most, blank ones not counted."""
    text = (settings.BASE_DIR / "docs" / "files.md").read_text()
    found = re.search(rf"^{reader}:\n\n```\w+\n(.*?)```", text, re.M | re.S)
    assert found is not None, f"docs/files.md shows no {reader}"
    code = found[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 3
    return code


def python_with_pandas() -> str | None:
    """This one, or that of the official FOCUS validator's environment, which .ci/run provides."""
    if importlib.util.find_spec("pandas"):
        return sys.executable
    validator = shutil.which("focus-validator")
    return None if validator is None else str(Path(validator).resolve().parent / "python")


def run(*command: str, at: Path) -> str:
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT CHECKED: there is no curl")
def test_the_files_are_read_as_the_docs_show(live_server: LiveServer, tmp_path: Path) -> None:
    make_books()
    _, secret = create_api_token("reader", Role.AUDITOR)
    commands = shown("curl").replace("https://ledger.example", live_server.url)
    run("sh", "-ec", f"TOKEN={secret}\n{commands}", at=tmp_path)
    file = tmp_path / f"{MONTH}-focus-1.4.csv"
    sums: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    with file.open(newline="") as rows:
        for row in csv.DictReader(rows):
            sums[row["SubAccountId"], row["x_Category"]] += Decimal(row["BilledCost"])
    assert len(sums) > 5
    said = run(sys.executable, "-c", shown("DuckDB"), at=tmp_path)
    assert _figures(said) == sorted(sums.values())
    pandas = python_with_pandas()
    if pandas is not None:
        assert _figures(run(pandas, "-c", shown("pandas"), at=tmp_path)) == sorted(sums.values())


def _figures(said: str) -> list[Decimal]:
    """The last figure of each line that has one."""
    found = [re.search(r"(-?\d+\.\d+)\D*$", line) for line in said.splitlines()]
    return sorted(Decimal(one[1]) for one in found if one is not None)
