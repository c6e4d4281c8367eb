"""What the schema says of every operation: pages of lists, files, and errors as problem documents."""

from __future__ import annotations

import json
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from rest_framework import serializers

from ledger.api.bodies import MAX_TEXT, TextOfForm, is_instant
from ledger.api.parameters import INSTANT, MONTH, NOT_BLANK, TEXT
from ledger.api.problems import CONTENT_TYPE
from ledger.api.views import LedgerView, ListView, list_parameters

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
    422: ("bad_window", "window ends before it starts"),
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
    422: "Understood, and refused for what it means",
    429: "Too many requests",
}


_REQUEST_ID = {"schema": _TEXT, "description": "as it was sent, or made here"}


class LedgerSchema(AutoSchema):
    """Adds to each operation what `LedgerView`, `ListView` and the problem handler do for it."""

    def get_override_parameters(self) -> list[Any]:
        declared: list[Any] = super().get_override_parameters()
        if self.method == "GET" and isinstance(self.view, ListView):
            return declared + list_parameters(self.view)
        return declared

    def _get_format_parameters(self) -> list[dict[str, Any]]:
        takes_format = not isinstance(self.view, LedgerView) or self.view.takes_format
        return super()._get_format_parameters() if takes_format else []

    def _get_parameters(self) -> list[dict[str, Any]]:
        """Every text in a query has a form, if only that it has no NUL, which no text of the books has."""
        parameters: list[dict[str, Any]] = super()._get_parameters()
        for one in parameters:
            schema = one["schema"]
            if (
                one["in"] == "query"
                and schema.get("type") == "string"
                and not {"enum", "pattern"} & set(schema)
            ):
                schema["pattern"] = TEXT
            if one["in"] == "path" and one["name"] == "month":
                schema["pattern"] = MONTH
        return parameters

    def _map_serializer_field(self, field: Any, direction: str, bypass_extensions: bool = False) -> Any:
        """What a body must be beyond its type: `bodies.checked_body` refuses the rest with a 400."""
        schema = super()._map_serializer_field(field, direction, bypass_extensions)
        if direction == "request" and isinstance(schema, dict):
            _narrow(field, schema)
        return schema

    def _insert_field_validators(self, field: Any, schema: dict[str, Any]) -> None:
        super()._insert_field_validators(field, schema)
        if isinstance(field, serializers.DecimalField) and "pattern" in schema:
            sign = "" if field.min_value is not None and field.min_value >= 0 else "-?"
            whole = (field.max_digits or 18) - (field.decimal_places or 0)
            schema["pattern"] = rf"^{sign}[0-9]{{1,{whole}}}(\.[0-9]{{1,{field.decimal_places}}})?$"
            schema.pop("minimum", None)

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        self._add_success(operation)
        self._add_problems(operation)
        self._close_bodies(operation)
        self._add_example(operation)
        for response in operation["responses"].values():
            response.setdefault("headers", {})["X-Request-Id"] = _REQUEST_ID
        return operation

    def _add_success(self, operation: dict[str, Any]) -> None:
        is_list = self.method == "GET" and isinstance(self.view, ListView)
        for response in operation["responses"].values():
            content = response.get("content", {})
            if is_list and content["application/json"]["schema"].get("type") == "array":
                rows = content["application/json"]["schema"]
                rows["items"] = {"anyOf": [rows["items"], self._some_fields_of(rows["items"]["$ref"])]}
                content["application/json"]["schema"] = _page(rows)
                content["application/json"].pop("examples", None)
            if "text/csv" in content and "application/json" in content:
                content["text/csv"] = {"schema": _TEXT}

    def _some_fields_of(self, row: str) -> dict[str, str]:
        """The rows of a list that was asked for some `fields` only."""
        name = row.rpartition("/")[2]
        whole = next(one for one in self.registry._components.values() if one.name == name).schema
        some = {key: value for key, value in whole.items() if key not in ("required", "description")}
        some["description"] = "with `fields`: those that were named"
        some["additionalProperties"] = bool(getattr(self.view, "more_columns", ""))
        component = ResolvedComponent(
            name=f"{name}Fields", type=ResolvedComponent.SCHEMA, schema=some, object=f"{name}Fields"
        )
        self.registry.register_on_missing(component)
        ref: dict[str, str] = component.ref
        return ref

    def _add_problems(self, operation: dict[str, Any]) -> None:
        self.registry.register_on_missing(
            ResolvedComponent(name="Problem", type=ResolvedComponent.SCHEMA, schema=PROBLEM, object="Problem")
        )
        codes = {400, 401, 403, 404, 406, 422, 429}
        if operation.get("requestBody") or self.method != "GET":
            codes |= {409, 413, 415}
        for code in sorted(codes):
            operation["responses"].setdefault(str(code), _problem_response(code))

    def _add_example(self, operation: dict[str, Any]) -> None:
        value = getattr(self.view, "examples", {}).get(str(self.method).lower())
        if value is None:
            return
        for media_type, media in operation["requestBody"]["content"].items():
            if media_type.endswith("batch+json"):
                media["example"] = [value]
            elif media_type == "application/x-ndjson":
                media["example"] = json.dumps(value) + "\n"
            else:
                media["example"] = value

    def _close_bodies(self, operation: dict[str, Any]) -> None:
        """A body with a field that is not known is refused."""
        for media in operation.get("requestBody", {}).get("content", {}).values():
            name = media["schema"].get("$ref", "").rpartition("/")[2]
            for component in self.registry._components.values():
                if name and component.name == name and component.schema.get("type") == "object":
                    component.schema["additionalProperties"] = False


def _narrow(field: Any, schema: dict[str, Any]) -> None:
    if isinstance(field, serializers.DictField):
        schema["propertyNames"] = {"pattern": TEXT, "maxLength": MAX_TEXT}
    elif isinstance(field, serializers.ListField):
        if not field.allow_empty:
            schema["minItems"] = 1
    elif is_instant(field):
        schema["pattern"] = INSTANT
    elif type(field) in (serializers.CharField, TextOfForm):
        schema["pattern"] = getattr(field, "form", TEXT if field.allow_blank else NOT_BLANK)
        if field.max_length is None:
            schema["maxLength"] = MAX_TEXT


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
