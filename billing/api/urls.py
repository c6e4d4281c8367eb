"""REST endpoints of billing, under /api/v1/."""

from django.urls import URLPattern, URLResolver, path

from billing.api import allocations, masters, tokens

urlpatterns: list[URLPattern | URLResolver] = [
    path("allocations/", allocations.AllocationsView.as_view(), name="api-allocations"),
    path("requeued/", allocations.RequeuedView.as_view(), name="api-requeued"),
    path("usage/tokens/", tokens.TokensView.as_view(), name="api-usage-tokens"),
    path("tenants/", masters.TenantsView.as_view(), name="api-tenants"),
    path("pools/", masters.PoolsView.as_view(), name="api-pools"),
    path("services/", masters.ServicesView.as_view(), name="api-services"),
    path("periods/", masters.PeriodsView.as_view(), name="api-periods"),
    path("rate-cards/", masters.RateCardsView.as_view(), name="api-rate-cards"),
    path("policies/", masters.PoliciesView.as_view(), name="api-policies"),
    path("calibrations/", masters.CalibrationsView.as_view(), name="api-calibrations"),
]
