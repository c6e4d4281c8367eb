"""Reserved throughput of token contracts becomes reservations, booked like any other fact (domain.md section 7)."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Any

from django.db.models import Q

from billing.core.calibration import TokenCost
from billing.core.configuration import Configuration, ConfigurationError
from billing.core.contract_reservations import (
    SOURCE,
    BookedLevel,
    Height,
    Place,
    Promise,
    events_towards,
    levels_of,
)
from billing.core.contracts import reserved_throughput_milli_gpus
from billing.core.sentences import Sentence, sentence
from billing.models import Calibration, Contract
from billing.services.configuration_rows import Application, pool_named
from ledger.core.periods import to_ms
from ledger.inbox import book_events
from ledger.models import Event, Level, LevelKind, ModelName
from ledger.selectors.corrections import void_facts
from ledger.services.audit import SYSTEM

DOOR = "contracts"


def book_contract_reservations(application: Application, wanted: Configuration) -> None:
    """Have the record hold exactly the reservations that all contracts promise, by the calibrations at their starts.

    Books what is missing and supersedes what no longer holds, in the caller's transaction; the dirty time that
    leaves is computed again, and adjusted where its month is closed. Nothing happens where all is so already.

    Raises:
        ConfigurationError: an unknown pool or model, or no calibration in force at the contract's start.
    """
    levels = _promised(wanted)
    booked = _booked()
    taken = set(Event.objects.filter(source__uri=SOURCE).values_list("event_id", flat=True))
    reason = application.reason or "the contract, or the calibration at its start, says otherwise"
    events = events_towards(levels, booked, taken, to_ms(application.now), reason)
    if not events:
        return
    count = book_events(SOURCE, events, DOOR, application.by or SYSTEM)
    if count != len(events):
        raise ConfigurationError(
            "contract", sentence("reservations_not_booked", all=len(events), count=count)
        )
    for event in events:
        application.diff.append(_told(event))


def _promised(wanted: Configuration) -> dict[Place, Height]:
    paths = {(row.tenant, row.valid_from): f"contract[{index}]" for index, row in enumerate(wanted.contract)}
    promises: defaultdict[str, list[Promise]] = defaultdict(list)
    for contract in Contract.objects.select_related("tenant__holder").order_by("valid_from"):
        slug = contract.tenant.slug
        path = paths.get((slug, contract.valid_from), f"contract of {slug} from {contract.valid_from:%F}")
        milli_gpus = {
            (row["model"], row["pool"]): _milli_gpus(
                row, contract.valid_from, f"{path}.reserved_throughput[{n}]"
            )
            for n, row in enumerate(contract.reserved_throughput)
        }
        ended_ms = None if contract.ended_at is None else to_ms(contract.ended_at)
        promises[slug].append(Promise(to_ms(contract.valid_from), ended_ms, milli_gpus))
    return {
        place: height
        for slug, versions in promises.items()
        for place, height in levels_of(slug, versions).items()
    }


def _milli_gpus(row: dict[str, Any], starts_at: datetime, path: str) -> int:
    """By the calibration of the model on the pool's GPUs that is in force at `starts_at`."""
    pool = pool_named(row["pool"], f"{path}.pool")
    if not ModelName.objects.filter(name=row["model"]).exists():
        raise ConfigurationError(f"{path}.model", sentence("unknown_model", value=row["model"]))
    calibration = (
        Calibration.objects.filter(
            Q(ended_at=None) | Q(ended_at__gt=starts_at),
            model__name=row["model"],
            gpu_model=pool.gpu_model,
            valid_from__lte=starts_at,
        )
        .order_by("valid_from")
        .last()
    )
    if calibration is None:
        raise ConfigurationError(
            f"{path}.model",
            sentence("no_calibration", value=row["model"], gpu=pool.gpu_model, at=starts_at),
        )
    cost = TokenCost(
        calibration.input_gpu_us_per_1k,
        calibration.cached_input_gpu_us_per_1k,
        calibration.output_gpu_us_per_1k,
    )
    return reserved_throughput_milli_gpus(
        row["input_tokens_per_minute"], 0, row["output_tokens_per_minute"], cost
    )


def _booked() -> list[BookedLevel]:
    """Levels of the contracts' own source that no correction has taken out of force."""
    rows = (
        Level.objects.filter(kind=LevelKind.RESERVATION, event__source__uri=SOURCE)
        .exclude(event__in=void_facts().events)
        .select_related("pool", "event")
        .order_by("pk")
    )
    return [
        BookedLevel(
            row.event.event_id,
            row.subject,
            row.pool.slug,
            to_ms(row.starts_at),
            Height(row.milli_gpus, None if row.ends_at is None else to_ms(row.ends_at)),
        )
        for row in rows
    ]


def _told(event: dict[str, Any]) -> Sentence:
    """One line of the diff."""
    said, code = event, "version_added"
    if event["type"] == "ledger.correction.v1":
        said, code = event["data"].get("event"), "version_replaced"
        if said is None:
            named = sentence("reservation_named", name=event["data"]["supersedes"]["id"])
            return sentence("withdrawn", what=named)
    data = said["data"]
    what = sentence("reservation_of", name=data["reservation"], gpus=str(data["gpus"]), pool=data["pool"])
    return sentence(code, what=what, at=said["time"])
