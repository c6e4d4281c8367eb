"""A small cluster's books, and sources of it to collect from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from billing.services.configuration import apply_document
from ingest.collectors.contract import Clock, Window
from ingest.collectors.running import Step, collect
from ingest.services.booking import Receipt, book_batch
from ledger.models import Source

POOL = "bj-h100"


def instant(text: str) -> int:
    """RFC 3339 -> milliseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def at(moment: str | int) -> Clock:
    """A clock that stands still."""
    now_ms = instant(moment) if isinstance(moment, str) else moment
    return lambda: now_ms


def configure(adapter: str, collect_table: dict[str, Any], **options: Any) -> Source:
    """The source `it`, of `adapter`, and a pool for everything it sees."""
    apply_document(
        {
            "tenant": [{"slug": "acme"}],
            "pool": [{"slug": POOL, "cluster": "bj", "gpu_model": "H100"}],
            "policy": [{"valid_from": datetime(2020, 1, 1, tzinfo=UTC)}],
            "source": [
                {
                    "name": "it",
                    "adapter": adapter,
                    "uri": f"/clusters/bj/{adapter}",
                    "cluster": "bj",
                    "pool": POOL,
                    "options": {**options, "collect": collect_table},
                }
            ],
        },
        retroactive=True,
    )
    return Source.objects.get(name="it")


def run(source: Source, clock: Clock, window: Window | None = None) -> list[Step]:
    return list(collect(source, window, clock))


def book(steps: list[Step]) -> list[Receipt]:
    receipts = [book_batch(batch_id) for step in steps for batch_id in step.batches]
    return [receipt for receipt in receipts if receipt is not None]
