"""Signing in: guessing is slowed down, and nothing tells whether a name exists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from ledger.models import FailedSignIn, User
from tests.ledger.people import PASSWORD, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def limits(settings: Any) -> None:
    settings.SIGN_IN_FAILURES, settings.SIGN_IN_LOCK_MINUTES = 3, 15


def sign_in(name: str, password: str, address: str = "192.0.2.1", **headers: str) -> Any:
    return Client(REMOTE_ADDR=address, headers=headers).post(
        "/login/", {"username": name, "password": password}
    )


def test_after_some_wrong_passwords_even_the_right_one_has_to_wait() -> None:
    make_user("ann")
    for _ in range(3):
        assert sign_in("ann", "wrong").status_code == 200
    refused = sign_in("ann", PASSWORD)
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 15 * 60
    assert "Try again in 15 min" in refused.content.decode()
    assert "_auth_user_id" not in refused.client.session


def test_the_name_is_the_same_however_it_is_written() -> None:
    make_user("ann")
    for name in ("ann", "ANN", " Ann "):
        sign_in(name, "wrong")
    assert sign_in("ann", PASSWORD).status_code == 429


def test_a_colleague_elsewhere_is_not_locked_out() -> None:
    make_user("ann")
    for _ in range(4):
        sign_in("ann", "wrong")
    assert sign_in("ann", PASSWORD, address="192.0.2.2").status_code == 302


def test_one_name_guessed_from_many_places_is_locked_for_all() -> None:
    make_user("ann")
    for number in range(15):
        sign_in("ann", "wrong", address=f"192.0.2.{number + 1}")
    assert sign_in("ann", PASSWORD, address="192.0.2.200").status_code == 429


def test_a_name_that_nobody_has_is_answered_alike() -> None:
    make_user("ann")
    answers = []
    for name in ("ann", "nobody"):
        for _ in range(3):
            last = sign_in(name, "wrong", address=f"192.0.2.{len(name)}")
        locked = sign_in(name, "wrong", address=f"192.0.2.{len(name)}")
        answers.append(
            (last.status_code, locked.status_code, "Too many wrong passwords" in locked.content.decode())
        )
    assert answers == [(200, 429, True)] * 2


def test_the_right_password_clears_what_was_guessed_before() -> None:
    make_user("ann")
    sign_in("ann", "wrong")
    sign_in("ann", "wrong")
    assert sign_in("ann", PASSWORD).status_code == 302
    assert FailedSignIn.objects.count() == 0


def test_a_lock_ends_by_itself_and_old_failures_are_thrown_away() -> None:
    make_user("ann")
    for _ in range(3):
        sign_in("ann", "wrong")
    FailedSignIn.objects.update(at=timezone.now() - timedelta(minutes=16))
    assert sign_in("ann", "wrong").status_code == 200
    assert FailedSignIn.objects.count() == 1
    assert sign_in("ann", PASSWORD).status_code == 302


def test_only_a_proxy_of_ours_is_believed(settings: Any) -> None:
    make_user("ann")
    for number in range(3):
        sign_in("ann", "wrong", **{"X-Forwarded-For": f"198.51.100.{number}"})
    assert sign_in("ann", PASSWORD, **{"X-Forwarded-For": "203.0.113.9"}).status_code == 429
    settings.IS_BEHIND_PROXY = True
    # What the visitor wrote stands before what the proxy saw.
    for _ in range(3):
        sign_in("ann", "wrong", **{"X-Forwarded-For": "10.0.0.1, 203.0.113.7"})
    assert sign_in("ann", PASSWORD, **{"X-Forwarded-For": "10.0.0.2, 203.0.113.7"}).status_code == 429
    assert sign_in("ann", PASSWORD, **{"X-Forwarded-For": "203.0.113.8"}).status_code == 302


def test_passwords_are_kept_as_slow_hashes_only() -> None:
    make_user("ann")
    assert PASSWORD not in User.objects.get(username="ann").password
