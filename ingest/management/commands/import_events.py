"""Reads events from files or standard input and books them here and now; needs no worker."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import CommandParser
from django.db.models import Q

from ingest.collectors.native import UnknownSource, canonical_lines, keep_memory_of
from ingest.core.reasons import OF_THE_REST
from ingest.core.unpack import NotText
from ingest.models import QuarantinedEvent
from ingest.services.booking import Receipt
from ingest.services.importing import Part, import_parts, native_lines, parts_of, parts_of_lines
from ledger.management.base import BadInput, InputBrokeOff, LedgerCommand
from ledger.management.progress import Progress

CHUNK_BYTES = 256 * 1024
COUNTS = ("received", "booked", "duplicate", "conflict", "quarantined")


class Command(LedgerCommand):
    help = (
        "Import events: CloudEvents as one object, an array, or one per line; gzip and zstd are unpacked. "
        "Safe to interrupt and to run again. With --source the files are in that source's native format. "
        "Exit status: 0 all was read (single lines may be in quarantine, see the counts), 2 bad input, "
        "3 a file breaks off or is damaged: what could be read of it is booked."
    )
    example = "manage.py import_events events.ndjson.gz    |    zcat big.gz | manage.py import_events -"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="a file, or - for standard input")
        parser.add_argument(
            "--source", metavar="NAME", help="a configured source, whose adapter reads the files"
        )
        parser.add_argument("--dry-run", action="store_true", help="read and judge everything, keep nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        totals: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        broken: list[str] = []
        try:
            for name in options["files"]:
                end = _End()
                told = name if name != "-" else "standard input"
                try:
                    for receipt in self.receipts(name, options, end):
                        totals.update({count: getattr(receipt, count) for count in COUNTS})
                        if receipt.quarantined or receipt.conflict:
                            reasons.update(_reasons(receipt))
                        end.look(receipt)
                except NotText as error:
                    raise BadInput(f"{told}: {error}; nothing was stored") from None
                if end.is_broken:
                    broken.append(told)
        except UnknownSource as error:
            raise BadInput(str(error)) from None
        if options["verbosity"]:
            self.stdout.write(", ".join(f"{count} {totals[count]}" for count in COUNTS))
            for reason, count in sorted(reasons.items()):
                self.stdout.write(f"  {reason}: {count}")
        if broken:
            raise InputBrokeOff(f"{', '.join(broken)}: breaks off or is damaged; all before that was read")

    def receipts(self, name: str, options: dict[str, Any], end: _End) -> Iterator[Receipt]:
        with _opened(name) as stream:
            size = None if name == "-" else Path(name).stat().st_size
            label = f"Reading {name}" if name != "-" else "Reading standard input"
            with (
                _Silent()
                if not options["verbosity"]
                else Progress(self.stderr, label, size, "bytes") as shown
            ):
                chunks = _chunks(stream, shown)
                if options["source"]:
                    too_long: list[bytes] = []
                    native = native_lines(chunks, too_long)
                    memory: dict[str, Any] = {}
                    lines = canonical_lines(options["source"], native, options["dry_run"], memory)
                    parts = parts_of_lines(chain(lines, too_long))
                else:
                    parts = parts_of(chunks)
                tally = _Tally(shown)
                parts = end.watched(parts)
                refused: list[int] = []
                for receipt in import_parts(parts, name, dry_run=options["dry_run"], judged=tally.judged):
                    tally.settle(receipt)
                    refused += [receipt.batch] if receipt.quarantined else []
                    yield receipt
                if options["source"] and refused and not options["dry_run"]:
                    keep_memory_of(options["source"], memory, refused)


class _End:
    """Whether a file was read to its end: neither the rest of it nor its last line was refused as broken."""

    def __init__(self) -> None:
        self._last_line = 0
        self.is_broken = False

    def watched(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            self._last_line = part.first_line + len(part.raw) - 1
            yield part

    def look(self, receipt: Receipt) -> None:
        """After each part; of all parts only the last can end a file."""
        refused = QuarantinedEvent.objects.filter(batch=receipt.batch)
        self.is_broken = (
            bool(receipt.quarantined)
            and refused.filter(
                Q(reason__in=OF_THE_REST) | Q(reason="not_json", line=self._last_line)
            ).exists()
        )


class _Tally:
    """Shows what became of the bytes: booking goes on when the last of them has been read."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._settled = self._judged = 0

    def judged(self, count: int) -> None:
        self._judged += count
        self._show()

    def settle(self, receipt: Receipt) -> None:
        self._settled += receipt.received
        self._judged = self._settled
        self._show()

    def _show(self) -> None:
        waiting = self._judged - self._settled
        self._shown.say(f"{self._settled} events settled" + (f", booking {waiting} more" if waiting else ""))


class _Silent:
    """Progress that nobody asked for."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self, count: int) -> None: ...

    def say(self, detail: str) -> None: ...


def _opened(name: str) -> BinaryIO:
    return sys.stdin.buffer if name == "-" else Path(name).open("rb")


def _chunks(stream: BinaryIO, shown: Any) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        shown.advance(len(chunk))
        yield chunk


def _reasons(receipt: Receipt) -> Counter[str]:
    return Counter(QuarantinedEvent.objects.filter(batch=receipt.batch).values_list("reason", flat=True))
