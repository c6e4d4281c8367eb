"""What a month's line and a statement's line both keep of a computed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from billing.core.rating_lines import Line
from ledger.core.periods import to_datetime
from ledger.models import Pool


def columns_of(line: Line, pools: Mapping[str, Pool]) -> dict[str, Any]:
    """Values of the columns that both tables have, by name; pools: by slug."""
    pool = pools.get(line.pool)
    return {
        "key": line.key,
        "kind": line.kind,
        "pool": line.pool,
        "cluster": pool.cluster if pool else "",
        "gpu_model": pool.gpu_model if pool else "",
        "service": line.service,
        "model": line.model,
        "service_class": line.service_class,
        "purpose": line.purpose,
        "category": line.category,
        "service_idle": line.service_idle,
        "version_from": to_datetime(line.version_from_ms),
        "quantity": line.quantity,
        "unit": line.unit,
        "unit_price_micro": line.unit_price_micro,
        "amount_micro": line.amount_micro,
        "full_amount_micro": line.full_amount_micro,
        "preemptions": list(line.preemptions),
    }
