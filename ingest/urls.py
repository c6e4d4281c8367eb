"""Pages of ingest."""

from django.urls import URLPattern, URLResolver

app_name = "ingest"
urlpatterns: list[URLPattern | URLResolver] = []
