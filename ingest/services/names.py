"""Names in events -> ids of the database, interned where they are new. One instance serves one booking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import Cursor

from ingest.core.fields import Refusal
from ingest.sql import names as sql

Who = tuple[str, str]


class Names:
    """Caches in front of the interning statements. Masters (pools, tenants, services) are never created here."""

    def __init__(self, cursor: Cursor[Any]) -> None:
        self._cursor = cursor
        self.pools: dict[str, tuple[int, str]] = {
            slug: (pk, cluster) for slug, pk, cluster in cursor.execute(sql.POOLS).fetchall()
        }
        self.services: dict[str, int] = dict(cursor.execute(sql.SERVICES).fetchall())
        self._tenants = {slug for (slug,) in cursor.execute(sql.TENANTS).fetchall()}
        self.sources: dict[str, int] = {}
        self.identities: dict[Who, int] = {}
        self.models: dict[str, int] = {}

    def missing_master(self, who: Who) -> tuple[str, str] | None:
        """(reason, detail) if `who` names a tenant or service that does not exist."""
        kind, value = who
        if kind == "tenant" and value not in self._tenants:
            return ("unknown_tenant", f"no tenant is called {value!r}")
        if kind == "service" and value not in self.services:
            return ("unknown_service", f"no service is called {value!r}")
        return None

    def learn_sources(self, uris: Iterable[str]) -> None:
        new = sorted(set(uris) - self.sources.keys())
        if new:
            self._cursor.execute(sql.INSERT_SOURCES, {"uris": new})
            self.sources.update(self._cursor.execute(sql.SOURCES, {"uris": new}).fetchall())

    def learn_models(self, models: Iterable[str]) -> None:
        new = sorted(set(models) - self.models.keys())
        if new:
            self._cursor.execute(sql.INSERT_MODELS, {"names": new})
            self.models.update(self._cursor.execute(sql.MODELS, {"names": new}).fetchall())

    def learn_identities(self, identities: Iterable[Who]) -> None:
        """Identities of existing tenants and services, and any other kind; the rest stays unknown."""
        new = sorted(who for who in set(identities) - self.identities.keys() if not self.missing_master(who))
        if not new:
            return
        parameters = {"kinds": [kind for kind, _ in new], "values": [value for _, value in new]}
        self._cursor.execute(sql.INSERT_IDENTITIES, parameters)
        for kind, value, pk in self._cursor.execute(sql.IDENTITIES, parameters).fetchall():
            self.identities[kind, value] = pk

    # --- core.fact_rows.Lookup: what was learned before, or the refusal -------------------------------------

    def pool(self, slug: str) -> tuple[int, str]:
        found = self.pools.get(slug)
        if found is None:
            raise Refusal("unknown_pool", f"no pool is called {slug!r}")
        return found

    def identity(self, who: Who) -> int:
        missing = self.missing_master(who)
        if missing:
            raise Refusal(*missing)
        return self.identities[who]

    def service(self, slug: str) -> int:
        found = self.services.get(slug)
        if found is None:
            raise Refusal("unknown_service", f"no service is called {slug!r}")
        return found

    def model(self, name: str) -> int:
        return self.models[name]
