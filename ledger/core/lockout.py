"""How long somebody who gave wrong passwords has to wait (interfaces.md, Roles)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """One wrong password: epoch milliseconds, whether for this name, and whether from this address."""

    at_ms: int
    is_this_name: bool
    is_this_address: bool


@dataclass(frozen=True, slots=True)
class Lockout:
    """Failures within `window_ms` that lock. One place guessing at one name locks first; one name guessed from many
    places, or many names from one place, only after more of them: nobody should be able to lock out a colleague
    with a handful of requests."""

    window_ms: int
    name_and_address: int
    name: int
    address: int

    def locked_until_ms(self, failures: Iterable[Failure], now_ms: int) -> int:
        """Until when nothing is tried, in epoch milliseconds; 0 if it may be tried now.

        A lock ends when the failure that completed it has left the window.
        """
        recent = sorted(
            (one for one in failures if one.at_ms > now_ms - self.window_ms), key=lambda one: -one.at_ms
        )
        counted = [
            ([one for one in recent if one.is_this_name and one.is_this_address], self.name_and_address),
            ([one for one in recent if one.is_this_name], self.name),
            ([one for one in recent if one.is_this_address], self.address),
        ]
        return max(
            (found[limit - 1].at_ms + self.window_ms for found, limit in counted if len(found) >= limit),
            default=0,
        )
