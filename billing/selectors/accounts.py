"""Accounts by the names that the core knows them by, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from billing.core.posting import pool_account
from billing.core.rating_lines import CONVERSION, PLATFORM, SUSPENSE, tenant_account
from ledger.models import Account, AccountKind

_OF_KIND = {
    AccountKind.PLATFORM: PLATFORM,
    AccountKind.CONVERSION: CONVERSION,
    AccountKind.SUSPENSE: SUSPENSE,
}


@dataclass(frozen=True)
class Accounts:
    """ids: name -> primary key."""

    ids: dict[str, int]
    names: dict[int, str]

    def of_holder(self, slug: str, owners: Mapping[str, str]) -> str:
        """A tenant's own account; a service's owner's; else the suspense account. owners: see `Undated`."""
        if slug in owners:
            return tenant_account(owners[slug]) if owners[slug] else PLATFORM
        name = tenant_account(slug)
        return name if name in self.ids else SUSPENSE


def accounts() -> Accounts:
    """One query."""
    names = {}
    rows = Account.objects.values_list("pk", "kind", "tenant__holder__slug", "pool__slug")
    for pk, kind, tenant, pool in rows:
        if tenant is not None:
            names[pk] = tenant_account(tenant)
        else:
            names[pk] = pool_account(pool) if pool is not None else _OF_KIND[AccountKind(kind)]
    return Accounts({name: pk for pk, name in names.items()}, names)
