"""Requests and usage of a booking: straight into their daily partitions by COPY, in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import zip_longest
from typing import Any

import numpy as np
from psycopg import Cursor, errors

from ingest.core.binary_rows import Int64s, Rows
from ingest.core.parse import Rejected
from ingest.core.request_content import ABSENT
from ingest.core.request_rows import Ids, Requests
from ingest.services.names import Names
from ingest.sql import requests as sql
from ledger.locks import NAMESPACE, Lock

# Each day is a partition to lock; a batch over more of them would exhaust the server's lock table.
MAX_DAYS = 800
_EPOCH = date(1970, 1, 1)

_Key = tuple[str, str, int]  # source, id, UTC day in days from 1970
Problem = tuple[str, str]
"""(reason code, detail)"""


def copy_rows(cursor: Cursor[Any], table: str, rows: Rows) -> None:
    with cursor.copy(f"COPY {table} ({', '.join(rows.names())}) FROM STDIN (FORMAT binary)") as copy:
        copy.write(rows.packed())


class RequestBooking:
    """Books rows block by block and counts them.

    New rows are the rule, so a block is first copied as if all were new: that costs what a bare COPY costs. Where
    the primary key objects, the block is rolled back and from then on keys are looked up first, until a block had
    nothing but new ones.
    """

    def __init__(self, cursor: Cursor[Any], names: Names, booking_id: int, kept_from: date | None) -> None:
        self._cursor = cursor
        self._names = names
        self._booking_id = booking_id
        self._kept_from = kept_from
        self._days: set[int] = set()
        self._looks_up = False
        self.booked = 0
        self.duplicate = 0
        self.latest_ms: dict[int, int] = {}  # source id -> greatest event time
        cursor.execute(sql.STAGES)

    def add(self, requests: Requests) -> list[Rejected]:
        """Book a block, given in order of lines; returns what of it is refused."""
        refused: list[Rejected] = []
        self._names.learn_sources(set(requests.sources))
        for check in (self._name_problems, self._day_problems):
            requests = _without(requests, check(requests), refused)
        while len(requests):
            if self._looks_up:
                requests, known = self._without_known(requests, refused)
                self.duplicate += known
                if not len(requests):
                    break
            ids = self._ids(requests)
            if self._copy(requests.table_rows(ids, self._booking_id)):
                self._count(requests, ids)
                break
            self._looks_up = True
        return refused

    def add_replacements(self, requests: Requests) -> None:
        """Book what corrections brought along; it belongs to their lines and is not counted beside them."""
        booked, duplicate = self.booked, self.duplicate
        self._looks_up = True
        self.add(requests)
        self.booked, self.duplicate = booked, duplicate

    @property
    def days(self) -> list[date]:
        return [_EPOCH + timedelta(days=day) for day in sorted(self._days)]

    def withdraw(self, days: list[date], *, earlier: bool) -> None:
        """Take void requests of those days out of the roll-up: this booking's, and earlier ones that it voids."""
        self._cursor.execute(sql.WITHDRAW, {"booking": self._booking_id, "days": days, "earlier": earlier})

    def finish(self) -> None:
        """Move the hourly roll-up and mark the hours dirty. Last, because it waits for bookings of the same hours."""
        self._cursor.execute(sql.MERGE_HOURS)
        self._cursor.execute(sql.DIRTY_HOURS)

    # --- names ----------------------------------------------------------------------------------------------

    def _name_problems(self, requests: Requests) -> dict[int, Problem]:
        """{place: (reason, detail)} of rows that name a pool, service or tenant that does not exist."""
        named = [requests.texts[name] for name in ("pool", "service", "tenant")]
        if not any(self._problem(*one) for one in zip_longest(*map(set, named))):
            return {}
        problems = ((place, self._problem(*one)) for place, one in enumerate(zip(*named, strict=True)))
        return {place: problem for place, problem in problems if problem is not None}

    def missing_master(self, requests: Requests) -> Problem | None:
        """The first of the rows' problems with names."""
        return next(iter(self._name_problems(requests).values()), None)

    def _problem(self, pool: str | None, service: str | None, tenant: str | None) -> Problem | None:
        """(reason, detail) if a pool, service or tenant of these does not exist; None stands for none named."""
        if pool is not None and pool not in self._names.pools:
            return ("unknown_pool", f"no pool is called {pool!r}")
        for kind, slug in (("service", service), ("tenant", tenant)):
            if slug is not None and (problem := self._names.missing_master((kind, slug))):
                return problem
        return None

    def _ids(self, requests: Requests) -> Ids:
        names, texts, count = self._names, requests.texts, len(requests)
        who = requests.who()
        names.learn_identities({one for one in who if one is not None})
        names.learn_models(set(texts["model"]))
        pools = {slug: pk for slug, (pk, _) in names.pools.items()}
        services: dict[Any, int] = {**names.services, None: ABSENT}
        identities: dict[Any, int] = names.identities  # type: ignore[assignment]
        if None in who:
            identities = {**identities, None: ABSENT}

        def ids(known: Any, column: Any) -> Int64s:
            return np.fromiter(map(known.__getitem__, column), np.int64, count)

        return Ids(
            source=ids(names.sources, requests.sources),
            pool=ids(pools, texts["pool"]),
            identity=ids(identities, who),
            service=ids(services, texts["service"]),
            model=ids(names.models, texts["model"]),
        )

    # --- days -----------------------------------------------------------------------------------------------

    def _day_problems(self, requests: Requests) -> dict[int, Problem]:
        """Make the partitions these rows need; {place: (reason, detail)} of rows whose day has none."""
        new = sorted(set(np.unique(requests.days).tolist()) - self._days)
        first_kept = (self._kept_from - _EPOCH).days if self._kept_from else 0
        wanted = [day for day in new if day >= first_kept][: MAX_DAYS - len(self._days)]
        if wanted:
            self._ensure_partitions([_EPOCH + timedelta(days=day) for day in wanted])
            self._days.update(wanted)
        if len(wanted) == len(new):
            return {}
        return {
            place: ("too_old", "the requests of its day were pruned")
            if day < first_kept
            else ("too_many_days", f"one batch may bring requests of at most {MAX_DAYS} days")
            for place, day in enumerate(requests.days.tolist())
            if day not in self._days
        }

    def _ensure_partitions(self, days: Sequence[date]) -> None:
        if missing := self._missing_partitions(days):
            self._cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [NAMESPACE, int(Lock.PARTITIONS)])
            missing = self._missing_partitions(missing)  # another booking may have made them meanwhile
        for day in missing:
            for statement in sql.create_partition(day):
                self._cursor.execute(statement)

    def _missing_partitions(self, days: Sequence[date]) -> list[date]:
        names = [sql.partition_name(day) for day in days]
        found = {name for (name,) in self._cursor.execute(sql.PARTITIONS, {"names": names}).fetchall()}
        return [day for day, name in zip(days, names, strict=True) if name not in found]

    # --- keys -----------------------------------------------------------------------------------------------

    def _without_known(self, requests: Requests, refused: list[Rejected]) -> tuple[Requests, int]:
        """(new rows, number of duplicates). Of a key that is not booked yet, the first row here is the new one."""
        keys, digests = requests.keys(), requests.digests
        first: dict[_Key, int] = {}
        for place, key in enumerate(keys):
            first.setdefault(key, place)
        booked = self._look_up(first)
        new: list[int] = []
        conflicts: dict[int, Problem] = {}
        for place, key in enumerate(keys):
            if key not in booked and first[key] == place:
                new.append(place)
            elif digests[place] != booked.get(key, digests[first[key]]):
                conflicts[place] = ("conflict", CONFLICT)
        refused += [requests.rejected(place, *conflicts[place]) for place in conflicts]
        self._looks_up = len(new) < len(keys)
        return requests.take(new), len(keys) - len(new) - len(conflicts)

    def _look_up(self, first: dict[_Key, int]) -> dict[_Key, bytes]:
        """{key that is booked: hash of its content}"""
        keys = list(first)
        rows = Rows()
        rows.number("n", "integer", np.arange(len(keys)))
        rows.number("day", "date", np.array([day for _, _, day in keys], np.int64))
        rows.number(
            "source_id", "bigint", np.array([self._names.sources[uri] for uri, _, _ in keys], np.int64)
        )
        rows.text("event_id", [event_id.encode() for _, event_id, _ in keys])
        copy_rows(self._cursor, "stage_request_key", rows)
        found = self._cursor.execute(sql.KNOWN_KEYS, binary=True).fetchall()
        self._cursor.execute("TRUNCATE stage_request_key")
        return {keys[n]: content_hash for n, content_hash in found}

    def _copy(self, rows: Rows) -> bool:
        """Whether all rows were new. If not, none of them is in the table."""
        self._cursor.execute("SAVEPOINT request_block")
        try:
            copy_rows(self._cursor, "ledger_request", rows)
        except errors.UniqueViolation:
            self._cursor.execute("ROLLBACK TO SAVEPOINT request_block")
            return False
        self._cursor.execute("RELEASE SAVEPOINT request_block")
        return True

    def _count(self, requests: Requests, ids: Ids) -> None:
        self.booked += len(requests)
        copy_rows(self._cursor, "stage_hour", requests.hours(ids).table_rows())
        for source in np.unique(ids.source).tolist():
            latest = int(requests.ends_ms[ids.source == source].max())
            self.latest_ms[source] = max(latest, self.latest_ms.get(source, latest))


def _without(requests: Requests, problems: dict[int, Problem], refused: list[Rejected]) -> Requests:
    """The rows without those that have a problem, which go to `refused`."""
    if not problems:
        return requests
    refused += [requests.rejected(place, *problem) for place, problem in problems.items()]
    return requests.take([place for place in range(len(requests)) if place not in problems])


CONFLICT = "this key was booked before with other content; the first stays"
