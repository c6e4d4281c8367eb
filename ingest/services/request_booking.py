"""Requests and usage of a booking: straight into their daily partitions by COPY, in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import zip_longest
from typing import Any

import numpy as np
from psycopg import Cursor, errors

from ingest.core.binary_rows import Rows
from ingest.core.fields import MS_PER_DAY
from ingest.core.parse import Rejected
from ingest.core.request_lines import ABSENT, Row
from ingest.core.request_rows import Ids, Requests
from ingest.services.names import Names
from ingest.sql import requests as sql
from ledger.locks import NAMESPACE, Lock

# Each day is a partition to lock; a batch over more of them would exhaust the server's lock table.
MAX_DAYS = 800
_EPOCH = date(1970, 1, 1)
_POOL, _SERVICE, _TENANT = map(Requests.field_position, ("pool", "service", "tenant"))


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

    def add(self, rows: list[Row]) -> list[Rejected]:
        """Book a block; returns what of it is refused. Rows are given in order of lines."""
        rows, refused = self._with_known_names(rows)
        rows, too_old = self._with_open_days(rows)
        refused += too_old
        while rows:
            if self._looks_up:
                known, rows, conflicts = self._without_known(rows)
                refused += conflicts
                self.duplicate += known
                self._looks_up = bool(known or conflicts)
                if not rows:
                    break
            requests = Requests(rows)
            ids = self._ids(requests)
            if self._copy(requests.table_rows(ids, self._booking_id)):
                self._count(requests, ids)
                break
            self._looks_up = True
        return refused

    def missing_master(self, row: Row) -> tuple[str, str] | None:
        """(reason, detail) if the row names a pool, service or tenant that does not exist."""
        return self._problem(*(row[6][place] for place in (_POOL, _SERVICE, _TENANT)))

    def add_replacements(self, rows: list[Row]) -> None:
        """Book what corrections brought along; it belongs to their lines and is not counted beside them."""
        booked, duplicate = self.booked, self.duplicate
        self._looks_up = True
        self.add(rows)
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

    def _with_known_names(self, rows: list[Row]) -> tuple[list[Row], list[Rejected]]:
        names = self._names
        names.learn_sources({row[2] for row in rows})
        values = [row[6] for row in rows]
        named = [{one[place] for one in values} for place in (_POOL, _SERVICE, _TENANT)]
        if not any(self._problem(*one) for one in zip_longest(*named)):
            return rows, []
        kept, refused = [], []
        for row in rows:
            problem = self._problem(*(row[6][place] for place in (_POOL, _SERVICE, _TENANT)))
            if problem is None:
                kept.append(row)
            else:
                refused.append(rejected_row(row, *problem))
        return kept, refused

    def _problem(self, pool: str | None, service: str | None, tenant: str | None) -> tuple[str, str] | None:
        """(reason, detail) if a pool, service or tenant of these does not exist; None stands for none named."""
        if pool is not None and pool not in self._names.pools:
            return ("unknown_pool", f"no pool is called {pool!r}")
        for kind, slug in (("service", service), ("tenant", tenant)):
            if slug is not None and (problem := self._names.missing_master((kind, slug))):
                return problem
        return None

    def _ids(self, requests: Requests) -> Ids:
        names, values, count = self._names, requests.values, len(requests)
        who = requests.who()
        names.learn_identities({one for one in who if one is not None})
        names.learn_models(set(values["model"]))
        pools, services = names.pools, names.services
        return Ids(
            source=np.fromiter(map(names.sources.__getitem__, requests.sources), np.int64, count),
            pool=np.fromiter((pools[slug][0] for slug in values["pool"]), np.int64, count),
            identity=np.fromiter(
                (ABSENT if one is None else names.identities[one] for one in who), np.int64, count
            ),
            service=np.fromiter(
                (ABSENT if slug is None else services[slug] for slug in values["service"]), np.int64, count
            ),
            model=np.fromiter(map(names.models.__getitem__, values["model"]), np.int64, count),
        )

    # --- days -----------------------------------------------------------------------------------------------

    def _with_open_days(self, rows: list[Row]) -> tuple[list[Row], list[Rejected]]:
        """Make the partitions these rows need; refuse rows of pruned days, and of ever more days."""
        new = sorted({row[4] // MS_PER_DAY for row in rows} - self._days)
        first_kept = (self._kept_from - _EPOCH).days if self._kept_from else 0
        wanted = [day for day in new if day >= first_kept][: MAX_DAYS - len(self._days)]
        if wanted:
            self._ensure_partitions([_EPOCH + timedelta(days=day) for day in wanted])
            self._days.update(wanted)
        if len(wanted) == len(new):
            return rows, []
        kept = [row for row in rows if row[4] // MS_PER_DAY in self._days]
        return kept, [
            rejected_row(row, "too_old", "the requests of its day were pruned")
            if row[4] // MS_PER_DAY < first_kept
            else rejected_row(
                row, "too_many_days", f"one batch may bring requests of at most {MAX_DAYS} days"
            )
            for row in rows
            if row[4] // MS_PER_DAY not in self._days
        ]

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

    def _without_known(self, rows: list[Row]) -> tuple[int, list[Row], list[Rejected]]:
        """(duplicates, new rows, conflicts). Of a key that is not booked yet, the first row here is the new one."""
        first: dict[tuple[str, str, int], Row] = {}
        for row in rows:
            first.setdefault(_key(row), row)
        booked = self._look_up(list(first.values()))
        duplicates, new, conflicts = 0, [], []
        for row in rows:
            key = _key(row)
            if key not in booked and first[key] is row:
                new.append(row)
            elif row[5] == booked.get(key, first[key][5]):
                duplicates += 1
            else:
                conflicts.append(_conflict(row))
        return duplicates, new, conflicts

    def _look_up(self, rows: list[Row]) -> dict[tuple[str, str, int], bytes]:
        """{key of those rows that is booked: hash of its content}"""
        keys = Rows()
        keys.number("n", "integer", np.arange(len(rows)))
        keys.number("day", "date", np.array([row[4] for row in rows], np.int64) // MS_PER_DAY)
        keys.number("source_id", "bigint", np.array([self._names.sources[row[2]] for row in rows], np.int64))
        keys.text("event_id", [row[3].encode() for row in rows])
        copy_rows(self._cursor, "stage_request_key", keys)
        found = self._cursor.execute(sql.KNOWN_KEYS, binary=True).fetchall()
        self._cursor.execute("TRUNCATE stage_request_key")
        return {_key(rows[n]): content_hash for n, content_hash in found}

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


def _key(row: Row) -> tuple[str, str, int]:
    return (row[2], row[3], row[4] // MS_PER_DAY)


def rejected_row(row: Row, reason: str, detail: str) -> Rejected:
    line, raw, source, event_id, time_ms = row[:5]
    return Rejected(line, reason, detail, raw, id=event_id, source=source, time_ms=time_ms)


def _conflict(row: Row) -> Rejected:
    return rejected_row(row, "conflict", CONFLICT)


CONFLICT = "this key was booked before with other content; the first stays"
