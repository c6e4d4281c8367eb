"""Deliveries as they came, for whoever has to prove something (wired by the setting RAW_BATCHES)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.models import Batch
from ledger.inbox import RawBatch


def raw_batches(ids: Iterable[int]) -> Iterator[RawBatch]:
    """In order of their ids; ids that are not in the inbox are left out."""
    rows = Batch.objects.filter(pk__in=sorted(set(ids))).order_by("pk")
    for row in rows.iterator(chunk_size=1):
        body = None if row.body is None else bytes(row.body)
        yield RawBatch(row.pk, row.content_type, row.content_encoding, row.adapter, row.body_sha256, body)
