"""Broken files: bytes that are flipped, cut off, put in, moved, and numbers at their limits."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Edit:
    """What is done to a file: so many bytes at a place are gone, and others are there."""

    what: str
    at: int
    removed: int
    inserted: bytes

    def of(self, content: bytes) -> bytes:
        """The changed file."""
        return content[: self.at] + self.inserted + content[self.at + self.removed :]

    def packed(self) -> bytes:
        """As the driver reads it."""
        return struct.pack("<3q", self.at, self.removed, len(self.inserted)) + self.inserted


def mutants(content: bytes, count: int, seed: int) -> Iterator[Edit]:
    """So many edits, each of which changes the file."""
    chosen = random.Random(seed)
    made = 0
    while made < count:
        edit = _edit(content, made % 6, chosen)
        if content[edit.at : edit.at + edit.removed] != edit.inserted:
            made += 1
            yield edit


def _edit(content: bytes, kind: int, chosen: random.Random) -> Edit:
    # Headers break more than weights do.
    at = chosen.randrange(min(len(content), 4096) if chosen.random() < 0.6 else len(content))
    removed, inserted = 0, b""
    match kind:
        case 0:
            inserted = bytes([content[at] ^ 1 << chosen.randrange(8)])
            removed = 1
        case 1:
            removed = len(content) - at
        case 2:
            inserted = chosen.randbytes(chosen.randint(1, 64))
        case 3:
            removed = min(chosen.randint(1, 64), len(content) - at)
        case 4:
            inserted = struct.pack("<Q", chosen.choice(_WORDS))[: len(content) - at]
            removed = len(inserted)
        case _:
            other = chosen.randrange(len(content))
            inserted = content[other : other + chosen.randint(1, 32)][: len(content) - at]
            removed = len(inserted)
    return Edit(f"kind {kind} at {at}", at, removed, inserted)
