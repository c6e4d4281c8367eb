"""Response headers that every page carries, and addresses that no page has."""

import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from django.http import Http404, HttpRequest, HttpResponse

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

# Plotly positions its labels with inline styles, so styles are the one exception; no script is ever inline.
CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)


class ContentSecurityPolicyMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        return response


class RequestIdMiddleware:
    """Takes the caller's `X-Request-Id`, or makes one, and gives it back, so that both sides can find a request."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-Id", "")
        # Only what is safe to log and to send back; anything else is replaced.
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request.META["ledger.request_id"] = request_id
        response = self.get_response(request)
        response.headers["X-Request-Id"] = request_id
        return response


class NulMiddleware:
    """The 404 of an address with NUL in it: nothing is called so, and PostgreSQL cannot even look for it.

    For pages; the API says itself which of its parameters is wrong.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *args: Any) -> None:
        """Once it is known who asks, so that the 404 is a page like every other."""
        asked = (request.path_info, request.META.get("QUERY_STRING", ""))
        if not request.path_info.startswith("/api/") and any("\x00" in unquote(text) for text in asked):
            raise Http404
