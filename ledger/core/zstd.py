"""zstd by the standard library's module, which Pythons before 3.14 have from its backport."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        ZstdFile,
        compress,
        decompress,
    )
else:
    from backports.zstd import (
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        ZstdFile,
        compress,
        decompress,
    )

__all__ = ["ZstdCompressor", "ZstdDecompressor", "ZstdError", "ZstdFile", "compress", "decompress"]
