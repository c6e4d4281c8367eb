"""Django app of the doors through which facts enter."""

from django.apps import AppConfig


class IngestApp(AppConfig):
    name = "ingest"
    verbose_name = "Ingest"
    default_auto_field = "django.db.models.BigAutoField"
