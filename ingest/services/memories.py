"""What an adapter remembered when it refused a record: what a retry of it is read with.

A collector's memory stands in `Source.state`; the collector moves it on, so a retry only leaves the records that it
tried again there (`retried`), for the next step. The memory of an imported file is kept beside its batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from django.db import transaction
from django.db.models import Exists, OuterRef

from ingest.core.adapters import load
from ingest.core.adapters.base import Outcome, SourceConfig, State, forget_refusals
from ingest.models import AdapterMemory, Batch, BatchState, QuarantinedEvent
from ledger.core import zstd
from ledger.models import Source

RETRIED_BYTES = 8 * 1024 * 1024
"""How much of retried records waits for a collector's next step; what is beyond is booked and not remembered."""


@dataclass(slots=True)
class Memory:
    """A copy to read with. settled_ms: nothing older will come; None: nothing will come at all."""

    state: State = field(default_factory=dict)
    settled_ms: int | None = None
    kept: AdapterMemory | None = None
    source: Source | None = None

    @property
    def is_shared(self) -> bool:
        """It knows more records than those that are tried again."""
        return self.kept is not None or self.source is not None

    def keep(self, records: Sequence[bytes]) -> None:
        """What the next retry, or the collector's next step, is to know of. Inside the caller's transaction."""
        if self.kept is not None:
            self.kept.state = _packed(self.state)
            self.kept.save(update_fields=["state"])
        elif self.source is not None:
            waiting = [
                *self.source.state.get("retried", []),
                *(one.decode("utf-8", "replace") for one in records),
            ]
            while sum(map(len, waiting)) > RETRIED_BYTES:
                waiting.pop(0)
            self.source.state["retried"] = waiting
            self.source.save(update_fields=["state"])


def recall(config: SourceConfig, batch: Batch) -> Memory:
    """The memory for records of `batch` that the source's adapter refused. Locks it for the caller's transaction."""
    if not load(config.adapter).remembers:
        return Memory()
    if batch.memory_id is not None:
        kept = AdapterMemory.objects.select_for_update().get(pk=batch.memory_id)
        memory = Memory(msgspec.json.decode(zstd.decompress(bytes(kept.state))), kept=kept)
    else:
        source = Source.objects.select_for_update(no_key=True).get(uri=config.uri)
        if not source.state.get("adapter"):
            return Memory()
        state = copy.deepcopy(source.state["adapter"])
        settled_ms = source.state.get("settled_ms", 0)
        memory = Memory(state, settled_ms, source=source)
        remember_retried(config, state, source.state.get("retried", []))
    forget_refusals(memory.state)
    return memory


def remember_retried(config: SourceConfig, state: State, records: Sequence[str]) -> list[Outcome]:
    """Moves a memory on over records that were tried again; gives what follows from them, known or not."""
    adapter = load(config.adapter)
    return [one for record in records for one in adapter.adapt(record.encode().split(b"\n"), config, state)]


@transaction.atomic
def keep_memory(config: SourceConfig, state: State, batches: Iterable[int]) -> AdapterMemory | None:
    """Keep what the adapter remembers of an import, if it refused any record of its batches."""
    refused = Batch.objects.filter(pk__in=list(batches), quarantine__adapter=config.adapter).distinct()
    numbers = list(refused.values_list("pk", flat=True))
    if not numbers or not load(config.adapter).remembers:
        return None
    kept = AdapterMemory.objects.create(source_uri=config.uri, state=_packed(state))
    Batch.objects.filter(pk__in=numbers).update(memory=kept)
    return kept


def forget_memories() -> int:
    """Lets go of memories whose records are all settled; returns how many."""
    waiting = Batch.objects.filter(memory=OuterRef("pk")).filter(
        Exists(QuarantinedEvent.objects.filter(batch=OuterRef("pk"), resolved_at=None).exclude(adapter=""))
    )
    unread = Batch.objects.filter(memory=OuterRef("pk"), state=BatchState.RECEIVED)
    settled = AdapterMemory.objects.filter(~Exists(waiting), ~Exists(unread))
    return settled.delete()[1].get("ingest.AdapterMemory", 0)


def _packed(state: State) -> bytes:
    return zstd.compress(msgspec.json.encode(state), 3)
