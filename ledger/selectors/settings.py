"""The ledger's own settings; the defaults where nobody has configured anything yet."""

from __future__ import annotations

from ledger.models import Ledger


def ledger_settings() -> Ledger:
    """The one row of settings. Unsaved where there is none: a new ledger can be asked like any other."""
    return Ledger.objects.filter(id=1).first() or Ledger(id=1)
