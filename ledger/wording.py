"""The field's words for people, in their language (the glossary): stored codes in, translated text out."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from ledger.models.choices import PeriodState, Role

Words = dict[str, str | Promise]

# In the order of the table in domain.md section 4; charts, bars and legends keep it.
CATEGORIES: Words = {
    "reserved_used": _("Reserved, used"),
    "on_demand": _("On-demand"),
    "borrowed": _("Borrowed"),
    "lent": _("Lent"),
    "reserved_idle": _("Reserved-but-idle"),
    "undelivered": _("Undelivered"),
    "oversold": _("Oversold"),
    "unreserved_idle": _("Unreserved idle"),
    "excess": _("Excess"),
}

CATEGORY_MEANINGS: Words = {
    "reserved_used": _("Occupied inside the tenant's own reservation."),
    "on_demand": _("Occupied beyond the reservation, on unreserved capacity."),
    "borrowed": _("Occupied beyond the reservation, on another's idle reservation."),
    "lent": _("Reserved, idle for its owner, used by somebody else: the same GPUs as that one's borrowed."),
    "reserved_idle": _("Reserved and used by nobody."),
    "undelivered": _(
        "Reserved and idle although the tenant's own preempted work was waiting; the platform pays."
    ),
    "oversold": _("Reserved, but the capacity was not there; nobody pays."),
    "unreserved_idle": _("Neither reserved nor occupied."),
    "excess": _("Occupied beyond what capacity backs: oversubscription or wrong data."),
}

LINE_KINDS: Words = {
    "usage": _("Usage"),
    "shared": _("Shared service"),
    "tokens": _("Tokens"),
    "transfer": _("Transfer"),
    "credit": _("Credit"),
    "adjustment": _("Adjustment"),
}

# From what tenants are billed in pools to what their statements charge. A kind of line by its name is what of it stands
# outside pools.
CHARGED_STEPS: Words = {
    "billed": _("Billed for GPU time in pools, credits for lending taken off"),
    "usage": _("Usage outside pools"),
    "shared": _("Shared cost outside pools"),
    "tokens": _("Tokens, from token contracts"),
    "transfer": _("Re-queued GPU time, charged to others or taken over by the platform"),
    "credit": _("Credits for delays, goodwill and disputes"),
    "adjustment": _("Adjustments of earlier months"),
    "rounding": _("Rounding of each statement to the minor unit"),
}

TOKEN_KINDS: Words = {
    "input": _("Input tokens"),
    "cached_input": _("Cached input tokens"),
    "output": _("Output tokens"),
    "reasoning": _("Reasoning tokens"),
}

# Categories of lines that move money and no GPU time, or that stand for a difference.
LINE_CATEGORIES: Words = {
    "lend_credit": _("Credit for lending an idle reservation"),
    "delay_credit": _("Credit for entitled GPU time that waited or was lost"),
    "preemption_lost": _("GPU time lost to a preemption"),
    "preemption_recompute": _("GPU time computed again after a preemption"),
    "cost_difference": _("Cost of the pool less what was charged"),
    "cost_unallocated": _("Cost of a pool that nobody held"),
    "committed_unused": _("Committed tokens not used"),
    "goodwill": _("Goodwill credit"),
    "dispute_adjustment": _("Adjustment after a dispute"),
}

SERVICE_CLASSES: Words = {"guaranteed": _("guaranteed"), "preemptible": _("preemptible")}
PURPOSES: Words = {"warmup": _("warm-up"), "load_test": _("load test"), "drill": _("drill")}

CAUSES: Words = {
    "reclaim_own_reservation": _("reclaimed its own reservation"),
    "priority": _("higher priority"),
    "fair_share": _("fair share"),
    "kv_cache_pressure": _("KV-cache pressure"),
    "capacity_lost": _("capacity lost"),
    "maintenance": _("maintenance"),
    "overuse": _("overuse"),
    "other": _("other cause"),
}

EVIDENCE: Words = {
    "reported": _("reported"),
    "from_requests": _("from the requests voided"),
    "from_occupancy": _("from occupancy and checkpoint"),
    "from_calibration": _("from the calibration"),
    "unknown": _("unknown"),
}

PREEMPTOR_SOURCES: Words = {
    "structured": _("stated by the scheduler"),
    "parsed": _("parsed from a message"),
    "inferred": _("inferred"),
    "none": _("not known"),
}

DISPOSITIONS: Words = {
    "requeued": _("re-queued"),
    "stopped": _("stopped"),
    "degraded": _("degraded"),
    "drained": _("drained"),
}

PAYERS: Words = {
    "victim": _("the victim"),
    "preemptor": _("the preemptor"),
    "platform": _("the platform"),
}

CONTRACT_KINDS: Words = {
    "gpu_time": _("GPU time"),
    "tokens": _("Tokens"),
}

# What a contract says is done with a tenant's work that is preempted.
ON_PREEMPTION: Words = {
    "": _("as the workload says"),
    "stop": _("it is stopped"),
    "requeue": _("it is queued again"),
    "degrade": _("it goes on with less"),
}

EVENT_TYPES: Words = {
    "capacity": _("Capacity"),
    "reservation": _("Reservation"),
    "occupancy": _("Occupancy"),
    "pending": _("Pending"),
    "preemption": _("Preemption"),
    "resume": _("Resume"),
    "request": _("Request"),
    "usage": _("Usage"),
    "rejection": _("Rejection"),
    "quota": _("Quota"),
    "correction": _("Correction"),
}

PERIOD_STATES: dict[int, str | Promise] = {
    PeriodState.OPEN: pgettext_lazy("period", "open"),
    PeriodState.REVIEW: pgettext_lazy("period", "in review"),
    PeriodState.CLOSED: pgettext_lazy("period", "closed"),
}

BATCH_STATES: Words = {
    "received": pgettext_lazy("batch", "waiting"),
    "booked": pgettext_lazy("batch", "booked"),
    "refused": pgettext_lazy("batch", "refused"),
}

SOURCE_STATES: Words = {
    "in use": _("in use"),
    "silent": pgettext_lazy("source", "silent"),
    "retired": _("retired"),
}

QUARANTINE_STATES: Words = {
    "open": pgettext_lazy("quarantine", "open"),
    "retried": pgettext_lazy("quarantine", "tried again"),
    "dismissed": pgettext_lazy("quarantine", "dismissed"),
}

# Why an event was refused, by code, in English: the app of ingest, which knows the codes, fills it as it starts.
QUARANTINE_REASONS: dict[str, str] = {}

# Why a person's word about a source, a line in quarantine or an identity was not taken, by code.
SOURCE_PROBLEMS: Words = {
    "no_reason": _("Give a reason: it stands on the audit trail."),
    "moves_back": _("It is complete until later already. Tick the box if going back is meant."),
    "no_limit": _("This source has no silence_after, so its silence blocks nothing."),
    "not_silent": _("This source is not silent: its own events end what it holds."),
    "no_holders": _("Nothing is held by the word of this source."),
    "unknown_holder": _("It does not hold that any more; look again."),
    "bad_instant": _("The end must be after each workload's last fact, and not in the future."),
}

QUARANTINE_PROBLEMS: Words = {
    "no_reason": _("Give a reason: it stands on the audit trail."),
    "nothing_to_retry": _("None of these lines can be tried again; look again."),
    "nothing_to_dismiss": _("None of these lines waits any more; look again."),
}

IDENTITY_PROBLEMS: Words = {
    "bad_identity": _("That is no identity: a kind such as k8s_namespace or label:team, and its value."),
    "unknown_tenant": _("Choose a tenant."),
    "no_reason": _("Give a reason: it stands on the audit trail."),
    "empty_validity": _("The end must be after the beginning."),
    "mapped_otherwise": _("It is another tenant's in a part of that time; say from when it is this one's."),
}

TIME_UNITS: Words = {
    "d": pgettext_lazy("unit of time", "d"),
    "h": pgettext_lazy("unit of time", "h"),
    "min": pgettext_lazy("unit of time", "min"),
    "s": pgettext_lazy("unit of time", "s"),
    "ms": pgettext_lazy("unit of time", "ms"),
}

# Only Chinese counts so; the words are its own in every catalogue.
MYRIADS: Words = {"wan": "万", "yi": "亿"}

STATEMENT_STATES: Words = {"draft": _("Draft"), "issued": _("Issued")}

ROLES: Words = {
    Role.FINANCE: _("Finance"),
    Role.PLATFORM: _("Platform"),
    Role.AUDITOR: _("Auditor"),
    Role.TENANT_ADMIN: _("Tenant admin"),
    Role.TENANT_VIEWER: _("Tenant viewer"),
    Role.INGEST: _("Ingest"),
}

APPROVAL_KINDS: Words = {
    "override": _("close over what blocks"),
    "credit": _("credit to a tenant"),
    "terms": _("rates, policies, contracts"),
    "access": _("role of finance"),
}

ALERT_KINDS: Words = {
    "shortage": _("Shortage"),
    "unused_reservation": _("Unused reservation"),
    "quota_drift": _("Quota drift"),
    "conversion_drift": _("Conversion drift"),
    "preemption_spike": _("Preemption spike"),
    "rejections": _("Many rejections"),
    "budget": _("Budget threshold passed"),
    "budget_forecast": _("Budget will not last"),
    "ingest_lag": _("Ingest lags behind"),
    "unattributed": _("Unattributed occupancy"),
    "silent_source": _("Silent source"),
    "capacity_change": _("Planned capacity change"),
}

SEVERITIES: Words = {
    "info": pgettext_lazy("severity", "info"),
    "warning": pgettext_lazy("severity", "warning"),
    "critical": pgettext_lazy("severity", "critical"),
}

ALERT_STATES: Words = {
    "open": pgettext_lazy("alert", "open"),
    "acknowledged": pgettext_lazy("alert", "acknowledged"),
    "resolved": pgettext_lazy("alert", "resolved"),
}

DISPUTE_STATES: Words = {
    "open": pgettext_lazy("dispute", "open"),
    "answered": pgettext_lazy("dispute", "answered"),
    "proposed": pgettext_lazy("dispute", "adjustment waits for a second person"),
    "adjusted": pgettext_lazy("dispute", "adjusted"),
    "rejected": pgettext_lazy("dispute", "rejected"),
}

# Why a step of a dispute or a credit was not taken, by code.
DISPUTE_PROBLEMS: Words = {
    "no_reason": _("Give a reason: it stays on record."),
    "already_open": _("This line has a dispute that is not settled: it goes on below."),
    "settled": _("This dispute is settled already."),
    "line_changed": _(
        "Nothing was disputed: the line has changed since this page was shown. Look at it again; what you wrote "
        "stands below."
    ),
    "line_gone": _("Nothing was disputed: the line is no longer on the statement, which was computed anew."),
    "bad_amount": _("The amount is no decimal number above 0, with 6 places at most."),
    "too_much": _(
        "That is more than there is to give back: the amount billed, less what was given back for it before."
    ),
    "changed": _("Nothing was approved: the draft has changed since you looked. Look at it again."),
    "issued": _("Nothing was approved: the statement is issued already."),
    "decided": _("Nothing was changed: somebody has decided this already."),
    "same_person": _("Nothing was approved: a second person has to agree. Whoever asked can only withdraw."),
}

# The steps of the bridge from last month, and what each is.
BRIDGE_STEPS: dict[str, tuple[str | Promise, str | Promise]] = {
    "price": (
        _("Price"),
        _("This month's quantity at this month's average price less at last month's, line by line."),
    ),
    "volume": (
        _("Volume"),
        _("More or less held and used, at last month's average price; what is new or gone counts here."),
    ),
    "idle": (_("Idle"), _("More or less reserved-but-idle time, at last month's average price.")),
    "preemption": (_("Preemption"), _("What preemptions move between tenants: lost and recomputed time.")),
    "credits": (_("Credits"), _("What is given back: for lending, for delays, as goodwill, for disputes.")),
    "adjustments": (
        _("Adjustments"),
        _("What is posted for earlier months, and cost differences."),
    ),
    "rounding": (_("Rounding"), _("Totals are rounded once, and so are the steps above.")),
}

# Names of the figures that an alert rests on, and their units.
ALERT_FIGURES: Words = {
    "pending": _("Pending"),
    "headroom": _("Headroom"),
    "missing": _("Missing"),
    "capacity": _("Capacity"),
    "capacity_then": _("Capacity then"),
    "capacity_now": _("Capacity now"),
    "changes_in": _("Changes in"),
    "reserved": _("Reserved"),
    "unused": _("Unused"),
    "share": _("Share"),
    "predicted": _("Predicted"),
    "measured": _("Measured"),
    "deviation": _("Deviation"),
    "tolerance": _("Tolerance"),
    "preemptions": _("Preemptions"),
    "gpus_taken": _("GPUs taken"),
    "rejections": _("Rejections"),
    "explicit_share": _("With a retry time"),
    "budget": _("Budget"),
    "spent": _("Spent"),
    "forecast": _("Forecast"),
    "lag": _("Lag"),
    "silence": _("Silent for"),
    "never": _("Nothing ever came, for"),
    "allowed": _("Allowed"),
    "gpu_hours": _("GPU time"),
    "lasted": _("Lasted"),
    "over": _("Measured over"),
    "full_layer": _("Full layer"),
    "threshold": _("Threshold"),
}

ALERT_UNITS: Words = {
    "GPU": _("GPUs"),
    "GPU-hour": _("GPU-hours"),
    "s": pgettext_lazy("unit of time", "s"),
    "min": pgettext_lazy("unit of time", "min"),
    "h": pgettext_lazy("unit of time", "h"),
    "count": "",
    "layer": "",
}

# What a rule with threshold 0 goes by.
THRESHOLDS_ELSEWHERE: Words = {
    "budget": _("each budget's own"),
    "conversion_drift": _("the calibration's tolerance"),
    "silent_source": _("each source's own"),
}

ALERT_PROBLEMS: Words = {
    "no_reason": _("Give a reason."),
    "resolved": _("This alert is resolved already."),
    "acknowledged": _("This alert is acknowledged already."),
    "exists": _("That name is taken."),
    "bad_url": _("The address cannot be used: http or https, a host, no user and password."),
    "private_url": _(
        "The address leads into a private network, where nothing is sent: the setting LEDGER_WEBHOOK_PRIVATE_NETWORKS "
        "names those that may be reached."
    ),
    "bad_addresses": _("Give 1 to 20 e-mail addresses."),
    "bad_threshold": _("The threshold is no decimal number of at least 0."),
    "needs_secret": _("Another host needs its own secret."),
}

DELIVERY_STATES: Words = {
    "waiting": pgettext_lazy("delivery", "waiting"),
    "sent": pgettext_lazy("delivery", "sent"),
    "failed": pgettext_lazy("delivery", "given up"),
}

ALERT_OCCASIONS: Words = {
    "opened": pgettext_lazy("occasion", "opened"),
    "resolved": pgettext_lazy("occasion", "resolved"),
}

ALERT_CHANNELS: Words = {
    "webhook": _("Webhook"),
    "dingtalk": _("DingTalk"),
    "feishu": _("Feishu"),
    "wecom": _("WeCom"),
    "slack": "Slack",
    "alertmanager": "Alertmanager",
    "email": _("E-mail"),
}

QUOTA_LAYERS: Words = {
    "cluster": pgettext_lazy("quota", "cluster layer"),
    "serving": pgettext_lazy("quota", "serving layer"),
    "contract": pgettext_lazy("quota", "contract"),
}

QUOTA_RESOURCES: Words = {
    "gpus": _("GPUs"),
    "concurrency": _("concurrent requests"),
    "requests_per_minute": _("requests per minute"),
    "tokens_per_minute": _("tokens per minute"),
    "tokens_per_month": _("tokens per month"),
}

REFUSING_LAYERS: Words = {
    "rate_limit": pgettext_lazy("refused by", "rate limit"),
    "admission": pgettext_lazy("refused by", "admission"),
    "quota": pgettext_lazy("refused by", "quota"),
    "budget": pgettext_lazy("refused by", "budget"),
    "capacity": pgettext_lazy("refused by", "capacity"),
}

# What became of demand, in the order of the sum that makes up what was asked for.
OUTCOMES: Words = {
    "completed": pgettext_lazy("outcome", "Completed"),
    "rejected": pgettext_lazy("outcome", "Rejected"),
    "preempted": pgettext_lazy("outcome", "Preempted"),
    "timed_out": pgettext_lazy("outcome", "Timed out"),
    "aborted": pgettext_lazy("outcome", "Aborted"),
    "failed": pgettext_lazy("outcome", "Failed"),
}

# What a measure of refused demand rests on.
DECLINED_BASES: Words = {
    "token_price": _("token prices"),
    "gpu_time": _("on-demand GPU price"),
    "": _("unknown"),
}

# What a person reads about an exception, and what to do about it.
EXCEPTIONS: dict[str, tuple[str | Promise, str | Promise]] = {
    "level_conflict": (
        _("Two facts contradict each other"),
        _("Correct one of them at its source; until then the greater (source, id) holds."),
    ),
    "merge_conflict": (
        _("Reports of one preemption disagree"),
        _("Check the sources that reported it; the smaller (source, id) holds."),
    ),
    "correction_of_nothing": (
        _("A correction of an event that the ledger does not hold"),
        _(
            "If it is a request whose day was pruned, the correction moves nothing: give a credit instead. "
            "If the event is still to come, this goes away with it."
        ),
    ),
    "suspected_duplicate": (
        _("An event looks like one delivered before under another id"),
        _("Withdraw one of them with a correction if they are the same."),
    ),
    "unattributed": (
        _("GPU time whose tenant is not known"),
        _("Map the identity to a tenant; the time moves from suspense to its bill."),
    ),
    "oversold": (
        _("Reservations that the capacity could not serve"),
        _("Compare the reservations with the capacity of the pool."),
    ),
    "excess": (
        _("More GPUs occupied than capacity backs"),
        _("Check the capacity and the occupancy facts of the pool."),
    ),
    "over_reserved": (
        _("Use inside reservations beyond the capacity"),
        _("The capacity facts are wrong or missing; correct them."),
    ),
    "price_missing": (
        _("No price for a line"),
        _("Add the price to the rate card; the amount stays empty until then."),
    ),
    "capacity_unknown": (
        _("Capacity unknown"),
        _("Send a capacity fact for the pool; nothing before it can be split."),
    ),
    "usage_pruned": (
        _("A service's hour divided by time, its requests being gone"),
        _(
            "Terms or a mapping begin inside an hour whose requests were pruned; begin at a full hour, or accept it."
        ),
    ),
    "measured_exceeds_occupancy": (
        _("Requests measured more GPU time than the service held"),
        _("Check the gateway's GPU seconds; they are scaled down until then."),
    ),
    "key_missing": (
        _("Requests without the measure that divides the service"),
        _("They weigh nothing until the gateway reports it or a calibration is in force."),
    ),
}


MEASURES: Words = {
    "occupied": _("GPU time occupied"),
    "occupied_by_account": _("GPU time occupied, by account"),
    "capacity": _("Capacity"),
    "preemptions": _("Preemptions"),
    "held_time": _("Time held"),
    "sold": _("Quotas sold"),
    "input_tokens": _("Input tokens"),
    "cached_input_tokens": _("Cached input tokens"),
    "output_tokens": _("Output tokens"),
    "gpu_us": _("GPU time"),
}

UNITS: Words = {
    "gpu_us": _("GPU-hours"),
    "gpu_hours": _("GPU-hours"),
    "count": _("count"),
    "tokens": _("tokens"),
    "s": _("seconds"),
}

# Why a number of the books differs from somebody else's.
DIFFERENCE_CAUSES: Words = {
    "": "–",
    "unattributed_abort": _("clients that went away"),
    "counter_gaps": _("the counter has gaps"),
    "oversold": _("sold beyond what there is"),
    "explained": _("explained by a person"),
    "unexplained": _("unexplained: blocks the close"),
}


def category_name(code: str) -> str:
    """A category or a token kind in words; what is neither is shown as it is stored."""
    for words in (CATEGORIES, TOKEN_KINDS, LINE_CATEGORIES):
        if code in words:
            return str(words[code])
    kind = code.removesuffix("_overage")
    if kind != code and kind in TOKEN_KINDS:
        return str(_("%(tokens)s beyond the quota") % {"tokens": TOKEN_KINDS[kind]})
    return code


def apart_from_neighbours(service_class: str, purpose: str, service_idle: bool) -> str:
    """What sets a line apart from others of its category: class, purpose, idle time of a service."""
    words = [
        SERVICE_CLASSES.get(service_class, service_class),
        PURPOSES.get(purpose, purpose),
        _("idle time of the service") if service_idle else "",
    ]
    return ", ".join(str(word) for word in words if word)


def exception_words(code: str) -> tuple[str, str]:
    """What happened and what to do, for an exception's code."""
    what, remedy = EXCEPTIONS.get(code, (code.replace("_", " "), ""))
    return str(what), str(remedy)
