"""Pages of ingest."""

from django.urls import URLPattern, URLResolver, path

from ingest.views import BatchPage, OverviewPage

app_name = "ingest"
urlpatterns: list[URLPattern | URLResolver] = [
    path("ingest/", OverviewPage.as_view(), name="overview"),
    path("ingest/batches/<int:batch_id>/", BatchPage.as_view(), name="batch"),
]
