"""One server with one set of books for a module: making them takes longer than looking at a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from playwright.sync_api import Browser, BrowserContext
from pytest_django.live_server_helper import LiveServer
from pytest_django.plugin import DjangoDbBlocker

from ledger.models import User
from tests.billing.page_books import PEOPLE, Books, make_books, make_people
from tests.browser.visiting import Complaints, Visitor, paths_of
from tests.fixtures.browser import PATIENCE_MS

SignIn = Callable[..., Visitor]


@dataclass(frozen=True)
class ServedBooks:
    """Books behind a server, the address of that, and what everybody in PEOPLE sees of it."""

    url: str
    books: Books
    sessions: dict[str, str]
    paths: dict[str, list[str]]


@contextmanager
def serving() -> Iterator[str]:
    """A server on a port of its own; at the end the tables are emptied."""
    server = LiveServer("localhost")
    server._live_server_modified_settings.enable()
    try:
        yield server.url
    finally:
        server.stop()
        server._live_server_modified_settings.disable()
        call_command("flush", verbosity=0, interactive=False, inhibit_post_migrate=False)


@pytest.fixture(scope="module")
def served(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[ServedBooks]:
    """For tests that only look, or whose changes no other test of the module minds.

    They are marked `django_db`, so what they do to the database themselves is undone and never seen by the server.
    """
    with django_db_blocker.unblock(), serving() as url:
        books = make_books()
        make_people()
        yield ServedBooks(
            url,
            books,
            sessions={name: session_of(name) for name in PEOPLE},
            paths={name: paths_of(name, books) for name in PEOPLE},
        )


@pytest.fixture
def books(served: ServedBooks) -> Books:
    return served.books


def session_of(name: str) -> str:
    client = Client()
    client.force_login(User.objects.get(username=name))
    return str(client.session.session_key)


def visitor_in(context: BrowserContext, url: str, session: str, language: str = "en") -> Visitor:
    """A window of somebody who has signed in; `test_signing_in...` is about the form."""
    cookies = {"django_language": language, settings.SESSION_COOKIE_NAME: session}
    context.add_cookies([{"name": name, "value": value, "url": url} for name, value in cookies.items()])
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints = Complaints()
    complaints.listen(page, url)
    return Visitor(page, url, complaints)


@pytest.fixture
def windows(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    opened: list[BrowserContext] = []

    def open_one(**options: Any) -> BrowserContext:
        opened.append(browser.new_context(**options))
        return opened[-1]

    yield open_one
    for context in opened:
        context.close()


@pytest.fixture
def sign_in(windows: Callable[..., BrowserContext], served: ServedBooks) -> SignIn:
    def visit(name: str, width: int = 1280, language: str = "en", scheme: str = "light") -> Visitor:
        context = windows(viewport={"width": width, "height": 800}, color_scheme=scheme)
        return visitor_in(context, served.url, served.sessions[name], language)

    return visit
