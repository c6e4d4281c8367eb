"""`envoy-ai-gateway`: access log of the Envoy AI Gateway -> requests and refusals (inference.md 4.2).

Cached tokens are part of input and reasoning tokens of output; `total_tokens` is not read, so nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.access_log import Defaults, outcomes
from ingest.core.adapters.base import Outcome, SourceConfig, State
from ingest.core.adapters.native import as_object, read_each

DEFAULTS = Defaults(identity_field="x-tenant-id", identity_kind="label:x-tenant-id")


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """The JSON lines of the access log."""
    return read_each(lines, lambda record: outcomes(as_object(record.value, "the line"), source, DEFAULTS))
