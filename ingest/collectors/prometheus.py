"""Prometheus: the samples as they were scraped, window by window.

A range vector (`{...}[1h]`) and not `query_range`: the latter puts a value of up to five minutes ago wherever a scrape
is missing, so that no gap could ever be seen. Raw samples keep their own instants; what is missing is missing.
"""

from __future__ import annotations

import json
import ssl
import statistics
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any

import msgspec

from ingest.collectors.contract import Clock, CollectorError, Finding, Harvest, Position, Window
from ingest.collectors.prometheus_metrics import METRICS, Metrics
from ingest.collectors.table import CollectTable

MS_PER_HOUR = 3_600_000
LEAD_MS = MS_PER_HOUR
"""Read before the first window of counters, to know how far they stood when it began."""
PROBE_SECONDS = 600
SLOW_SCRAPE_SECONDS = 60

Series = dict[str, Any]


class PrometheusCollector:
    has_past = True

    def __init__(self, adapter: str, table: CollectTable, clock: Clock) -> None:
        self._metrics: Metrics = METRICS[adapter]
        self._clock = clock
        self._api = PrometheusApi(table)
        self._matchers = table.text("matchers").strip().strip("{},")
        self._chunk_ms = table.whole("chunk_seconds", 3600, least=1) * 1000
        self._lag_ms = table.whole("lag_seconds", 60) * 1000
        self._backfill_ms = table.whole("backfill_seconds", 0) * 1000
        table.refuse_unknown()

    @property
    def reads_once(self) -> bool:
        return self._metrics.is_counter

    @property
    def longest_step_ms(self) -> int:
        return 2 * self._api.timeout_s * 1000

    # --- collecting -----------------------------------------------------------------------------------------

    def steps(self, position: Position, window: Window | None) -> Iterator[Harvest]:
        """One harvest per `chunk_seconds`. A source that was never read begins at `window`, else now."""
        now_ms = self._clock()
        starts_ms, leads = position.get("until_ms"), False
        if starts_ms is None:
            begins_ms = window.starts_ms if window else now_ms - self._lag_ms - self._backfill_ms
            starts_ms = begins_ms // MS_PER_HOUR * MS_PER_HOUR if self.reads_once else begins_ms
            leads = self.reads_once
        ends_ms = min(window.ends_ms, now_ms) if window else now_ms - self._lag_ms
        while starts_ms < ends_ms:
            until_ms = min(starts_ms + self._chunk_ms, ends_ms)
            read_from_ms = starts_ms - LEAD_MS if leads else starts_ms
            series = self._api.samples(self._selector(), read_from_ms, until_ms)
            yield Harvest(
                lines=[msgspec.json.encode({"data": {"result": series}})] if series else [],
                position={"until_ms": until_ms},
                reached_ms=until_ms,
                settled_ms=until_ms,
                starts_ms=starts_ms,
                leads_in=leads,
            )
            starts_ms, leads = until_ms, False

    def _selector(self, names: tuple[str, ...] | None = None) -> str:
        wanted = "|".join(names or self._metrics.names)
        return "{" + ",".join(filter(None, [f'__name__=~"{wanted}"', self._matchers])) + "}"

    # --- checking -------------------------------------------------------------------------------------------

    def check(self) -> Iterator[Finding]:
        version = self._api.get("status/buildinfo").get("version", "of unknown version")
        yield Finding(True, self._api.address, f"Prometheus {version} answers")
        now_ms = self._clock()
        series = self._api.samples(self._selector(), now_ms - PROBE_SECONDS * 1000, now_ms)
        found: dict[str, int] = {}
        for one in series:
            name = one["metric"]["__name__"]
            found[name] = found.get(name, 0) + 1
        for names, loss in self._metrics.needed.items():
            spelled = [s for name in names.split("|") for s in (name, name.removesuffix("_total"))]
            if not any(name in found for name in spelled):
                yield Finding(False, names.replace("|", " or "), f"no samples: without it there is no {loss}")
        for name, count in sorted(found.items()):
            yield Finding(True, name, f"{count} series would be read")
        yield from _interval(series)


def _interval(series: list[Series]) -> Iterator[Finding]:
    gaps = [
        float(after[0]) - float(before[0])
        for one in series
        for before, after in zip(one["values"], one["values"][1:], strict=False)
    ]
    if not gaps:
        return
    seconds = round(statistics.median(gaps), 1)
    detail = f"{seconds:g} s"
    if seconds > SLOW_SCRAPE_SECONDS:
        detail += f": scrape at least every {SLOW_SCRAPE_SECONDS} s, instants are known to one scrape"
    yield Finding(seconds <= SLOW_SCRAPE_SECONDS, "scrape interval", detail)


class PrometheusApi:
    """The query API of Prometheus and of what speaks like it (Thanos, Mimir, VictoriaMetrics)."""

    def __init__(self, table: CollectTable) -> None:
        self.address = table.text("url").rstrip("/")
        if urllib.parse.urlsplit(self.address).scheme not in ("http", "https"):
            raise table.wrong("url", "must be the http(s) address of a Prometheus server")
        self.timeout_s = table.whole("timeout_seconds", 60, least=1)
        self._headers = table.texts("headers")
        if token := table.secret("token"):
            self._headers["Authorization"] = f"Bearer {token}"
        ca_file = table.text("ca_file")
        try:
            self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None
        except (OSError, ssl.SSLError) as error:
            raise table.wrong("ca_file", f"cannot be read: {error}") from error

    def samples(self, selector: str, after_ms: int, until_ms: int) -> list[Series]:
        """Raw samples with `after_ms < t <= until_ms`, as series of a matrix; series without any are left out."""
        query = {"query": f"{selector}[{until_ms - after_ms}ms]", "time": f"{until_ms / 1000:.3f}"}
        data = self._ask("query", urllib.parse.urlencode(query).encode())
        if data.get("resultType") != "matrix" or not isinstance(data.get("result"), list):
            raise CollectorError(f"{self.address} answered a range query with {data.get('resultType')!r}")
        # The edges of a range belong to it or not by the server's version; ours are the same everywhere.
        series = []
        for one in data["result"]:
            inside = [p for p in one.get("values", ()) if after_ms < round(float(p[0]) * 1000) <= until_ms]
            if inside:
                series.append({"metric": one["metric"], "values": inside})
        return series

    def get(self, path: str) -> dict[str, Any]:
        return self._ask(path, None)

    def _ask(self, path: str, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.address}/api/v1/{path}", data=body, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s, context=self._tls) as answer:
                value = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise CollectorError(f"{self.address} answered {error.code}: {_said(error)}") from error
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise CollectorError(f"{self.address} cannot be reached: {why}") from error
        except ValueError as error:
            raise CollectorError(f"{self.address} did not answer with JSON: is it a Prometheus?") from error
        if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
            raise CollectorError(f"{self.address} did not answer as Prometheus does")
        data: dict[str, Any] = value["data"]
        return data


def _said(error: urllib.error.HTTPError) -> str:
    """What the server says is wrong: its own sentence where it is one of Prometheus's."""
    text = error.read(4096)
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return error.reason or text.decode("utf-8", "replace")[:200]
