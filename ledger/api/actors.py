"""Who acts through the API, as the audit trail and the rule of two people know them."""

from __future__ import annotations

from rest_framework.request import Request

from ledger.access import TokenPrincipal, access_of_user
from ledger.services.audit import Actor


def actor_of(request: Request) -> Actor:
    """The person behind the request: a token that somebody made for itself is no second person."""
    user = request.user
    made_by = user.token.created_by if isinstance(user, TokenPrincipal) else None
    name = made_by.get_username() if made_by is not None else access_of_user(user).name
    return Actor(name, str(request.META.get("ledger.request_id", "")))
