"""What the schema as a whole says beyond its operations: where ids come from, and what answers look like."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).with_name("examples.json")

# Parameter of a path -> the operations whose answers hold what it names, and where. A parameter that means different
# things is named with the resource before it.
PRODUCERS: dict[str, list[tuple[str, str]]] = {
    "statement_id": [("statements_list", "/results/0/id")],
    "preemption_id": [("preemptions_list", "/results/0/id")],
    "dispute_id": [("disputes_list", "/results/0/id"), ("statements_dispute", "/id")],
    "alert_id": [("alerts_list", "/results/0/id")],
    "approval_id": [("approvals_list", "/results/0/id")],
    "batch_id": [("batches_list", "/results/0/batch"), ("events_create", "/batch")],
    "comparison_id": [("policies_compare", "/id")],
    "budget_id": [("budgets_list", "/results/0/id")],
    "month": [("periods_list", "/results/0/month")],
    "subscription_id": [("alert_subscriptions_list", "/results/0/id"), ("alert_subscriptions_create", "/id")],
    "alert-rules/name": [("alert_rules_list", "/results/0/name"), ("alert_rules_create", "/name")],
    "sources/name": [("sources_list", "/results/0/name")],
    "calibrations/version_id": [("calibrations_list", "/results/0/id")],
    "contracts/version_id": [("contracts_list", "/results/0/id")],
    "policies/version_id": [("policies_list", "/results/0/id")],
    "pool-costs/version_id": [("pool_costs_list", "/results/0/id")],
    "rate-cards/version_id": [("rate_cards_list", "/results/0/id")],
    "service-policies/version_id": [("service_policies_list", "/results/0/id")],
}


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Every row that answers are made of, as a ledger with a demo month gave it."""
    components = result["components"]["schemas"]
    for name, example in _examples().items():
        components[name]["examples"] = [example]
    return result


@cache
def _examples() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    return found


def add_links(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """From each answer that holds an id to the operations that take it."""
    operations = {
        operation["operationId"]: (path, operation)
        for path, methods in result["paths"].items()
        for operation in methods.values()
    }
    for name, (path, operation) in operations.items():
        for parameter in operation.get("parameters", []):
            if parameter["in"] != "path":
                continue
            for producer, pointer in producers(path, parameter["name"]):
                links = _first_success(operations[producer][1]).setdefault("links", {})
                links[name] = {
                    "operationId": name,
                    "parameters": {parameter["name"]: f"$response.body#{pointer}"},
                }
    return result


def producers(path: str, parameter: str) -> list[tuple[str, str]]:
    """Of `/api/v1/sources/{name}/`: by `sources/name`, else by `name`."""
    before = path.split("{" + parameter + "}")[0].rstrip("/").rpartition("/")[2]
    return PRODUCERS.get(f"{before}/{parameter}") or PRODUCERS.get(parameter, [])


def _first_success(operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        answer for code, answer in operation["responses"].items() if code.startswith("2")
    )
    return found
