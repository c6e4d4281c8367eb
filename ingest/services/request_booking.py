"""Requests and usage of a booking: straight into their daily partitions by COPY, in bulk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import zip_longest
from typing import Any

import numpy as np
from psycopg import Cursor

from ingest.core.binary_rows import Int64s, Rows
from ingest.core.parse import Rejected
from ingest.core.request_content import ABSENT
from ingest.core.request_rows import HourSums, Ids, Requests
from ingest.services.names import Names
from ingest.services.raw_cursor import BookingCursor
from ingest.sql import quotas as quota_sql
from ingest.sql import requests as sql
from ledger.locks import NAMESPACE, Lock

# Each day is a partition to lock; a batch over more of them would exhaust the server's lock table.
MAX_DAYS = 800
# How many blocks' hourly sums are kept apart before they are added up.
HOURS_AHEAD = 50
_EPOCH = date(1970, 1, 1)

_Key = tuple[str, str, int]  # source, id, UTC day in days from 1970
Problem = tuple[str, str]
"""(reason code, detail)"""


def copy_statement(table: str, rows: Rows) -> str:
    return f"COPY {table} ({', '.join(rows.names())}) FROM STDIN (FORMAT binary)"


def copy_rows(cursor: Cursor[Any], table: str, rows: Rows) -> None:
    with cursor.copy(copy_statement(table, rows)) as copy:
        copy.write(rows.packed())


class RequestBooking:
    """Books rows block by block and counts them.

    New rows are the rule, so a block is first copied as if all were new: that costs what a bare COPY costs, and the
    server does it while the next block is parsed. Where the primary key objects, the block is rolled back and from
    then on keys are looked up first, until a block had nothing but new ones.
    """

    def __init__(self, cursor: BookingCursor, names: Names, booking_id: int, kept_from: date | None) -> None:
        self._cursor = cursor
        self._names = names
        self._booking_id = booking_id
        self._kept_from = kept_from
        self._days: set[int] = set()
        self._looks_up = False
        self.booked = 0
        self.duplicate = 0
        self.latest_ms: dict[int, int] = {}  # source id -> greatest event time
        self._hours: list[HourSums] = []
        self._refused_late: list[Rejected] = []
        cursor.execute(sql.STAGES)

    def add(self, requests: Requests) -> list[Rejected]:
        """Book a block, given in order of lines; returns what of it or of those before it is refused by now."""
        refused: list[Rejected] = []
        self._names.learn_sources(set(requests.sources))
        for check in (self._name_problems, self._day_problems):
            requests = _without(requests, check(requests), refused)
        if len(requests):
            self._book(requests, refused)
        return self._with_late(refused)

    def _book(self, requests: Requests, refused: list[Rejected]) -> None:
        if self._looks_up:
            requests, known = self._without_known(requests, refused)
            self.duplicate += known
            if not len(requests):
                return
        ids = self._ids(requests)
        rows = requests.table_rows(ids, self._booking_id)
        packed = rows.packed()

        def settled(is_new: bool) -> None:
            if is_new:
                self._count(requests, ids)
            else:
                self._looks_up = True
                self._book(requests, self._refused_late)

        self._cursor.begin_copy(copy_statement("ledger_request", rows), packed, settled)

    def settle(self) -> list[Rejected]:
        """Wait for the rows under way; returns what of them is refused."""
        self._cursor.settle()
        return self._with_late([])

    def _with_late(self, refused: list[Rejected]) -> list[Rejected]:
        late, self._refused_late = self._refused_late, []
        return late + refused

    def add_replacements(self, requests: Requests) -> None:
        """Book what corrections brought along; it belongs to their lines and is not counted beside them."""
        booked, duplicate = self.booked, self.duplicate
        self._looks_up = True
        self.add(requests)
        self._cursor.settle()
        self.booked, self.duplicate = booked, duplicate

    @property
    def days(self) -> list[date]:
        return [_EPOCH + timedelta(days=day) for day in sorted(self._days)]

    def withdraw(self, days: list[date], *, earlier: bool) -> None:
        """Take void requests of those days out of the roll-up: this booking's, and earlier ones that it voids."""
        self._cursor.execute(sql.WITHDRAW, {"booking": self._booking_id, "days": days, "earlier": earlier})

    def finish(self) -> None:
        """Move the hourly roll-up and mark the hours dirty. Last, because it waits for bookings of the same hours."""
        if self._hours:
            copy_rows(self._cursor, "stage_hour", HourSums.together(self._hours).table_rows())
        self._cursor.execute(sql.MERGE_HOURS)
        self._cursor.execute(sql.DIRTY_HOURS)
        self._cursor.execute(quota_sql.MOVE_TOKENS)

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
        names, texts = self._names, requests.texts
        names.learn_models(set(texts["model"]))
        pools = {slug: pk for slug, (pk, _) in names.pools.items()}
        return Ids(
            source=_mapped(names.sources, requests.sources),
            pool=_mapped(pools, texts["pool"]),
            identity=self._identity_ids(requests),
            service=_mapped({**names.services, None: ABSENT}, texts["service"]),
            model=_mapped(names.models, texts["model"]),
        )

    def _identity_ids(self, requests: Requests) -> Int64s:
        names = self._names
        if (kind := requests.only_identity_kind()) is not None:  # nearly always; saves a pair per row
            values = requests.texts["identity_value"]
            known = names.of_kind(kind)
            if new := set(values) - known.keys():
                names.learn_identities({(kind, value) for value in new})
                known = names.of_kind(kind)
            return _mapped(known, values)
        who = requests.who()
        names.learn_identities({one for one in who if one is not None})
        return _mapped({**names.identities, None: ABSENT}, who)

    # --- days -----------------------------------------------------------------------------------------------

    def _day_problems(self, requests: Requests) -> dict[int, Problem]:
        """Make the partitions these rows need; {place: (reason, detail)} of rows whose day has none."""
        new = sorted(set(np.unique(requests.days).tolist()) - self._days)
        first_kept = (self._kept_from - _EPOCH).days if self._kept_from else 0
        old = [_EPOCH + timedelta(days=day) for day in new if day < first_kept]
        # Of the days before, some were left: whoever has a partition takes requests.
        gone = {(day - _EPOCH).days for day in self._missing_partitions(old)} if old else set()
        wanted = [day for day in new if day not in gone][: MAX_DAYS - len(self._days)]
        if wanted:
            self._ensure_partitions([_EPOCH + timedelta(days=day) for day in wanted])
            self._days.update(wanted)
        if len(wanted) == len(new):
            return {}
        return {
            place: ("too_old", "the requests of its day were pruned")
            if day in gone
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

    def _count(self, requests: Requests, ids: Ids) -> None:
        self.booked += len(requests)
        self._hours.append(requests.hours(ids))
        if len(self._hours) >= HOURS_AHEAD:
            self._hours = [HourSums.together(self._hours)]
        for source in np.unique(ids.source).tolist():
            latest = int(requests.ends_ms[ids.source == source].max())
            self.latest_ms[source] = max(latest, self.latest_ms.get(source, latest))


def _mapped(ids: Mapping[Any, int], column: Sequence[Any]) -> Int64s:
    """What each name of a column is in the database; many columns say one thing throughout."""
    if column.count(column[0]) == len(column):
        return np.full(len(column), ids[column[0]], np.int64)
    return np.fromiter(map(ids.__getitem__, column), np.int64, len(column))


def _without(requests: Requests, problems: dict[int, Problem], refused: list[Rejected]) -> Requests:
    """The rows without those that have a problem, which go to `refused`."""
    if not problems:
        return requests
    refused += [requests.rejected(place, *problem) for place, problem in problems.items()]
    return requests.take([place for place in range(len(requests)) if place not in problems])


CONFLICT = "this key was booked before with other content; the first stays"
