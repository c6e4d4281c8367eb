"""A workload on its way through the simulated scheduler."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from ingest.core.demo.journal import Json


class State(enum.Enum):
    QUEUED = "queued"
    CLAIMING = "claiming"  # GPUs are being freed for it
    RUNNING = "running"
    DRAINING = "draining"  # told to go, still there
    ENDED = "ended"


@dataclass(slots=True)
class Workload:
    """A gang of `milli_gpus` that runs whole or not at all.

    holder: slug whose reservation it uses. who: how its events name that holder. work_ms: running time it needs,
    None for a replica, which runs until told. kept_ms: work that no preemption can take any more.
    """

    id: str
    holder: str
    who: Json
    pools: tuple[str, ...]
    milli_gpus: int
    name: str
    kind: str
    service_class: str
    priority_class: str
    priority: int
    work_ms: int | None
    checkpoint_ms: int = 0
    user: str = ""
    purpose: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    state: State = State.QUEUED
    pool: str = ""
    attempt: int = 0
    queued_ms: int = 0
    ready_ms: int = 0
    admitted_ms: int = 0
    kept_ms: int = 0
    is_pending: bool = False  # a pending level above 0 is on record
    preemption: str = ""  # that stopped it and waits for its resume
    lost_capacity: bool = False
    awaited: set[str] = field(default_factory=set)  # victims whose GPUs it waits for

    @property
    def is_serving(self) -> bool:
        return self.kind == "serving"

    @property
    def is_preemptible(self) -> bool:
        return self.service_class == "preemptible"

    def last_checkpoint_ms(self, instant_ms: int) -> int | None:
        """The latest checkpoint of the running attempt before that instant, None if there is none yet."""
        if not self.checkpoint_ms:
            return None
        written = (instant_ms - 1 - self.admitted_ms) // self.checkpoint_ms
        return self.admitted_ms + written * self.checkpoint_ms if written > 0 else None
