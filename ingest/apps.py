"""Django app of the doors through which facts enter."""

from django.apps import AppConfig

from ingest.core.reasons import REASONS


class IngestApp(AppConfig):
    name = "ingest"
    verbose_name = "Ingest"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from ledger.wording import QUARANTINE_REASONS  # it needs the models

        QUARANTINE_REASONS.update(REASONS)
