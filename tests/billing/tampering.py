"""Past the guards of the database, as its owner could go: no superuser is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from billing.core.statement import GENESIS, seal
from billing.models import Statement, StatementAnnex, StatementState


@contextmanager
def unguarded(table: str) -> Iterator[None]:
    """The table without its append-only triggers. Inside of a transaction."""
    with connection.cursor() as cursor:
        # A table with checks still to come cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def issued_as_before_version_2() -> None:
    """Seal the only issued month again as it was done when statements said neither slots nor what follows from them."""
    with unguarded("billing_statementannex"):
        StatementAnnex.objects.filter(name__in=["slots", "hits"]).delete()
    head = GENESIS
    with unguarded("billing_statement"):
        for one in Statement.objects.filter(state=StatementState.ISSUED).order_by("tenant__holder__slug"):
            content = {name: value for name, value in one.content.items() if name not in _OF_VERSION_2}
            annexes = {
                name: said for name, said in content["annexes"].items() if name not in ("slots", "hits")
            }
            content["annexes"] = annexes
            sealed = seal(content, GENESIS, head)
            Statement.objects.filter(pk=one.pk).update(
                content=content, sha256=sealed, previous_of_tenant=GENESIS, previous_of_ledger=head
            )
            head = sealed


_OF_VERSION_2 = ("version", "borne_for_others", "shares_of_capacity")
