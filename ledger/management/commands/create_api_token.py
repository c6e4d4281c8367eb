"""Makes an API token and prints its secret once."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.utils import timezone

from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Role, Source, Tenant
from ledger.models.access import TENANT_ROLES
from ledger.services.audit import Actor
from ledger.services.tokens import create_api_token


class Command(LedgerCommand):
    help = "Create an API token; its secret is printed once and only its hash is kept."
    example = "manage.py create_api_token gateway --role ingest --source edge-gateway --days 365"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the token is for")
        parser.add_argument("--role", required=True, choices=[str(role) for role in Role])
        parser.add_argument(
            "--tenant", action="append", default=[], help="a tenant it acts for (tenant roles)"
        )
        parser.add_argument(
            "--source", action="append", default=[], help="a source it may write for (role ingest)"
        )
        parser.add_argument("--days", type=int, help="expires after that many days")

    def handle(self, *args: Any, **options: Any) -> None:
        tenants = list(Tenant.objects.filter(holder__slug__in=options["tenant"]).select_related("holder"))
        for slug in set(options["tenant"]) - {tenant.slug for tenant in tenants}:
            raise BadInput(f"unknown tenant '{slug}'")
        sources = list(Source.objects.filter(name__in=options["source"]))
        for name in set(options["source"]) - {source.name for source in sources}:
            raise BadInput(f"unknown source '{name}'")
        if (options["role"] in TENANT_ROLES) != bool(tenants):
            raise BadInput("--tenant goes with the roles tenant_admin and tenant_viewer, and they need it")
        if sources and options["role"] != Role.INGEST:
            raise BadInput("--source goes with the role ingest")
        days = options["days"]
        if days is not None and not 1 <= days <= 3650:
            raise BadInput("--days must be 1 to 3650")
        expires_at = timezone.now() + timedelta(days=days) if days else None
        _token, secret = create_api_token(
            options["name"],
            options["role"],
            tenants=tenants,
            sources=sources,
            expires_at=expires_at,
            by=Actor("create_api_token"),
        )
        self.stdout.write(secret)
