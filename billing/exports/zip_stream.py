"""A zip archive written piece by piece to somewhere that cannot seek; the same files give the same bytes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first instant that a zip can name; the clock is no part of the archive


class _Drain(io.RawIOBase):
    """Keeps what was written until it is taken; says that it cannot seek, so the archive never looks back."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._kept += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._kept)
        self._kept.clear()
        return taken


class ZipStream:
    """`file` for each file in turn, then `end`."""

    def __init__(self) -> None:
        self._drain = _Drain()
        self._zip = zipfile.ZipFile(self._drain, "w", zipfile.ZIP_DEFLATED)

    def file(self, path: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        entry = zipfile.ZipInfo(path, _EPOCH)
        entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
        with self._zip.open(entry, "w", force_zip64=True) as target:
            for piece in pieces:
                target.write(piece)
                if taken := self._drain.take():
                    yield taken
        yield self._drain.take()

    def end(self) -> bytes:
        self._zip.close()
        return self._drain.take()
