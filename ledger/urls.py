"""Pages of ledger."""

from django.urls import URLPattern, URLResolver, path

from ledger.views.events import EventPage
from ledger.views.openid import OpenIdCallback, OpenIdStart
from ledger.views.session import PasswordPage, Preferences, SignIn, SignOut

app_name = "ledger"
urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", SignIn.as_view(), name="login"),
    path("oidc/start/", OpenIdStart.as_view(), name="openid-start"),
    path("oidc/callback/", OpenIdCallback.as_view(), name="openid-callback"),
    path("password/", PasswordPage.as_view(), name="password"),
    path("logout/", SignOut.as_view(), name="logout"),
    path("preferences/", Preferences.as_view(), name="preferences"),
    # An event's id is whatever its source made it, slashes included.
    path("events/<int:source_id>/<path:event_id>/", EventPage.as_view(), name="event"),
]
