"""PostgreSQL and Valkey from Python packages, for a machine that has neither.

Both live in one directory (`var/` beside manage.py), listen on a free port of 127.0.0.1 behind a random
password, start when the first process needs them and stop when the last one is done. See `service.py` for
how processes share them.
"""

from ledger.embedded.postgres import EmbeddedPostgres, postgres_in
from ledger.embedded.service import EmbeddedServiceError
from ledger.embedded.valkey import EmbeddedValkey, valkey_in

__all__ = ["EmbeddedPostgres", "EmbeddedServiceError", "EmbeddedValkey", "postgres_in", "valkey_in"]
