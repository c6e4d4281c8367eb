"""Pages of what came in, for those who run or check the ledger."""

from __future__ import annotations

import zlib
from typing import Any

from django.http import Http404

from ingest.models import Batch
from ingest.selectors.pages import intake, open_quarantine, recent_batches, sources
from ledger.views.page import Page, runs_the_ledger

RAW_BYTES_SHOWN = 64 * 1024
QUARANTINE_SHOWN = 100


class OverviewPage(Page):
    """Sources with their watermarks, what was refused and why, and the newest batches."""

    template = "ingest/overview.html"
    allows = staticmethod(runs_the_ledger)

    def context(self, **_: Any) -> dict[str, Any]:
        return {
            "sources": sources(),
            "intake": intake(),
            "quarantine": open_quarantine(),
            "batches": recent_batches(),
        }


class BatchPage(Page):
    """One batch: its counts, what of it is in quarantine, and its bytes as they came."""

    template = "ingest/batch.html"
    allows = staticmethod(runs_the_ledger)

    def context(self, batch_id: int, **_: Any) -> dict[str, Any]:
        batch = Batch.objects.filter(pk=batch_id).first()
        if batch is None:
            raise Http404
        raw, is_cut = readable(batch)
        return {
            "batch": batch,
            "quarantine": batch.quarantine.order_by("line")[:QUARANTINE_SHOWN],
            "raw": raw,
            "is_cut": is_cut,
        }


def readable(batch: Batch) -> tuple[str | None, bool]:
    """The beginning of the batch as text, and whether there is more; None once its bytes are past retention."""
    if batch.body is None:
        return None, False
    body = bytes(batch.body)
    if batch.content_encoding == "gzip":
        try:
            # Only as much as is shown: a small file can unpack to a very large one.
            body = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(body, RAW_BYTES_SHOWN + 1)
        except zlib.error:
            return "", False
    return body[:RAW_BYTES_SHOWN].decode("utf-8", "replace"), len(body) > RAW_BYTES_SHOWN
