"""Users of the tests."""

from __future__ import annotations

from ledger.models import User

PASSWORD = "correct horse battery"


def make_user(name: str) -> User:
    user: User = User.objects.create_user(name, password=PASSWORD)
    return user
