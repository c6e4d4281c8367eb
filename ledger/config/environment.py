"""Reads settings from environment variables; docs/configuration.md lists them all in one table."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE_WORDS = {"1", "true", "yes", "on"}
FALSE_WORDS = {"0", "false", "no", "off"}


def env_text(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def env_flag(name: str, default: bool) -> bool:
    word = env_text(name).lower()
    if not word:
        return default
    if word in TRUE_WORDS | FALSE_WORDS:
        return word in TRUE_WORDS
    raise ImproperlyConfigured(f"{name} must be 1 or 0, not {word!r}.")


def env_integer(name: str, default: int) -> int:
    text = env_text(name)
    try:
        return int(text) if text else default
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {text!r}.") from None


def env_list(name: str, default: list[str]) -> list[str]:
    items = [item.strip() for item in env_text(name).split(",")]
    return [item for item in items if item] or default


def env_pairs(name: str) -> dict[str, str]:
    """`a=b, c=d`"""
    pairs = [item.partition("=") for item in env_list(name, [])]
    if any(not key or not value for key, _, value in pairs):
        raise ImproperlyConfigured(f"{name} must be pairs such as group=role, separated by commas.")
    return {key.strip(): value.strip() for key, _, value in pairs}


def stored_secret(path: Path) -> str:
    """Return the random text kept in `path`, made on first use and readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    if not path.exists():
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        # link() refuses to replace: of two processes that start together, both read the first one's key.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()


def email_from_url(url: str) -> dict[str, Any]:
    """Turn `smtp://user:password@host:587` (STARTTLS where there is a password) or `smtps://...` (TLS at once) into
    Django's settings of e-mail."""
    parts = urlsplit(url)
    if parts.scheme not in {"smtp", "smtps"} or not parts.hostname:
        raise ImproperlyConfigured(
            "LEDGER_EMAIL_URL must be smtp://host:port or smtps://user:password@host:port."
        )
    try:
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured("LEDGER_EMAIL_URL has a port that is no number.") from None
    is_secure = parts.scheme == "smtps"
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or (465 if is_secure else 587 if parts.password else 25),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_SSL": is_secure,
        # A password never goes out in the clear.
        "EMAIL_USE_TLS": bool(parts.password) and not is_secure,
    }


def database_from_url(url: str) -> dict[str, Any]:
    """Turn `postgres://user:password@host:port/name?option=value` into an entry of DATABASES.

    Options after the question mark go to libpq as they are (`sslmode`, `connect_timeout`, a socket `host`). Without
    `options` among them the server does not compile queries: it would do so for estimates that are far too high, and
    take longer over it than over the query.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured("DATABASE_URL must start with postgres:// or postgresql://.")
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL names no database: postgres://user@host:5432/NAME.")
    try:
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured("DATABASE_URL has a port that is no number.") from None
    options = {"options": "-c jit=off", **dict(parse_qsl(parts.query, keep_blank_values=True))}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": str(port or ""),
        "OPTIONS": options,
    }
