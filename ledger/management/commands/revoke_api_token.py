"""Ends an API token."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ledger.management.base import BadInput, LedgerCommand
from ledger.services.audit import Actor
from ledger.services.tokens import TokenError, revoke_api_token


class Command(LedgerCommand):
    help = "End an API token: from now on it opens nothing. It stays on record."
    example = "manage.py revoke_api_token gateway --reason 'the gateway was replaced'"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="its name, or the first 8 characters of its secret")
        parser.add_argument("--reason", default="", help="goes into the audit trail")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            token = revoke_api_token(options["name"], Actor("revoke_api_token"), options["reason"])
        except TokenError as error:
            raise BadInput(str(error)) from None
        self.stdout.write(f"{token} is revoked")
