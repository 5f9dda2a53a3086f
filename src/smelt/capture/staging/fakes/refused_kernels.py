"""What an operator gives where torch's kernel for tensors without data refuses it, though the operator itself does not.

    torch._grouped_mm(f32[8, 16], f32[2, 16, 24], offs)      refused without data: "Expected inputs of BF16 type"

Many of those kernels are written a second time, in Python, and some ask for more than eager's. An error of theirs ends
no path before something else has said the same: the catalogue's type rule, or a run of the operator on data of its own.

Where eager refuses, too, it may say so in other words: the program may print these, or its caller read them.

Invariant: nothing of the program's is run or written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, Overload
from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.plain_sizes import plain_sizes
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.arithmetic import at_hand, is_symbolic
from smelt.capture.dynamic.values import number_of
from smelt.diag import InternalError
from smelt.ir import TensorType, TupleType, Type, Value
from smelt.ops.catalogue import record_of
from smelt.ops.convert import dtype_from_torch, dtype_to_torch, dummy_of, from_torch
from smelt.ops.meta import MOST_TRIED
from smelt.ops.sets import is_by_elements
from smelt.ops.typing import infer

_SECOND_HAND = ("torch._meta_registrations", "torch._refs", "torch._decomp", "torch._prims", "torch._subclasses")

_PRODUCTS = frozenset(("mm", "bmm", "mv", "dot"))


class Doubt(Exception):
    """Whether eager refuses these operands is not known; the text says why."""


def is_second_hand(error: BaseException) -> bool:
    """Whether an error comes of code that eager does not run."""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        # The mode that runs operators without data stands in the traceback of every error.
        if name.startswith(_SECOND_HAND) and name != "torch._subclasses.fake_tensor":
            return True
        trace = trace.tb_next
    return False


def given_all_the_same(
    fakes: FakeTensors, name: str, args: Sequence[object], kwargs: Mapping[str, object], error: Exception
) -> object:
    """The results of an operator whose kernel without data raised `error`; None where eager raises, too.

    Raises: Doubt.
    """
    record = record_of(name)
    if not is_second_hand(error) or not name.startswith("aten.") or (record is not None and record.alias != "fresh"):
        return None
    values: dict[int, Value] = {}
    with unseen():
        arguments = [_argument(a, values) for a in args]
        named = {k: _argument(a, values) for k, a in kwargs.items()}
        try:
            types = infer(name, arguments, named)
        except InternalError:
            tensors = [v.type for v in values.values() if isinstance(v.type, TensorType)]
            if any(t.numel > MOST_TRIED for t in tensors) and not _never_fit(name, tensors):
                raise Doubt("its operands are too large to try") from None
            return None
        if any(has_symbols(a) for a in (*args, *kwargs.values())):
            raise Doubt("it is refused for sizes that are symbols, and not for the sizes at hand")
    grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    made = [_fake(fakes, type_, grad) for type_ in types]
    return made[0] if len(made) == 1 else tuple(made)


def _never_fit(name: str, types: Sequence[TensorType]) -> bool:
    """Whether an operator goes by elements, and its operands have sizes that are not broadcast to one another, or is a
    product of operands that have nothing to be summed over."""
    if name.split(".")[1] in _PRODUCTS and len(types) == 2:
        a, b = (t.sizes for t in types)
        return a[-1:] != b[-2:][:1] or (len(a) == len(b) == 3 and a[0] != b[0])
    if not is_by_elements(name):
        return False
    try:
        with plain_sizes():
            torch.broadcast_shapes(*[t.sizes for t in types])
    except RuntimeError:
        return True
    return False


def in_eagers_words(overload: Overload, args: OpArgs, kwargs: Mapping[str, object], error: Exception) -> Exception:
    """The error that eager has for operands of which torch's kernel without data raised `error`: tried on zeros."""
    try:
        with unseen(), torch.no_grad():
            own = {name: _zeros(arg) for name, arg in kwargs.items()}
            overload(*map(_zeros, args), **own)
    except Doubt:
        return error
    except Exception as said:
        said.__context__ = None
        return said.with_traceback(None)
    return error


def _zeros(arg: object) -> object:
    if isinstance(arg, (list, tuple)):
        return [_zeros(item) for item in arg]
    if not isinstance(arg, torch.Tensor):
        return arg
    if has_symbols(arg) or arg.numel() > MOST_TRIED:
        raise Doubt("its operands are symbols, or too large to try")
    return dummy_of(_type(arg)).zero_()


def _fake(fakes: FakeTensors, type_: Type, grad: bool) -> object:
    if isinstance(type_, TupleType):
        return [_fake(fakes, t, grad) for t in type_.elements]
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        raise Doubt(f"it gives {type_}")
    dtype = dtype_to_torch(type_.dtype)
    grad = grad and (dtype.is_floating_point or dtype.is_complex)
    return fakes.fresh(dtype, type_.sizes, type_.steps, type_.device, grad)


def _argument(arg: object, values: dict[int, Value]) -> Any:
    if isinstance(arg, torch.Tensor):
        if id(arg) not in values:
            values[id(arg)] = Value(f"v{len(values)}", _type(arg), None)  # type: ignore[arg-type]
        return values[id(arg)]
    if isinstance(arg, (list, tuple)):
        return tuple(_argument(a, values) for a in arg)
    return from_torch(_at_hand(arg))


def _type(tensor: torch.Tensor) -> TensorType:
    sizes, steps = (tuple(map(_at_hand, numbers)) for numbers in (tensor.shape, tensor.stride()))
    return TensorType.of(dtype_from_torch(tensor.dtype), sizes, steps, str(tensor.device))


def _at_hand(number: object) -> Any:
    return at_hand(number_of(number)) if is_symbolic(number_of(number)) else number


def has_symbols(arg: object) -> bool:
    """Whether a size, or a number, among operands is free."""
    if isinstance(arg, (list, tuple)):
        return any(map(has_symbols, arg))
    if isinstance(arg, torch.Tensor):
        return any(is_symbolic(number_of(n)) for n in (*arg.shape, *arg.stride()))
    return is_symbolic(number_of(arg))
