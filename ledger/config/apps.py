"""The composition root as an app, so that Django wires it up once everything is loaded."""

from django.apps import AppConfig


class CompositionRoot(AppConfig):
    name = "ledger.config"
    label = "ledger_config"

    def ready(self) -> None:
        # Makes it the current Celery application: shared tasks of the other apps publish through it.
        from ledger.config import celery  # noqa: F401
