"""Settings from the environment, and the one table that documents them."""

import re
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from ledger.config.environment import (
    database_from_url,
    email_from_url,
    env_flag,
    env_integer,
    env_list,
    stored_secret,
)

BASE = Path(__file__).resolve().parents[2]
CALL = re.compile(r"""env_(?:text|flag|integer|list|pairs)\(\s*"([A-Z_]+)\"""")


def test_every_variable_stands_in_the_table_and_the_table_names_no_other() -> None:
    source = (BASE / "ledger" / "config" / "settings.py").read_text()
    table = (BASE / "docs" / "configuration.md").read_text().split("For tests only")[0]
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", table, flags=re.MULTILINE))
    assert set(CALL.findall(source)) == documented


def test_a_database_url_with_everything_in_it() -> None:
    entry = database_from_url("postgres://an%40n:p%3Aw@[::1]:5433/books?sslmode=require&connect_timeout=3")
    assert entry == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "books",
        "USER": "an@n",
        "PASSWORD": "p:w",
        "HOST": "::1",
        "PORT": "5433",
        "OPTIONS": {"options": "-c jit=off", "sslmode": "require", "connect_timeout": "3"},
    }


def test_a_database_url_through_a_socket_directory() -> None:
    entry = database_from_url("postgresql:///books?host=/run/postgresql")
    assert (entry["HOST"], entry["PORT"], entry["NAME"]) == ("/run/postgresql", "", "books")


@pytest.mark.parametrize("text", ["", "-c jit=on"])
def test_options_of_the_server_are_those_of_the_url_if_it_has_any(text: str) -> None:
    entry = database_from_url(f"postgres://a@b/c?options={text.replace(' ', '%20')}")
    assert entry["OPTIONS"] == {"options": text}


@pytest.mark.parametrize("url", ["mysql://a@b/c", "postgres://a@b", "postgres://a@b:port/c"])
def test_a_database_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        database_from_url(url)


@pytest.mark.parametrize(
    ("url", "port", "user", "password", "tls", "ssl"),
    [
        ("smtp://relay.example.org", 25, "", "", False, False),
        ("smtp://relay.example.org:2525", 2525, "", "", False, False),
        ("smtp://an%40n:p%3Aw@relay.example.org", 587, "an@n", "p:w", True, False),
        ("smtps://an%40n:p%3Aw@relay.example.org", 465, "an@n", "p:w", False, True),
    ],
)
def test_a_mail_server_by_its_url(
    url: str, port: int, user: str, password: str, tls: bool, ssl: bool
) -> None:
    """Never a password in the clear."""
    assert email_from_url(url) == {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": "relay.example.org",
        "EMAIL_PORT": port,
        "EMAIL_HOST_USER": user,
        "EMAIL_HOST_PASSWORD": password,
        "EMAIL_USE_TLS": tls,
        "EMAIL_USE_SSL": ssl,
    }


@pytest.mark.parametrize("url", ["http://a", "smtp://", "smtp://a:port", "relay.example.org:25"])
def test_a_mail_server_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="LEDGER_EMAIL_URL"):
        email_from_url(url)


def test_words_that_are_neither_yes_nor_no_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_HTTPS", "maybe")
    with pytest.raises(ImproperlyConfigured, match="LEDGER_HTTPS"):
        env_flag("LEDGER_HTTPS", True)
    monkeypatch.setenv("LEDGER_PORT", "http")
    with pytest.raises(ImproperlyConfigured, match="LEDGER_PORT"):
        env_integer("LEDGER_PORT", 8000)


def test_empty_means_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_HTTPS", " ")
    monkeypatch.setenv("LEDGER_ALLOWED_HOSTS", " a , ,b ")
    assert env_flag("LEDGER_HTTPS", True) is True
    assert env_list("LEDGER_ALLOWED_HOSTS", []) == ["a", "b"]


def test_a_stored_secret_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "var" / "secret_key"
    first = stored_secret(path)
    assert len(first) > 40
    assert stored_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret_key"]
