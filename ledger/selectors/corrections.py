"""Reads which facts corrections have taken out of force. Corrections are few: they are read whole."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.core.corrections import CorrectionFact, void_keys
from ledger.core.periods import to_ms
from ledger.models import Correction, Event, Source


@dataclass(frozen=True, slots=True)
class VoidFacts:
    """keys: (source id, event id) of every event that does not count, of requests too, which no register holds.
    events: primary keys of those that are in the register."""

    keys: tuple[tuple[int, str], ...]
    events: list[int]

    def parameters(self) -> dict[str, list[int] | list[str]]:
        """The keys as two parallel arrays, for a statement that leaves them out."""
        return {
            "void_sources": [source for source, _ in self.keys],
            "void_ids": [event_id for _, event_id in self.keys],
        }


def void_facts() -> VoidFacts:
    """Three queries, whatever was corrected."""
    columns = (
        "event__source__uri",
        "event__event_id",
        "corrected_at",
        "supersedes_source",
        "supersedes_event_id",
        "replacement_source",
        "replacement_event_id",
    )
    facts = [
        CorrectionFact(
            (uri, key), to_ms(at), (old_uri, old_id), None if new_id is None else (new_uri, new_id)
        )
        for uri, key, at, old_uri, old_id, new_uri, new_id in Correction.objects.values_list(*columns)
    ]
    void = void_keys(facts)
    if not void:
        return VoidFacts((), [])
    sources = dict(Source.objects.filter(uri__in={uri for uri, _ in void}).values_list("uri", "pk"))
    keys = sorted((sources[uri], event_id) for uri, event_id in void if uri in sources)
    wanted = set(keys)
    found = Event.objects.filter(
        source__in=set(sources.values()), event_id__in=[event_id for _, event_id in keys]
    )
    events = [
        pk
        for pk, source, event_id in found.values_list("pk", "source_id", "event_id")
        if (source, event_id) in wanted
    ]
    return VoidFacts(tuple(keys), sorted(events))
