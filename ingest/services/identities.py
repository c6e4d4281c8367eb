"""Saying whose an identity is, and what that moves (domain.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from ingest.core.fields import Refusal, identity_kind, identity_value
from ingest.selectors.identities import Attributed, attributed_facts
from ledger.models import Tenant
from ledger.services.audit import Actor
from ledger.services.masters import MappingConflict, map_identity


class IdentityProblem(ValueError):
    """What was asked for cannot be done; `code` for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Mapped:
    """is_new False: it was the tenant's already. facts: what belongs to the tenant now, by pool; the pools are
    computed again, and what stood in suspense moves."""

    kind: str
    value: str
    tenant: str
    valid_from: datetime | None
    valid_to: datetime | None
    is_new: bool
    facts: tuple[Attributed, ...]


@transaction.atomic
def attribute_identity(
    kind: str,
    value: str,
    tenant_slug: str,
    *,
    valid_from: datetime | None,
    valid_to: datetime | None,
    reason: str,
    by: Actor,
) -> Mapped:
    """Map an identity to a tenant during [valid_from, valid_to), with a reason for the audit trail.

    Raises:
        IdentityProblem: `bad_identity`, `unknown_tenant`, `no_reason`, `empty_validity`, `mapped_otherwise`.
    """
    try:
        kind, value = identity_kind(kind), identity_value(value)
    except Refusal as refusal:
        raise IdentityProblem("bad_identity", refusal.detail) from None
    if kind in ("tenant", "service"):
        raise IdentityProblem("bad_identity", f"{kind} names itself and cannot be mapped")
    tenant = Tenant.objects.filter(holder__slug=tenant_slug).first()
    if tenant is None:
        raise IdentityProblem("unknown_tenant", f"no tenant is called {tenant_slug!r}")
    if not reason.strip():
        raise IdentityProblem("no_reason", "give a reason")
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        raise IdentityProblem("empty_validity", "the end must be after the beginning")
    try:
        is_new = map_identity(
            kind, value, tenant, valid_from=valid_from, valid_to=valid_to, by=by, reason=reason.strip()
        )
    except MappingConflict as error:
        raise IdentityProblem("mapped_otherwise", str(error)) from None
    facts = tuple(attributed_facts(kind, value, valid_from, valid_to))
    return Mapped(kind, value, tenant.slug, valid_from, valid_to, is_new, facts)
