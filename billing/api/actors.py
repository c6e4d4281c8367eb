"""Who acts through the API, and who may."""

from __future__ import annotations

from ledger.access import Access
from ledger.api.actors import actor_of

__all__ = ["actor_of", "is_finance"]


def is_finance(access: Access) -> bool:
    return access.is_finance
