"""`options.collect` of a source: how its collector reaches what it reads. Every mistake is named in one sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingest.collectors.contract import NotConfigured


class CollectTable:
    """Reads settings by name and type; a name that nobody asks for is a mistake (`refuse_unknown`)."""

    def __init__(self, source_name: str, table: Mapping[str, Any]) -> None:
        self.source_name = source_name
        self._table = table
        self._asked: set[str] = set()

    def text(self, name: str, default: str = "") -> str:
        return str(self._of_type(name, str, default, "a text"))

    def words(self, name: str) -> list[str]:
        words = self._of_type(name, list, [], "a list of texts")
        if not all(isinstance(word, str) for word in words):
            raise self.wrong(name, "must be a list of texts")
        return list(words)

    def texts(self, name: str) -> dict[str, str]:
        """A table of texts, such as HTTP headers."""
        table = self._of_type(name, dict, {}, "a table of texts")
        if not all(isinstance(value, str) for value in table.values()):
            raise self.wrong(name, "must be a table of texts")
        return dict(table)

    def whole(self, name: str, default: int, least: int = 0) -> int:
        number = self._of_type(name, int, default, "a whole number")
        if isinstance(number, bool) or number < least:
            raise self.wrong(name, f"must be a whole number, at least {least}")
        return int(number)

    def secret(self, name: str) -> str:
        """A secret is never written in the table: `<name>_file` names its file, `<name>_env` its variable."""
        file, variable = self.text(f"{name}_file"), self.text(f"{name}_env")
        if file:
            try:
                return Path(file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self.wrong(f"{name}_file", f"cannot be read: {error}") from error
        if variable and variable not in os.environ:
            raise self.wrong(f"{name}_env", f"names {variable}, which is not set")
        return os.environ[variable] if variable else ""

    def refuse_unknown(self) -> None:
        unknown = sorted(self._table.keys() - self._asked)
        if unknown:
            raise self.wrong(unknown[0], f"is not known here; known: {', '.join(sorted(self._asked))}")

    def wrong(self, name: str, why: str) -> NotConfigured:
        return NotConfigured(f"source {self.source_name!r}: options.collect.{name} {why}")

    def _of_type(self, name: str, kind: type, default: Any, what: str) -> Any:
        self._asked.add(name)
        value = self._table.get(name, default)
        if not isinstance(value, kind):
            raise self.wrong(name, f"must be {what}")
        return value
