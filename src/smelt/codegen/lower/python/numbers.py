"""Python's numbers in a plan: elements of tensors, arithmetic, comparisons, conversions, sizes; in 64 bits.

    %n: int = py.add(%k, 1)     %b: bool = py.lt(%k, %m)     %f: float = aten.item.default(%t)

Invariant: Python's own meaning. What 64 bits cannot hold, and what raises, is left to Python when it happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.python.plain import is_number, is_plain_type, kind_of
from smelt.diag import SmeltError
from smelt.ir import BOOL, FLOAT, INT, Arg, Node, TensorType, Type, Value
from smelt.ir.python_operators import BINARY, COMPARISON_NAMES, COMPARISONS
from smelt.ir.type_order import type_of_arg
from smelt.ops.python.python_numbers import FITS, fits
from smelt.ops.python.python_ops import python_op
from smelt.runtime.encoding.table import Arith
from smelt.runtime.plan import Load, PyCall, Scalar, Use

Operand = Use | int | float | bool


def _of_arithmetic(kind: str) -> dict[str, Arith]:
    """The operators that the native executor computes on numbers of a kind, by name."""
    codes = ((o.name, f"{kind}_{o.name.removesuffix('_').upper()}") for o in (*BINARY, *COMPARISONS))
    return {name: Arith[code] for name, code in codes if code in Arith.__members__}


_INT_BINARY, _FLOAT_BINARY = _of_arithmetic("I"), _of_arithmetic("F")
_INT_UNARY = {"neg": Arith.I_NEG, "abs": Arith.I_ABS, "invert": Arith.I_INVERT, "pos": Arith.COPY, "int": Arith.COPY}
_FLOAT_UNARY = {"neg": Arith.F_NEG, "abs": Arith.F_ABS, "pos": Arith.COPY, "float": Arith.COPY, "int": Arith.F_INT}
_LITERALS = (bool, int, float, str)
_ITEMS = ("aten.item.default", "aten._local_scalar_dense.default", "py.bool", "py.int", "py.float")


def lower_number(ctx: Context, node: Node) -> bool:
    """Compute a node's number natively; False, with nothing done, where it has no such form."""
    if len(node.results) != 1 or not is_number(node.result.type) or node.kwargs:
        return False
    return _size(ctx, node) or _item(ctx, node) or _arithmetic(ctx, node) or _in_python(ctx, node)


def operand(ctx: Context, arg: Arg) -> Operand:
    """A number as an instruction takes it. Raises: TypeError for anything else."""
    if isinstance(arg, Value) and is_number(arg.type):
        return Use(ctx.number(arg).slot)
    if isinstance(arg, (bool, float)) or (isinstance(arg, int) and -(2**63) <= arg < 2**63):
        return arg
    raise TypeError(f"{arg!r} is no number of 64 bits")


def same(number: Any) -> Any:
    """A number, as it is."""
    return number


def give(ctx: Context, value: Value, number: Operand) -> None:
    """Let a value be this number."""
    ctx.builder.emit(Scalar(Arith.COPY, ctx.number(value).slot, (number,), same))


def truth(ctx: Context, arg: Arg) -> Operand:
    """A condition (a bool or a tensor with one element) as a bool. Raises: TypeError for anything else."""
    if isinstance(arg, bool):
        return arg
    if not isinstance(arg, Value):
        raise TypeError(f"{arg!r} is no condition")
    if arg.type == BOOL:
        return operand(ctx, arg)
    if is_number(arg.type):
        return _truth_of(ctx, operand(ctx, arg), arg.type)
    kind = element_type(arg.type)
    if kind is None:
        raise TypeError(f"%{arg.name} is {arg.type}, no condition")
    loaded = _new(ctx, kind)
    _load(ctx, loaded, arg)
    return _truth_of(ctx, loaded, kind)


def _load(ctx: Context, into: Use, value: Value) -> None:
    slot = ctx.slot(value, any_layout=True)
    ctx.builder.check(ctx.place(value).storage)
    ctx.builder.emit(Load(into.slot, slot, torch_dtype(value)))


def element_type(type_: Type) -> Type | None:
    """The number that a tensor with one element holds; None for other tensors, and elements that are no numbers."""
    if not isinstance(type_, TensorType) or not is_plain_type(type_) or type_.numel != 1:
        return None
    return {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT}.get(type_.dtype.kind)


def _new(ctx: Context, type_: Type) -> Use:
    return Use(ctx.builder.number(kind_of(type_)).slot)


def _truth_of(ctx: Context, number: Operand, type_: Type) -> Operand:
    if type_ == BOOL:
        return number
    found = _new(ctx, BOOL)
    operation = Arith.F_BOOL if type_ == FLOAT else Arith.I_BOOL
    ctx.builder.emit(Scalar(operation, found.slot, (number,), bool))
    return found


def _emit(ctx: Context, node: Node, operation: Arith, args: Sequence[Operand], eager: Callable[..., Any]) -> bool:
    ctx.builder.emit(Scalar(operation, ctx.number(node.result).slot, tuple(args), eager))
    ctx.note(node, "number", operation.name.lower())
    return True


# --- of tensors


def _size(ctx: Context, node: Node) -> bool:
    """A size, a stride or a rank that the type tells."""
    value = node.args[0] if node.args else None
    if not isinstance(value, Value) or not isinstance(value.type, TensorType) or not is_plain_type(value.type):
        return False
    type_, dim = value.type, node.args[1] if len(node.args) > 1 else None
    found: int
    match node.op:
        case "aten.sym_size.int" | "aten.size.int" | "aten.sym_stride.int" | "aten.stride.int":
            if type(dim) is not int or not -len(type_.sizes) <= dim < len(type_.sizes):
                return False
            found = (type_.sizes if "size" in node.op else type_.steps)[dim]
        case "aten.sym_numel.default" | "aten.numel.default":
            found = type_.numel
        case "aten.dim.default":
            found = len(type_.sizes)
        case "py.len" if type_.sizes:
            found = type_.sizes[0]
        case _:
            return False
    return _emit(ctx, node, Arith.COPY, (found,), same)


def _item(ctx: Context, node: Node) -> bool:
    value = node.args[0] if node.args else None
    if node.op not in _ITEMS or len(node.args) != 1 or not isinstance(value, Value):
        return False
    kind = element_type(value.type)
    if kind is None:
        return False
    found = node.result.type
    loaded = Use(ctx.number(node.result).slot) if kind == found else _new(ctx, kind)
    _load(ctx, loaded, value)
    ctx.note(node, "number", f"load {tensor_type(value).dtype}")
    return kind == found or _converted(ctx, node, loaded, kind)


def _converted(ctx: Context, node: Node, number: Operand, kind: Type) -> bool:
    """The result as a number of another kind."""
    found = node.result.type
    if found == BOOL:
        return _emit(ctx, node, Arith.F_BOOL if kind == FLOAT else Arith.I_BOOL, (number,), bool)
    if found == FLOAT:
        return _emit(ctx, node, Arith.I_FLOAT, (number,), float)
    return _emit(ctx, node, Arith.F_INT if kind == FLOAT else Arith.COPY, (number,), int)


# --- of numbers


def _arithmetic(ctx: Context, node: Node) -> bool:
    if node.op == FITS:
        return _in_range(ctx, node)
    python = python_op(node.op)
    if python is None or not all(isinstance(a, Value | int | float) for a in _numbers(node)):
        return False
    name, args = node.op.removeprefix("py."), _numbers(node)
    types = [type_of_arg(a) for a in args]
    if not args or not all(is_number(t) for t in types) or any(_is_wide(a) for a in args):
        return False
    if node.op == "py.call":
        if node.args[0] == "math.pow" and len(args) == 2:
            return _power(ctx, node, args, types, math.pow)
        return node.args[0] == "math.sqrt" and len(args) == 1 and _root(ctx, node, args, types)
    if name == "pow":
        return node.result.type == FLOAT and len(args) == 2 and _power(ctx, node, args, types, python.run)
    if name in ("not_", "bool"):
        return _boolean(ctx, node, args[0], types[0], negated=name == "not_")
    if name in ("min", "max"):
        return _extreme(ctx, node, args, types, is_max=name == "max")
    if len(args) == 1:
        return _unary(ctx, node, name, args[0], types[0], python.run)
    return len(args) == 2 and _binary(ctx, node, name, args, types, python.run)


def _in_python(ctx: Context, node: Node) -> bool:
    """An operator of Python on numbers alone that has no native form: called at once, without the evaluator."""
    python = python_op(node.op)
    if python is None or not python.is_pure:
        return False
    if not all(is_number(a.type) if isinstance(a, Value) else isinstance(a, _LITERALS) for a in node.args):
        return False
    slots = tuple(ctx.number(a).slot for a in node.args if isinstance(a, Value))
    if not slots:
        return False
    run, template = python.run, tuple(None if isinstance(a, Value) else (a,) for a in node.args)

    def call(*numbers: Any) -> tuple[Any]:
        rest = iter(numbers)
        return (run(*(next(rest) if literal is None else literal[0] for literal in template)),)

    call.__qualname__ = node.op
    ctx.builder.emit(PyCall(call, slots, (ctx.number(node.result).slot,)))
    ctx.note(node, "python", node.op)
    return True


def _numbers(node: Node) -> tuple[Arg, ...]:
    return node.args[1:] if node.op == "py.call" else node.args


def _is_wide(arg: Arg) -> bool:
    return isinstance(arg, int) and not -(2**63) <= arg < 2**63


def _unary(ctx: Context, node: Node, name: str, arg: Arg, type_: Type, run: Callable[..., Any]) -> bool:
    number, found = operand(ctx, arg), node.result.type
    if name == "float" and type_ != FLOAT:
        return _emit(ctx, node, Arith.I_FLOAT, (number,), float)
    operation = (_FLOAT_UNARY if type_ == FLOAT else _INT_UNARY).get(name)
    if operation is None or (found == FLOAT) != (type_ == FLOAT and name != "int"):
        return False
    return _emit(ctx, node, operation, (number,), run)


def _boolean(ctx: Context, node: Node, arg: Arg, type_: Type, *, negated: bool) -> bool:
    number = _truth_of(ctx, operand(ctx, arg), type_)
    if not negated:
        return _emit(ctx, node, Arith.COPY, (number,), bool)
    return _emit(ctx, node, Arith.B_NOT, (number,), _negated)


def _negated(value: Any) -> bool:
    return not value


def _binary(
    ctx: Context, node: Node, name: str, args: Sequence[Arg], types: Sequence[Type], run: Callable[..., Any]
) -> bool:
    is_float = FLOAT in types
    operation = (_FLOAT_BINARY if is_float else _INT_BINARY).get(name)
    if operation is None:
        return False
    exact = name in COMPARISON_NAMES
    if is_float:
        numbers = [_as_float(ctx, a, t, exact=exact) for a, t in zip(args, types, strict=True)]
    else:
        numbers = [operand(ctx, a) for a in args]
    return _emit(ctx, node, operation, numbers, run)


def _as_float(ctx: Context, arg: Arg, type_: Type, *, exact: bool) -> Operand:
    """A number as a float; exact: to be compared, where Python compares without rounding."""
    number = operand(ctx, arg)
    if type_ == FLOAT:
        return number
    if not isinstance(number, Use) and abs(number) <= 2**53:
        return float(number)
    found = _new(ctx, FLOAT)
    if exact:
        ctx.builder.emit(Scalar(Arith.I_EXACT, found.slot, (number,), _exact))
    else:
        ctx.builder.emit(Scalar(Arith.I_FLOAT, found.slot, (number,), float))
    return found


def _exact(number: int) -> float:
    found = float(number)
    if found == number:
        return found
    raise SmeltError(
        f"the number {number} has no exact float",
        why="native code compares numbers of different types as floats",
        fix="nothing needs to be done: the program runs eagerly for such numbers",
        code="S0404",
    )


def _extreme(ctx: Context, node: Node, args: Sequence[Arg], types: Sequence[Type], *, is_max: bool) -> bool:
    if len(args) < 2 or len(set(types)) != 1:
        return False
    if types[0] == FLOAT:
        operation = Arith.F_MAX if is_max else Arith.F_MIN
    else:
        operation = Arith.I_MAX if is_max else Arith.I_MIN
    eager: Callable[..., Any] = max if is_max else min
    least = operand(ctx, args[0])
    for arg in args[1:-1]:
        found = _new(ctx, types[0])
        ctx.builder.emit(Scalar(operation, found.slot, (least, operand(ctx, arg)), eager))
        least = found
    return _emit(ctx, node, operation, (least, operand(ctx, args[-1])), eager)


def _root(ctx: Context, node: Node, args: Sequence[Arg], types: Sequence[Type]) -> bool:
    return _emit(ctx, node, Arith.F_SQRT, (_as_float(ctx, args[0], types[0], exact=False),), math.sqrt)


def _power(ctx: Context, node: Node, args: Sequence[Arg], types: Sequence[Type], run: Callable[..., Any]) -> bool:
    if FLOAT not in types:
        return False
    numbers = [_as_float(ctx, a, t, exact=False) for a, t in zip(args, types, strict=True)]
    return _emit(ctx, node, Arith.F_POW, numbers, run)


def _in_range(ctx: Context, node: Node) -> bool:
    number, dtype = node.args
    if type_of_arg(number) != FLOAT or not isinstance(dtype, str):
        return False
    operation = Arith.F_IN_F32 if dtype == "f32" else Arith.COPY
    return _emit(ctx, node, operation, (operand(ctx, number),), partial(fits, dtype=dtype))
