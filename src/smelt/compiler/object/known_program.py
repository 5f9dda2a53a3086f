"""What a build learnt of a program, for a call that differs from that build's in sizes and numbers alone.

    f(x[1, 128])    recorded run, graph, plan, row
    f(x[1, 96])     no recorded run: the program is staged at once, with sizes as symbols, beside the first call's
                    graph; the call's answer is the new row's
    f(x[1, 1])      what is compiled for sizes from 2 on is shown to hold from 1 on (`compiler.sizes.size_one`)

Invariant: the earlier run did nothing but compute, and all that it read outside of its arguments still holds. What the
staged run would do outside of Python is refused before it is done (`staging.objects.outside`), and where it comes to no
graph, or takes another way at the recorded sizes, the call is recorded as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.autodiff.inside import computes_gradients
from smelt.capture import Captured
from smelt.capture.reads.reads import ReadLog
from smelt.compiler.deciding.call_profile import Look
from smelt.compiler.object.compiled_table import Table
from smelt.compiler.object.compiled_types import Entry, KnownProgram, ObservedProgram, Row
from smelt.runtime.guarding.guard_kinds import ARGUMENTS, ORDER, Call

_PLAIN = (bool, int, float, str, bytes, complex, type(None), torch.dtype, torch.device)


def known_program(
    rows: Sequence[Row], look: Look, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> KnownProgram | None:
    """The program as an earlier build knows it, if that holds for this call, too; None where it is to be recorded."""
    given = (*args, *kwargs.values())
    if not look.freedom or look.freedom.odd or not all(map(_is_plain, given)) or any(map(_has_history, given)):
        return None
    call = Call(args, kwargs)
    alike = [row for row in rows if row.seen is not None and row.seen.call.difference(look.call) is not None]
    for row in alike:
        captured = None if row.entry is None else row.entry.captured
        if captured is None or not _only_computes(captured):
            continue
        narrow = row.entry if look.freedom.hints and captured.sizes is not None and _has_alike(row, look) else None
        if narrow is None and not (captured.class_askers is not None and _tells(row, look)):
            continue
        if any(kind.failed(row.guards, call) is not None for kind in _OTHER):
            continue
        reads = [test.read for test in row.guards.facts.tests]
        return KnownProgram(replace(captured, known=frozenset(), is_elsewhere=True), ReadLog(reads=reads), narrow)
    return None


def settle_known(
    table: Table, program: ObservedProgram, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Whether a row that was made of what was known serves the call, and whether it is one more than there were: it
    takes the place of the row that it widens, and goes where it does not serve."""
    assert program.known is not None
    new = next((row for row in table.rows if row.entry is entry), None)
    serves = new is not None and new.guards.check(args, kwargs) is None
    gone = program.known.narrow if serves else entry
    for old in [row for row in table.rows if row.entry is gone and gone is not None]:
        table.rows = tuple(row for row in table.rows if row is not old)
        table.publish()
        if serves and new is not None:
            new.follow_on(old)
    return serves, serves and gone is None


_OTHER = tuple(kind for kind in ORDER if kind is not ARGUMENTS)


def _is_plain(value: object) -> bool:
    """Whether an argument is a tensor or a value that holds nothing."""
    return isinstance(value, torch.Tensor) or type(value) in _PLAIN


def _has_history(value: object) -> bool:
    """Whether what is computed of an argument needs gradients: a run that was given another says nothing of those."""
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def _only_computes(captured: Captured) -> bool:
    """Whether a run gave what its graph does, and left nothing else."""
    if captured.graph is None or captured.signature is None:
        return False
    leaves = captured.has_history, captured.opened, captured.outer, captured.not_put, captured.spent, captured.catches
    asks = captured.conversions, captured.drawers, captured.rangers, captured.own_backward, captured.asks_modes
    return not (any(leaves) or any(asks) or captured.signature.puts or computes_gradients(captured.graph))


def _has_alike(row: Row, look: Look) -> bool:
    """Whether an entry was made for sizes from 2 on of which one is 1 now, and has the same ones free."""
    return row.seen is not None and row.is_ready and row.seen.free == look.freedom.entries.keys()


def _tells(row: Row, look: Look) -> bool:
    """Whether a recorded run tells of a graph with what is to be free now: none of these sizes was 1."""
    assert row.seen is not None
    spots = look.freedom.entries
    return not look.freedom.hints and all(row.seen.call.raw[spot] > 1 for spot in spots if spot[1] is not None)
