"""What each operation of the loop-nest language costs, in vector additions of f32: where `KernelOp.cost` comes from.

A kernel sums `op(x + c)` over an array in the first cache for `COPIES` numbers c; the time of the same kernel without
the operation is subtracted, and the rest is divided by the time of one more addition at each place. One thread; the
least of `TRIALS` runs of each kernel, interleaved. Run as `python -m smelt.bench.kernel_operations`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import torch

from smelt.codegen.kernels.nest import Buffer, Const, Expr, Index, Load, Nest, Op, Reduce, Ref, Store
from smelt.codegen.kernels.operations import KERNEL_OPS, KernelOp
from smelt.codegen.llvm.emit import emit_object
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.nests.nest_ir import emit_nest
from smelt.diag.records import record
from smelt.ir import DType
from smelt.runtime.machine.loader import load_object

COPIES = 6
TRIALS = 300
ROWS, COLUMNS = 8, 512
_F32 = DType.F32


@record
class Measured:
    """An operation, its cost as measured here and as the record has it (vector additions of f32)."""

    name: str
    cost: float
    recorded: float


def _load(buffer: int) -> Load:
    return Load(buffer, Index(0, (COLUMNS, 1)), _F32)


def _sum_nest(term: Callable[[Expr], Expr], copies: int = COPIES) -> Nest:
    """Sums `term(x + c)` over each row, for as many numbers c."""
    terms = [term(Op("add", (_load(0), Const(k / 64, _F32)), _F32)) for k in range(copies)]
    total = terms[0]
    for other in terms[1:]:
        total = Op("add", (total, other), _F32)
    body = (Reduce("s", "sum", total, _F32), Store(2, Index(0, (1, 0)), Ref("s", _F32)))
    buffers = (Buffer("x", _F32), Buffer("y", _F32), Buffer("out", _F32))
    return Nest(buffers, (ROWS,), (COLUMNS,), body)


def _applied(op: KernelOp) -> Callable[[Expr], Expr]:
    return lambda x: Op(op.name, (x, _load(1), _load(1))[: op.arity], _F32)


class _Runner:
    """A kernel in memory with its arrays; calling it gives the seconds of one run."""

    def __init__(self, nest: Nest, isa: Isa) -> None:
        kernel = emit_nest(nest, isa)
        self._code = load_object(emit_object(kernel.source.text, isa.cpu, isa.features))
        draw = torch.Generator().manual_seed(0)
        arrays = [torch.rand(ROWS * COLUMNS, generator=draw) * 0.7 + 0.05 for _ in range(2)]
        self._arrays = [*arrays, torch.zeros(ROWS)]
        words = (*(a.data_ptr() for a in self._arrays), *kernel.words)
        self._args = (ctypes.c_int64 * len(words))(*words)
        self._items = kernel.items
        self._scratch = torch.zeros(kernel.scratch_nbytes // 4 + 16)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._function = kind(self._code.address(kernel.source.symbol))

    def __call__(self) -> float:
        begin = time.perf_counter()
        self._function(ctypes.addressof(self._args), 0, self._items, self._scratch.data_ptr())
        return time.perf_counter() - begin


def _least(runners: Sequence[_Runner], trials: int) -> list[float]:
    """The least seconds of each, run in turn."""
    found = [runner() for runner in runners]
    for _ in range(trials):
        found = [min(best, runner()) for best, runner in zip(found, runners, strict=True)]
    return found


def measure(names: Sequence[str] = (), trials: int = TRIALS) -> list[Measured]:
    """The costs of the operations that f32 has a kernel for (of `names`, where there are any).

    Raises: RuntimeError where no kernel runs on this machine.
    """
    isa = host_isa()
    if isa is None:
        raise RuntimeError("no kernels run on this machine")
    ops = [op for op in KERNEL_OPS if _F32 in op.operands and op.name not in ("cast", "select") and not op.gives_bool]
    ops = [op for op in ops if not names or op.name in names]
    base, more = _sum_nest(lambda x: x), _sum_nest(lambda x: Op("add", (x, _load(1)), _F32))
    runners = [_Runner(nest, isa) for nest in (base, more, *(_sum_nest(_applied(op)) for op in ops))]
    nothing, addition, *times = _least(runners, trials)
    unit = addition - nothing
    return [Measured(op.name, (t - nothing) / unit, op.cost) for op, t in zip(ops, times, strict=True)]


if __name__ == "__main__":
    print(f"{'operation':<12}{'measured':>10}{'recorded':>10}")
    for row in measure():
        print(f"{row.name:<12}{row.cost:>10.1f}{row.recorded:>10.1f}")
