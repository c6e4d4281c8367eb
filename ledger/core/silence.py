"""When a source counts as silent (events.md, Sources; domain.md section 10). Instants in UTC milliseconds."""

from __future__ import annotations


def heard_until_ms(watermark_ms: int | None, *answered_until_ms: int | None) -> int:
    """Up to when a source is accounted for: its newest event, or what a person signed off or waived; 0: never."""
    return max([watermark_ms or 0, *(until or 0 for until in answered_until_ms)])


def is_silent(heard_ms: int, silence_after_ms: int | None, now_ms: int) -> bool:
    """Whether more than `silence_after_ms` passed since; a source without such a limit is never silent."""
    return silence_after_ms is not None and heard_ms + silence_after_ms < now_ms
