"""Why nodes were fused, or were not: kept for people who ask."""

from __future__ import annotations

from smelt.diag.records import record


@record
class Decision:
    """One question that fusion settled.

    group: the nodes in question, `%value = op`. nbytes_before, nbytes_after: memory moved by them apart, and as one.
    """

    group: tuple[str, ...]
    fused: bool
    why: str
    nbytes_before: int = 0
    nbytes_after: int = 0
