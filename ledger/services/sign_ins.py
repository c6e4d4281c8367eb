"""Slows down whoever guesses passwords (interfaces.md, Roles). Kept in the database, so that it holds for all
web processes and over restarts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from ledger.core.lockout import Failure, Lockout
from ledger.core.periods import to_ms
from ledger.models import FailedSignIn

# A name from everywhere, and everything from an address, are allowed this many times as many failures.
_NAME_FACTOR, _ADDRESS_FACTOR = 5, 10


def seconds_to_wait(name: str, address: str, now: datetime) -> int:
    """For how long this name is not tried from this address; 0 if it may be tried."""
    lockout = _lockout()
    name = _folded(name)
    rows = FailedSignIn.objects.filter(
        Q(name=name) | Q(address=address), at__gt=now - timedelta(milliseconds=lockout.window_ms)
    ).values_list("at", "name", "address")
    failures = [Failure(to_ms(at), one == name, place == address) for at, one, place in rows]
    left_ms = lockout.locked_until_ms(failures, to_ms(now)) - to_ms(now)
    return max(-(-left_ms // 1000), 0)


def note_failure(name: str, address: str, now: datetime) -> None:
    """Remember a wrong password, and forget those that no longer count."""
    FailedSignIn.objects.filter(at__lt=now - timedelta(milliseconds=_lockout().window_ms)).delete()
    FailedSignIn.objects.create(name=_folded(name), address=address, at=now)


def forget_failures(name: str, address: str) -> None:
    """The right password was given: what this place guessed before is no longer held against it."""
    FailedSignIn.objects.filter(name=_folded(name), address=address).delete()


def _folded(name: str) -> str:
    return name.replace("\x00", "").strip().casefold()[:150]


def _lockout() -> Lockout:
    limit = max(settings.SIGN_IN_FAILURES, 1)
    return Lockout(
        settings.SIGN_IN_LOCK_MINUTES * 60_000, limit, limit * _NAME_FACTOR, limit * _ADDRESS_FACTOR
    )
