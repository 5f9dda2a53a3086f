"""Parts of tensors that are written at positions of the run: `out[i] = v`, `out[i, j] = v`, `out[:, t] = v`.

    %2 = index_put(%out, [%i], %v)        ==>        for j: %out[i, j] = v[j]

A nest runs over the part alone; the rest of the tensor is where the result lies already. Invariant: what a nest reads
of a tensor that it writes to, it reads at the point that writes there, or nowhere near (`is_apart`).
"""

from __future__ import annotations

from math import prod

from smelt.codegen.fusion.index import Idx, Ix
from smelt.codegen.fusion.pull import Pull
from smelt.codegen.kernels.operations import DTYPES
from smelt.codegen.lower.python.plain import is_plain
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value


@record
class Part:
    """A write of `source` into `base` where `indices` (tensors of one integer, None: all of a dimension) tell."""

    base: Value
    source: Value
    indices: tuple[Value | None, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the part."""
        assert isinstance(self.base.type, TensorType)
        sizes = self.base.type.sizes
        indices = (*self.indices, *[None] * (len(sizes) - len(self.indices)))
        return tuple(n for n, index in zip(sizes, indices, strict=True) if index is None)

    @property
    def numel(self) -> int:
        """Elements of the part."""
        return prod(self.sizes)

    def at(self, pull: Pull, idx: Idx) -> Idx:
        """The index in the whole of the element at an index of the part."""
        assert isinstance(self.base.type, TensorType)
        rest, found = iter(idx), list[Ix]()
        for dim, size in enumerate(self.base.type.sizes):
            index = self.indices[dim] if dim < len(self.indices) else None
            if index is None:
                found.append(next(rest))
            else:
                found.append(pull.place(pull.operand(index, (), DType.I64), size, True))
        return tuple(found)


def part_of(node: Node) -> Part | None:
    """The write of a part that a node is."""
    if node.op != "aten.index_put.default" or node.kwargs or len(node.args) not in (3, 4) or not is_plain(node):
        return None
    base, indices, source, *accumulate = node.args
    if accumulate not in ([], [False]) or not isinstance(indices, tuple):
        return None
    if not isinstance(base, Value) or not isinstance(source, Value) or not any(index is not None for index in indices):
        return None
    if not all(index is None or (isinstance(index, Value) and _is_position(index)) for index in indices):
        return None
    whole, given = base.type, source.type
    assert isinstance(whole, TensorType) and isinstance(given, TensorType)
    if whole.dtype not in DTYPES or given.dtype is not whole.dtype:
        return None
    return Part(base, source, tuple(i for i in indices if i is None or isinstance(i, Value)))


def _is_position(index: Value) -> bool:
    type_ = index.type
    return isinstance(type_, TensorType) and type_.sizes == () and type_.dtype in (DType.I64, DType.I32)


def is_apart(pull: Pull, written: Idx, read: Idx) -> bool:
    """Whether a point reads what no other point writes.

    Either there is one point, or along each dimension both go with the loops in one way, or neither does: where they
    meet, it is one point.
    """
    if all(_is_fixed(pull, ix) for ix in written):
        return True
    return all((_is_fixed(pull, a) and _is_fixed(pull, b)) or a.is_same(b) for a, b in zip(written, read, strict=True))


def _is_fixed(pull: Pull, ix: Ix) -> bool:
    return not ix.terms and not any(pull.loops_of(g.position) for g in ix.indirect)


def writes_parts(node: Node) -> bool:
    """Whether a node writes to parts of tensors where they lie, itself or in its regions."""
    return part_of(node) is not None or any(map(writes_parts, (n for region in node.regions for n in region)))
