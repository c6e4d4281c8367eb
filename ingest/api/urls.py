"""REST endpoints of ingest, under /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from ingest.api.facts import FactsView
from ingest.api.identities import IdentitiesView, UnmappedView
from ingest.api.quarantine import DismissView, QuarantineView, RetryView
from ingest.api.sources import CompleteUntilView, EndHoldersView, SourcesView, SourceView, WaiveSilenceView
from ingest.api.views import BatchesView, BatchView, EventsView

urlpatterns: list[URLPattern | URLResolver] = [
    path("events/", EventsView.as_view(), name="events"),
    # A POST cannot be redirected to the address with the slash.
    path("events", EventsView.as_view(schema=None)),
    path("batches/", BatchesView.as_view(), name="batches"),
    path("batches/<int:batch_id>/", BatchView.as_view(), name="batch-detail"),
    path("facts/", FactsView.as_view(), name="facts"),
    path("sources/", SourcesView.as_view(), name="sources"),
    path("sources/<str:name>/", SourceView.as_view(), name="source-detail"),
    path("sources/<str:name>/complete-until/", CompleteUntilView.as_view(), name="source-complete-until"),
    path("sources/<str:name>/waive-silence/", WaiveSilenceView.as_view(), name="source-waive-silence"),
    path("sources/<str:name>/end-holders/", EndHoldersView.as_view(), name="source-end-holders"),
    path("quarantine/", QuarantineView.as_view(), name="quarantine"),
    path("quarantine/retry/", RetryView.as_view(), name="quarantine-retry"),
    path("quarantine/dismiss/", DismissView.as_view(), name="quarantine-dismiss"),
    path("identities/", IdentitiesView.as_view(), name="identities"),
    path("identities/unmapped/", UnmappedView.as_view(), name="identities-unmapped"),
]
