"""Slurm: `sacct` asked window by window, files of its output, and the controller's log.

Accounting is written late, so every window reaches back over the one before it (`overlap_seconds`); what is read
twice is told once. Of a log only what was added is read, over its rotation, too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from ingest.collectors.contract import (
    Clock,
    CollectorError,
    Finding,
    Harvest,
    NotConfigured,
    Position,
    Window,
)
from ingest.collectors.table import CollectTable
from ingest.core.adapters.base import SourceConfig

SLURM_ADAPTERS = ("slurm-sacct", "slurm-sacct-json", "slurmctld-log")
MS_PER_DAY = 86_400_000
COLUMNS = (
    "Cluster,JobIDRaw,DBIndex,SLUID,Restarts,Account,User,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,"
    "Suspended,AllocTRES,ReqTRES,NodeList,JobName"
)
NEWER_COLUMNS = ("SLUID", "Restarts")
"""Not known to sacct before 24.11: it refuses to print anything, and is asked again without them."""


class SlurmCollector:
    reads_once = False

    def __init__(self, source: SourceConfig, table: CollectTable, clock: Clock) -> None:
        self._adapter = source.adapter
        self._clock = clock
        self._command = table.words("command")
        self._file = table.text("file")
        self._columns = table.text("columns", COLUMNS)
        self._overlap_ms = table.whole("overlap_seconds", 3600) * 1000
        self._backfill_ms = table.whole("backfill_seconds", 86_400) * 1000
        self._timeout_s = table.whole("timeout_seconds", 300, least=1)
        table.refuse_unknown()
        self._zone = source.zone()
        if not self._command and not self._file:
            raise NotConfigured(f"source {source.name!r}: options.collect needs a command, a file, or both")

    @property
    def has_past(self) -> bool:
        return bool(self._command)

    @property
    def longest_step_ms(self) -> int:
        return 2 * self._timeout_s * 1000  # an old sacct is asked twice

    # --- collecting -----------------------------------------------------------------------------------------

    def steps(self, position: Position, window: Window | None) -> Iterator[Harvest]:
        """One harvest per day. A source that was never read begins at `window`, else `backfill_seconds` ago."""
        now_ms = self._clock()
        starts_ms = position.get("until_ms")
        overlap_ms = self._overlap_ms
        if starts_ms is None:
            starts_ms = window.starts_ms if window else now_ms - self._backfill_ms
            overlap_ms = 0
        ends_ms = min(window.ends_ms, now_ms) if window else now_ms
        while starts_ms < ends_ms:
            until_ms = min(starts_ms + MS_PER_DAY, ends_ms)
            lines = self._jobs(starts_ms - overlap_ms, until_ms) if self._command else []
            added, file = self._read_file(position.get("file")) if until_ms == ends_ms else ([], None)
            position = {"until_ms": until_ms, "file": file or position.get("file")}
            yield Harvest(
                lines=lines + added,
                position=position,
                reached_ms=until_ms,
                starts_ms=starts_ms,
                settled_ms=until_ms - self._overlap_ms,
            )
            starts_ms, overlap_ms = until_ms, self._overlap_ms

    def _jobs(self, starts_ms: int, ends_ms: int) -> list[bytes]:
        try:
            return self._run(self._arguments(starts_ms, ends_ms))
        except CollectorError as error:
            newer = set(NEWER_COLUMNS) & set(self._columns.split(","))
            if "Invalid field" not in str(error) or not newer:
                raise
        self._columns = ",".join(name for name in self._columns.split(",") if name not in NEWER_COLUMNS)
        return self._run(self._arguments(starts_ms, ends_ms))

    def _arguments(self, starts_ms: int, ends_ms: int) -> list[str]:
        form = ["--json"] if self._adapter == "slurm-sacct-json" else ["-P", "-o", self._columns]
        # Every run of a job and no steps; without -D all runs but the last would be gone.
        span = ["-S", local_text(starts_ms, self._zone), "-E", local_text(ends_ms, self._zone)]
        return [*self._command, "-a", "-X", "-D", *form, *span]

    def _run(self, arguments: list[str]) -> list[bytes]:
        environment = {**os.environ, "TZ": self._zone.key, "SLURM_TIME_FORMAT": "standard"}
        said = " ".join(self._command)
        try:
            done = subprocess.run(
                arguments, capture_output=True, timeout=self._timeout_s, env=environment, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CollectorError(f"{said} did not end within {self._timeout_s} s") from error
        except OSError as error:
            raise CollectorError(f"{said} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip()[:500] or "it said nothing"
            raise CollectorError(f"{said} ended with {done.returncode}: {why}")
        return done.stdout.splitlines(keepends=True)

    # --- files ----------------------------------------------------------------------------------------------

    def _read_file(self, kept: dict[str, Any] | None) -> tuple[list[bytes], dict[str, Any] | None]:
        if not self._file:
            return [], kept
        path = Path(self._file)
        try:
            if self._adapter == "slurmctld-log":
                return read_added(path, kept)
            return read_changed(path, kept)
        except OSError as error:
            raise CollectorError(f"{path} cannot be read: {error.strerror}") from error

    # --- checking -------------------------------------------------------------------------------------------

    def check(self) -> Iterator[Finding]:
        now_ms = self._clock()
        if self._command:
            yield from self._check_command(now_ms)
        if self._file:
            lines, _ = self._read_file(None)
            yield Finding(bool(lines), self._file, f"{len(lines)} lines would be read")
        if self._adapter == "slurmctld-log" and not self._command:
            yield Finding(
                False, "command", "missing: a log names jobs only; sacct tells their GPUs and accounts"
            )

    def _check_command(self, now_ms: int) -> Iterator[Finding]:
        said = " ".join(self._command)
        lines = self._jobs(now_ms - self._overlap_ms, now_ms)
        text = b"".join(lines)
        yield Finding(
            True, said, f"answers; {max(len(lines) - 1, 0)} lines for the last {self._overlap_ms // 1000} s"
        )
        if len(lines) > 1 and b"gres/gpu" not in text:
            detail = "no gres/gpu in any job: set AccountingStorageTRES=gres/gpu, or no GPU is accounted for"
            yield Finding(False, "AccountingStorageTRES", detail)
        missing = [name for name in NEWER_COLUMNS if name not in self._columns.split(",")]
        if self._adapter == "slurm-sacct" and missing:
            detail = (
                f"without {' and '.join(missing)} runs are told apart by DBIndex or the time of submission"
            )
            yield Finding(True, "columns", detail)


def local_text(instant_ms: int, zone: ZoneInfo) -> str:
    """An instant as `sacct` wants it: to the second, in its own zone."""
    moment = datetime.fromtimestamp(instant_ms // 1000, UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


def read_changed(path: Path, kept: dict[str, Any] | None) -> tuple[list[bytes], dict[str, Any]]:
    """All lines of a file that somebody writes anew, if it is another one than last time."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        seen = {"inode": status.st_ino, "bytes": status.st_size, "changed_ns": status.st_mtime_ns}
        return ([] if seen == kept else file.readlines()), seen


def read_added(path: Path, kept: dict[str, Any] | None) -> tuple[list[bytes], dict[str, Any]]:
    """The whole lines added to a log. One that was rotated to `<name>.1` meanwhile is read to its end first."""
    lines: list[bytes] = []
    with path.open("rb") as file:
        inode = os.fstat(file.fileno()).st_ino
        offset = 0
        if kept is not None and kept["inode"] == inode:
            # A log that is shorter than before was emptied in place.
            offset = kept["offset"] if os.fstat(file.fileno()).st_size >= kept["offset"] else 0
        elif kept is not None:
            lines += _rest_of(path.with_name(path.name + ".1"), kept)
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            offset += len(line)
    return lines, {"inode": inode, "offset": offset}


def _rest_of(rotated: Path, kept: dict[str, Any]) -> list[bytes]:
    if not rotated.exists():
        return []
    with rotated.open("rb") as file:
        if os.fstat(file.fileno()).st_ino != kept["inode"]:
            return []
        file.seek(kept["offset"])
        return file.readlines()
