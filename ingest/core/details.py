"""What quarantine says of one value or line, as sentences of declared codes.

Its rows keep finished English, as it came in: a refusal travels as text, inside of lines that stand for refused records
and in bulk. So a page takes the English for what was declared here, and in `native_details`. What is not stays as it
is.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from ingest.core.native_details import OF_ADAPTERS
from ledger.core.sentences import Sentence, declare

DEEPEST = 8


def _(text: str) -> str:
    """Marks a text for the catalogue of translations; pages look it up there."""
    return text


# Around another detail: the field (or the compression) it is about, and how much of a record is kept.
AROUND = declare(
    {
        "detail_of_field": "%(field)s: %(problem)s",
        "detail_cut_off": _("%(problem)s; of its %(size)s bytes the first %(kept)s are kept"),
    }
)

DETAILS = declare(
    {
        # Values (fields).
        "detail_negative": _("%(value)s is negative"),
        "detail_too_large": _("%(value)s is too large"),
        "detail_fraction": _("%(value)s has a fraction"),
        "detail_places": _("%(value)s has more than %(places)s decimal places"),
        "detail_not_a_number": _("%(value)s is not a number"),
        "detail_attempts": _("attempts count from 1"),
        "detail_above_1": _("%(value)s is more than 1"),
        "detail_http_status": _("%(value)s is no HTTP status"),
        "detail_not_boolean": _("%(value)s is neither true nor false"),
        "detail_not_rfc3339": _("%(value)s is not an RFC 3339 instant"),
        "detail_without_offset": _("%(value)s lacks its offset from UTC"),
        "detail_time_of_day": _("%(value)s is no time of day"),
        "detail_not_an_offset": _("%(value)s is no offset"),
        "detail_calendar": _("%(value)s is no day of the calendar"),
        "detail_years": _("%(value)s lies outside of the years %(first)s to %(last)s"),
        "detail_not_text": _("%(value)s is not text"),
        "detail_empty": _("the text is empty"),
        "detail_characters": _("%(value)s is longer than %(most)s characters"),
        "detail_bytes": _("%(value)s is longer than %(most)s bytes"),
        "detail_nul": _("%(value)s holds a NUL character, which no database text can"),
        "detail_surrogate": _("%(value)s holds half of a surrogate pair"),
        "detail_not_one_of": _("%(value)s is not one of %(known)s"),
        "detail_not_labels": _("%(value)s is not an object of labels"),
        "detail_not_nodes": _("%(value)s is not a list of node names"),
        "detail_identity_kind": _("%(value)s is not a kind of identity; known: %(known)s"),
        "detail_not_a_uri": _("%(value)s is not a URI reference"),
        "detail_without_id": _("the event has no id"),
        # Types of events (events).
        "detail_several_holders": _("more than one of %(names)s"),
        "detail_no_holder": _("none of %(names)s"),
        "detail_preemptible": _("preemptible contradicts service_class %(value)s"),
        "detail_what_waits": _("say what waits: exactly one of workload and queue"),
        "detail_how_much_waits": _("say how much waits: gpus, requests or both"),
        "detail_victim": _("a victim is exactly one of workload and request"),
        "detail_request_gives_back": _("a preempted request gives back no GPUs: gpus must be 0"),
        "detail_preemptor": _("a preemptor is given although preemptor_source is none"),
        "detail_prefix_tokens": _("cached_prefix_tokens are part of context_tokens"),
        "detail_input_tokens": _("cached_input_tokens and cache_write_tokens exceed input_tokens"),
        "detail_reasoning_tokens": _("reasoning_tokens exceed output_tokens"),
        "detail_ends_early": _("ends_at is before starts_at"),
        "detail_two_hours": _("starts_at and ends_at lie in different UTC hours"),
        "detail_rejection_of_service": _("a rejection names a tenant, not a service"),
        "detail_null": _("%(field)s is null"),
        "detail_future": _("time is more than 10 minutes ahead of the ledger's clock"),
        "detail_ends_after_time": _("data.ends_at is not after time"),
        "detail_time_is_end": _("time is not data.ends_at"),
        "detail_started_late": _("data.started_at is after time, the finish"),
        "detail_queued_late": _("data.queued_at is after time, the finish"),
        "detail_long_request": _("a request of more than 31 days"),
        # One event (parse).
        "detail_deep": _("nested more than %(limit)s deep"),
        "detail_too_deep": _("nested too deep to be read"),
        "detail_specversion": _("specversion is %(value)s, not '1.0'"),
        "detail_without_source": _("the event has no source"),
        "detail_unknown_type": _("%(value)s is not a type this ledger knows"),
        "detail_without_time": _("the event has no time"),
        "detail_without_data": _("the event has no data"),
        "detail_whole_event": _("a replacement is a whole event"),
        "detail_no_correction": _("a correction cannot be the replacement"),
        "detail_own_id": _("the replacement needs an id of its own"),
        "detail_event_bytes": _("the event has %(size)s bytes, more than %(most)s"),
        "detail_line_bytes": _("the line has %(size)s bytes, more than %(most)s"),
        # Bodies (unpack, json_array).
        "detail_unpacks": _("the body unpacks to more than %(most)s bytes"),
        "detail_breaks_off": _("the body breaks off"),
        "detail_many_events": _("more than %(most)s events in one batch"),
        "detail_no_array": _("the body does not begin with ["),
        "detail_after_array": _("something follows the end of the array"),
        "detail_array_breaks": _("the array breaks off"),
        # What is known (services.names, booking).
        "detail_no_pool": _("no pool is called %(name)s"),
        "detail_no_tenant": _("no tenant is called %(name)s"),
        "detail_no_service": _("no service is called %(name)s"),
        "detail_other_content": _("the replacement's key was booked before with other content"),
        "detail_conflict": _("this key was booked before with other content; the first stays"),
        "detail_pruned": _("the requests of its day were pruned"),
        "detail_many_days": _("one batch may bring requests of at most %(most)s days"),
        "detail_not_allowed": _("the sender's token may not speak for this source"),
        # Native records of any kind (adapters.base, native, json_records, csv).
        "detail_other_shape": _(
            "a field is missing or is of another type than this source writes: %(problem)s"
        ),
        "detail_unmapped": _("source %(source)s maps %(tried)s to no pool and has no single pool"),
        "detail_instant_offset": _("%(value)s is not an RFC 3339 instant with an offset"),
        "detail_not_an_instant": _("%(value)s is not an instant: %(problem)s"),
        "detail_beyond_calendar": _("%(value)s is outside the calendar"),
        "detail_not_finite": _("%(value)s is not a finite number of a sane size"),
        "detail_quantity": _("%(value)s is not a Kubernetes quantity"),
        "detail_below_0": _("%(value)s is below 0"),
        "detail_not_whole": _("%(value)s is not a whole number >= 0"),
        "detail_not_an_object": _("%(value)s is not a JSON object"),
        "detail_not_a_list": _("%(value)s is not a list"),
        "detail_not_a_name": _("%(value)s is not a name"),
        "detail_record_lacks": _("the record has no %(name)s"),
        "detail_no_instant": _("the record does not say when it happened"),
        "detail_negative_duration": _("%(value)s is a negative duration"),
        "detail_never_ends": _("the document that starts here never ends"),
        "detail_document_bytes": _("more than %(most)s bytes in one document"),
        "detail_not_json": _("not JSON: %(problem)s"),
        "detail_not_utf8": _("not UTF-8: %(problem)s"),
        "detail_not_a_row": _("not a row of this table: %(problem)s"),
        "detail_no_column": _("the header has no column %(names)s"),
        "detail_cells": _("%(cells)s cells under %(columns)s columns"),
        "detail_field_not_boolean": _("%(name)s is %(value)s, neither true nor false"),
    }
)

# What msgspec says of a shape or of JSON.
OF_MSGSPEC = declare(
    {
        "detail_unknown_field": _("Object contains unknown field `%(field)s`"),
        "detail_missing_field": _("Object missing required field `%(field)s`"),
        "detail_of_another_type": _("Expected `%(wanted)s`, got `%(got)s`"),
        "detail_malformed": _("JSON is malformed: %(problem)s (byte %(byte)s)"),
        "detail_truncated": _("Input data was truncated"),
        "detail_invalid_utf8": _("Invalid UTF-8 encoded string"),
    }
)

_VALUE = re.compile(r"%\((\w+)\)s")
_OF_FIELD = re.compile(r"((?:data|time)[\w.\[\]]*|gzip|zstd): (.+)", re.DOTALL)
_CUT_OFF = re.compile(r"(.+); of its (\d+) bytes the first (\d+) are kept", re.DOTALL)


@lru_cache(maxsize=1024)
def told(detail: str, depth: int = DEEPEST) -> Sentence | str:
    """The sentence that a detail is; itself, where it is none that was declared."""
    if not depth:
        return detail
    if found := _OF_FIELD.fullmatch(detail):
        inner = told(found[2], depth - 1)
        return Sentence("detail_of_field", {"field": found[1], "problem": inner})
    if found := _CUT_OFF.fullmatch(detail):
        inner = told(found[1], depth - 1)
        return Sentence("detail_cut_off", {"problem": inner, "size": found[2], "kept": found[3]})
    return _declared(detail, depth) or detail


def _declared(detail: str, depth: int) -> Sentence | None:
    for code, pattern in _patterns():
        if found := pattern.fullmatch(detail):
            values = found.groupdict()
            inner = {"problem": told(values["problem"], depth - 1)} if "problem" in values else {}
            return Sentence(code, {**values, **inner})
    return None


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """The most telling first: what has the most words of its own."""
    by_words = sorted(
        {**DETAILS, **OF_MSGSPEC, **OF_ADAPTERS}.items(), key=lambda one: -len(_VALUE.sub("", one[1]))
    )
    return [(code, re.compile(_pattern(english), re.DOTALL)) for code, english in by_words]


def _pattern(english: str) -> str:
    parts = _VALUE.split(english)
    texts = [re.escape(part) if place % 2 == 0 else f"(?P<{part}>.+?)" for place, part in enumerate(parts)]
    return "".join(texts)
