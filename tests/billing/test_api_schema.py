"""The served schema says what the API does: parameters, examples of every body, headers; from the schema itself."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from django.test import Client

from ledger.api.views import LIST_PARAMETERS, ListView
from tests.billing.test_api_conventions import VIEWS, templated
from tests.fixtures.made_once import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@made_once
def schema() -> dict[str, Any]:
    made: dict[str, Any] = Client().get("/api/v1/schema/?format=json").json()
    return made


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_body_has_an_example_that_it_allows(schema: dict[str, Any]) -> None:
    wrong, bodies = [], 0
    for method, path, operation in operations(schema):
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            bodies += 1
            examples = [one["value"] for one in content.get("examples", {}).values()]
            examples += [content["example"]] if "example" in content else []
            if not examples:
                wrong.append((method, path, media_type, "has no example"))
            validator = jsonschema.Draft202012Validator(
                {**content["schema"], "components": schema["components"]}
            )
            wrong += [
                (method, path, media_type, error.message)
                for example in examples
                for error in validator.iter_errors(example)
            ]
    assert wrong == []
    assert bodies > 30


def test_the_schema_names_the_query_parameters_that_are_taken(schema: dict[str, Any]) -> None:
    wrong = []
    for pattern, view in VIEWS:
        path = templated(pattern)
        if not hasattr(view, "get") or path not in schema["paths"]:
            continue
        shown = {
            one["name"] for one in schema["paths"][path]["get"]["parameters"] if one["in"] == "query"
        } - {"format"}
        taken = set(view.parameters) | (LIST_PARAMETERS - {"format"} if issubclass(view, ListView) else set())
        if shown != taken:
            wrong.append((path, shown ^ taken))
    assert wrong == []


def test_every_operation_says_what_refusals_there_are_and_when_to_come_again(schema: dict[str, Any]) -> None:
    wrong = []
    for method, path, operation in operations(schema):
        answers = operation["responses"]
        if not {"400", "401", "403", "404", "422", "429"} <= set(answers):
            wrong.append((method, path, set(answers)))
        elif "Retry-After" not in answers["429"].get("headers", {}):
            wrong.append((method, path, "429 without Retry-After"))
        elif any("X-Request-Id" not in answer.get("headers", {}) for answer in answers.values()):
            wrong.append((method, path, "no X-Request-Id"))
    assert wrong == []


def test_no_plural_is_made_by_an_s_alone(schema: dict[str, Any]) -> None:
    texts = re.findall(r'"(?:description|summary)": "((?:[^"\\]|\\.)*)"', json.dumps(schema))
    assert len(texts) > 300
    naive = re.compile(r"\w*(?:[^aeiou\W]ys|sss|chs|shs|xs|zs)\b")
    assert sorted({found for text in texts for found in naive.findall(text)}) == []


def untyped(schema: Any, place: str) -> list[str]:
    """Places of lists of objects of which nothing is said, not even what their values are."""
    found = []
    if isinstance(schema, dict):
        items = schema.get("items")
        if isinstance(items, dict) and items.get("type") == "object" and not items.get("properties"):
            said = items.get("additionalProperties")
            found += [place] if not isinstance(said, dict) or not said else []
        found += [one for name, inner in schema.items() for one in untyped(inner, f"{place}.{name}")]
    elif isinstance(schema, list):
        found += [one for inner in schema for one in untyped(inner, place)]
    return found


def test_a_list_says_what_is_in_it(schema: dict[str, Any]) -> None:
    assert untyped(schema["components"]["schemas"], "schemas") == []
    throughput = schema["components"]["schemas"]["ContractBody"]["properties"]["reserved_throughput"]
    assert throughput["items"]["$ref"].endswith("/ThroughputBody")


def test_every_row_of_an_answer_has_an_example_of_its_form(schema: dict[str, Any]) -> None:
    """They are what a ledger with a demo month answered: whoever changes a row changes its example."""
    components = schema["components"]["schemas"]
    wrong = []
    for name in sorted(_rows_of_answers(schema)):
        row = components[name]
        for example in row.get("examples", [None]):
            validator = jsonschema.Draft202012Validator(
                {**row, "components": schema["components"]},
                format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
            )
            wrong += [(name, error.message) for error in validator.iter_errors(example)]
            wrong += [(name, "has no field", key) for key in set(example or {}) - set(row["properties"])]
    assert wrong == []


def _rows_of_answers(schema: dict[str, Any]) -> set[str]:
    """The names of what answers are made of, but those that their operation gives an example of its own."""
    contents = [
        answer.get("content", {}).get("application/json", {})
        for _method, _path, operation in operations(schema)
        for code, answer in operation["responses"].items()
        if code.startswith("2")
    ]
    return {
        re.findall(r"#/components/schemas/(\w+)", json.dumps(content))[0]
        for content in contents
        if "#/components/schemas/" in json.dumps(content) and not {"example", "examples"} & set(content)
    }


def test_every_id_in_a_path_comes_from_an_answer(schema: dict[str, Any]) -> None:
    """Links (OpenAPI 3.1): what they read is there in the example of the answer."""
    linked: set[tuple[str, str]] = set()
    for _method, _path, operation in operations(schema):
        for answer in operation["responses"].values():
            for link in answer.get("links", {}).values():
                [(parameter, expression)] = link["parameters"].items()
                linked.add((link["operationId"], parameter))
                row = re.findall(r"#/components/schemas/(\w+)", json.dumps(answer["content"]))[0]
                assert expression.rpartition("/")[2] in schema["components"]["schemas"][row]["properties"]
    wanted = {
        (operation["operationId"], parameter["name"])
        for _method, _path, operation in operations(schema)
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "path"
    }
    files = {"periods_file_sha256", "statements_file_sha256"}  # by the name of a file, which no answer has
    assert {one for one in wanted - linked if one != (one[0], "name") or one[0] not in files} == set()
