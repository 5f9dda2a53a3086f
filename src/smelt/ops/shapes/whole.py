"""The whole types of results that are no views: a type function an operator, over any kind of sizes.

    linear(f32[B, S, 64], f32[8, 64])  ==>  f32[B, S, 8]

None where a call is not told: then the sizes may be (`results`), and the rest is found by trying (`symbolic`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from smelt.ir import DType, TensorType
from smelt.ir.sizes import equals
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.ops.shapes.results import SOFTMAX, result_sizes
from smelt.ops.shapes.views import Call, row_major

_ALL: tuple[str, ...] = ("*",)
ROW_MAJOR_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        f"aten.{name}": operands
        for names, operands in (
            (("mm.default", "mv.default", "dot.default", "bmm.default", "addmm.default", "baddbmm.default"), ()),
            (("matmul.default",), ()),
            (("linear.default",), ("input",)),
            (("reshape.default", "reshape_as.default", "flatten.using_ints"), ()),
            (
                ("layer_norm.default", *SOFTMAX, "cat.default", "stack.default", "repeat.default",
                 "pad.default", "constant_pad_nd.default", "max_pool2d.default", "avg_pool2d.default",
                 *(f"conv{n}d.{form}" for n in (1, 2, 3) for form in ("default", "padding"))),
                _ALL,
            ),
        )
        for name in names
    }
)  # fmt: skip
"""Results of these lie row-major and have the dtype of the operands, where these have one dtype, and the named ones (or
all) lie row-major."""
_OF_FLOATS = where(Trait.LIKE_OPERAND) | {f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")}
"""Element by element: of floating-point tensors of one dtype, a result has that dtype."""


def keeps_dtype(op: str, dtype: DType) -> bool:
    """Whether an operator that goes element by element gives the dtype of its operands, all of one."""
    return dtype.kind == "float" and op in _OF_FLOATS


def result_types(op: str, call: Call) -> list[TensorType] | None:
    """The whole types of a call's results; None where no rule tells them. call: as of `result_sizes`."""
    named = ROW_MAJOR_OF.get(op)
    if named is None or call.get("dtype") is not None:
        return None
    operands = list(_tensors(tuple(call.values())))
    asked = operands if named is _ALL else list(_tensors(tuple(call[name] for name in named)))
    first = operands[0] if operands else None
    if first is None or any(t.dtype is not first.dtype or t.shape is None for t in operands):
        return None
    if any(not is_plain(t, but_for_ones=op == "aten.linear.default") for t in asked) or not _is_usual(
        op, call, operands
    ):
        return None
    sizes = result_sizes(op, call)
    return None if sizes is None else [TensorType(first.dtype, own, None, first.device) for own in sizes]


def is_plain(type_: TensorType, *, but_for_ones: bool = False) -> bool:
    """Whether a tensor is known to lie row-major. but_for_ones: whatever its strides along single elements are."""
    return type_.layout == "strided" and (
        type_.strides is None
        or all(
            equals(step, plain) or (but_for_ones and type(size) is int and size == 1)
            for size, step, plain in zip(type_.sizes, type_.steps, row_major(type_.sizes), strict=True)
        )
    )


def _is_usual(op: str, call: Call, operands: Sequence[TensorType]) -> bool:
    """Whether a call of an operator that has several kinds of them is of the one that the rule is for."""
    ranks = [t.rank or 0 for t in operands]
    match op:
        case "aten.matmul.default":
            # Else a product that is laid out column by column is the faster one.
            return ranks[0] == ranks[1] or (ranks[0] > 2 and ranks[1] == 2)
        case "aten.linear.default":
            return ranks[0] >= 2 and ranks[1] == 2
        case "aten.layer_norm.default" | "aten.softmax.int" | "aten.log_softmax.int":
            return operands[0].dtype.kind == "float"
        case "aten.pad.default":
            return call["mode"] == "constant"
    return True


def _tensors(arg: Any) -> Iterator[TensorType]:
    if isinstance(arg, tuple):
        for item in arg:
            yield from _tensors(item)
    elif isinstance(found := getattr(arg, "type", None), TensorType):
        yield found
