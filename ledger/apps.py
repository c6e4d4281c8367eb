"""Django app of the record."""

from django.apps import AppConfig


class LedgerApp(AppConfig):
    name = "ledger"
    verbose_name = "Ledger"
    default_auto_field = "django.db.models.BigAutoField"
