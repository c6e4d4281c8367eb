"""Accounts by the names that the core knows them by, and back."""

from __future__ import annotations

from dataclasses import dataclass

from billing.core.posting import pool_account
from billing.core.rating_lines import CONVERSION, PLATFORM, SUSPENSE, tenant_account
from ledger.models import Account, AccountKind, Service

_OF_KIND = {
    AccountKind.PLATFORM: PLATFORM,
    AccountKind.CONVERSION: CONVERSION,
    AccountKind.SUSPENSE: SUSPENSE,
}


@dataclass(frozen=True)
class Accounts:
    """ids: name -> primary key. owners: service slug -> the account that answers for the service."""

    ids: dict[str, int]
    names: dict[int, str]
    owners: dict[str, str]

    def of_holder(self, slug: str) -> str:
        """A tenant's own account; a service's owner's; else the suspense account."""
        if slug in self.owners:
            return self.owners[slug]
        name = tenant_account(slug)
        return name if name in self.ids else SUSPENSE


def accounts() -> Accounts:
    """Two queries."""
    names = {}
    rows = Account.objects.values_list("pk", "kind", "tenant__holder__slug", "pool__slug")
    for pk, kind, tenant, pool in rows:
        if tenant is not None:
            names[pk] = tenant_account(tenant)
        else:
            names[pk] = pool_account(pool) if pool is not None else _OF_KIND[AccountKind(kind)]
    services = Service.objects.select_related("holder", "owner__holder")
    owners = {
        service.slug: tenant_account(service.owner.slug) if service.owner else PLATFORM
        for service in services
    }
    return Accounts({name: pk for pk, name in names.items()}, names, owners)
