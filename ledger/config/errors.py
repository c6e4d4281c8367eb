"""Addresses that no route has, and faults of ours: a page for people, a problem document for programs."""

from django.http import HttpRequest, HttpResponse
from django.views import defaults

from ledger.api.problems import plain_problem

API = "/api/"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith(API):
        return plain_problem(request, 400, "bad_request", "This request is not understood.")
    return defaults.bad_request(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if request.path.startswith(API):
        return plain_problem(request, 404, "not_found", "There is no such thing, or it is not yours to see.")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    if request.path.startswith(API):
        detail = "Something went wrong on our side; the request id finds it in the log."
        return plain_problem(request, 500, "server_error", detail)
    return defaults.server_error(request)
