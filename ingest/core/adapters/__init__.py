"""One module per native format: pure functions from native records to canonical events.

The registry is lazy so that importing it costs nothing and a worker loads only the adapters its sources name.
"""

from __future__ import annotations

from importlib import import_module

from ingest.core.adapters.base import Adapter, no_flush
from ledger.core.contract_words import ADAPTER_NAMES

ADAPTERS: dict[str, str] = {name: f"ingest.core.adapters.{name.replace('-', '_')}" for name in ADAPTER_NAMES}
"""Adapter name, as written in a `[[source]]` table, to the module that implements it."""


def load(name: str) -> Adapter:
    """The adapter called `name`; raises `KeyError` with the known names if there is none."""
    if name not in ADAPTERS:
        raise KeyError(f"no adapter is called {name!r}; known: {', '.join(sorted(ADAPTERS))}")
    module = import_module(ADAPTERS[name])
    return Adapter(
        name=name,
        adapt=module.adapt,
        flush=getattr(module, "flush", no_flush),
        remembers=getattr(module, "REMEMBERS", False),
    )
