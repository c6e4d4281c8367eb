"""Periodic collecting. `ingest.tasks` imports this module, so that workers and beat find it."""

from __future__ import annotations

import logging

from celery import shared_task

from ingest.collectors.configured import every_ms, is_collected, present_ms
from ingest.collectors.contract import CollectorError
from ingest.collectors.running import Busy, collect
from ingest.services.booking import book_batch
from ledger.models import Source

log = logging.getLogger(__name__)

BEAT_SCHEDULE = {
    "ingest-collect-sources": {"task": "ingest.collect_sources", "schedule": 15.0},
}


@shared_task(name="ingest.collect_sources")
def collect_sources() -> None:
    """Ask for every source whose time has come and that nobody collects right now."""
    now_ms = present_ms()
    for source in Source.objects.filter(name__isnull=False, retired_at__isnull=True).order_by("pk"):
        last_ms = source.state.get("last", {}).get("at_ms", 0)
        claimed = source.state.get("claimed_until_ms", 0) > now_ms
        if is_collected(source) and not claimed and now_ms - last_ms >= every_ms(source):
            collect_source.delay(source.pk)


@shared_task(name="ingest.collect_source")
def collect_source(source_id: int) -> None:
    """Collect one source and book what came. Sent twice, the second finds it claimed."""
    source = Source.objects.get(pk=source_id)
    try:
        for step in collect(source):
            for batch_id in step.batches:
                book_batch(batch_id)
    except Busy:
        return
    except CollectorError as error:
        log.warning("%s", error)  # it stands in the source's state, too, where the page shows it
