"""The worked example and its people, for the tests of pages: made once for a module that asks for them; and ledgers
that allocation is tested on."""

from __future__ import annotations

import pytest
from django.test import Client

from billing.tasks import close_month, go_on_comparing, recompute_open_months, verify_ledger
from ledger.models import Pool, Service, User
from tests.billing.allocation_books import make_chat, make_worked_example
from tests.billing.page_books import Books, client_of, make_books, make_people
from tests.fixtures.made_once import made_once


@made_once
def world() -> Books:
    books = make_books()
    make_people()
    return books


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the doors would hand to a worker is left undone."""
    for task in (close_month, go_on_comparing, recompute_open_months, verify_ledger):
        monkeypatch.setattr(task, "delay", lambda *args: None)


@pytest.fixture
def books(world: Books) -> Books:
    return world.read_again()


@pytest.fixture
def people(world: Books) -> dict[str, User]:
    return {user.username: user for user in User.objects.order_by("pk")}


@pytest.fixture
def finance(people: dict[str, User]) -> Client:
    return client_of(people["finance"])


@pytest.fixture
def worked_example() -> Pool:
    return make_worked_example()


@pytest.fixture
def chat() -> tuple[Pool, Service]:
    return make_chat()
