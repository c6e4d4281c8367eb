"""REST endpoints of ingest, under /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from ingest.api.views import BatchesView, BatchView, EventsView

urlpatterns: list[URLPattern | URLResolver] = [
    path("events/", EventsView.as_view(), name="events"),
    # A POST cannot be redirected to the address with the slash.
    path("events", EventsView.as_view()),
    path("batches/", BatchesView.as_view(), name="batches"),
    path("batches/<int:batch_id>/", BatchView.as_view(), name="batch-detail"),
]
