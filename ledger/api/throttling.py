"""At most so many requests a minute for one principal; more get a 429 with `Retry-After` (interfaces.md, REST API).

Counted in each web process for itself: a guard against a loop that ran away, not a quota. The events door is not
counted, since its own limits are those of the body.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from ledger.services.tokens import hash_secret


class PrincipalThrottle(SimpleRateThrottle):
    scope = "principal"

    def __init__(self) -> None:
        self.rate = f"{settings.API_REQUESTS_PER_MINUTE}/min" if settings.API_REQUESTS_PER_MINUTE else None
        self.num_requests, self.duration = self.parse_rate(self.rate)

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        if self.rate is None or getattr(view, "is_unthrottled", False):
            return None
        name = request.user.get_username() if request.user else ""
        # A token's name is free text, which not every cache takes as a key.
        return f"throttle:{hash_secret(name or self.get_ident(request))}"
