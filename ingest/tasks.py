"""Celery tasks of ingest: translate a message into one service call."""

from __future__ import annotations

import logging
import queue
import threading

from celery import current_app, shared_task
from django.utils import timezone

from ingest.collectors import tasks as collecting
from ingest.services import booking, gpu_time, inbox, pruning

log = logging.getLogger(__name__)

BEAT_SCHEDULE = {
    "ingest-sweep-inbox": {"task": "ingest.sweep_inbox", "schedule": 15.0},
    "ingest-attribute-gpu-time": {"task": "ingest.attribute_gpu_time", "schedule": 600.0},
    "ingest-make-partitions": {"task": "ingest.make_partitions", "schedule": 6 * 3600.0},
    "ingest-forget-bodies": {"task": "ingest.forget_bodies", "schedule": 24 * 3600.0},
    **collecting.BEAT_SCHEDULE,
}


@shared_task(name="ingest.book_batch")
def book_batch(batch_id: int) -> None:
    """Book one batch. Any worker may get the same message twice; the batch is booked once."""
    booking.book_batch(batch_id)


@shared_task(name="ingest.sweep_inbox")
def sweep_inbox() -> None:
    """Send again what a lost broker or a dead worker left behind."""
    for batch_id in inbox.take_left_behind():
        book_batch.delay(batch_id)


@shared_task(name="ingest.attribute_gpu_time")
def attribute_gpu_time() -> None:
    """Divide engines' busy time over the requests they served, where their source asks for it."""
    for source in gpu_time.sources_that_ask():
        batch_id = gpu_time.attribute_gpu_time(source, timezone.now())
        if batch_id is not None:
            request_booking(batch_id)


@shared_task(name="ingest.make_partitions")
def make_partitions() -> None:
    """The partitions of the days to come."""
    pruning.make_partitions(timezone.now())


@shared_task(name="ingest.forget_bodies")
def forget_bodies() -> None:
    """Raw bytes of batches past their retention."""
    pruning.forget_bodies(timezone.now())


# --- publishing without waiting -----------------------------------------------------------------------------

_outgoing: queue.SimpleQueue[int] = queue.SimpleQueue()
_publisher_lock = threading.Lock()
_publisher: threading.Thread | None = None


def request_booking(batch_id: int) -> None:
    """Ask for a batch to be booked soon. Returns at once, whatever state the broker is in.

    A thread of its own talks to the broker, since a host that does not answer takes seconds to be noticed. What it
    cannot deliver, the sweep finds.
    """
    if current_app.conf.task_always_eager:
        book_batch.delay(batch_id)
        return
    _outgoing.put(batch_id)
    _ensure_publisher()


def _ensure_publisher() -> None:
    global _publisher
    with _publisher_lock:
        # Not alive also after a fork: threads stay behind in the parent.
        if _publisher is None or not _publisher.is_alive():
            _publisher = threading.Thread(target=_publish_forever, name="publish-batches", daemon=True)
            _publisher.start()


def _publish_forever() -> None:
    while True:
        batch_id = _outgoing.get()
        try:
            book_batch.delay(batch_id)
        except Exception as error:  # any broker fails in its own way; the sweep is the answer to all
            log.warning("batch %s is left to the sweep: %s", batch_id, error)
