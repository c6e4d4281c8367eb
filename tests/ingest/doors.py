"""A small world and callers of the API, for the tests of the doors for people and scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.test import APIClient

from ledger.models import (
    AuditEntry,
    Source,
    Tenant,
)
from ledger.services.tokens import create_api_token
from tests.ingest.feeding import SOURCE, small_world

TEAM = {"kind": "k8s_namespace", "value": "team-a"}
NOON = "2026-10-03T12:00:00Z"


@pytest.fixture(autouse=True)
def asked_for(monkeypatch: pytest.MonkeyPatch, db: None) -> Iterator[list[int]]:
    small_world()
    asked: list[int] = []
    monkeypatch.setattr("ingest.api.quarantine.request_booking", asked.append)
    yield asked


def client(role: str = "platform", *tenants: str) -> APIClient:
    found = list(Tenant.objects.filter(holder__slug__in=tenants))
    _, secret = create_api_token(f"as-{role}", role, tenants=found)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return api


def call(api: APIClient, path: str, body: dict[str, Any] | None = None) -> Any:
    if body is None:
        return api.get(f"/api/v1/{path}")
    return api.post(f"/api/v1/{path}", body, format="json")


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def audit() -> list[tuple[str, str, str, str]]:
    rows = AuditEntry.objects.exclude(action__in=("apply_configuration", "create_api_token")).order_by("pk")
    return list(rows.values_list("actor", "action", "object_id", "reason"))


def a_source(**values: Any) -> Source:
    return Source.objects.create(uri=SOURCE, name="bj-kueue", adapter="kueue", **values)
