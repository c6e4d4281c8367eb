"""Who may look and act: users, their roles, API tokens (interfaces.md, Roles)."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import Q

from ledger.models.choices import Role
from ledger.models.masters import Tenant

TENANT_ROLES = [Role.TENANT_ADMIN, Role.TENANT_VIEWER]


class User(AbstractUser):
    """A person. What it may do comes from its memberships, never from is_staff."""

    language = models.CharField(max_length=10, blank=True)
    # Its password was chosen by somebody else: until it is changed it opens nothing.
    must_change_password = models.BooleanField(default=False)


class Membership(models.Model):
    """One role of a user: for one tenant (tenant roles) or for the whole ledger (all others)."""

    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role.choices)
    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="memberships")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "role", "tenant"], nulls_distinct=False, name="membership_once"
            ),
            models.CheckConstraint(
                condition=Q(role__in=TENANT_ROLES, tenant__isnull=False)
                | (~Q(role__in=TENANT_ROLES) & Q(tenant__isnull=True)),
                name="membership_tenant_fits_role",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role}" + (f" of {self.tenant}" if self.tenant_id else "")


class ApiToken(models.Model):
    """A bearer token. Only the SHA-256 of the secret is kept; the secret is shown once."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    secret_sha256 = models.CharField(max_length=64, unique=True)
    role = models.CharField(max_length=20, choices=Role.choices)
    tenants = models.ManyToManyField(Tenant, blank=True, related_name="api_tokens")
    sources = models.ManyToManyField("ledger.Source", blank=True, related_name="api_tokens")
    created_by = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="api_tokens")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
