"""Changes of masters and identities leave a trace with who, what, before and after (domain.md section 10)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from billing.services.configuration import apply_document
from ledger.models import AuditEntry, Tenant
from ledger.services.masters import map_identity

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

TENANTS = {"tenant": [{"slug": "acme"}, {"slug": "beta"}]}


def test_applying_a_configuration_is_on_record_once() -> None:
    apply_document(TENANTS, by="anna", dry_run=True)
    assert not AuditEntry.objects.exists()
    apply_document(TENANTS, by="anna")
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action) == ("anna", "apply_configuration")
    assert "+ tenant acme" in entry.after["changes"]
    apply_document(TENANTS, by="anna")
    assert AuditEntry.objects.count() == 1


def test_mapping_an_identity_says_whose_it_was() -> None:
    apply_document(TENANTS)
    acme, beta = Tenant.objects.order_by("holder__slug")
    map_identity("user", "u-1", acme, by="anna")
    map_identity("user", "u-1", beta, valid_from=datetime(2026, 10, 5, tzinfo=UTC), by="bo")
    assert not map_identity("user", "u-1", beta, valid_from=datetime(2026, 10, 6, tzinfo=UTC), by="bo")
    first, second = AuditEntry.objects.filter(object_id="user:u-1").order_by("id")
    assert (first.actor, first.before, first.after["tenant"]) == ("anna", {"mappings": []}, "acme")
    assert (second.actor, second.after["tenant"]) == ("bo", "beta")
    assert second.before["mappings"][0].startswith("acme ")
