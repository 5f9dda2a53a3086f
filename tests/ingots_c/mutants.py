"""Broken files: bytes that are flipped, cut off, put in, moved, and numbers at their limits."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

_WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutants(content: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """So many, each with what was done."""
    chosen = random.Random(seed)
    for number in range(count):
        made = bytearray(content)
        kind = number % 6
        # Headers break more than weights do.
        at = chosen.randrange(min(len(made), 4096) if chosen.random() < 0.6 else len(made))
        match kind:
            case 0:
                made[at] ^= 1 << chosen.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = chosen.randbytes(chosen.randint(1, 64))
            case 3:
                del made[at : at + chosen.randint(1, 64)]
            case 4:
                made[at : at + 8] = struct.pack("<Q", chosen.choice(_WORDS))[: len(made) - at]
            case _:
                other = chosen.randrange(len(made))
                span = chosen.randint(1, 32)
                made[at : at + span] = made[other : other + span][: len(made) - at]
        if made != content:
            yield f"mutant {number} of kind {kind} at {at}", bytes(made)
