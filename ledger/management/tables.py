"""The database's tables as this version of the code wants them."""

from __future__ import annotations

from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from ledger.locks import NAMESPACE, Lock


def are_up_to_date() -> bool:
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())


def is_ours() -> bool:
    """Whether the database is the embedded one, whose tables nobody but these commands tends."""
    return not settings.DATABASE_URL


def bring_up_to_date() -> None:
    """Apply the missing migrations; of several processes that want to, one does and the others wait."""
    with connection.cursor() as cursor:
        # Of the session, since migrations commit one by one.
        cursor.execute("SELECT pg_advisory_lock(%s, %s)", [NAMESPACE, int(Lock.TABLES)])
        try:
            call_command("migrate", interactive=False, verbosity=0)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [NAMESPACE, int(Lock.TABLES)])
