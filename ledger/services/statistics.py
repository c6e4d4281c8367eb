"""Planner statistics of the tables of facts, kept fresh enough to be computed from."""

from __future__ import annotations

from django.db import connection

# Autovacuum comes by once a minute at best; a bulk import followed at once by a computation would be planned as if
# the tables were still empty, which turns seconds into minutes.
_STALE = """
SELECT relname FROM pg_stat_user_tables
WHERE relname IN ('ledger_level', 'ledger_event', 'ledger_subject', 'ledger_preemptionreport',
                  'ledger_resumereport', 'ledger_usagehour', 'ledger_dirtyspan')
  AND n_mod_since_analyze > 1000 + n_live_tup / 5
ORDER BY relname
"""


def refresh_statistics() -> list[str]:
    """ANALYZE the tables of facts that have changed by more than a fifth; returns their names."""
    with connection.cursor() as cursor:
        cursor.execute(_STALE)
        stale = [str(name) for (name,) in cursor.fetchall()]
        for name in stale:
            cursor.execute(f"ANALYZE {connection.ops.quote_name(name)}")
    return stale
