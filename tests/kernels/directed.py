"""Steps on the loops of nests, for tests: random ones, and what of the assembly shows them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from smelt.codegen.kernels.nest import Nest, loop_name
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nests.nest_ir import emit_nests
from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep, Parallel, Tile, Unroll, Vectorize

_STORE = re.compile(r"^\s+v?(?:mov|maskmov)\w*\s+.*%([xyz])mm\d+, [^%\n]*\((?!%rsp)", re.MULTILINE)
_BRANCH = re.compile(r"^\s+j\w+\s+(\.L\w+)", re.MULTILINE)
_BITS = {"x": 128, "y": 256, "z": 512}


def drawn(source: random.Random, nest: Nest) -> LoopStep:
    """Some step on a loop of a nest."""
    loop = loop_name(nest, source.randrange(len(nest.sizes)))
    match source.randrange(4):
        case 0:
            return Tile(0, loop, source.choice((1, 2, 3, 4, 8, 16, 24, 32, 64)))
        case 1:
            return Vectorize(0, loop, source.choice((None, 1, 2, 4, 8)))
        case 2:
            return Unroll(0, loop, source.choice((None, 2, 3, 4, 8)))
        case _:
            return Parallel(0, loop, source.choice((None, None, 1, 2, 5, 16)))


def legal(source: random.Random, nest: Nest, isa: Isa, simplified: Nest) -> list[LoopStep]:
    """Random steps that may be taken one after the other; each refusal says what, why and how."""
    steps: list[LoopStep] = []
    for _ in range(source.randrange(1, 7) if simplified.sizes else 0):
        step = drawn(source, simplified)
        try:
            emit_nests(nest, isa, [*steps, step])
        except ScheduleError as error:
            assert error.code == "S0614" and error.what and error.why and error.fix
        else:
            steps.append(step)
    return steps


def seen(assembly: str) -> str:
    """What the assembly of a kernel for AVX2 shows of its loops: how many, the width of stores, how many, divisions."""
    labels = {found[1]: found.start() for found in re.finditer(r"^(\.L\w+):", assembly, re.MULTILINE)}
    heads = {found[1] for found in _BRANCH.finditer(assembly) if labels[found[1]] < found.start()}
    widths = [_BITS[found[1]] for found in _STORE.finditer(assembly)]
    stores = ", ".join(f"{widths.count(width)} of {width} bits" for width in sorted(set(widths), reverse=True))
    divisions = len(re.findall(r"^\s+i?div[lq]", assembly, re.MULTILINE))
    return f"{len(heads)} loops; vector stores: {stores or 'none'}; {'divides' if divisions else 'no division'}"


def shown(steps: Sequence[LoopStep]) -> str:
    """Steps in one line."""
    return "; ".join(
        " ".join([type(step).__name__.lower(), step.loop, *(str(n) for n in _amount(step))]) for step in steps
    )


def _amount(step: LoopStep) -> list[int]:
    match step:
        case Tile(size=n) | Vectorize(lanes=n) | Unroll(times=n) | Parallel(iterations=n):
            return [] if n is None else [n]
