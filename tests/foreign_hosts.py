"""Fails when a template, style or script of ours makes the browser load something from another host.

Links that a person may click are fine; whatever a page fetches by itself is not.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)\s*=\s*["']?(?:https?:)?//
      | <link\b[^>]*?\bhref\s*=\s*["']?(?:https?:)?//
      | (?:url\(|@import)\s*["']?(?:https?:)?//
      | \b(?:fetch|import|importScripts|EventSource|WebSocket)\(\s*["'`](?:https?:|wss?:)?//
      | \bhx-(?:get|post|put|patch|delete)\s*=\s*["'](?:https?:)?//""",
    re.IGNORECASE | re.VERBOSE,
)
SUFFIXES = {".html", ".css", ".js", ".svg", ".txt"}
ROOTS = ("templates", "ledger", "billing", "ingest")


def foreign_references(base: Path) -> Iterator[str]:
    """One line per reference, as `file:line: text`."""
    for root in ROOTS:
        for path in sorted((base / root).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            text = path.read_text(encoding="utf-8")
            for match in FETCHED.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(base)}:{line}: {match.group().strip()}"


if __name__ == "__main__":
    found = list(foreign_references(Path(__file__).resolve().parent.parent))
    print("\n".join(found) or "none")
    sys.exit(bool(found))
