"""The worked example and its people, for the tests of pages: made for each test, unless a module shares them."""

from __future__ import annotations

import pytest
from django.test import Client

from ledger.models import User
from tests.billing.page_books import Books, client_of, make_books, make_people


@pytest.fixture
def books() -> Books:
    return make_books()


@pytest.fixture
def people(books: Books) -> dict[str, User]:
    return make_people()


@pytest.fixture
def finance(people: dict[str, User]) -> Client:
    return client_of(people["finance"])
