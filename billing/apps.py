"""Django app of rates, allocation and statements."""

from django.apps import AppConfig


class BillingApp(AppConfig):
    name = "billing"
    verbose_name = "Billing"
    default_auto_field = "django.db.models.BigAutoField"
