"""Requests and usage of a booking: straight into their daily partitions by COPY, in bulk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from psycopg import Cursor

from ingest.core.binary_rows import Rows
from ingest.core.hour_sums import HourSums, hour_sums
from ingest.core.parse import Rejected
from ingest.core.request_content import ABSENT
from ingest.core.request_rows import Ids, Requests
from ingest.core.spans import Coded, Int64s
from ingest.services.names import Names
from ingest.services.raw_cursor import BookingCursor
from ingest.sql import quotas as quota_sql
from ingest.sql import requests as sql
from ledger.locks import NAMESPACE, Lock

# Each day is a partition to lock; a batch over more of them would exhaust the server's lock table.
MAX_DAYS = 800
# Days and sources of one block whose keys are compared as a whole.
MAX_COMPARED = 8
# How many blocks' hourly sums are kept apart before they are added up.
HOURS_AHEAD = 50
_EPOCH = date(1970, 1, 1)

_Key = tuple[int, bytes, int]  # source id, event id, UTC day
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

    A delivery that comes twice brings blocks of nothing but repeats, often of consecutive keys. So before each key is
    looked up, what is booked between the block's first and last key is compared as a whole; the server gathers it
    while the next block is parsed.
    """

    def __init__(self, cursor: BookingCursor, names: Names, booking_id: int, kept_from: date | None) -> None:
        self._cursor = cursor
        self._names = names
        self._booking_id = booking_id
        self._kept_from = kept_from
        self._days: set[int] = set()
        self._looks_up = False
        self._compares = True  # until repeats were found that are no consecutive keys
        self.booked = 0
        self.duplicate = 0
        self.latest_ms: dict[int, int] = {}  # source id -> greatest event time
        self._hours: list[HourSums] = []
        self._refused_late: list[Rejected] = []
        cursor.execute(sql.STAGES)

    def add(self, requests: Requests) -> list[Rejected]:
        """Book a block, given in order of lines; returns what of it or of those before it is refused by now."""
        refused: list[Rejected] = []
        self._names.learn_sources(requests.sources.values)
        for check in (self._name_problems, self._day_problems):
            requests = _without(requests, check(requests), refused)
        if len(requests):
            self._book(requests, refused)
        return self._with_late(refused)

    def _book(self, requests: Requests, refused: list[Rejected]) -> None:
        if self._looks_up and self._compares and self._begin_to_compare(requests):
            return
        self._book_new(requests, refused)

    def _book_new(self, requests: Requests, refused: list[Rejected], *, compared: bool = False) -> None:
        """Book what is new of a block; `compared`: in vain."""
        if self._looks_up:
            count = len(requests)
            requests, known = self._without_known(requests, refused)
            self.duplicate += known
            if compared and known == count:
                self._compares = False
            if not len(requests):
                return
        ids = self._ids(requests)
        rows = requests.table_rows(ids, self._booking_id)

        def settled(is_new: bool) -> None:
            if is_new:
                self._count(requests, ids, sums)
            else:
                self._looks_up = True
                self._book(requests, self._refused_late)

        self._cursor.begin_copy(copy_statement("ledger_request", rows), rows.body(), settled)
        sums = hour_sums(requests, ids)  # while PostgreSQL takes them in, whether or not they will count

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
        named = [requests.coded(name) for name in ("pool", "service", "tenant")]
        if not any(self._problem(*one) for one in zip_longest(*(column.values for column in named))):
            return {}
        rows = zip(*(column.texts() for column in named), strict=True)
        problems = ((place, self._problem(*one)) for place, one in enumerate(rows))
        return {place: problem for place, problem in problems if problem is not None}

    def unbookable(self, requests: Requests) -> Problem | None:
        """The first of the rows' problems with names, else with days."""
        problems = self._name_problems(requests) or self._day_problems(requests)
        return next(iter(problems.values()), None)

    def _problem(self, pool: str | None, service: str | None, tenant: str | None) -> Problem | None:
        """(reason, detail) if a pool, service or tenant of these does not exist; None stands for none named."""
        if pool is not None and pool not in self._names.pools:
            return ("unknown_pool", f"no pool is called {pool!r}")
        for kind, slug in (("service", service), ("tenant", tenant)):
            if slug is not None and (problem := self._names.missing_master((kind, slug))):
                return problem
        return None

    def _ids(self, requests: Requests) -> Ids:
        names = self._names
        model = requests.coded("model")
        names.learn_models(model.values)
        pools = {slug: pk for slug, (pk, _) in names.pools.items()}
        return Ids(
            source=_mapped(names.sources, requests.sources),
            pool=_mapped(pools, requests.coded("pool")),
            identity=self._identity_ids(requests),
            service=_mapped({**names.services, None: ABSENT}, requests.coded("service")),
            model=_mapped(names.models, model),
        )

    def _identity_ids(self, requests: Requests) -> Int64s:
        who = requests.who()
        self._names.learn_identities(one for one in who.values if one is not None)
        return _mapped({**self._names.identities, None: ABSENT}, who)

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

    def _begin_to_compare(self, requests: Requests) -> bool:
        """Ask for what is booked between the first and last keys of each day and source, if those are few."""
        sources, days = _mapped(self._names.sources, requests.sources), requests.days
        (first_day, last_day), least = (int(days.min()), int(days.max())), int(sources.min())
        groups = (sources - least) * (last_day - first_day + 1) + days - first_day
        order = requests.key_order(groups)
        edges = np.flatnonzero(np.diff(groups[order], prepend=-1))
        if len(edges) > MAX_COMPARED:
            return False
        contents, ends = requests.contents(order)
        lasts = np.append(edges[1:], len(order)) - 1
        bounds = [0, *ends[lasts].tolist()]
        expected = [contents[start:end] for start, end in pairwise(bounds)]

        def answered(rows: list[Any]) -> None:
            if [row[0] for row in rows] == expected:
                self.duplicate += len(requests)
            else:
                self._book_new(requests, self._refused_late, compared=True)

        ids = requests.event_ids
        parameters = {
            "days": [_EPOCH + timedelta(days=day) for day in days[order[edges]].tolist()],
            "sources": sources[order[edges]].tolist(),
            "firsts": [ids.text(place) for place in order[edges].tolist()],
            "lasts": [ids.text(place) for place in order[lasts].tolist()],
            "rows": np.diff(np.append(edges, len(order))).tolist(),
        }
        self._cursor.begin_query(sql.BOOKED_CONTENTS, parameters, answered)
        return True

    def _without_known(self, requests: Requests, refused: list[Rejected]) -> tuple[Requests, int]:
        """(new rows, number of duplicates). Of a key that is not booked yet, the first row here is the new one."""
        unbooked, conflicts = self._look_up(requests)
        first: dict[_Key, int] = {}
        new: list[int] = []
        days, digests = requests.days, requests.digests
        sources = _mapped(self._names.sources, requests.sources)
        for place in unbooked:
            key = (int(sources[place]), requests.event_ids[place], int(days[place]))
            if first.setdefault(key, place) == place:
                new.append(place)
            elif digests[place] != digests[first[key]]:
                conflicts.append(place)
        refused += [requests.rejected(place, "conflict", CONFLICT) for place in sorted(conflicts)]
        self._looks_up = len(new) < len(requests)
        return requests.take(np.array(new, np.int64)), len(requests) - len(new) - len(conflicts)

    def _look_up(self, requests: Requests) -> tuple[list[int], list[int]]:
        """(places of rows whose key is not booked, of rows whose key is booked with other content)"""
        rows = Rows()
        rows.number("n", "integer", np.arange(len(requests)))
        rows.number("day", "date", requests.days)
        rows.number("source_id", "bigint", _mapped(self._names.sources, requests.sources))
        rows.bytes_of_one_length("content_hash", requests.digests)
        rows.text("event_id", requests.event_ids)
        copy_rows(self._cursor, "stage_request_key", rows)
        found: dict[int, bytes | None] = dict(
            sorted(self._cursor.execute(sql.NEW_OR_DIFFERENT, binary=True).fetchall())
        )
        self._cursor.execute("TRUNCATE stage_request_key")
        different = {n: booked for n, booked in found.items() if booked is not None}
        earlier = requests.earlier_digests(list(different))
        conflicts = [
            n for (n, booked), digest in zip(different.items(), earlier, strict=True) if booked != digest
        ]
        return [n for n, booked in found.items() if booked is None], conflicts

    def _count(self, requests: Requests, ids: Ids, sums: HourSums) -> None:
        self.booked += len(requests)
        self._hours.append(sums)
        if len(self._hours) >= HOURS_AHEAD:
            self._hours = [HourSums.together(self._hours)]
        for source in np.unique(ids.source).tolist():
            latest = int(requests.ends_ms[ids.source == source].max())
            self.latest_ms[source] = max(latest, self.latest_ms.get(source, latest))


def _mapped(ids: Mapping[Any, int], column: Coded) -> Int64s:
    """What each name of a column is in the database."""
    return column.mapped([ids[name] for name in column.values])


def _without(requests: Requests, problems: dict[int, Problem], refused: list[Rejected]) -> Requests:
    """The rows without those that have a problem, which go to `refused`."""
    if not problems:
        return requests
    refused += [requests.rejected(place, *problem) for place, problem in problems.items()]
    return requests.take(np.delete(np.arange(len(requests)), list(problems)))


CONFLICT = "this key was booked before with other content; the first stays"
