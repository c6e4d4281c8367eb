"""What applying the declarative file does to each row: add, change or refuse, and say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import models

from billing.core.configuration import ConfigurationError
from billing.core.sentences import Sentence, sentence
from ledger.core.units import micro_text
from ledger.models import (
    Holder,
    HolderKind,
    ModelName,
    Pool,
    Tenant,
)
from ledger.services import masters


@dataclass
class Application:
    """One application of a file: what it changes, and what must be computed again."""

    by: str
    retroactive: bool
    now: datetime
    reason: str = ""
    keeps_started: bool = False
    diff: list[Sentence] = field(default_factory=list)

    def say(self, code: str, what: Sentence, **values: Any) -> None:
        """code: `added`, `changed`, `withdrawn` and their likes (billing.core.sentences.CHANGES)."""
        self.diff.append(sentence(code, what=what, **values))


def add_version(
    application: Application,
    model: Any,
    of: dict[str, Any],
    valid_from: datetime,
    values: dict[str, Any],
    what: Sentence,
    path: str,
    reason: str = "",
) -> None:
    """Add a dated version, or leave it where it is already so."""
    versions = model.objects.filter(**of)
    existing = versions.filter(valid_from=valid_from).first()
    if existing is not None and all(getattr(existing, name) == value for name, value in values.items()):
        return
    refuse_the_past(application, versions, valid_from, existing is not None, path)
    if existing is None:
        told = {"recorded_by": application.by, "reason": reason or application.reason}
        before = versions.filter(valid_from__lt=valid_from).order_by("valid_from").last()
        model.objects.create(**of, valid_from=valid_from, **told, **values)
        application.say("version_added", what, at=valid_from)
        if before is not None:
            say_differences(
                application, what, valid_from, {name: getattr(before, name) for name in values}, values
            )
    else:
        _update(application, existing, values, "version_changed", what, at=valid_from)
    masters.mark_pools_dirty(None, valid_from)


def say_differences(
    application: Application,
    what: Sentence,
    valid_from: datetime,
    before: Mapping[str, Any],
    values: Mapping[str, Any],
) -> None:
    """Say each value of a version that is another one than that of the version before it: whoever agrees to it has to
    see what it changes."""
    for name in sorted(before.keys() | values.keys()):
        was, now = before.get(name), values.get(name)
        if was != now:
            label = name.replace("_micro", "").removesuffix("_ppm")
            told = {"field": label, "was": _shown(name, was), "now": _shown(name, now)}
            application.say("version_changed", what, at=valid_from, **told)


def _shown(name: str, value: Any) -> str:
    """As people write it: amounts and shares are kept in millionths."""
    if value is None:
        return "-"
    return micro_text(value) if "_micro" in name or name.endswith("_ppm") else str(value)


def refuse_the_past(
    application: Application, versions: models.QuerySet, valid_from: datetime, edits: bool, path: str
) -> None:
    """Refuse to change what already counted: terms of the past change only with a person's word for it."""
    if application.keeps_started and edits and valid_from <= application.now:
        raise ConfigurationError(f"{path}.valid_from", sentence("started_add_another"))
    if application.retroactive or valid_from > application.now:
        return
    # A first file may bring several versions of the past; only what stood before it is protected.
    if not versions.filter(recorded_at__lt=application.now).exists():
        return
    problem = sentence("started" if edits else "begins_in_the_past")
    raise ConfigurationError(f"{path}.valid_from", problem)


def update_row(application: Application, what: Sentence, row: models.Model, **values: Any) -> None:
    """Give the row these values, and say each that is another one than it had."""
    _update(application, row, values, "changed", what)


def _update(
    application: Application,
    row: models.Model,
    values: dict[str, Any],
    code: str,
    what: Sentence,
    **told: Any,
) -> None:
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        was, now = str(getattr(row, name)), str(values[name])
        application.say(code, what, field=name, was=was, now=now, **told)
        setattr(row, name, values[name])
    if changed:
        row.save(update_fields=changed)


def holder_of_kind(slug: str, kind: HolderKind, path: str) -> Holder:
    holder, _ = Holder.objects.get_or_create(slug=slug, defaults={"kind": kind})
    if holder.kind != kind:
        raise ConfigurationError(path, sentence("already_a", value=slug, kind=str(holder.get_kind_display())))
    return holder


def tenant_named(slug: str, path: str) -> Tenant:
    try:
        return Tenant.objects.select_related("holder").get(holder__slug=slug)
    except Tenant.DoesNotExist:
        raise ConfigurationError(path, sentence("unknown_tenant", value=slug)) from None


def pool_named(slug: str, path: str) -> Pool:
    try:
        return Pool.objects.get(slug=slug)
    except Pool.DoesNotExist:
        raise ConfigurationError(path, sentence("unknown_pool", value=slug)) from None


def model_named(name: str) -> ModelName:
    return ModelName.objects.get_or_create(name=name)[0]
