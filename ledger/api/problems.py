"""Errors as RFC 9457 problem documents with a stable reason code."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import exception_handler

CONTENT_TYPE = "application/problem+json"


class Problem(exceptions.APIException):
    """An error with an HTTP status, a reason code for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, detail: str, **members: Any) -> None:
        super().__init__(detail=detail, code=code)
        self.status_code = status
        self.reason = code
        self.members = members


class ProblemRenderer(JSONRenderer):
    """Renders what `problem_response` made, whatever the client asked for: an error is never CSV."""

    media_type = CONTENT_TYPE
    format = "problem"
    charset = None


TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    422: "Refused for what it means",
    429: "Too many requests",
}


def problem_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's EXCEPTION_HANDLER: every handled error becomes a problem document."""
    if isinstance(error, Http404):
        error = Problem(404, "not_found", "There is no such thing, or it is not yours to see.")
    elif isinstance(error, PermissionDenied):
        error = exceptions.PermissionDenied()
    response = exception_handler(error, context)
    if response is None:
        return None
    request = context.get("request")
    path, request_id = ("", "")
    if request is not None:
        path, request_id = request.path, str(request.META.get("ledger.request_id", ""))
    response.data = _document(error, response, path, request_id)
    response.content_type = CONTENT_TYPE
    # Not kept, and without an ETag: nothing of a refusal tells one thing that is not yours from another.
    response["Cache-Control"] = "no-store"
    if request is not None:
        request.accepted_renderer = ProblemRenderer()
        request.accepted_media_type = CONTENT_TYPE
    return response


def _document(error: Exception, response: Response, instance: str, request_id: str) -> dict[str, Any]:
    status = response.status_code
    code = getattr(error, "reason", None) or getattr(error, "default_code", "error")
    document: dict[str, Any] = {
        "type": f"urn:gpu-ledger:problem:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": _sentence(response.data),
        "instance": instance,
        "code": code,
        "request_id": request_id,
    }
    if isinstance(error, exceptions.ValidationError):
        document["errors"] = response.data
    wait_s = getattr(error, "wait", None) if isinstance(error, exceptions.Throttled) else None
    if wait_s is not None:
        response["Retry-After"] = str(int(wait_s) + 1)
    document.update(getattr(error, "members", {}))
    return document


def plain_problem(request: HttpRequest, status: int, code: str, detail: str) -> JsonResponse:
    """A problem document where no view of the API could make one: no such address, or a fault of ours."""
    document = {
        "type": f"urn:gpu-ledger:problem:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "instance": request.path,
        "code": code,
        "request_id": str(request.META.get("ledger.request_id", "")),
    }
    return JsonResponse(
        document, status=status, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"}
    )


def _sentence(data: Any) -> str:
    if isinstance(data, dict):
        if "detail" in data:
            return str(data["detail"])
        return "; ".join(f"{name}: {_sentence(value)}" for name, value in data.items())
    if isinstance(data, list):
        return " ".join(_sentence(value) for value in data)
    return str(data)
