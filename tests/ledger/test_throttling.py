"""Too many requests of one principal: 429, and when to come back."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from ledger.models import Role
from ledger.services.tokens import create_api_token

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def two_a_minute(settings: Any) -> Any:
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = 2
    yield
    cache.clear()


def get(name: str) -> Any:
    _, secret = create_api_token(name, Role.AUDITOR)
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    return lambda: client.get("/api/v1/tenants/")


def test_the_third_request_of_a_minute_has_to_wait_and_others_go_on() -> None:
    one, other = get("one"), get("other")
    assert [one().status_code for _ in range(2)] == [200, 200]
    refused = one()
    assert refused.status_code == 429
    assert refused["Content-Type"] == "application/problem+json"
    assert 1 <= int(refused["Retry-After"]) <= 61
    assert refused.json()["code"] == "throttled"
    assert other().status_code == 200


def test_it_can_be_switched_off(settings: Any) -> None:
    settings.API_REQUESTS_PER_MINUTE = 0
    one = get("one")
    assert {one().status_code for _ in range(10)} == {200}
