"""`bills.zip`: every tenant's files of a month and a manifest of their hashes, streamed; the same bytes each time for
a closed month."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from billing.exports.files import file_name, statement_file
from billing.exports.zip_stream import ZipStream
from billing.selectors.statements import statements_for
from ledger.access import Access
from ledger.models import Period

FILES = ("bill", "usage", "preemptions")
MANIFEST, SUMS = "manifest.json", "SHA256SUMS"


def bills_zip(period: Period, access: Access) -> Iterator[bytes]:
    """A folder per tenant, `manifest.json`, and `SHA256SUMS` for `sha256sum -c`. One file in memory at once."""
    stream = ZipStream()
    sums: list[str] = []
    entries: list[dict[str, Any]] = []
    rows = statements_for(access).filter(period=period).order_by("tenant__holder__slug")
    for statement in rows:
        hashes = {}
        for name in FILES:
            path = f"{statement.tenant.slug}/{file_name(statement, name)}"
            digest = hashlib.sha256()
            yield from stream.file(path, _counted(statement_file(statement, name, access), digest))
            sums.append(f"{digest.hexdigest()}  {path}\n")
            hashes[path] = digest.hexdigest()
        entries.append(
            {
                "statement": statement.number,
                "tenant": statement.tenant.slug,
                "state": statement.state,
                "total_micro": str(statement.total_micro),
                "currency": statement.currency,
                "sha256": statement.sha256,
                "files": hashes,
            }
        )
    manifest = json.dumps(
        {"month": period.month, "statements": entries}, indent=1, ensure_ascii=False
    ).encode()
    yield from stream.file(MANIFEST, iter([manifest]))
    sums.append(f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n")
    yield from stream.file(SUMS, iter(["".join(sums).encode()]))
    yield stream.end()


def _counted(pieces: Iterator[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece
