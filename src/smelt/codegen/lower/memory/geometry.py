"""Sizes, strides and offsets of views, found without touching memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from smelt._torch.storage import storage_key
from smelt.codegen.lower.memory.sharing import returns_itself, view_source
from smelt.diag.records import record
from smelt.ir import Arg, Node, TensorType, Value, contiguous_strides
from smelt.ir.sizes import equals, is_one
from smelt.ops.convert import dtype_to_torch, to_torch
from smelt.ops.record import Trait
from smelt.ops.registry import arguments_of, overload, schema_of
from smelt.ops.sets import where
from smelt.ops.shapes.views import VIEW_RULES, Layout, view_layouts


@record
class Geometry:
    """How a tensor lies in its storage: sizes, strides and offset in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def of(type_: TensorType, offset: int = 0) -> Geometry:
        """Eager's layout of a static type."""
        return Geometry(type_.sizes, type_.steps, offset)

    @property
    def numel(self) -> int:
        """Elements, counted once each index."""
        return prod(self.sizes)

    @property
    def extent(self) -> int:
        """Elements of memory from the first to past the last one."""
        if 0 in self.sizes:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))


def row_major(sizes: Sequence[int]) -> Geometry:
    """The geometry of a contiguous tensor."""
    return Geometry(tuple(sizes), contiguous_strides(sizes))


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their memory, each in a place of its own."""
    left = [(stride, size) for stride, size in zip(strides, sizes, strict=True) if not is_one(size)]
    expected = 1
    while left:
        found = next((k for k, (stride, _) in enumerate(left) if equals(stride, expected)), None)
        if found is None:
            return False
        expected *= left.pop(found)[1]
    return True


def same_layout(sizes: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two strides put every element at the same place (dimensions of size 1 and empty tensors do not tell)."""
    return 0 in sizes or all(equals(a, b) or n == 1 or a == b for n, a, b in zip(sizes, left, right, strict=True))


def dummy(type_: TensorType, strides: tuple[int, ...], device: str = "meta") -> torch.Tensor:
    """A tensor of a static type with other strides; on `meta` it has no memory."""
    return torch.empty_strided(type_.sizes, strides, dtype=dtype_to_torch(type_.dtype), device=device)


# Views that start where their operand starts.
_AT_START = where(Trait.AT_START) | {"aten.positive.default"}


def view_geometry(node: Node, operand: Value, at: Geometry) -> list[Geometry] | None:
    """How the results of a view lie in the storage of its operand, which lies `at`; one per tensor of the result.

    None where the view cannot be told by strides (another dtype, a conjugate), or where the operand, lying otherwise
    than in eager, does not allow it.
    """
    type_ = operand.type
    assert isinstance(type_, TensorType)
    result = node.results[0].type
    if at.strides == type_.steps and returns_itself(node) and view_source(node) is operand:
        return [at]
    if node.op in _AT_START and isinstance(result, TensorType) and at.strides == type_.steps:
        return [Geometry(result.sizes, result.steps, at.offset)] if result.dtype is type_.dtype else None
    op, schema = overload(node.op), schema_of(node.op)
    if op is None or schema is None or node.op.startswith("aten.as_strided."):
        # as_strided counts from the storage's start, which is known for no tensor that comes from outside.
        return None
    if any(not isinstance(v.type, TensorType) for v in node.operands()):
        return None
    if node.op in VIEW_RULES:
        call = arguments_of(schema, node.args, node.kwargs)
        told = view_layouts(node.op, Layout(at.sizes, at.strides, at.offset), call)
        return None if told is None else [Geometry(one.sizes, one.strides, one.offset) for one in told]
    if any(type(n) is not int for n in (*at.sizes, *at.strides)):
        # torch takes numbers only.
        return None
    base = dummy(type_, at.strides)

    def bind(arg: Arg) -> Any:
        if isinstance(arg, Value):
            if arg is operand:
                return base
            return dummy(arg.type, arg.type.steps) if isinstance(arg.type, TensorType) else None
        return [bind(a) for a in arg] if isinstance(arg, tuple) else to_torch(arg)

    try:
        with torch.no_grad():
            made = op(*map(bind, node.args), **{k: bind(v) for k, v in node.kwargs.items()})
    except RuntimeError:
        return None
    views = [made] if isinstance(made, torch.Tensor) else list(made)
    storage = storage_key(base)
    for view in views:
        if view.dtype != base.dtype or view.is_conj() or view.is_neg() or storage_key(view) != storage:
            return None
    return [Geometry(tuple(v.shape), v.stride(), at.offset + v.storage_offset()) for v in views]
