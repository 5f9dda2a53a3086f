"""Nests for tests, and running an emitted one on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.codegen.kernels.nest import (
    POSITIONS,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Nest,
    Op,
    Reduce,
    Ref,
    Statement,
    Store,
)
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nests.nest_ir import EmittedKernel, emit_nest
from smelt.ir import DType
from tests.kernels.machine import SMELT_DTYPE, call

F32 = DType.F32


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def at(*strides: int, offset: int = 0) -> Index:
    """An index without gathers."""
    return Index(offset, strides)


def load(buffer: int, *strides: int, dtype: DType = F32, offset: int = 0) -> Load:
    """A load without gathers or mask."""
    return Load(buffer, Index(offset, strides), dtype)


def op(name: str, *args: Expr, dtype: DType | None = None) -> Op:
    """An operation of its last operand's dtype."""
    return Op(name, args, dtype or args[-1].dtype)


def const(value: float, dtype: DType = F32) -> Const:
    """A number."""
    return Const(value, dtype)


def nest(
    buffers: Sequence[DType],
    outer: Sequence[int],
    inner: Sequence[int],
    body: Sequence[Statement],
    ordered: bool = False,
) -> Nest:
    """A nest over buffers of these dtypes."""
    named = tuple(Buffer(f"b{k}", d) for k, d in enumerate(buffers))
    return Nest(named, tuple(outer), tuple(inner), tuple(body), ordered)


def pointwise(dtypes: Sequence[DType], sizes: Sequence[int], expr: Expr) -> Nest:
    """`expr` into the last buffer, contiguous."""
    return nest(dtypes, sizes, (), [Store(len(dtypes) - 1, at(*contiguous(sizes)), expr)])


def softmax(rows: int, n: int, dtype: DType = F32) -> Nest:
    """Over rows of a matrix, in f32."""
    x: Expr = load(0, n, 1, dtype=dtype)
    if dtype is not F32:
        x = op("cast", x, dtype=F32)
    shifted = op("exp", op("sub", x, Ref("m", F32)))
    result: Expr = op("div", shifted, Ref("s", F32))
    if dtype is not F32:
        result = op("cast", result, dtype=dtype)
    body = [Reduce("m", "max", x, F32), Reduce("s", "sum", shifted, F32), Store(1, at(n, 1), result)]
    return nest([dtype, dtype], (rows,), (n,), body)


def layer_norm(rows: int, n: int) -> Nest:
    """Without bias; %1 is the weight."""
    x = load(0, n, 1)
    count = Const(n * 1.0, F32)
    d = op("sub", x, op("div", Ref("s", F32), count))
    r = op("rsqrt", op("add", op("div", Ref("v", F32), count), const(1e-5)))
    body = [
        Reduce("s", "sum", x, F32),
        Reduce("v", "sum", op("mul", d, d), F32),
        Store(2, at(n, 1), op("mul", op("mul", d, r), load(1, 0, 1))),
    ]
    return nest([F32] * 3, (rows,), (n,), body)


def reduce_rows(kind: str, rows: int, n: int, dtype: DType = F32) -> Nest:
    """A reduction of each row."""
    out = DType.I64 if kind in POSITIONS else dtype
    reduce = Reduce("r", kind, load(0, n, 1, dtype=dtype), dtype)  # type: ignore[arg-type]
    return nest([dtype, out], (rows,), (n,), [reduce, Store(1, at(1, 0), Ref("r", out))])


def reduce_columns(kind: str, n: int, columns: int, dtype: DType = F32) -> Nest:
    """A reduction of each column."""
    out = DType.I64 if kind in POSITIONS else dtype
    reduce = Reduce("r", kind, load(0, 1, columns, dtype=dtype), dtype)  # type: ignore[arg-type]
    return nest([dtype, out], (columns,), (n,), [reduce, Store(1, at(1, 0), Ref("r", out))])


def run(
    made: EmittedKernel, isa: Isa, tensors: Sequence[torch.Tensor], ranges: Sequence[tuple[int, int]] | None = None
) -> int:
    """Run a kernel over all its items, or over ranges of them; its code."""
    return call(made.source, isa, tensors, made.words, ranges or [(0, made.items)], made.scratch_nbytes)


def run_nest(nest_: Nest, isa: Isa, tensors: Sequence[torch.Tensor]) -> int:
    """Emit a nest and run it."""
    for buffer, tensor in zip(nest_.buffers, tensors, strict=True):
        assert SMELT_DTYPE[tensor.dtype] is buffer.dtype
    return run(emit_nest(nest_, isa), isa, tensors)
