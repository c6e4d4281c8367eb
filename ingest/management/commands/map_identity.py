"""Says whose an identity is, from an instant on, for ever or for a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from ingest.core.fields import Refusal, identity_kind, identity_value, instant_ms
from ledger.core.periods import to_datetime
from ledger.management.base import BadInput, LedgerCommand
from ledger.models import Tenant
from ledger.services.masters import MappingConflict, map_identity


class Command(LedgerCommand):
    help = (
        "Map an identity such as a namespace or an account to a tenant. Facts that were booked before, and wait in "
        "suspense, are attributed to the tenant, and the books follow."
    )
    example = "manage.py map_identity k8s_namespace team-a acme --from 2026-10-01T00:00:00Z"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind", metavar="KIND", help="such as k8s_namespace, slurm_account, label:team")
        parser.add_argument("value", metavar="VALUE")
        parser.add_argument("tenant", metavar="TENANT", help="slug of the tenant")
        parser.add_argument("--from", dest="valid_from", metavar="INSTANT", help="RFC 3339; left out: always")
        parser.add_argument("--to", dest="valid_to", metavar="INSTANT", help="RFC 3339; left out: for ever")
        parser.add_argument("--reason", default="", help="for the audit trail")

    def handle(self, *args: Any, **options: Any) -> None:
        kind, value = (
            _read("KIND", identity_kind, options["kind"]),
            _read("VALUE", identity_value, options["value"]),
        )
        tenant = Tenant.objects.filter(holder__slug=options["tenant"]).first()
        if tenant is None:
            raise BadInput(f"no tenant is called {options['tenant']!r}")
        valid_from, valid_to = (
            _instant("--from", options["valid_from"]),
            _instant("--to", options["valid_to"]),
        )
        if valid_from is not None and valid_to is not None and valid_to <= valid_from:
            raise BadInput("--to must be after --from")
        try:
            changed = map_identity(
                kind,
                value,
                tenant,
                valid_from=valid_from,
                valid_to=valid_to,
                by="command line",
                reason=options["reason"],
            )
        except MappingConflict as error:
            raise BadInput(str(error)) from None
        said = f"{kind}:{value} is {options['tenant']}'s"
        self.stdout.write(said if changed else f"{said} already")


def _read(name: str, read: Any, text: str) -> str:
    try:
        found: str = read(text)
    except Refusal as refusal:
        raise BadInput(f"{name}: {refusal.detail}") from None
    return found


def _instant(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else to_datetime(instant_ms(text))
    except Refusal as refusal:
        raise BadInput(f"{name}: {refusal.detail}") from None
