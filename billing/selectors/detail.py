"""What a statement's lines are made of, slot by slot, and the preemptions that hit its tenant.

A closed statement's detail never changes: it is read from the files that the statement was issued with. One that was
issued without them is read from the slots, until late facts have its month computed again; then from what was kept just
before (`StatementDetail`).
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from billing.core.focus import BilledLine
from billing.models import (
    AnnexName,
    PreemptionRecord,
    PreemptionShare,
    Statement,
    StatementAnnex,
    StatementDetail,
    StatementState,
)
from billing.selectors.annexes import annex_rows
from billing.selectors.names import Names
from billing.sql.exports import LENDERS_OF, SLOTS_OF_ACCOUNT
from ledger.core import zstd
from ledger.core.periods import to_ms
from ledger.models import Purpose, Service, ServiceClass

_FETCH = 2000


@dataclass(frozen=True, slots=True)
class Slice:
    """A line's GPU time in one slot. lenders: slugs of whose idle reservation may have run it (borrowed only).

    lenders_shown: the same as the statement's tenant read it when it was issued; None where that was not kept.
    """

    position: int
    starts_ms: int
    ends_ms: int
    gpu_us: int
    lenders: tuple[str, ...] = ()
    lenders_shown: str | None = None


VICTIM = "victim"
CAUSE = "cause"


@dataclass(frozen=True, slots=True)
class Hit:
    """A preemption of the month that hit the tenant, with its part of the measures, or that it caused.

    other: slug of the preemptor or of the victim; "" where it is not known. Measures: None is unknown.
    """

    role: str
    preemption: str
    pool: str
    decided_ms: int
    milli_gpus: int
    cause: str
    other: str
    requeued_gpu_us: int | None
    waiting_gpu_us: int


def detail_of(statement: Statement, lines: Sequence[BilledLine]) -> Iterator[Slice | Hit]:
    """Slices in order of slot, then hits in order of decision. Streams: memory does not grow with the month."""
    frozen = _frozen(statement, AnnexName.SLOTS)
    if frozen is not None:
        yield from slices_of_file(annex_rows(frozen))
        yield from hits_of(statement)
        return
    kept = _kept(statement)
    if kept is not None:
        yield from unpacked(kept)
        return
    yield from slices(statement, lines)
    yield from hits(statement)


def hits_of(statement: Statement) -> list[Hit]:
    """The preemptions alone."""
    frozen = _frozen(statement, AnnexName.HITS)
    if frozen is not None:
        return list(hits_of_file(annex_rows(frozen)))
    kept = _kept(statement)
    if kept is None:
        return list(hits(statement))
    return [one for one in unpacked(kept) if isinstance(one, Hit)]


def _frozen(statement: Statement, name: AnnexName) -> StatementAnnex | None:
    if statement.state != StatementState.ISSUED:
        return None
    return StatementAnnex.objects.filter(statement=statement, name=name).first()


def _kept(statement: Statement) -> bytes | None:
    if statement.state != StatementState.ISSUED:
        return None
    found = StatementDetail.objects.filter(pk=statement.pk).values_list("content", flat=True).first()
    return None if found is None else bytes(found)


def slices(statement: Statement, lines: Sequence[BilledLine]) -> Iterator[Slice]:
    """Every slot of the lines that are known by the slot, through a server-side cursor."""
    versions = line_versions(lines)
    lenders = Lenders(statement, lines)
    period = statement.period
    parameters: dict[str, Any] = {
        "account": _account(statement),
        "from": period.starts_at,
        "to": period.ends_at,
    }
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute(SLOTS_OF_ACCOUNT, parameters)
        while found := cursor.fetchmany(_FETCH):
            for starts_at, ends_at, pool, service, service_class, purpose, idle, category, gpu_us in found:
                start_ms = to_ms(starts_at)
                kind = (
                    pool,
                    service,
                    str(ServiceClass(service_class).label),
                    str(Purpose(purpose).label),
                    idle,
                    category,
                )
                froms, positions = versions[kind]
                position = positions[bisect_right(froms, start_ms) - 1]
                of_slot = lenders.of(pool, service, start_ms) if category == "borrowed" else ()
                yield Slice(position, start_ms, to_ms(ends_at), int(gpu_us), of_slot)


def _account(statement: Statement) -> int:
    return int(statement.tenant.account.pk)


Kind = tuple[str, str, str, str, bool, str]
"""(pool, service, service class, purpose, whether it is idle time of a service, category)"""


def line_versions(lines: Iterable[BilledLine]) -> dict[Kind, tuple[list[int], list[int]]]:
    """What a slot's part is -> starts of the versions that have a line of it, and the lines' positions."""
    found: defaultdict[Kind, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line.is_of_slots:
            kind = (
                line.pool,
                line.service,
                line.service_class,
                line.purpose,
                line.service_idle,
                line.category,
            )
            found[kind].append((line.version_from_ms, line.position))
    return {
        kind: ([start for start, _ in sorted(parts)], [position for _, position in sorted(parts)])
        for kind, parts in found.items()
    }


class Lenders:
    """Who lent to the statement's holders: the tenant and the services it shares, per pool and day."""

    def __init__(self, statement: Statement, lines: Sequence[BilledLine]) -> None:
        borrowing = [line for line in lines if line.category == "borrowed"]
        self._tenant = statement.tenant.slug
        self._found: defaultdict[tuple[str, str], dict[int, list[str]]] = defaultdict(dict)
        if not borrowing:
            return
        parameters: dict[str, Any] = {
            "from": statement.period.starts_at,
            "to": statement.period.ends_at,
            "borrowers": sorted({line.service or self._tenant for line in borrowing}),
        }
        with connection.cursor() as cursor:
            cursor.execute(LENDERS_OF, parameters)
            for pool, borrower, starts_at, lender in cursor.fetchall():
                self._found[pool, borrower].setdefault(to_ms(starts_at), []).append(lender)

    def of(self, pool: str, service: str, at_ms: int) -> tuple[str, ...]:
        segments = self._found.get((pool, service or self._tenant), {})
        starts = [start for start in segments if start <= at_ms]
        return tuple(segments[max(starts)]) if starts else ()

    def segments(self, pool: str, service: str) -> list[tuple[int, tuple[str, ...]]]:
        """(from_ms, who lent from then on), in order."""
        found = self._found.get((pool, service or self._tenant), {})
        return [(from_ms, tuple(found[from_ms])) for from_ms in sorted(found)]


def hits(statement: Statement) -> Iterator[Hit]:
    """In order of decision, those suffered before those caused."""
    yield from hits_by_tenant([statement])[statement.tenant_id]


def hits_by_tenant(statements: Sequence[Statement]) -> defaultdict[int, list[Hit]]:
    """Tenant id -> the hits of its statement. All are of one month. Three queries, however many statements."""
    found: defaultdict[int, list[Hit]] = defaultdict(list)
    if not statements:
        return found
    period, tenants = statements[0].period, [statement.tenant_id for statement in statements]
    records = PreemptionRecord.objects.filter(
        decided_at__gte=period.starts_at, decided_at__lt=period.ends_at, queued_only=False
    )
    shares = PreemptionShare.objects.filter(account__tenant__in=tenants, record__in=records)
    for share in shares.select_related("record__pool", "record__preemptor", "account").order_by(
        "record__decided_at", "record"
    ):
        preemptor, tenant = share.record.preemptor, share.account.tenant_id
        other = preemptor.slug if preemptor else ""
        milli_gpus = share.milli_gpus or share.record.milli_gpus
        if tenant is not None:
            found[tenant].append(_hit(VICTIM, share.record, milli_gpus, other, share))
    caused = records.filter(Q(preemptor__in=tenants) | Q(preemptor__service__owner__in=tenants))
    owners = dict(Service.objects.filter(owner__in=tenants).values_list("pk", "owner"))
    for record in caused.select_related("pool", "victim").order_by("decided_at", "pk"):
        assert record.preemptor_id is not None
        by = owners.get(record.preemptor_id) or record.preemptor_id
        found[by].append(_hit(CAUSE, record, record.milli_gpus, record.victim.slug, record))
    return found


def _hit(
    role: str,
    record: PreemptionRecord,
    milli_gpus: int,
    other: str,
    measured: PreemptionRecord | PreemptionShare,
) -> Hit:
    lost, recompute = measured.lost_gpu_us, measured.recompute_gpu_us
    requeued = None if lost is None and recompute is None else (lost or 0) + (recompute or 0)
    return Hit(
        role=role,
        preemption=str(record.pk),
        pool=record.pool.slug,
        decided_ms=to_ms(record.decided_at),
        milli_gpus=milli_gpus,
        cause=record.cause,
        other=other,
        requeued_gpu_us=requeued,
        waiting_gpu_us=measured.waiting_gpu_us,
    )


# The files that a statement is issued with: one row per slice, one per hit.

SLOT_COLUMNS = ("line", "starts_ms", "ends_ms", "gpu_us", "lenders", "lenders_shown")
HIT_COLUMNS = tuple(one.name for one in fields(Hit))


def slot_rows(found: Iterable[Slice], names: Names) -> Iterator[tuple[object, ...]]:
    """names: as the statement's tenant sees them. An alias may change later, what was issued may not."""
    said = SaidLenders(names)
    for one in found:
        lenders = ",".join(one.lenders)
        yield one.position, one.starts_ms, one.ends_ms, one.gpu_us, lenders, said.all(one.lenders)


class SaidLenders:
    """Lenders by the names that the asker may see, worked out once per set of them."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._texts: dict[tuple[str, ...], str] = {(): ""}

    def all(self, slugs: tuple[str, ...]) -> str:
        if slugs not in self._texts:
            self._texts[slugs] = "; ".join(sorted({self._names.shown_slug(slug) for slug in slugs}))
        return self._texts[slugs]

    def of(self, one: Slice) -> str:
        """As it was issued; whoever sees every name reads slugs, which never change."""
        frozen = one.lenders_shown
        return self.all(one.lenders) if frozen is None or self._names.shows_all else frozen


def slices_of_file(rows: Iterable[Sequence[str]]) -> Iterator[Slice]:
    """Files of statements that were issued earlier have no last column."""
    for position, starts_ms, ends_ms, gpu_us, lenders, *shown in rows:
        named = tuple(filter(None, lenders.split(",")))
        said = shown[0] if shown else None
        yield Slice(int(position), int(starts_ms), int(ends_ms), int(gpu_us), named, said)


def hit_rows(found: Iterable[Hit]) -> Iterator[tuple[object, ...]]:
    for one in found:
        yield tuple("" if value is None else value for value in astuple(one))


def hits_of_file(rows: Iterable[Sequence[str]]) -> Iterator[Hit]:
    for role, preemption, pool, decided_ms, milli_gpus, cause, other, requeued, waiting in rows:
        yield Hit(
            role, preemption, pool, int(decided_ms), int(milli_gpus), cause, other,
            int(requeued) if requeued else None, int(waiting),
        )  # fmt: skip


# What was kept of a statement issued without them: one text line per slice or hit.


def packed(detail: Iterable[Slice | Hit]) -> bytes:
    compressor = zstd.ZstdCompressor(level=9)
    pieces = [compressor.compress((_text(one) + "\n").encode()) for one in detail]
    return b"".join((*pieces, compressor.flush()))


def _text(one: Slice | Hit) -> str:
    if isinstance(one, Hit):
        return json.dumps(asdict(one), ensure_ascii=False, separators=(",", ":"))
    parts = (one.position, one.starts_ms, one.ends_ms, one.gpu_us, ",".join(one.lenders))
    return " ".join(map(str, parts))


def unpacked(content: bytes) -> Iterator[Slice | Hit]:
    with zstd.ZstdFile(io.BytesIO(content)) as lines:
        for line in lines:
            yield _read(line.decode().removesuffix("\n"))


def _read(text: str) -> Slice | Hit:
    if text.startswith("{"):
        return Hit(**json.loads(text))
    position, starts_ms, ends_ms, gpu_us, lenders = text.split(" ")
    named = tuple(filter(None, lenders.split(",")))
    return Slice(int(position), int(starts_ms), int(ends_ms), int(gpu_us), named)
