"""`vllm-step-log`: vLLM's log of iterations -> GPU time per engine and hour (inference.md 1.6).

The only GPU time vLLM reports by itself (`--enable-logging-iteration-details`): host time around each step. vLLM's own
log prefix has no year, so each line must begin with the instant its collector saw it
(`kubectl logs --timestamps`), or be a JSON object with `time`, `log` and, for several engines, `pod`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from ingest.core.adapters.base import Outcome, Refusal, Refused, SourceConfig, State, decimal_of, instant_ms
from ingest.core.adapters.native import as_object, first_text
from ingest.core.adapters.request_record import model_of
from ingest.core.adapters.steps import Step, adapt_steps, flush_steps

_ITERATION = re.compile(
    r"Engine (\d{1,9}): Iteration\((\d{1,18})\): .*iteration elapsed time: (\d{1,12}(?:\.\d{1,9})?) ms"
)


def adapt(lines: Iterable[bytes], source: SourceConfig, state: State | None) -> Iterator[Outcome]:
    """Log lines in the order they were written; lines about anything else are passed over."""
    return adapt_steps(lines, source, state, _read)


def flush(source: SourceConfig, state: State, before_ms: int | None) -> Iterator[Outcome]:
    return flush_steps(source, state, before_ms)


def _read(lines: Iterable[bytes], source: SourceConfig) -> Iterator[Step | Refused]:
    for position, line in enumerate(lines, start=1):
        if b"Iteration(" not in line:
            continue
        try:
            step = _step(line.decode().strip(), position, source)
        except UnicodeDecodeError as error:
            yield Refused(position, line, "bad_record", f"not UTF-8: {error.reason}")
        except Refusal as refusal:
            yield refusal.at(position, line)
        else:
            yield step


def _step(text: str, position: int, source: SourceConfig) -> Step:
    at, log, pod = _json_parts(text) if text.startswith("{") else (text.partition(" ")[0], text, None)
    match = _ITERATION.search(log)
    if match is None:
        raise Refusal("bad_record", "a line about an iteration that is not in the known wording")
    instance = pod or source.option("instance", "")
    model = model_of(source)
    source.pool_for(instance, match[1], model)
    return Step(
        worker=(instance, str(int(match[1]))),
        model=model,
        number=int(match[2]),
        ended_ms=_instant_ms(at),
        wall_us=int(decimal_of(match[3]) * 1000),
        position=position,
    )


def _json_parts(text: str) -> tuple[str, str, str | None]:
    try:
        record = as_object(msgspec.json.decode(text), "the line")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal("not_json", f"not JSON: {error}") from error
    log = first_text(record.get("log"), record.get("message")) or ""
    return first_text(record.get("time")) or "", log, first_text(record.get("pod"))


def _instant_ms(text: str) -> int:
    try:
        return instant_ms(text)
    except Refusal as refusal:
        detail = "the line does not begin with an instant; collect the log with timestamps"
        raise Refusal("no_instant", detail) from refusal
