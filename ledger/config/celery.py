"""The Celery application. Workers start with `celery -A ledger.config.celery:app worker`."""

import importlib
import importlib.util
import os
from typing import Any

from celery import Celery
from kombu import Connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

from django.conf import settings

from ledger.embedded import valkey_in

APPS_WITH_TASKS = ["ledger", "billing", "ingest"]


def broker_url() -> str:
    """The configured broker, else the embedded one, which this starts if nobody has."""
    if settings.BROKER_URL:
        return str(settings.BROKER_URL)
    server = valkey_in(settings.VAR_DIR)
    return server.url(server.acquire())


class LedgerCelery(Celery):
    """Celery that asks for the broker's address when it connects, so that importing it starts nothing."""

    def connection_for_read(self, url: str | None = None, **kwargs: Any) -> Connection:
        return super().connection_for_read(url or broker_url(), **kwargs)

    def connection_for_write(self, url: str | None = None, **kwargs: Any) -> Connection:
        return super().connection_for_write(url or broker_url(), **kwargs)


app = LedgerCelery("ledger")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(APPS_WITH_TASKS)


@app.on_after_finalize.connect
def collect_schedules(sender: Celery, **kwargs: Any) -> None:
    """Give beat what each `tasks.py` declares as `BEAT_SCHEDULE`, beside the tasks it names."""
    schedule = dict(sender.conf.beat_schedule)  # a copy: the default is one object for all applications
    for name in APPS_WITH_TASKS:
        if importlib.util.find_spec(f"{name}.tasks"):
            tasks = importlib.import_module(f"{name}.tasks")
            schedule.update(getattr(tasks, "BEAT_SCHEDULE", {}))
    sender.conf.beat_schedule = schedule
