"""What the schema says of every operation: pages of lists, files, and errors as problem documents."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from ledger.api.problems import CONTENT_TYPE
from ledger.api.views import MAX_PAGE_SIZE, PAGE_SIZE, ListView

_TEXT = {"type": "string"}
PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457. Programs read `code`; people read `detail`.",
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "instance": {**_TEXT, "description": "the path that was asked for"},
        "code": {**_TEXT, "description": "stable reason code"},
        "request_id": {**_TEXT, "description": "as in the header `X-Request-Id`"},
        "parameter": {**_TEXT, "description": "the query parameter that is wrong"},
        "field": {**_TEXT, "description": "the field of the body that is wrong"},
        "errors": {"description": "what is wrong with the body, by field"},
    },
    "required": ["type", "title", "status", "detail", "instance", "code", "request_id"],
}
_CODES = {
    400: ("unknown_parameter", "Unknown query parameter 'colour'; known: format."),
    401: ("not_authenticated", "Authentication credentials were not provided."),
    403: ("not_allowed", "Your role may not do this."),
    404: ("not_found", "There is no such thing, or it is not yours to see."),
    406: ("not_acceptable", "Could not satisfy the request Accept header."),
    409: ("wrong_state", "The month is not in a state for this."),
    413: ("body_too_large", "The body has more bytes than are taken; send it in parts."),
    415: ("unsupported_media_type", "Unsupported media type in request."),
    429: ("throttled", "Request was throttled. Expected available in 30 seconds."),
}
_TITLES = {
    400: "A parameter or the body is not understood",
    401: "No or no valid token",
    403: "Not allowed to this role",
    404: "Not there, or not yours to see",
    406: "In no form that `Accept` names",
    409: "Not in this state",
    413: "Too large",
    415: "Not a content type that is read here",
    429: "Too many requests",
}
_LIST_PARAMETERS: list[dict[str, Any]] = [
    {"name": "cursor", "in": "query", "schema": _TEXT, "description": "from `next` or `previous`"},
    {
        "name": "page_size",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": PAGE_SIZE},
    },
    {"name": "fields", "in": "query", "schema": _TEXT, "description": "only these fields, comma-separated"},
    {
        "name": "ordering",
        "in": "query",
        "schema": _TEXT,
        "description": "a field of the rows, descending with `-` before it",
    },
    {
        "name": "excel",
        "in": "query",
        "schema": {"type": "string", "enum": ["0", "1"]},
        "description": "of CSV, 1: byte-order mark and translated headings",
    },
]


class LedgerSchema(AutoSchema):
    """Adds to each operation what `LedgerView`, `ListView` and the problem handler do for it."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        self._add_success(operation)
        self._add_problems(operation)
        self._close_bodies(operation)
        return operation

    def _add_success(self, operation: dict[str, Any]) -> None:
        is_list = self.method == "GET" and isinstance(self.view, ListView)
        if is_list:
            own = {parameter["name"] for parameter in operation["parameters"]}
            operation["parameters"] += [one for one in _LIST_PARAMETERS if one["name"] not in own]
        for response in operation["responses"].values():
            content = response.get("content", {})
            if is_list and content["application/json"]["schema"].get("type") == "array":
                content["application/json"]["schema"] = _page(content["application/json"]["schema"])
                content["application/json"].pop("examples", None)
            if "text/csv" in content and "application/json" in content:
                content["text/csv"] = {"schema": _TEXT}

    def _add_problems(self, operation: dict[str, Any]) -> None:
        self.registry.register_on_missing(
            ResolvedComponent(name="Problem", type=ResolvedComponent.SCHEMA, schema=PROBLEM, object="Problem")
        )
        codes = {400, 401, 403, 404, 406, 429}
        if operation.get("requestBody") or self.method != "GET":
            codes |= {409, 413, 415}
        for code in sorted(codes):
            operation["responses"].setdefault(str(code), _problem_response(code))

    def _close_bodies(self, operation: dict[str, Any]) -> None:
        """A body with a field that is not known is refused."""
        for media in operation.get("requestBody", {}).get("content", {}).values():
            name = media["schema"].get("$ref", "").rpartition("/")[2]
            for component in self.registry._components.values():
                if name and component.name == name and component.schema.get("type") == "object":
                    component.schema["additionalProperties"] = False


def _page(rows: dict[str, Any]) -> dict[str, Any]:
    link = {"type": ["string", "null"], "format": "uri", "description": "address of that page; null: none"}
    return {
        "type": "object",
        "properties": {"next": link, "previous": link, "results": rows},
        "required": ["next", "previous", "results"],
    }


def _problem_response(code: int) -> dict[str, Any]:
    reason, detail = _CODES[code]
    example = {
        "type": f"urn:gpu-ledger:problem:{reason}",
        "title": _TITLES[code],
        "status": code,
        "detail": detail,
        "instance": "/api/v1/tenants/",
        "code": reason,
        "request_id": "4f0c8d1e5b6a4c0e9d3b2a1f00c0ffee",
    }
    response: dict[str, Any] = {
        "description": _TITLES[code],
        "content": {
            CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example},
        },
    }
    if code == 429:
        response["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "seconds until it is worth a try"}
        }
    return response
