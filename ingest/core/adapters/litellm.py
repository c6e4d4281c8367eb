"""What LiteLLM's two shapes share: tokens, who asked, and why a call failed (inference.md 4.1).

Prices of the gateway are never taken over: the ledger rates tokens. Where the gateway contradicts itself about
a price, a notice says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from ingest.core.adapters.base import Event, Notice, SourceConfig, decimal_of, identity
from ingest.core.adapters.json_records import JsonRecord
from ingest.core.adapters.native import Obj, child, count_of, first_text, text_of
from ingest.core.adapters.refusal_reasons import ThrownOut, TurnedAway, Verdict, verdict_of_text
from ingest.core.adapters.request_record import (
    Tokens,
    http_status,
    nobody,
    optional_pool,
    rejection_event,
    request_preemption,
)

FLAT_COST_KEY = "__ptu_flat_cost__"

_LAYER_OF_TYPE = {
    "requests": "rate_limit",
    "tokens": "rate_limit",
    "concurrent_requests": "rate_limit",
    "budget": "budget",
    "max_iterations": "quota",
}
_TIMEOUTS = frozenset({"408", "504"})
_TOLERANCE = Decimal("0.01")


_PROVIDERS = frozenset({"hosted_vllm", "vllm", "sglang", "openai", "azure", "anthropic", "litellm_proxy"})


@dataclass(frozen=True, slots=True)
class Models:
    """The three names a row has for what answered."""

    deployment_id: str | None
    group: str | None
    """What was asked for; several models may stand behind it."""
    answered: str | None
    """The model that really answered, without its provider."""

    @classmethod
    def of(cls, record: Obj) -> Models:
        model, provider = text_of(record.get("model")), text_of(record.get("custom_llm_provider"))
        prefix, slash, rest = (model or "").partition("/")
        if slash and rest and (prefix == provider or prefix in _PROVIDERS):
            model = rest
        return cls(text_of(record.get("model_id")), text_of(record.get("model_group")), model)

    def rated(self, source: SourceConfig) -> tuple[str | None, str | None]:
        """Names to rate by: the model that answered first, so that each attempt of a fallback keeps its own rate.

        options.model_from = "group" turns that round.
        """
        by_group = source.option("model_from", "model") == "group"
        return (self.group, self.answered) if by_group else (self.answered, self.group)

    def for_pool(self) -> tuple[str | None, str | None, str | None]:
        return self.deployment_id, self.group, self.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What both shapes say of one call, answered or not. id: of its own, so that attempts are told apart."""

    id: str
    belongs_to: Obj
    models: Models
    failed: bool
    error: Obj


def rejection(call: Call, verdict: TurnedAway, time_ms: int, source: SourceConfig) -> Event:
    """Turned away before it ran."""
    return rejection_event(
        source,
        event_id=f"{call.id}/rejected",
        time_ms=time_ms,
        belongs_to=call.belongs_to,
        layer=verdict.layer,
        reason=verdict.reason,
        status=status_of(call.error),
        origin=verdict.origin,
        request=call.id,
        model=call.models.answered or call.models.group,
        pool=optional_pool(source, *call.models.for_pool()),
    )


def preemption(
    call: Call, verdict: ThrownOut, decided_ms: int, source: SourceConfig, attempt: int | None = None
) -> Event:
    """Thrown out while it waited or ran."""
    return request_preemption(
        source,
        preemption=f"{call.id}/{verdict.reason}",
        request=call.id,
        attempt=attempt,
        decided_ms=decided_ms,
        belongs_to=call.belongs_to,
        cause=verdict.cause,
        pool=source.pool_for(*call.models.for_pool()),
        disposition="stopped",
        queued_only=True if verdict.queued_only else None,
    )


def tokens_of(record: Obj, usage: Obj, failed: bool) -> Tokens:
    """The counts of one row. `prompt_tokens` already includes cached and cache-written tokens.

    A failed row without a usage object holds the 0 of its column default, which states nothing.
    """
    if failed and not usage and not count_of(record.get("total_tokens")):
        return Tokens()
    prompt, completion = child(usage, "prompt_tokens_details"), child(usage, "completion_tokens_details")
    return Tokens(
        input=count_of(record.get("prompt_tokens")),
        cached_input=_first_count(prompt.get("cached_tokens"), usage.get("cache_read_input_tokens")),
        cache_write=_first_count(
            usage.get("cache_creation_input_tokens"), prompt.get("cache_creation_tokens")
        ),
        output=count_of(record.get("completion_tokens")),
        reasoning=count_of(completion.get("reasoning_tokens")),
    )


def _first_count(*values: object) -> int | None:
    return next((count_of(value) for value in values if value is not None), None)


def who_asked(source: SourceConfig, team: object, key_hash: object, user: object) -> Obj:
    """The first identity of options.identities that the row has (default team, then virtual key)."""
    values = {"litellm_team": team, "api_key_hash": key_hash, "user": user}
    for kind in source.option("identities", ["litellm_team", "api_key_hash"]):
        value = text_of(values.get(kind))
        if value is not None:
            return {"identity": identity(kind, value)}
    return nobody(source)


def verdict_of(error: Obj) -> Verdict | None:
    """What a failure was; `None` if it was neither a refusal nor a displacement."""
    known = verdict_of_text(first_text(error.get("error_message"), error.get("error_str")))
    if known is not None:
        return known
    category, limit = (
        text_of(error.get("error_rate_limit_category")),
        text_of(error.get("error_rate_limit_type")),
    )
    name, code = text_of(error.get("error_class")) or "", text_of(error.get("error_code"))
    origin = "upstream" if (category or "").startswith("vendor") else "gateway"
    if first_text(error.get("error_budget_entity_type")) or "Budget" in name:
        return TurnedAway("budget", limit or "budget", origin)
    if category is None and code != "429" and name != "RateLimitError":
        return None
    return TurnedAway(
        _LAYER_OF_TYPE.get(limit or "", "rate_limit"), limit or category or "rate_limit", origin
    )


def failure_outcome(error: Obj) -> str:
    """`timeout`, `aborted` or `error` of a failed row that was no refusal."""
    name, code = text_of(error.get("error_class")) or "", text_of(error.get("error_code"))
    if code in _TIMEOUTS or "Timeout" in name:
        return "timeout"
    return "aborted" if code == "499" or "Cancelled" in name or "Disconnect" in name else "error"


def status_of(error: Obj) -> int:
    return http_status(error.get("error_code"), 429)


def spend_notice(record: JsonRecord, subject: str, spend: object, breakdown: Obj) -> Notice | None:
    """Notice that the price of the row and the sum of its own breakdown differ by more than 1 %."""
    if spend is None or breakdown.get("total_cost") is None:
        return None
    stated, summed = decimal_of(spend), decimal_of(breakdown["total_cost"])
    if abs(stated - summed) <= _TOLERANCE * max(abs(stated), abs(summed)):
        return None
    detail = f"the gateway says it spent {stated} and, in its breakdown, {summed}; tokens are rated anew"
    return Notice(record.position, "spend_mismatch", detail, subject)
