"""Entries that are in the file in fewer bytes: text, plans and machine code, as gzip members.

    "graphs/forward.txt", 139,409 bytes   <-->   the stored entry "graphs/forward.txt.gz", 6,643 bytes

The archive itself stores all that it has: what is mapped (weights) lies plain in it, and an older reader of the archive
comes to the manifest, which says that the file's format is a later one.

Invariant: unpacking gives exactly the size that the manifest has, which is within `RATIO` times what is there, and
within `LIMIT`; so no file takes more memory than that.
"""

from __future__ import annotations

import zlib

from smelt.diag.records import record
from smelt.runtime.ingot.errors import broken

SUFFIX = ".gz"
LIMIT = 64 << 20
RATIO = 100
_SLACK = 4096  # a short text may be one letter many times
_LEAST = 256
_GZIP = 16 + zlib.MAX_WBITS


@record
class Packed:
    """An entry's bytes in the file, and how many they are unpacked."""

    data: bytes | memoryview
    nbytes: int


def packed(data: bytes) -> Packed | None:
    """An entry as it is to be in a file; None where it is there unpacked, for it would be no smaller."""
    if not _LEAST <= len(data) <= LIMIT:
        return None
    writer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    made = writer.compress(data) + writer.flush()
    if len(made) >= len(data) or len(data) > bound(len(made)):
        return None
    return Packed(made, len(data))


def bound(nbytes: int) -> int:
    """How many bytes an entry may have unpacked that has so many in the file."""
    return min(LIMIT, RATIO * nbytes + _SLACK)


def unpacked(name: str, data: memoryview, nbytes: int) -> bytes:
    """An entry's bytes. Raises: PackageError (S0701) where they are others than so many."""
    if nbytes > bound(len(data)):
        raise broken(name, f"it is said to have {nbytes:,} bytes, and {len(data):,} in the file: more than may be")
    reader = zlib.decompressobj(_GZIP)
    try:
        found = reader.decompress(data, nbytes + 1)
    except zlib.error as error:
        raise broken(name, f"it cannot be unpacked: {error}") from None
    # A decompressor stops where it has given enough, before it has read the checksum.
    if len(found) == nbytes and not reader.eof:
        try:
            found += reader.decompress(reader.unconsumed_tail, 1)
        except zlib.error as error:
            raise broken(name, f"it cannot be unpacked: {error}") from None
    if len(found) != nbytes or not reader.eof or reader.unused_data:
        raise broken(name, f"it does not have {nbytes:,} bytes")
    return found
