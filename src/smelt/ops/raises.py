"""Whether a call of torch's operators may raise: for its data, or for numbers and sizes that only the run knows.

Invariant: never said to be safe where eager may raise, for the error belongs to the program even where nobody uses the
result. What is known of all operands before the run (sizes as integers or as symbols, numbers that follow from these)
was tried when the call was captured, and is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.ir import INT, Arg, Node, Region, TensorType, TupleType, Type, Value
from smelt.ir.dims import Dim, Sym, SymExpr
from smelt.ir.sizes import Size
from smelt.ops.catalogue import record_of
from smelt.ops.python.python_numbers import FITS
from smelt.ops.record import Trait
from smelt.ops.registry import by_overload, read, tags_of
from smelt.ops.sets import bases_where

# How far back the makers of a number, or of sizes, are asked.
_DEPTH = 8

# Pointwise operators that take any number whatever the tensor holds.
_ANY_NUMBER = bases_where(Trait.ANY_NUMBER)
# Divisions, which raise for integers divided by zero; and of these the ones that do not.
_DIVISIONS = bases_where(Trait.DIVIDES)
_TRUE_DIVISIONS = ("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.divide.Tensor")
# Operators that take tensors of any sizes, all else being literals; after them those that ask for a known rank.
_ANY_TENSOR = bases_where(Trait.ANY_TENSOR)
_ANY_SIZES = bases_where(Trait.ANY_RANK)
# Views that not every tensor of the right sizes has.
_BY_LAYOUT = frozenset(("view", "view_as", "view_as_complex"))
# Arithmetic of sizes that gives a number for any.
_SIZE_ARITHMETIC = ("py.add", "py.sub", "py.mul", "py.neg", "py.pos", "py.abs", "py.min", "py.max")
_SIZE_READS = ("aten.sym_size.int", "aten.size.int", "aten.sym_numel.default", "aten.numel.default", "aten.dim.default")
_SIZES_READS = ("aten.sym_size.default", "aten.size.default")


def may_raise(node: Node, found: Any) -> bool:
    """Whether a call of this overload may raise."""
    return raises_by_data(node, found) or not fits(node, found)


def raises_by_data(node: Node, found: Any) -> bool:
    """Whether elements of tensors may make a call raise."""
    return may_raise_by_data(found) and not _is_excused(node, found) and not _is_without_data(node)


def _is_without_data(node: Node) -> bool:
    """Whether a call has tensors without data only, on the meta device."""
    types = [value.type for value in (*node.operands(), *node.results)]
    return bool(types) and all(isinstance(t, TensorType) and t.device == "meta" for t in types)


@by_overload
def may_raise_by_data(found: Any) -> bool:
    """Whether data may make an overload raise: as its record says; without one, unless it is pointwise or a view."""
    schema = read(found)
    if schema.name in _BY_A_TENSOR or is_division(found):
        return True
    if schema.name in _OF_ANY_DATA:
        return False
    record = record_of(schema.name)
    if record is not None:
        return record.may_throw
    return "pointwise" not in tags_of(schema.name) and not any(a.alias and not a.is_write for a in schema.arguments)


@by_overload
def is_division(found: Any) -> bool:
    """Whether an overload may divide integers, which raises for zero."""
    name = read(found).name
    return name.split(".")[1] in _DIVISIONS and name not in _TRUE_DIVISIONS


# What a backward pass calls of the library, without records of their own: they take whatever numbers they are given.
# (Where the largest elements lie is looked at without being checked.)
_OF_ANY_DATA = (
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool2d_with_indices_backward.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    "aten.native_layer_norm_backward.default",
    "aten.native_group_norm_backward.default",
    "aten.native_batch_norm_backward.default",
    "aten._softmax_backward_data.default",
    "aten._log_softmax_backward_data.default",
)
# Views at a place that is an element of a tensor.
_BY_A_TENSOR = ("aten.narrow.Tensor", "aten.select.t", "aten.tensor_split.tensor_indices_or_sections")


def _is_excused(node: Node, found: Any) -> bool:
    """A division of what is no integer, or by a number that is not zero."""
    if _base(found) not in _DIVISIONS or len(node.args) < 2:
        return False
    divisor = node.args[1]
    if isinstance(divisor, (int, float)) and divisor != 0:
        return True
    return any(r.type.dtype.kind in ("float", "complex") for r in node.results if isinstance(r.type, TensorType)) and (
        not any(isinstance(a, Value) and not isinstance(a.type, TensorType) for a in node.args)
    )


@by_overload
def _base(found: Any) -> str:
    return read(found).name.split(".")[1]


@by_overload
def _is_pointwise(found: Any) -> bool:
    return "pointwise" in tags_of(read(found).name)


def fits(node: Node, found: Any) -> bool:
    """Whether the sizes, strides and numbers of a call surely are such that it does not raise."""
    if _base(found) in _BY_LAYOUT and any(map(_lies_by_way, node.operands())):
        return False
    for value in node.operands():
        if not _is_known(value):
            return _fits_unknown(node, found)
    return True


def _lies_by_way(value: Value) -> bool:
    steps = value.type.strides if isinstance(value.type, TensorType) else None
    return steps is not None and not all(map(_is_size, steps))


def _is_known(value: Value) -> bool:
    """Whether sizes, or a number, are known before the run, if only as symbols."""
    type_ = value.type
    if type_.__class__ is TensorType:
        return _has_sizes(type_)
    return _has_sizes(type_) or _follows_from_sizes(value, _DEPTH)


def _has_sizes(type_: Type) -> bool:
    if isinstance(type_, TensorType):
        if type_.shape is None:
            return False
        for dim in type_.shape:  # noqa: SIM110  (asked at each node by each pass: a generator costs three times this)
            if dim.__class__ is not int and not _is_size(dim):
                return False
        return True
    return isinstance(type_, TupleType) and all(map(_has_sizes, type_.elements))


def _is_size(dim: Dim) -> bool:
    if isinstance(dim, SymExpr):
        return _is_size(dim.left) and _is_size(dim.right)
    return isinstance(dim, (int, Sym))


def _follows_from_sizes(value: Value, depth: int) -> bool:
    node = value.node
    if node is None or not depth:
        return False
    source = node.args[0] if node.args else None
    if node.op in _SIZE_READS or node.op in _SIZES_READS:
        return isinstance(source, Value) and _has_sizes(source.type)
    if node.op not in _SIZE_ARITHMETIC or value.type != INT:
        return False
    return all(_follows_from_sizes(arg, depth - 1) if isinstance(arg, Value) else type(arg) is int for arg in node.args)


def _fits_unknown(node: Node, found: Any) -> bool:
    """The same where not all is known, by what the operator asks of it."""
    base = _base(found)
    tensors = [v for v in node.operands() if isinstance(v.type, TensorType)]
    numbers = [v for v in node.operands() if not isinstance(v.type, TensorType) and not _is_known(v)]
    numbers = [v for v in numbers if not _is_checked(v, node)]
    if base == "select":
        return _is_in_range(node)
    if base == "slice":
        return len(tensors) == 1 and _rank(tensors[0]) is not None and type(_nth(node, 4, 1)) is int
    if base == "linear":
        return not numbers and _are_multiplied(tensors)
    if _is_pointwise(found):
        takes = not numbers or base in _ANY_NUMBER or (base in _DIVISIONS and read(found).name in _TRUE_DIVISIONS)
        return takes and (len(tensors) < 2 or _broadcast(tensors))
    if numbers or not tensors:
        return False
    return base in _ANY_TENSOR or (base in _ANY_SIZES and len(tensors) == 1 and _rank(tensors[0]) is not None)


def _is_checked(number: Value, node: Node) -> bool:
    """Whether a number was found to be in the range of the node's elements."""
    made = number.node
    if made is None or made.op != FITS:
        return False
    return all(str(v.type.dtype) == made.args[1] for v in node.operands() if isinstance(v.type, TensorType))


@by_overload
def looks_at_range(found: Any) -> bool:
    """Whether a pointwise overload raises for a number that is beyond the range of its elements."""
    return _is_pointwise(found) and _base(found) not in _ANY_NUMBER and _base(found) not in _DIVISIONS


def _nth(node: Node, index: int, default: Arg) -> Arg:
    return node.args[index] if len(node.args) > index else default


def _rank(value: Value) -> int | None:
    return value.type.rank if isinstance(value.type, TensorType) else None


def _are_multiplied(tensors: Sequence[Value]) -> bool:
    """A product with a weight of known sizes, whose inner size is the last one of the operand."""
    x, *weights = (v.type for v in tensors)
    if not isinstance(x, TensorType) or not x.shape or not weights or not all(map(_has_sizes, weights)):
        return False
    weight = weights[0]
    assert isinstance(weight, TensorType) and weight.shape is not None
    return len(weight.shape) == 2 and _are_same(x.shape[-1], weight.shape[-1])


def _are_same(one: Dim, other: Dim) -> bool:
    """Whether two sizes are known and the same, which a trace is not asked (it would remember the question)."""
    if isinstance(one, Size) or isinstance(other, Size):
        return isinstance(one, Size) and isinstance(other, Size) and one.poly == other.poly
    return _is_size(one) and one == other


def _broadcast(tensors: Sequence[Value]) -> bool:
    """Whether unknown sizes meet nothing but themselves, ones and nothing."""
    shapes = [v.type.shape for v in tensors if isinstance(v.type, TensorType)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return False
    rank = max(map(len, known))
    for place in range(1, rank + 1):
        known_there, unknown = False, set()
        for value, shape in zip(tensors, known, strict=True):
            dim = shape[-place] if place <= len(shape) else 1
            if not _is_size(dim):
                unknown.add(_origin(value, len(shape)))
            elif type(dim) is not int or dim != 1:
                known_there = True
        if unknown and (known_there or len(unknown) > 1):
            return False
    return True


def _origin(value: Value, rank: int) -> Value:
    """The value whose sizes these are: back through what is computed element by element."""
    for _ in range(_DEPTH):
        node = value.node
        if node is None or node.regions or len(node.results) != 1 or "pointwise" not in tags_of(node.op):
            break
        tensors = [v for v in node.operands() if isinstance(v.type, TensorType) and v.type.rank != 0]
        if len(tensors) != 1 or _rank(tensors[0]) != rank:
            break
        value = tensors[0]
    return value


def _is_in_range(node: Node) -> bool:
    """Whether the index of a `select` lies in the tensor: a literal, or the index of a loop over its size."""
    if len(node.args) != 3:
        return False
    source, dim, index = node.args
    kind = source.type if isinstance(source, Value) else None
    if not isinstance(kind, TensorType) or kind.shape is None or type(dim) is not int:
        return False
    if not -len(kind.shape) <= dim < len(kind.shape):
        return False
    size = kind.shape[dim]
    if type(index) is int:
        return type(size) is int and -size <= index < size
    if not isinstance(index, Value) or index.node is not None or not isinstance(index.owner, Region):
        return False
    loop = index.owner.owner
    if not isinstance(loop, Node) or loop.op != "for" or loop.regions[0].params[0] is not index:
        return False
    start, stop, step = loop.args[:3]
    if type(start) is not int or start < 0 or type(step) is not int or step < 1:
        return False
    if not isinstance(stop, Value):
        return type(stop) is int and type(size) is int and stop <= size
    return _is_size_of(stop, source, dim % len(kind.shape), size)


def _is_size_of(stop: Value, source: Arg, dim: int, size: Dim) -> bool:
    """Whether a number is the size of a tensor, or one that is equal to it before the run."""
    node = stop.node
    if node is None or node.op not in _SIZE_READS[:2] or len(node.args) != 2:
        return False
    of, which = node.args
    kind = of.type if isinstance(of, Value) else None
    if not isinstance(kind, TensorType) or kind.shape is None or type(which) is not int:
        return False
    if of is source and which % len(kind.shape) == dim:
        return True
    return _are_same(kind.shape[which], size)
