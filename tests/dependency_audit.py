"""Asks the public advisories about every locked dependency; part of `make check`.

Without the advisory database (no network, a mirror that has none) nothing can be known; that is said loudly and is no
failure, since a build must not depend on a third party being up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parent.parent / "requirements" / "dev.txt"
NOT_RUN = "DEPENDENCY AUDIT NOT RUN: the advisory database does not answer here"


def verdict(report: dict[str, Any] | None) -> tuple[list[str], int]:
    """(lines to print, exit code) for what pip-audit found; None if it could not ask."""
    dependencies = (report or {}).get("dependencies", [])
    asked = [one for one in dependencies if "vulns" in one]
    if not asked:
        return [NOT_RUN], 0
    lines = [
        f"{one['name']} {one['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for one in asked
        for hole in one["vulns"]
    ]
    skipped = sorted(one["name"] for one in dependencies if "vulns" not in one)
    if skipped:
        lines.append(f"not audited, the database does not know them: {', '.join(skipped)}")
    return lines, int(any(one["vulns"] for one in asked))


def report() -> dict[str, Any] | None:
    command = [
        *(sys.executable, "-m", "pip_audit", "-r", str(LOCK)),
        *("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--timeout", "15", "-f", "json"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return found


if __name__ == "__main__":
    lines, code = verdict(report())
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(code)
