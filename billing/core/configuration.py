"""The one declarative file: tenants, pools, services, rates, policies, contracts, calibrations, sources.

`parse(text)` turns TOML into typed, checked records, or raises `ConfigurationError` whose text is one clear line
that names the key's path. Decimals are written as strings, because TOML's floats are not exact.
"""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from billing.core.sentences import Sentence, sentence
from ledger.core.contract_words import ADAPTER_NAMES, IDENTITY_KINDS, is_identity_kind
from ledger.core.sentences import Told

MICRO = 1_000_000
_OF_MSGSPEC = [
    (re.compile(r"Object contains unknown field `(?P<field>.*)`"), "unknown_key"),
    (re.compile(r"Object missing required field `(?P<field>.+)`"), "field_missing"),
    (re.compile(r"Expected `(?P<wanted>.+)`, got `(?P<got>.+)`"), "of_another_type"),
    (re.compile(r"Expected `(?P<wanted>\w+)`(?P<bound> [<>]=? -?[\d.]+)"), "out_of_bounds"),
    (re.compile(r"Invalid RFC3339 encoded datetime"), "no_instant"),
    (re.compile(r"Invalid enum value (?P<value>.+)", re.DOTALL), "none_of_the_choices"),
]
SLUG = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
RESERVED_SLUGS = frozenset({"platform", "unattributed"})
GPU_CATEGORIES = (
    "reserved_used",
    "reserved_idle",
    "on_demand",
    "borrowed",
    "excess",
    "unreserved_idle",
)
TOKEN_KINDS = ("input", "cached_input", "output", "reasoning")
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
# Facts begin with the year 2000 (events.md), in every time zone.
EARLIEST_RESERVATION = 2001
# Tokens per minute; so bounded that no calibration makes more GPUs of them than the books can count.
MAX_TOKENS_PER_MINUTE = 1_000_000_000
Rate = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS_PER_MINUTE)]


class ConfigurationError(Told):
    """The file is not usable; it says where and why, in one line."""

    def __init__(self, path: str, problem: Sentence) -> None:
        super().__init__(sentence("unusable_at", place=path, problem=problem) if path else problem)


class _Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    pass


class LedgerTable(_Table, frozen=True):
    """States all of the ledger's settings; a file without it leaves them as they are."""

    currency: str = "USD"
    billing_time_zone: str = "UTC"
    mode: Literal["rate_card", "cost_recovery"] = "rate_card"
    showback: bool = False
    approvals: bool = True
    options: dict[str, Any] = {}


class IdentityTable(_Table, frozen=True):
    kind: str
    value: str
    valid_from: datetime | None = None
    valid_to: datetime | None = None


class TenantTable(_Table, frozen=True):
    slug: str
    name: str = ""
    identities: tuple[IdentityTable, ...] = ()
    contract: Literal["gpu_time", "tokens"] = "gpu_time"
    display_alias: str = ""
    parent: str = ""
    cost_center: str = ""
    gl_code: str = ""
    contacts: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    showback: bool = False


class PoolTable(_Table, frozen=True):
    slug: str
    cluster: str
    gpu_model: str
    name: str = ""
    region: str = ""
    meter: str = "gpu"


class PoolCostTable(_Table, frozen=True):
    pool: str
    valid_from: datetime
    cost_per_gpu_hour: str


class ServiceTable(_Table, frozen=True):
    slug: str
    name: str = ""
    pool: str = ""
    owner: str = "platform"
    key: Literal["gpu_seconds", "tokens", "concurrency", "shares"] = "gpu_seconds"
    service_basis: Literal["spread", "measured"] = "spread"
    shares: dict[str, int] = {}
    valid_from: datetime = ALWAYS


class GpuHourTable(_Table, frozen=True):
    pool: str = ""
    gpu_model: str = ""
    service_class: Literal["", "guaranteed", "preemptible"] = ""
    reserved_used: str = ""
    reserved_idle: str = ""
    on_demand: str = ""
    borrowed: str = ""
    excess: str = ""
    unreserved_idle: str = ""


class TokenTable(_Table, frozen=True):
    """Prices per million tokens."""

    model: str
    input: str = ""
    cached_input: str = ""
    output: str = ""
    reasoning: str = ""


class RateCardTable(_Table, frozen=True):
    name: str
    valid_from: datetime
    gpu_hour: tuple[GpuHourTable, ...] = ()
    token: tuple[TokenTable, ...] = ()
    reason: str = ""


class PolicyTable(_Table, frozen=True):
    valid_from: datetime
    preemption_charged_to: Literal["entitlement", "victim", "preemptor", "platform"] = "entitlement"
    unreserved_idle: Literal["platform", "proportional", "even"] = "platform"
    lend_credit: str = "borrower_paid"
    min_confidence: str = "1"
    undelivered_counts_pending: bool = False
    names_visible: bool = False
    purpose_payers: dict[str, Literal["platform", "owner"]] = {}
    reason: str = ""


class ThroughputTable(_Table, frozen=True):
    """Tokens per minute of a model that a contract reserves GPUs of a pool for; cached tokens count as input."""

    model: str
    pool: str
    input_tokens_per_minute: Rate = 0
    output_tokens_per_minute: Rate = 0


class ContractTable(_Table, frozen=True):
    tenant: str
    valid_from: datetime
    kind: Literal["gpu_time", "tokens"] = "gpu_time"
    token_quota: int | None = None
    committed_tokens: int | None = None
    overage_price: str = ""
    delay_credit: str = "0"
    on_preemption: Literal["", "stop", "requeue", "degrade"] = ""
    max_delay_seconds: int | None = None
    reserved_idle_ramp: tuple[int, ...] = ()
    reserved_throughput: tuple[ThroughputTable, ...] = ()
    reason: str = ""


class CalibrationTable(_Table, frozen=True):
    model: str
    gpu_model: str
    valid_from: datetime
    input_gpu_us_per_1k: int
    cached_input_gpu_us_per_1k: int
    output_gpu_us_per_1k: int
    load_test: str = ""
    concurrency_per_gpu: str = ""
    tolerance: str = "0.1"
    reason: str = ""


class BudgetTable(_Table, frozen=True):
    """month empty: every month that has none of its own. Either amount or gpu_hours; thresholds in percent."""

    tenant: str
    month: str = ""
    amount: str = ""
    gpu_hours: str = ""
    thresholds: tuple[int, ...] = (50, 80, 100)


class SourceTable(_Table, frozen=True):
    name: str
    uri: str
    adapter: str = "cloudevents"
    cluster: str = ""
    pool: str = ""
    pools: dict[str, str] = {}
    time_zone: str = "UTC"
    silence_after: str = ""
    options: dict[str, Any] = {}


class AlertRuleTable(_Table, frozen=True, rename={"lasting": "for"}):
    """A threshold is in the unit of its kind (docs/alerts.md); what is not said is as usual for the kind."""

    name: str
    kind: Literal[
        "shortage",
        "unused_reservation",
        "quota_drift",
        "conversion_drift",
        "preemption_spike",
        "rejections",
        "budget",
        "budget_forecast",
        "ingest_lag",
        "unattributed",
        "silent_source",
        "capacity_change",
    ]
    pool: str = ""
    tenant: str = ""
    threshold: str = ""
    lasting: str = ""
    severity: Literal["", "info", "warning", "critical"] = ""
    enabled: bool = True


class Configuration(_Table, frozen=True):
    ledger: LedgerTable | None = None
    tenant: tuple[TenantTable, ...] = ()
    pool: tuple[PoolTable, ...] = ()
    pool_cost: tuple[PoolCostTable, ...] = ()
    service: tuple[ServiceTable, ...] = ()
    rate_card: tuple[RateCardTable, ...] = ()
    policy: tuple[PolicyTable, ...] = ()
    contract: tuple[ContractTable, ...] = ()
    calibration: tuple[CalibrationTable, ...] = ()
    budget: tuple[BudgetTable, ...] = ()
    source: tuple[SourceTable, ...] = ()
    alert_rule: tuple[AlertRuleTable, ...] = ()


def parse(text: str) -> Configuration:
    """TOML text to a checked configuration.

    Raises:
        ConfigurationError: not TOML, an unknown key, a wrong type, a bad decimal, zone, slug or repeated key.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError("", sentence("not_toml", why=str(error))) from None
    return from_document(document)


def from_document(document: dict[str, Any]) -> Configuration:
    """The same from an already decoded document."""
    try:
        configuration = msgspec.convert(document, Configuration)
    except msgspec.ValidationError as error:
        raise _refusal_of(str(error)) from None
    _check(configuration)
    return configuration


def _refusal_of(text: str) -> ConfigurationError:
    """What msgspec says in words alone: 'problem - at `$.path`'."""
    problem, _, path = text.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    for pattern, code in _OF_MSGSPEC:
        found = pattern.fullmatch(problem)
        if found is None:
            continue
        if code == "unknown_key":
            return ConfigurationError(".".join(filter(None, (path, found["field"]))), sentence(code))
        return ConfigurationError(path, sentence(code, **found.groupdict()))
    return ConfigurationError(path, sentence("unusable", why=problem))


def decimal_micro(value: str, path: str) -> int:
    """An amount written as a decimal string, in micro units; at most 6 places, never negative."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ConfigurationError(path, sentence("not_a_decimal", value=value)) from None
    if not number.is_finite() or number < 0:
        raise ConfigurationError(path, sentence("below_0", value=value))
    micro = number * MICRO
    if micro != micro.to_integral_value():
        raise ConfigurationError(path, sentence("too_many_places", value=value))
    return int(micro)


def duration_s(value: str, path: str) -> int | None:
    """'2h', '30m', '45s', '1d' in seconds; empty is None."""
    if not value:
        return None
    match = re.fullmatch(r"(\d+)([smhd])", value)
    if match is None:
        raise ConfigurationError(path, sentence("not_a_duration", value=value))
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def _check(configuration: Configuration) -> None:
    if configuration.ledger is not None:
        _check_ledger(configuration.ledger)
    _check_slugs(configuration)
    _check_instants(configuration)
    _check_prices(configuration)
    _check_budgets(configuration)
    _check_sources(configuration)
    _check_alert_rules(configuration)


def _check_budgets(configuration: Configuration) -> None:
    for index, budget in enumerate(configuration.budget):
        path = f"budget[{index}]"
        if bool(budget.amount) == bool(budget.gpu_hours):
            raise ConfigurationError(path, sentence("either_amount_or_hours"))
        if not decimal_micro(budget.amount or budget.gpu_hours, f"{path}.amount"):
            raise ConfigurationError(path, sentence("must_be_above_0"))
        if budget.month and not MONTH.fullmatch(budget.month):
            raise ConfigurationError(f"{path}.month", sentence("not_a_month", value=budget.month))


def _check_ledger(ledger: LedgerTable) -> None:
    if not re.fullmatch(r"[A-Z]{3}", ledger.currency):
        raise ConfigurationError("ledger.currency", sentence("not_a_currency", value=ledger.currency))
    check_zone(ledger.billing_time_zone, "ledger.billing_time_zone")


def check_zone(name: str, path: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigurationError(path, sentence("not_a_zone", value=name)) from None


def _check_slugs(configuration: Configuration) -> None:
    tenants = _unique("tenant", [(row.slug, ALWAYS) for row in configuration.tenant])
    services = _unique("service", [(row.slug, row.valid_from) for row in configuration.service])
    _unique("pool", [(row.slug, ALWAYS) for row in configuration.pool])
    for slug in sorted(tenants & services):
        raise ConfigurationError("service", sentence("tenant_too", value=slug))


def instant_of(text: str) -> datetime:
    """An instant as a row of the file writes it, RFC 3339."""
    return msgspec.convert(text, datetime)


def _unique(kind: str, versions: list[tuple[str, datetime]]) -> set[str]:
    """The slugs of a kind; a service may be named again with another `valid_from`."""
    seen: set[tuple[str, datetime]] = set()
    for index, version in enumerate(versions):
        slug = version[0]
        if not SLUG.fullmatch(slug) or slug in RESERVED_SLUGS:
            raise ConfigurationError(f"{kind}[{index}].slug", sentence("not_a_slug", value=slug))
        if version in seen:
            raise ConfigurationError(f"{kind}[{index}].slug", sentence("named_twice", value=slug))
        seen.add(version)
    return {slug for slug, _ in seen}


def _check_instants(configuration: Configuration) -> None:
    for kind in ("pool_cost", "service", "rate_card", "policy", "contract", "calibration"):
        for index, row in enumerate(getattr(configuration, kind)):
            if row.valid_from.tzinfo is None:
                raise ConfigurationError(f"{kind}[{index}].valid_from", sentence("needs_offset"))
            # Beyond these the calendar of another zone, or of a month's arithmetic, has no place for it.
            if not 1900 <= row.valid_from.year <= 9000:
                raise ConfigurationError(f"{kind}[{index}].valid_from", sentence("beyond_calendar"))
    for index, tenant in enumerate(configuration.tenant):
        for place, identity in enumerate(tenant.identities):
            path = f"tenant[{index}].identities[{place}]"
            for key, instant in (("valid_from", identity.valid_from), ("valid_to", identity.valid_to)):
                if instant is not None and instant.tzinfo is None:
                    raise ConfigurationError(f"{path}.{key}", sentence("needs_offset"))
            if identity.kind in ("tenant", "service"):
                raise ConfigurationError(f"{path}.kind", sentence("kind_reserved", value=identity.kind))
            if not is_identity_kind(identity.kind):
                known = ", ".join([*sorted(IDENTITY_KINDS), "label:<name>"])
                raise ConfigurationError(
                    f"{path}.kind", sentence("unknown_kind_of_identity", value=identity.kind, known=known)
                )


def _check_prices(configuration: Configuration) -> None:
    for index, card in enumerate(configuration.rate_card):
        for place, row in enumerate(card.gpu_hour):
            path = f"rate_card[{index}].gpu_hour[{place}]"
            if bool(row.pool) == bool(row.gpu_model):
                raise ConfigurationError(path, sentence("either_pool_or_model"))
            _check_decimals(row, GPU_CATEGORIES, path)
        for place, token in enumerate(card.token):
            _check_decimals(token, TOKEN_KINDS, f"rate_card[{index}].token[{place}]")
    for index, cost in enumerate(configuration.pool_cost):
        decimal_micro(cost.cost_per_gpu_hour, f"pool_cost[{index}].cost_per_gpu_hour")
    for index, policy in enumerate(configuration.policy):
        _check_share(policy.min_confidence, f"policy[{index}].min_confidence")
        if policy.lend_credit != "borrower_paid":
            _check_share(policy.lend_credit, f"policy[{index}].lend_credit")
    for index, contract in enumerate(configuration.contract):
        decimal_micro(contract.delay_credit, f"contract[{index}].delay_credit")
        if contract.overage_price:
            decimal_micro(contract.overage_price, f"contract[{index}].overage_price")
        _check_throughput(contract, f"contract[{index}]")
    for index, calibration in enumerate(configuration.calibration):
        _check_share(calibration.tolerance, f"calibration[{index}].tolerance")
        if calibration.concurrency_per_gpu:
            decimal_micro(calibration.concurrency_per_gpu, f"calibration[{index}].concurrency_per_gpu")


def _check_throughput(contract: ContractTable, path: str) -> None:
    """What the rows say among themselves; pools, models and calibrations are known where they are applied."""
    if not contract.reserved_throughput:
        return
    if contract.kind != "tokens":
        raise ConfigurationError(f"{path}.reserved_throughput", sentence("belongs_to_tokens"))
    if contract.valid_from.year < EARLIEST_RESERVATION:
        raise ConfigurationError(
            f"{path}.valid_from",
            sentence("throughput_too_early", year=EARLIEST_RESERVATION),
        )
    seen: set[tuple[str, str]] = set()
    for index, row in enumerate(contract.reserved_throughput):
        place = f"{path}.reserved_throughput[{index}]"
        if (row.model, row.pool) in seen:
            raise ConfigurationError(place, sentence("throughput_twice", model=row.model, pool=row.pool))
        if not (row.input_tokens_per_minute or row.output_tokens_per_minute):
            raise ConfigurationError(place, sentence("throughput_empty"))
        seen.add((row.model, row.pool))


def _check_decimals(row: GpuHourTable | TokenTable, names: tuple[str, ...], path: str) -> None:
    for name in names:
        value = getattr(row, name)
        if value:
            decimal_micro(value, f"{path}.{name}")


def _check_share(value: str, path: str) -> None:
    if decimal_micro(value, path) > MICRO:
        raise ConfigurationError(path, sentence("not_a_share", value=value))


def _check_sources(configuration: Configuration) -> None:
    names: set[str] = set()
    uris: set[str] = set()
    for index, source in enumerate(configuration.source):
        path = f"source[{index}]"
        if source.adapter not in ADAPTER_NAMES:
            known = ", ".join(sorted(ADAPTER_NAMES))
            raise ConfigurationError(
                f"{path}.adapter", sentence("unknown_adapter", value=source.adapter, known=known)
            )
        duration_s(source.silence_after, f"{path}.silence_after")
        check_zone(source.time_zone, f"{path}.time_zone")
        if source.name in names or source.uri in uris:
            raise ConfigurationError(path, sentence("named_twice", value=source.name))
        names.add(source.name)
        uris.add(source.uri)


def _check_alert_rules(configuration: Configuration) -> None:
    names: set[str] = set()
    for index, rule in enumerate(configuration.alert_rule):
        path = f"alert_rule[{index}]"
        if not rule.name.strip() or len(rule.name) > 100 or rule.name in names:
            raise ConfigurationError(f"{path}.name", sentence("bad_rule_name", value=rule.name))
        names.add(rule.name)
        duration_s(rule.lasting, f"{path}.for")
        if rule.threshold:
            decimal_micro(rule.threshold, f"{path}.threshold")
