"""Changes of masters and identities leave a trace with who, what, before and after (domain.md section 10)."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest
from django.core.management import call_command
from rest_framework.test import APIClient

from billing.services.configuration import apply_document
from ledger.core.sentences import spelled_out
from ledger.management.base import BadInput
from ledger.models import AuditEntry, Tenant, User
from ledger.services.audit import Actor
from ledger.services.masters import map_identity
from ledger.services.tokens import record_roles

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

TENANTS = {"tenant": [{"slug": "acme"}, {"slug": "beta"}]}


def test_applying_a_configuration_is_on_record_once() -> None:
    apply_document(TENANTS, by="anna", dry_run=True)
    assert not AuditEntry.objects.exists()
    apply_document(TENANTS, by="anna")
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action) == ("anna", "apply_configuration")
    assert "+ tenant acme" in spelled_out(entry.after)["changes"]
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


def test_tokens_are_made_and_ended_on_record() -> None:
    apply_document(TENANTS)
    out = io.StringIO()
    call_command("create_api_token", "gate", "--role", "tenant_viewer", "--tenant", "acme", stdout=out)
    secret = out.getvalue().strip()
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    assert api.get("/api/v1/tenants/").status_code == 200
    call_command("revoke_api_token", "gate", "--reason", "replaced", stdout=io.StringIO())
    assert api.get("/api/v1/tenants/").status_code == 401
    with pytest.raises(BadInput, match="no token in use is called 'gate'"):
        call_command("revoke_api_token", "gate")
    made, ended = AuditEntry.objects.filter(object_type="api_token").order_by("pk")
    assert (made.action, made.after["role"], made.after["tenants"]) == (
        "create_api_token",
        "tenant_viewer",
        ["acme"],
    )
    assert (ended.action, ended.actor, ended.reason) == ("revoke_api_token", "revoke_api_token", "replaced")
    assert secret not in str([made.after, ended.after])


def test_roles_of_a_user_are_on_record_where_they_change() -> None:
    user = User.objects.create(username="anna")
    record_roles(user, [], ["finance"], Actor("sign-in"))
    record_roles(user, ["finance"], ["finance"], Actor("sign-in"))
    entry = AuditEntry.objects.get(object_type="user")
    assert (entry.object_id, entry.before, entry.after) == ("anna", {"roles": []}, {"roles": ["finance"]})
