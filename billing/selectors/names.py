"""How tenants are called in front of whom: a tenant sees others by their display alias (domain.md section 6)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime
from typing import NamedTuple

from billing.models import Policy
from ledger.access import Access
from ledger.models import Holder, HolderKind

ANOTHER_TENANT = "another tenant"


class _Holder(NamedTuple):
    slug: str
    kind: int
    alias: str


class Names:
    """Shown names of holders for one asker. One query for all holders, one for the policy."""

    def __init__(self, access: Access, at: datetime) -> None:
        policy = Policy.objects.filter(valid_from__lte=at).order_by("-valid_from").first()
        in_force = policy is not None and (policy.ended_at is None or policy.ended_at > at)
        self._visible_to_all = in_force and policy is not None and policy.names_visible
        self._read_by(access)
        holders = Holder.objects.values_list("pk", "slug", "kind", "tenant__display_alias")
        self._holders = {pk: _Holder(slug, kind, alias or "") for pk, slug, kind, alias in holders}
        self._ids = {holder.slug: pk for pk, holder in self._holders.items()}

    def _read_by(self, access: Access) -> None:
        self._sees_all = access.sees_all_tenants
        self._open = access.sees_all_tenants or self._visible_to_all
        self._own = access.tenant_ids

    def of(self, access: Access) -> Names:
        """The same names in front of somebody else. No query."""
        names = copy(self)
        names._read_by(access)
        return names

    @property
    def shows_all(self) -> bool:
        """Whether the asker sees every tenant whatever the policy says."""
        return self._sees_all

    def shown(self, holder_id: int | None) -> str:
        """The slug of one's own, of services and of the unattributed; another tenant's display alias."""
        if holder_id is None:
            return ""
        holder = self._holders[holder_id]
        if self._open or holder.kind != HolderKind.TENANT or holder_id in self._own:
            return holder.slug
        return holder.alias or ANOTHER_TENANT

    def shown_where(self, holds: Callable[[str], bool]) -> list[int]:
        """Ids of the holders whose shown name is so. What they are really called has no say in it. No query."""
        return [pk for pk in self._holders if holds(self.shown(pk))]

    def shown_slug(self, slug: str) -> str:
        """The same for a holder known by its slug."""
        return self.shown(self._ids[slug])

    def is_other(self, holder_id: int | None) -> bool:
        """Whether details of this holder (workload names and ids) stay hidden."""
        return (
            holder_id is not None
            and not self._open
            and self._holders[holder_id].kind == HolderKind.TENANT
            and holder_id not in self._own
        )
