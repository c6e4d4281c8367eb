"""`llm-d`: access log of the gateway in front of llm-d's endpoint picker (inference.md 4.3).

The dropped-reason header decides, not the status: 429 is both a full queue, where nothing ran, and the eviction of
a request that was running. Evictions become preemptions of the request; llm-d never says for whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.core.adapters.access_log import Defaults, outcomes
from ingest.core.adapters.base import Outcome, SourceConfig, State
from ingest.core.adapters.native import as_object, read_each

FAIRNESS_ID = "x-gateway-inference-fairness-id"
DEFAULTS = Defaults(
    identity_field=FAIRNESS_ID,
    identity_kind=f"label:{FAIRNESS_ID}",
    nobody_values=frozenset({"default-flow"}),
)


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """The JSON lines of the access log, with the headers of llm-d in it."""
    return read_each(lines, lambda record: outcomes(as_object(record.value, "the line"), source, DEFAULTS))
