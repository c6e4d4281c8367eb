"""Content hashes of many requests at once, each the same as `request_content.request_hash` makes it of one.

What is hashed stands behind one another in one buffer, and each hash is made of its stretch of it. MessagePack writes
a text as a header, which depends on its length alone, and its bytes; so columns of few different texts are encoded
once per text, and neighbours of them where one is the same throughout are put together before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from ingest.core.ragged import Ragged
from ingest.core.request_content import HASH_BYTES, TEXTS, encode_texts
from ingest.core.spans import Coded, Column, Int64s, Spans, Words

Digests = NDArray[np.void]
DIGEST = f"V{HASH_BYTES}"
NO_DIGESTS: Digests = np.empty(0, DIGEST)
"""Of rows that are not hashed yet."""
_ARRAY_OF_TEXTS = bytes([0x90 | len(TEXTS)])  # MessagePack: an array of so many


def digests_of(hashes: Sequence[bytes]) -> Digests:
    return np.frombuffer(b"".join(hashes), DIGEST)


def hashes(numbers: Sequence[Int64s], texts: Mapping[str, Column]) -> Digests:
    """`numbers`: the columns of HASHED_NUMBERS in their order; `texts`: those of TEXTS."""
    rows = Ragged(np.stack(numbers, axis=1).astype("<i8").view(f"V{8 * len(numbers)}").ravel())
    pending = Coded.constant(_ARRAY_OF_TEXTS, len(numbers[0]))
    for name in TEXTS:
        column = texts[name]
        if column.is_empty:
            column = Coded.constant(None, len(column))
        if isinstance(column, Spans):
            rows.spans(_as_spans(pending))
            rows.words(*_headers(column.lengths))
            rows.spans(column)
            pending = Coded.constant(b"", len(column))
            continue
        encoded = Coded([encode_texts(value) for value in column.values], column.codes)
        if min(len(pending.values), len(encoded.values)) > 1:
            rows.spans(_as_spans(pending))
            pending = encoded
        else:
            pending = _together(pending, encoded)
    rows.spans(_as_spans(pending))
    content, starts, ends = rows.packed()
    hashed = xxhash.xxh3_128_digest
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return digests_of([hashed(content[start:end]) for start, end in bounds])


def _together(first: Coded, second: Coded) -> Coded:
    """Both, one behind the other, where one of them is the same throughout."""
    codes = second.codes if len(first.values) == 1 else first.codes
    return Coded([one + other for one in first.values for other in second.values], codes)


def _as_spans(column: Coded) -> Spans:
    return Spans.of(column.values).take(column.codes)


def _headers(lengths: Int64s) -> tuple[Words, Int64s]:
    """(words that begin with the header of a text of each length, how long the header is); -1 is null."""
    sizes = np.full(len(lengths), 1)
    words = 0xA0 | lengths
    if lengths.max(initial=0) >= 32:
        words = np.where(lengths >= 32, 0xD9 | lengths << 8, words)
        words = np.where(lengths >= 256, 0xDA | (lengths >> 8) << 8 | (lengths & 0xFF) << 16, words)
        words = np.where(
            lengths >= 65_536, 0xDB | lengths.astype(">i4").view("<i4").astype(np.int64) << 8, words
        )
        sizes = 1 + (lengths >= 32) + (lengths >= 256) + 2 * (lengths >= 65_536)
    words = np.where(lengths < 0, 0xC0, words)
    return words.astype(np.uint64), sizes
