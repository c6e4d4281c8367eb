"""Django's PostgreSQL engine with the address filled in at the last moment."""

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db.backends.postgresql import base
from django.db.backends.postgresql.client import DatabaseClient as PostgresClient
from django.db.utils import OperationalError

from ledger.embedded.postgres import postgres_in, programs
from ledger.embedded.service import EmbeddedServiceError


def fill_in_address(settings_dict: dict[str, Any]) -> None:
    """Write host, port, user and password of the embedded server into a DATABASES entry."""
    server = postgres_in(settings.VAR_DIR, settings.EMBEDDED_DURABLE)
    try:
        settings_dict.update(server.connection_values(server.acquire()))
    except EmbeddedServiceError as error:
        raise OperationalError(str(error)) from error


class DatabaseClient(PostgresClient):
    """`manage.py dbshell` with the psql of the package."""

    executable_name = str(programs() / "psql")

    def runshell(self, parameters: Iterable[str]) -> None:
        fill_in_address(self.connection.settings_dict)
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    client_class = DatabaseClient

    def get_connection_params(self) -> dict[str, Any]:
        # For each new connection: a server that died meanwhile comes back on another port.
        fill_in_address(self.settings_dict)
        return super().get_connection_params()
