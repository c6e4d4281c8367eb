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
    for account in Account.objects.select_related("tenant__holder", "pool"):
        if account.tenant is not None:
            names[account.pk] = tenant_account(account.tenant.slug)
        elif account.pool is not None:
            names[account.pk] = pool_account(account.pool.slug)
        else:
            names[account.pk] = _OF_KIND[AccountKind(account.kind)]
    services = Service.objects.select_related("holder", "owner__holder")
    owners = {
        service.slug: tenant_account(service.owner.slug) if service.owner else PLATFORM
        for service in services
    }
    return Accounts({name: pk for pk, name in names.items()}, names, owners)
