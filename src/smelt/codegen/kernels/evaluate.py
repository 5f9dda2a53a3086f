"""What a nest computes, by broadcasting over all loops at once: slow, plain, and the reference for emitted kernels.

Invariant: every operation is torch's own on the Op's dtype, one rounding each, so a nest of the half types rounds where
eager does. A position out of range gives `FAILED` before anything is written by the statement at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smelt.codegen.kernels.nest import (
    FAILED,
    POSITIONS,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Reduce,
    ReduceKind,
    Ref,
    Scan,
    Store,
)
from smelt.codegen.kernels.operations import OPS
from smelt.ir import DType
from smelt.ops.convert import dtype_to_torch


class _OutOfRange(Exception):
    pass


def evaluate_nest(nest: Nest, tensors: Sequence[Tensor]) -> int:
    """Run a nest over the memory of `tensors`, one for each buffer, from its first element; 0, or `FAILED`."""
    try:
        _Evaluation(nest, tensors).run()
    except _OutOfRange:
        return FAILED
    return 0


class _Evaluation:
    """Values by name, each a tensor with one dimension for every loop (of size 1 where it does not change)."""

    def __init__(self, nest: Nest, tensors: Sequence[Tensor]) -> None:
        self.nest = nest
        self.rank = len(nest.sizes)
        self.memory = [_flat(t) for t in tensors]
        self.names: dict[str, Tensor] = {}

    def run(self) -> None:
        for statement in self.nest.body:
            match statement:
                case Let(name=name, expr=expr):
                    self.names[name] = self.value(expr)
                case Reduce(name=name, kind=kind, expr=expr, dtype=dtype):
                    self.names[name] = self.reduce(kind, self.value(expr), dtype_to_torch(dtype))
                case Scan(name=name, kind=scan, expr=expr, dtype=dtype):
                    self.names[name] = _SCANS[scan](self.whole(self.value(expr)).to(dtype_to_torch(dtype)), -1)
                case Store():
                    self.store(statement)

    def whole(self, value: Tensor) -> Tensor:
        """A value at every point of the inner loops."""
        nouter = len(self.nest.outer)
        return value.expand(*value.shape[:nouter], *self.nest.inner)

    def loop(self, loop: int) -> Tensor:
        shape = [1] * self.rank
        shape[loop] = self.nest.sizes[loop]
        return torch.arange(self.nest.sizes[loop]).reshape(shape)

    def value(self, expr: Expr) -> Tensor:
        match expr:
            case Const(value=value, dtype=dtype):
                return torch.full([1] * self.rank, value, dtype=dtype_to_torch(dtype))
            case Position(loop=loop):
                return self.loop(loop)
            case Ref(name=name):
                return self.names[name]
            case Op(op=op, args=args, dtype=dtype):
                return _operation(op, [self.value(a) for a in args], dtype)
            case Load():
                return self.load(expr)

    def place(self, index: Index, where: Tensor | None) -> Tensor:
        total = torch.full([1] * self.rank, index.offset)
        for loop, stride in enumerate(index.strides):
            if stride:
                total = total + self.loop(loop) * stride
        for gather in index.gathers:
            at = self.value(gather.position)
            if gather.wraps:
                at = torch.where(at < 0, at + gather.size, at)
            bad = (at < 0) | (at >= gather.size)
            if bool((bad if where is None else bad & where).any()):
                raise _OutOfRange
            total = total + at.clamp(0, gather.size - 1) * gather.stride
        return total

    def load(self, load: Load) -> Tensor:
        where = None if load.where is None else self.value(load.where)
        at = self.place(load.index, where)
        if where is None:
            return self.memory[load.buffer][at]
        other = torch.tensor(0 if load.other is None else load.other.value, dtype=dtype_to_torch(load.dtype))
        at, mask = torch.broadcast_tensors(at, where)
        return torch.where(mask, self.memory[load.buffer][torch.where(mask, at, torch.zeros_like(at))], other)

    def reduce(self, kind: ReduceKind, value: Tensor, dtype: torch.dtype) -> Tensor:
        nouter = len(self.nest.outer)
        whole = self.whole(value)
        rows = whole.reshape(*whole.shape[:nouter], -1)
        if kind.startswith("arg"):
            found = (torch.argmax if kind.startswith("argmax") else torch.argmin)(rows, -1)
            if kind not in POSITIONS:
                found = rows.to(dtype).gather(-1, found.unsqueeze(-1)).squeeze(-1)
        elif kind in ("sum", "prod"):
            found = (torch.sum if kind == "sum" else torch.prod)(rows.to(dtype), -1, dtype=dtype)
        elif kind in ("max", "min"):
            found = (torch.amax if kind == "max" else torch.amin)(rows.to(dtype), -1)
        else:
            found = (torch.any if kind == "any" else torch.all)(rows != 0, -1)
        return found.reshape(*found.shape, *[1] * len(self.nest.inner))

    def store(self, store: Store) -> None:
        where = None if store.where is None else self.value(store.where)
        value = self.value(store.expr)
        at = self.place(store.index, where)
        parts = [at, value] if where is None else [at, value, where]
        if not self.nest.ordered or store.mode == "add":
            # An element of no dimension of its own is written once.
            parts = list(torch.broadcast_tensors(*parts))
        else:
            parts = list(torch.broadcast_tensors(*parts, self.loop_shape()))[:-1]
        flat = [p.reshape(-1) for p in parts]
        chosen = flat[2] if where is not None else slice(None)
        self.memory[store.buffer].index_put_((flat[0][chosen],), flat[1][chosen], accumulate=store.mode == "add")

    def loop_shape(self) -> Tensor:
        return torch.zeros(self.nest.sizes, dtype=torch.bool)


def _flat(tensor: Tensor) -> Tensor:
    """All memory from a tensor's first element on."""
    extent = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


# --- operations ------------------------------------------------------------------------------------------------------


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x != 0 if dtype == torch.bool else x.to(dtype)


_SCANS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
    "prod": lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype),
    "max": lambda x, dim: torch.cummax(x, dim).values,
    "min": lambda x, dim: torch.cummin(x, dim).values,
}


def _operation(op: str, args: Sequence[Tensor], dtype: DType) -> Tensor:
    wanted = dtype_to_torch(dtype)
    if op == "cast":
        return _cast(args[0], wanted)
    result = OPS[op].meaning(*args)
    if result.dtype != wanted:
        raise TypeError(f"{op} of {', '.join(str(a.dtype) for a in args)} is {result.dtype}, not {wanted}")
    return result
