"""Every large page of a large ledger against the same page of a small one.

    python tests/bench/bench_pages.py [--tenants N] [--months N] [--runs N] [--pages WORD]

500 tenants, 12 closed months and 2 million allocation rows beside 10 tenants and one month, each in a throwaway
database of its own (tests/bench/large_ledger.py). Prints what each page takes of both and exits with 1 when one takes
more than twice as much in the large ledger. What is compared is processor time, here and in the server's process, which
other programs of the machine do not lengthen; where the server runs elsewhere, time on the wall.
"""

# ruff: noqa: E402 (Django is set up before anything that needs it is imported)

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ledger.config.settings")

import django

django.setup()

from django.conf import settings
from django.db import connection
from django.test import Client

from ledger.core.periods import to_datetime
from ledger.core.units import MS_PER_HOUR
from ledger.models import Membership, Role, User
from tests.bench.large_ledger import LAST, fill

LIMIT = 2.0


def paths() -> list[str]:
    month, window = f"/months/{LAST}/", f"?window={LAST}"
    at = to_datetime(LAST.span("UTC").start_ms + 9 * 24 * MS_PER_HOUR).strftime("%Y-%m-%dT00:00:00Z")
    return [
        "/months/",
        month,
        f"{month}closing/",
        f"{month}platform/",
        f"{month}lending/",
        f"{month}preemptions/",
        f"{month}statements/t003/",
        f"{month}statements/t003/lines/1/",
        "/cluster/",
        f"/pools/p03/?zoom=month&at={at}",
        f"/pools/p03/?zoom=day&at={at}",
        f"/quota/{window}",
        f"/demand/{window}",
        f"/budgets/?month={LAST}",
        f"/budgets/?month={LAST.next()}",  # of which every day is still to come: forecasts of everybody
        "/plan/",
        f"/calibration/{window}",
        "/alerts/",
        "/audit/",
        "/settings/",
        "/search/?q=t00",
        "/ingest/",
        "/ingest/identities/",
    ]


class Ledger:
    """One throwaway database with books of one size, and somebody of finance who looks at them."""

    def __init__(self, suffix: str) -> None:
        self.before = connection.settings_dict["NAME"]
        connection.settings_dict["TEST"]["NAME"] = f"bench_{self.before}_{suffix}"
        self.name = connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)

    def fill(self, tenants: int, months: int) -> None:
        began = time.perf_counter()
        rows = fill(tenants, months)
        took_s = time.perf_counter() - began
        print(f"{tenants} tenants, {months} months: {rows:,} allocation rows in {took_s:.0f} s", flush=True)
        user = User.objects.create_user("bench")
        Membership.objects.create(user=user, role=Role.FINANCE)
        self.client = Client()
        self.client.force_login(user)

    def enter(self) -> None:
        connection.close()
        connection.settings_dict["NAME"] = self.name

    def leave(self) -> None:
        connection.close()
        connection.settings_dict["NAME"] = self.before

    def measure(self, path: str) -> float:
        """Milliseconds of a look, after one that makes what is remembered between requests."""
        self.enter()
        with connection.cursor() as cursor:
            # Helpers are processes of their own, whose processor time nobody would count.
            cursor.execute("SET max_parallel_workers_per_gather = 0")
            cursor.execute("SELECT pg_backend_pid()")
            server = int(cursor.fetchone()[0])
        self._look(path)
        wall_s, cpu_s, server_s = time.perf_counter(), time.process_time(), _server_s(server)
        self._look(path)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        after_s = _server_s(server)
        return 1000 * (wall_s if server_s is None or after_s is None else cpu_s + after_s - server_s)

    def _look(self, path: str) -> None:
        answer = self.client.get(path)
        # Bytes that are streamed are made while they are read.
        b"".join(answer.streaming_content) if answer.streaming else answer.content
        if answer.status_code != 200:
            raise SystemExit(f"{path} answers {answer.status_code}")

    def drop(self) -> None:
        self.enter()
        connection.creation.destroy_test_db(self.before, verbosity=0)


def _server_s(process: int) -> float | None:
    """Processor time of the server's process, in seconds; None where it runs elsewhere."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=500)
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--pages", default="", help="only pages with this in their address")
    options = parser.parse_args()
    settings.ALLOWED_HOSTS = ["testserver"]
    ledgers: list[Ledger] = []
    try:
        for suffix, tenants, months in (("small", 10, 1), ("large", options.tenants, options.months)):
            ledgers.append(Ledger(suffix))
            ledgers[-1].fill(tenants, months)
            ledgers[-1].leave()
        return compared(*ledgers, options.runs, options.pages)
    finally:
        for ledger in ledgers:
            ledger.drop()


def compared(small: Ledger, large: Ledger, runs: int, word: str) -> int:
    """Page by page, the one right after the other, so that a busy machine is as busy for both: medians count."""
    missed = 0
    print(f"{'small':>9} {'large':>9} {'ratio':>6}  at most {LIMIT:.1f}")
    for path in paths():
        if word not in path:
            continue
        looks = [(small.measure(path), large.measure(path)) for _ in range(runs)]
        before, after = (statistics.median(of) for of in zip(*looks, strict=True))
        is_slow = after > LIMIT * before
        missed += is_slow
        slow = "  TOO SLOW" if is_slow else ""
        print(f"{before:>6.0f} ms {after:>6.0f} ms {after / before:>6.2f}  {path}{slow}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
