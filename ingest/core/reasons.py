"""Why an event is refused: the codes of quarantine that programs see, and what each means to a person."""


def _(text: str) -> str:
    """Marks a text for the catalogue of translations; pages look it up there."""
    return text


REASONS: dict[str, str] = {
    "not_json": _("not JSON (NaN and infinity are no JSON either), or broken off"),
    "not_object": _("an event is a JSON object"),
    "bad_encoding": _("not UTF-8, or half of a surrogate pair"),
    "bad_text": _("text with a NUL character or half of a surrogate pair, which no database text can hold"),
    "too_deep": _("nested more deeply than the limit"),
    "event_too_large": _("larger than the limit for one event"),
    "too_long": _("a text longer than its field"),
    "bad_specversion": _("specversion is not 1.0"),
    "missing_id": _("no id; an empty id, None and null are none"),
    "missing_source": _("no source"),
    "bad_source": _("source is not a URI reference"),
    "missing_time": _("no time"),
    "bad_time": _("a time that is no RFC 3339 instant"),
    "time_without_offset": _("a time without its offset from UTC"),
    "future_time": _("more than 10 minutes ahead; only capacity and reservations can be planned"),
    "unknown_type": _("a type or version this ledger does not know"),
    "unknown_field": _("a field that its type does not have"),
    "missing_field": _("a field that its type needs is missing"),
    "bad_value": _("a value that its field cannot have"),
    "bad_number": _("not a number, or negative, too large, or of too many places"),
    "bad_identity": _("say who: exactly one of tenant, identity or service, as the type allows"),
    "usage_crosses_hour": _("usage that was aggregated over the end of an hour"),
    "contradiction": _("values that contradict each other, such as more cached than input tokens"),
    "unknown_tenant": _("no tenant has this slug"),
    "unknown_service": _("no service has this slug"),
    "unknown_pool": _("no pool has this slug"),
    "too_old": _("of a day whose requests were pruned"),
    "too_many_days": _("one batch with requests of very many days"),
    "not_configured": _("its source's table is missing or wrong, so its adapter cannot read it"),
    "source_not_allowed": _("its sender may not speak for this source"),
    "conflict": _("this key was booked before with other content; the first stays"),
    "broken_compression": _("the compressed body broke off or is damaged here; everything before was read"),
    "unpacked_too_large": _("the body unpacks to more than the limit; everything before was read"),
    "too_many_events": _("more events than one batch may have; everything before was read"),
    "not_an_array": _("the array of events is damaged here; everything before was read"),
}
"""Codes of quarantine, and what each means. Adapters bring their own for native records."""

OF_THE_REST = frozenset({"broken_compression", "unpacked_too_large", "too_many_events", "not_an_array"})
"""Those that say that nothing after this could be read."""
