"""Pages of ingest."""

from django.urls import URLPattern, URLResolver, path

from ingest.views.identities import IdentitiesPage
from ingest.views.overview import BatchPage, OverviewPage
from ingest.views.quarantine import QuarantinePage
from ingest.views.sources import SourcePage

app_name = "ingest"
urlpatterns: list[URLPattern | URLResolver] = [
    path("ingest/", OverviewPage.as_view(), name="overview"),
    path("ingest/batches/<int:batch_id>/", BatchPage.as_view(), name="batch"),
    path("ingest/sources/<int:source_id>/", SourcePage.as_view(), name="source"),
    path("ingest/quarantine/", QuarantinePage.as_view(), name="quarantine"),
    path("ingest/identities/", IdentitiesPage.as_view(), name="identities"),
]
