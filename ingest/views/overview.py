"""Pages of what came in, for those who run or check the ledger."""

from __future__ import annotations

import zlib
from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils import timezone

from ingest.models import Batch
from ingest.selectors.identities import count_unmapped
from ingest.selectors.pages import batches, booked_from, intake, open_quarantine
from ingest.selectors.sources import known_sources, source_rows
from ingest.tables import batches_table, booked_table, quarantine_table, quarantined_table, sources_table
from ledger.selectors.silence import silent_sources
from ledger.views.page import runs_the_ledger
from ledger.views.tables import Table, TablePage

RAW_BYTES_SHOWN = 64 * 1024


class OverviewPage(TablePage):
    """Sources with their watermarks, what was refused and why, and the batches."""

    template = "ingest/overview.html"
    allows = staticmethod(runs_the_ledger)

    def tables(self) -> list[Table]:
        return [
            quarantine_table(open_quarantine, can_act=self.access.may_tend_sources),
            sources_table(lambda: source_rows(known_sources())),
            batches_table(batches),
        ]

    def context(self) -> dict[str, Any]:
        return {
            "intake": intake(),
            "unmapped": count_unmapped(),
            "silent": silent_sources(timezone.now()),
            "can_act": self.access.may_tend_sources,
        }


class BatchPage(TablePage):
    """One batch: its counts, what of it is in quarantine, and its bytes as they came."""

    template = "ingest/batch.html"
    allows = staticmethod(runs_the_ledger)

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        batch = Batch.objects.filter(pk=kwargs["batch_id"]).first()
        if batch is None:
            raise Http404
        self.batch = batch
        return super().get(request, **kwargs)

    def tables(self, **_: Any) -> list[Table]:
        return [
            quarantined_table(lambda: self.batch.quarantine.order_by("line")),
            booked_table(lambda: booked_from(self.batch)),
        ]

    def context(self, **_: Any) -> dict[str, Any]:
        raw, is_cut = readable(self.batch)
        return {"batch": self.batch, "raw": raw, "is_cut": is_cut}


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
