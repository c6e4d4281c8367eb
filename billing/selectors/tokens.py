"""Reads of tokens and measured GPU time (interfaces.md, `GET usage/tokens/`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from billing.sql.reports import TOKENS
from ledger.core.periods import Span, to_datetime

TOKEN_DIMENSIONS = ("tenant", "pool", "service", "model")


@dataclass(frozen=True)
class TokenRow:
    """Sums of what requests stated; `missing` counts requests that stated no input or output tokens."""

    starts_at: datetime
    dimensions: dict[str, str]
    requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    gpu_us: int
    missing: int


def tokens(
    window: Span,
    zone: str,
    *,
    by: tuple[str, ...],
    step: str = "all",
    filters: dict[str, list[str]] | None = None,
    tenant_ids: frozenset[int] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> list[TokenRow]:
    """Rows in a stable order. One query over hourly roll-ups, however many requests there were."""
    parameters: dict[str, Any] = {
        "from": to_datetime(window.start_ms),
        "to": to_datetime(window.end_ms),
        "zone": zone,
        "by": list(by),
        "step": step,
        "tenant_ids": None if tenant_ids is None else sorted(tenant_ids),
        "offset": offset,
        "limit": limit,
        **{name: (filters or {}).get(name) for name in TOKEN_DIMENSIONS},
    }
    with connection.cursor() as cursor:
        cursor.execute(TOKENS, parameters)
        found = cursor.fetchall()
    return [
        TokenRow(row[0], {name: row[1 + TOKEN_DIMENSIONS.index(name)] for name in by}, *map(int, row[5:]))
        for row in found
    ]
