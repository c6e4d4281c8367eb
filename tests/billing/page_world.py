"""The worked example and its people built once for a module: import `world`, `books` and `people` there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from ledger.models import User
from tests.billing.page_books import Books, make_books, make_people

World = tuple[Books, dict[str, User]]


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """Tests are rolled back to it."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield make_books(), make_people()
        transaction.set_rollback(True)


@pytest.fixture
def books(world: World) -> Books:
    return world[0]


@pytest.fixture
def people(world: World) -> dict[str, User]:
    return world[1]
