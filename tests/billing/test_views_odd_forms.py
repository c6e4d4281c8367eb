"""Every form and every address of every page, filled with what no column can hold: refused, never a broken page."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse
from pytest_django.plugin import DjangoDbBlocker

from ledger.models import User
from tests.billing.page_books import Books, client_of
from tests.billing.test_views_access import RULES

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

NUL = "\x00"
ODD = ["a\x00b", "\x00", "9" * 400, "-1", "\ud83d", "﷽" * 3000]


@dataclass
class Form:
    """A form's hidden values, what can be typed or chosen, and the buttons that send it."""

    action: str
    hidden: dict[str, str] = field(default_factory=dict)
    typed: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    buttons: list[dict[str, str]] = field(default_factory=list)


class Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if tag == "form":
            self.inside = values.get("method", "").lower() == "post"
            if self.inside:
                self.found.append(Form(values.get("action", "")))
        elif self.inside and values.get("name"):
            form = self.found[-1]
            if tag == "button":
                form.buttons.append({values["name"]: values.get("value", "")})
            elif values.get("type") == "hidden":
                form.hidden[values["name"]] = values.get("value", "")
            elif tag in ("input", "select", "textarea"):
                form.typed.add(values["name"])
                if tag == "textarea" or values.get("type", "text") == "text":
                    form.texts.add(values["name"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.inside = False


def forms_of(client: Client, path: str) -> list[Form]:
    parser = Forms()
    answer = client.get(path)
    parser.feed(
        (b"".join(answer.streaming_content) if answer.streaming else answer.content).decode(errors="replace")
    )
    return [form for form in parser.found if "logout" not in form.action]


@pytest.fixture(scope="module")
def forms(world: Books, django_db_blocker: DjangoDbBlocker) -> list[tuple[str, str, Form]]:
    """(route, path, form) of every page that finance sees."""
    with django_db_blocker.unblock():
        client = client_of(User.objects.get(username="finance"))
        paths = {
            name: reverse(name, kwargs=rule.arguments(world))
            for name, rule in RULES.items()
            if "finance" in rule.seen_by
        }
        return [(name, path, form) for name, path in paths.items() for form in forms_of(client, path)]


@pytest.mark.parametrize(
    "odd", ODD, ids=["nul inside", "nul", "digits", "negative", "lone surrogate", "long"]
)
def test_no_form_breaks(odd: str, forms: list[tuple[str, str, Form]], finance: Client) -> None:
    finance.raise_request_exception = False
    tried, broken, taken = 0, [], []
    for name, path, form in forms:
        for button in form.buttons or [{}]:
            data: dict[str, Any] = {**form.hidden, **dict.fromkeys(form.typed, odd), **button}
            status = finance.post(form.action or path, _sendable(data)).status_code
            tried += 1
            if status >= 500:
                broken.append((name, button, sorted(form.typed), status))
            if status < 400 and "\x00" in odd and form.texts:
                taken.append((name, button, sorted(form.typed), status))
    assert broken == []
    assert taken == []  # text is not stored otherwise than it was typed
    assert tried > 20


class Asked(QueryDict):
    """Remembers which parameters a page asks for."""

    names: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> Any:
        type(self).names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        type(self).names.add(str(key))
        return super().__contains__(key)


def test_no_address_breaks(world: Books, finance: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """NUL in each part of each page's address, and in each parameter that the page asks for: nothing is there."""
    finance.raise_request_exception = False
    monkeypatch.setattr("django.core.handlers.wsgi.QueryDict", Asked)
    tried, wrong = 0, []
    pages = {name: rule.arguments(world) for name, rule in RULES.items()}
    opened = {"ledger:login": {}, "ledger:openid-start": {}, "ledger:openid-callback": {}}
    for name, arguments in {**pages, **opened}.items():
        paths = [
            reverse(name, kwargs={**arguments, part: odd})
            for part, value in arguments.items()
            for odd in ("\x00", "a\x00b")
            if isinstance(value, str)
        ]
        Asked.names = set()
        path = reverse(name, kwargs=arguments)
        finance.get(path)
        paths += [f"{path}?{urlencode({parameter: NUL})}" for parameter in sorted(Asked.names)]
        for odd_path in paths:
            tried += 1
            if (status := finance.get(odd_path).status_code) != 404:
                wrong.append((odd_path, status))
    assert wrong == []
    assert tried > 200


def test_the_steps_of_closing_neither(world: Books, finance: Client) -> None:
    """Their forms stand on the page only while a month waits for them."""
    finance.raise_request_exception = False
    for step in ("review", "approve", "close", "override", "decide"):
        form = dict.fromkeys(("reason", "note", "digest", "approval", "decision"), NUL)
        answer = finance.post("/months/2026-10/closing/", {**form, "step": step}, follow=True)
        assert answer.status_code == 200, step
        assert [message.level_tag for message in answer.context["messages"]] == ["error"], step


def test_the_sign_in_form_neither() -> None:
    client = Client(raise_request_exception=False)
    for odd in ODD:
        answer = client.post("/login/", _sendable({"username": odd, "password": odd}))
        assert answer.status_code < 500, odd[:10]


def _sendable(data: dict[str, Any]) -> dict[str, Any]:
    """A lone surrogate goes over the wire as bytes that are no UTF-8."""
    return {name: value.encode("utf-8", "surrogatepass").decode("latin-1") for name, value in data.items()}
