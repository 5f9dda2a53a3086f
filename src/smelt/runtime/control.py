"""The blocks of a plan: where each branch and loop begins and ends, and where its instructions go on.

    0 Loop   1 ...   2 Exit   3 Branch   4 ...   5 Otherwise   6 ...   7 End   8 End   9 ...
    Exit 2 -> 9,  Branch 3 -> 6,  Otherwise 5 -> 8,  End 8 -> 1

Invariant: blocks nest, an `Exit` stands in its loop and in no branch of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.runtime.plan import Branch, End, Exit, Instruction, Loop, Otherwise


@record
class Block:
    """A branch or loop: its first and last instruction by index, and that between a branch's two arms."""

    first: int
    last: int
    middle: int | None
    is_loop: bool


@record
class Blocks:
    """Outer blocks before inner ones; `after[i]` is where the plan goes on if instruction i jumps."""

    blocks: tuple[Block, ...]
    after: dict[int, int]


def blocks_of(instructions: Sequence[Instruction]) -> Blocks:
    """The blocks of a plan. Raises: InternalError if they do not nest."""
    found: list[Block] = []
    after: dict[int, int] = {}
    # First instruction, middle, exits.
    open_: list[tuple[int, int | None, list[int]]] = []
    for index, instruction in enumerate(instructions):
        match instruction:
            case Branch() | Loop():
                open_.append((index, None, []))
            case Otherwise():
                first, middle = open_[-1][:2] if open_ else (-1, None)
                if first < 0 or middle is not None or not isinstance(instructions[first], Branch):
                    raise _bad(index)
                open_[-1] = (first, index, [])
                after[first] = index + 1
            case Exit():
                if not open_ or not isinstance(instructions[open_[-1][0]], Loop):
                    raise _bad(index)
                open_[-1][2].append(index)
            case End():
                if not open_:
                    raise _bad(index)
                first, middle, exits = open_.pop()
                is_loop = isinstance(instructions[first], Loop)
                if is_loop:
                    after[index] = first + 1
                    after.update((i, index + 1) for i in exits)
                else:
                    after[first if middle is None else middle] = index + 1
                found.append(Block(first, index, middle, is_loop))
            case _:
                pass
    if open_:
        raise _bad(open_[-1][0])
    return Blocks(tuple(sorted(found, key=lambda b: b.first)), after)


def _bad(index: int) -> InternalError:
    return InternalError(
        f"instruction {index} does not nest in the plan's blocks",
        why="the plan breaks its own rules",
        fix="report this with the plan that was printed",
    )
