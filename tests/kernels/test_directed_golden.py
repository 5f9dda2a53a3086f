"""Golden loops: a nest as it runs by itself, and with steps on its loops; beside each what its assembly shows.

A file holds cases: a line `# nest: steps`, the listing, a line of assembly, `==>`, and the same with the steps taken.
Text and assembly are for AVX2, whatever the machine. `pytest tests/kernels --bless` writes them; then read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.codegen.kernels.nest import Nest, Reduce, Ref, Store
from smelt.codegen.llvm.isa import AVX2
from smelt.codegen.llvm.nests.nest_ir import emit_nests, loops_text
from smelt.codegen.llvm.objects import assembly_of
from smelt.diag.loops import LoopStep, Parallel, Tile, Unroll, Vectorize
from smelt.runtime.machine.elf import MACHINE_X86_64
from smelt.runtime.machine.loader import host_machine
from tests.kernels.directed import seen, shown
from tests.kernels.nests import F32, at, const, load, nest, op, pointwise, reduce_rows, softmax

pytestmark = pytest.mark.skipif(host_machine() != MACHINE_X86_64, reason="the assembly kept is x86-64")

FILE = Path(__file__).parent / "golden" / "loops.txt"
NESTS: dict[str, Nest] = {
    "pointwise": pointwise([F32, F32], (4096,), op("mul", load(0, 1), const(2.5))),
    "bias of columns": nest(
        [F32] * 3, (64, 256), (), [Store(2, at(300, 1), op("add", load(0, 256, 1), load(1, 0, 1)))]
    ),
    "transpose": nest([F32] * 3, (64, 256), (), [Store(2, at(256, 1), op("add", load(0, 1, 64), load(1, 256, 1)))]),
    "row sums": reduce_rows("sum", 64, 300),
    "window": nest(
        [F32, F32], (64, 256), (3,),
        [Reduce("m", "max", load(0, 1000, 2, 1), F32), Store(1, at(256, 1, 0), Ref("m", F32))],
    ),
    "softmax": softmax(64, 256),
}  # fmt: skip
CASES: list[tuple[str, tuple[LoopStep, ...]]] = [
    ("pointwise", (Unroll(0, "i0", 4),)),
    ("pointwise", (Vectorize(0, "i0", 4),)),
    ("pointwise", (Vectorize(0, "i0", 1),)),
    ("pointwise", (Parallel(0, "i0", 512),)),
    ("bias of columns", (Tile(0, "i0", 16), Tile(0, "i1", 32))),
    ("bias of columns", (Vectorize(0, "i1", 8), Unroll(0, "i1", 2), Unroll(0, "i0", 2))),
    ("bias of columns", (Parallel(0, "i1", 64),)),
    ("bias of columns", (Parallel(0, "i0"), Parallel(0, "i1", 64))),
    ("transpose", (Tile(0, "i0", 32), Tile(0, "i1", 64))),
    ("transpose", (Vectorize(0, "i0"),)),
    ("row sums", (Unroll(0, "j0", 4),)),
    ("row sums", (Vectorize(0, "i0"),)),
    ("row sums", (Tile(0, "j0", 64), Unroll(0, "i0", 2))),
    ("window", (Unroll(0, "j0"),)),
    ("window", (Unroll(0, "j0"), Unroll(0, "i0", 2))),
    ("softmax", (Tile(0, "i0", 4), Unroll(0, "j0", 2))),
]


def _title(name: str, steps: tuple[LoopStep, ...]) -> str:
    return f"{name}: {shown(steps)}"


def _half(made: Nest, steps: tuple[LoopStep, ...]) -> str:
    (kernel,) = emit_nests(made, AVX2, steps)
    return f"{loops_text(made, AVX2, steps)}\nassembly: {seen(assembly_of(kernel.source.text, AVX2))}"


def _read() -> dict[str, str]:
    blocks = ("\n" + FILE.read_text(encoding="utf-8")).split("\n# ")[1:] if FILE.exists() else []
    return {title: body.strip() for title, body in (block.split("\n", 1) for block in blocks)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: _title(*case))
def test_steps_change_the_loops_and_the_assembly(
    case: tuple[str, tuple[LoopStep, ...]], request: pytest.FixtureRequest
) -> None:
    name, steps = case
    before, after = _half(NESTS[name], ()), _half(NESTS[name], steps)
    text = f"{before}\n==>\n{after}"
    kept = _read()
    if request.config.getoption("--bless"):
        kept[_title(*case)] = text
        titles = [title for title in (_title(*one) for one in CASES) if title in kept]
        FILE.write_text("\n\n".join(f"# {title}\n{kept[title]}" for title in titles) + "\n", encoding="utf-8")
    assert kept.get(_title(*case)) == text
    assert before.rpartition("\n")[0] != after.rpartition("\n")[0]
    (plain,), (made,) = emit_nests(NESTS[name], AVX2), emit_nests(NESTS[name], AVX2, steps)
    assert plain.source.symbol != made.source.symbol, "kernels are cached by their text, which has the steps"
