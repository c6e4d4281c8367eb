"""Every route: pages at the root, the REST API under /api/v1/, its browser under /docs/api/."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from ledger.config.health import healthz

api_patterns: list[URLPattern | URLResolver] = [
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("", include("ingest.api.urls")),
    path("", include("billing.api.urls")),
    path("", include("ledger.api.urls")),
]

urlpatterns = [
    path("healthz/", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("api/v1/", include(api_patterns)),
    path("docs/api/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="api-docs"),
    path("", include("ingest.urls")),
    path("", include("billing.urls")),
    path("", include("ledger.urls")),
]

handler400 = "ledger.config.errors.bad_request"
handler404 = "ledger.config.errors.not_found"
handler500 = "ledger.config.errors.server_error"
