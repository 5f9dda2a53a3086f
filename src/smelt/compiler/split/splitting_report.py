"""What a split program tells of itself: its pieces as rows of the table, and what runs in Python, where and why."""

from __future__ import annotations

from typing import Any

from smelt.compiler.object.compiled_types import Row, SplitProgram
from smelt.compiler.split.splitting import Splits


def piece_rows(program: SplitProgram | None) -> list[Row]:
    """The compiled entries of all pieces, in the order of the functions that they are of."""
    if not isinstance(program, Splits):
        return []
    return [row for piece in program.running() for row in piece.stats().entries if row.entry is not None]


def break_rows(program: SplitProgram | None) -> list[dict[str, Any]]:
    """One row for each thing that runs in Python, and one on the whole: how many pieces, and how much of the time."""
    if not isinstance(program, Splits):
        return []
    rows = [
        {
            "why": found.what,
            "where": str(found.where) if found.where is not None else "",
            "line": found.where.text if found.where is not None else "",
        }
        for found in program.breaks
    ]
    count = len(program.running())
    if program.is_idle:
        return [{"why": "compiling the code between the breaks would not pay: the program falls back to eager"}, *rows]
    if program.is_left:
        times = ""
        if program.times is not None:
            split, eager = program.times
            times = f" ({1e3 * split:.3f} ms a call against {1e3 * eager:.3f} ms)"
        return [{"why": f"split execution was slower than eager{times}: the program falls back to eager"}, *rows]
    kept = sum(split.lines_kept for split in program.split_functions)
    text = f"{count} partition{'s' * (count != 1)} of {len(program.split_functions)} functions run compiled"
    share = program.share
    if share is not None:
        text += f", {share:.0%} of the time of the fastest call that was measured"
    return [{"why": f"{text}; {kept} lines run in Python"}, *rows]
