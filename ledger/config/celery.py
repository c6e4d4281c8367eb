"""The Celery application. Workers start with `celery -A ledger.config.celery:app worker`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

app = Celery("ledger")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["ledger", "billing", "ingest"])
