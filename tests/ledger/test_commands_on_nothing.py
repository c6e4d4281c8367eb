"""Every command on a ledger that holds nothing: an answer or one clear line, never a traceback."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

OURS = sorted(name for name, app in get_commands().items() if app in ("ledger", "billing", "ingest"))
MONTH = "2026-10"
# What each is asked, and how it ends.
ASKED: dict[str, tuple[list[str], int]] = {
    "apply_config": (["CONFIG"], 0),
    "check_source": (["nothing"], 2),
    "close_month": ([MONTH], 2),
    "collect": (["nothing"], 2),
    "compute_allocation": ([MONTH], 0),
    "create_api_token": (["ci", "--role", "auditor"], 0),
    "evaluate_alerts": ([], 0),
    "export_evidence": ([MONTH], 2),
    "export_journal": ([MONTH, "--format", "csv"], 2),
    "export_statement": ([MONTH, "acme", "--format", "bill"], 2),
    "import_events": (["EVENTS"], 0),
    "import_load_test": (["RUNS"], 2),
    "map_identity": (["k8s_namespace", "team-a", "acme"], 2),
    "open_dispute": ([MONTH, "acme", "--reason", "not ours"], 2),
    "open_review": ([MONTH], 0),
    "prune_requests": (["--dry-run"], 0),
    "retry_quarantine": ([], 0),
    "revoke_api_token": (["ci"], 2),
    "verify_ledger": ([], 0),
}
# They start servers, write to the checkout, or make a month that tests of their own look at.
ELSEWHERE = {"quickstart", "update_catalogue", "load_demo_month"}


def test_every_command_is_asked() -> None:
    assert set(OURS) == ASKED.keys() | ELSEWHERE


@pytest.mark.parametrize("name", sorted(ASKED))
def test_it_answers_or_says_in_one_line_what_is_missing(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    files = {"CONFIG": "", "EVENTS": '{"specversion":"1.0"}\n', "RUNS": "nonsense\n"}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    command = load_command_class(get_commands()[name], name)
    output, errors = io.StringIO(), io.StringIO()
    command.stdout._out, command.stderr._out = output, errors  # type: ignore[attr-defined]
    arguments, expected = ASKED[name]
    try:
        command.run_from_argv(["manage.py", name, *arguments])
        code: Any = 0
    except SystemExit as left:
        code = left.code
    said = errors.getvalue()
    assert (code, "Traceback" in said) == (expected, False), (output.getvalue(), said)
    if expected == 2:
        assert said.count("\n") == 1 and said.startswith(f"{name}: ")
