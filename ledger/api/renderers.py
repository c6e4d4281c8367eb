"""`?format=csv` on every list: the same rows, RFC 4180, spreadsheet formulas defused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rest_framework.renderers import BaseRenderer

from ledger.core.csv_cells import cell


class CsvRenderer(BaseRenderer):
    """A page of results as CSV; the cursor of the next page stands in the `Link` header."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        rows = data.get("results", [data]) if isinstance(data, dict) else data
        if not rows:
            return b""
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer, lineterminator="\r\n")
        columns = list(rows[0])
        writer.writerow(columns)
        for row in rows:
            writer.writerow([cell(_flat(row[column])) for column in columns])
        return buffer.getvalue().encode()


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=_plain) if isinstance(value, dict | list) else value


def _plain(value: Any) -> str:
    """Instants inside of a cell, as they stand outside of one."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
