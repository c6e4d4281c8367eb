"""`slurm-sreport`: the totals Slurm itself adds up, for reconciliation (cluster.md 5.4). It books nothing.

`totals` reads `sreport -P` reports; `adapt` shows each as a notice and refuses rows that contradict themselves. The
hours come from Slurm's roll-ups, where "Allocated" includes idle time inside active reservations, so that these numbers
are compared with the ledger's, never booked beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from ingest.core.adapters.base import (
    READING_ERRORS,
    Notice,
    Outcome,
    Refusal,
    Refused,
    SourceConfig,
    State,
    decimal_of,
    refusal_of,
    rfc3339,
)
from ingest.core.adapters.base import Total as SourceTotal
from ingest.core.adapters.slurm_times import local_ms

UNIT_US = {"Seconds": 1_000_000, "Minutes": 60_000_000, "Hours": 3_600_000_000}
"""sreport's unit -> microseconds of one TRES; Percent and the `...Per` units are no totals."""

IDENTITY = ("Allocated", "Down", "PLND Down", "Idle", "Planned")
"""Reported is exactly their sum, per TRES and hour."""
_OLD_NAMES = {"Reserved": "Planned"}
"""Before 21.08."""

_MEASURES = {
    ("cluster", "Allocated"): "occupied",
    ("cluster", "Reported"): "capacity",
    ("account", "Used"): "occupied_by_account",
}

_USAGE = re.compile(r"(?:Usage|Use|Time) reported in (?:TRES |CPU )?(\w+)", re.IGNORECASE)
_PERIOD = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) - (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Total:
    """One number of a report: GPU microseconds of a category over a span."""

    report: str
    """`cluster`, `account` or `reservation`."""
    cluster: str
    subject: str
    """Cluster, `account` or `account/login`, reservation name."""
    category: str
    """`Allocated`, `Idle`, ..., `Reported`, or `Used`."""
    gpu_us: int
    starts_ms: int | None
    ends_ms: int | None
    position: int


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """A notice per total; nothing is booked. See the module; options are on the source's page."""
    for total in totals(lines, source):
        if isinstance(total, Refused):
            yield total
        else:
            hours = Decimal(total.gpu_us) / 3_600_000_000
            span = ""
            if total.starts_ms is not None and total.ends_ms is not None:
                span = f" from {rfc3339(total.starts_ms)} to {rfc3339(total.ends_ms)}"
            detail = f"Slurm adds up {hours:f} GPU-hours {total.category}{span}"
            subject = f"{total.cluster}/{total.subject}"
            yield Notice(
                total.position,
                "source_total",
                detail,
                subject,
                total.starts_ms,
                total.ends_ms,
                _compared(total),
            )


def _compared(total: Total) -> SourceTotal | None:
    """What the books have a number for. Accounts are compared whole, not login by login."""
    measure = _MEASURES.get((total.report, total.category))
    if measure is None or (total.report == "account" and "/" in total.subject):
        return None
    return SourceTotal(measure, "gpu_us", total.gpu_us)


def totals(lines: Iterable[bytes], source: SourceConfig) -> Iterator[Total | Refused]:
    """The totals of one or several reports one after another, of the TRES that options.tres names (`gres/gpu`)."""
    report = _Report(source)
    for position, line in enumerate(lines, start=1):
        text = line.decode("utf-8", "replace").strip()
        try:
            yield from report.read(text, position)
        except READING_ERRORS as error:
            yield refusal_of(error).at(position, line)


class _Report:
    """The title block of a report (which `-P` prints, too, unless `-n` is given) and the header in force."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        fields = source.option("fields", "")
        self._header: list[str] = fields.split("|") if fields else []
        self._unit_us = UNIT_US.get(source.option("unit", "Minutes"), 0)
        self._span: tuple[int | None, int | None] = (None, None)

    def read(self, text: str, position: int) -> Iterator[Total]:
        parts = [_OLD_NAMES.get(part, part) for part in text.split("|")]
        if not text or set(text) == {"-"}:
            return
        if len(parts) == 1:
            self._title(text)
        elif parts[0] == "Cluster":
            self._header = parts
        else:
            yield from self._row(text.split("|"), position)

    def _title(self, text: str) -> None:
        if unit := _USAGE.search(text):
            word = unit[1].capitalize()
            if word not in UNIT_US:
                raise Refusal("bad_quantity", f"totals in {unit[1]} are no amounts: use -t Seconds")
            self._unit_us = UNIT_US[word]
        if period := _PERIOD.search(text):
            zone = self._source.zone()
            # The title shows the last second inside the period.
            end = local_ms(period[2], zone)
            self._span = (local_ms(period[1], zone), end + 1000 if period[2].endswith(":59") else end)

    def _row(self, parts: list[str], position: int) -> Iterator[Total]:
        if not self._header:
            raise Refusal("bad_record", "no header line and no options.fields: what are the columns?")
        if len(parts) != len(self._header):
            raise Refusal("bad_record", f"{len(parts)} fields where the header has {len(self._header)}")
        fields = dict(zip(self._header, parts, strict=True))
        if fields.get("TRES Name", "gres/gpu") != self._source.option("tres", "gres/gpu"):
            return
        if "Reported" in fields:
            yield from self._cluster(fields, position)
        elif "Used" in fields:
            subject = "/".join(part for part in (fields.get("Account"), fields.get("Login")) if part)
            yield self._total("account", fields, subject, "Used", position, self._span)
        elif "Name" in fields and "Start" in fields:
            zone = self._source.zone()
            span = (local_ms(fields["Start"], zone), local_ms(fields["End"], zone))
            for category in ("Allocated", "Idle"):
                yield self._total("reservation", fields, fields["Name"], category, position, span)
        else:
            raise Refusal(
                "bad_record", "not a report of utilization: no Reported, Used or reservation columns"
            )

    def _cluster(self, fields: dict[str, str], position: int) -> Iterator[Total]:
        found = [
            self._total("cluster", fields, "cluster", category, position, self._span)
            for category in (*IDENTITY, "Reported")
        ]
        *parts, reported = found
        if sum(part.gpu_us for part in parts) != reported.gpu_us:
            raise Refusal(
                "bad_record",
                "Allocated + Down + PLND Down + Idle + Planned is not Reported: rounded, or another unit",
            )
        yield from found

    def _total(
        self,
        report: str,
        fields: dict[str, str],
        subject: str,
        category: str,
        position: int,
        span: tuple[int | None, int | None],
    ) -> Total:
        if category not in fields:
            raise Refusal("bad_record", f"the column {category} is missing")
        # With a percentage beside it, sreport writes `3600(12.50%)`.
        amount = decimal_of(fields[category].split("(")[0])
        return Total(
            report, fields.get("Cluster", ""), subject, category, int(amount * self._unit_us), *span, position
        )
