"""Operators whose results have sizes that follow from data: their results on fake tensors, given the unknown number.

Each rule takes the operator, its arguments (fake tensors), the number (two of them for packed sequences) and a maker of
fake tensors, and gives the results as eager would lay them out. An operator without a rule here cannot be staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt.ops.catalogue.packed import PACK, PAD

Make = Callable[[torch.dtype, Sequence[int]], torch.Tensor]
Rule = Callable[[Any, OpArgs, OpKwargs, Any, Make], Any]


def _nonzero(overload: object, args: OpArgs, kwargs: dict[str, object], n: int, make: Make) -> Any:
    # Column-major, as eager makes it.
    return make(torch.int64, (args[0].dim(), n)).t()


def _where(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    return _nonzero(overload, args, kwargs, n, make).unbind(1) if args[0].dim() else (make(torch.int64, (n,)),)


def _masked_select(overload: object, args: OpArgs, kwargs: dict[str, object], n: int, make: Make) -> object:
    return make(args[0].dtype, (n,))


def _index(overload: Overload, args: OpArgs, kwargs: dict[str, object], n: int, make: Make) -> object:
    """Masks are what their nonzero places are, one index for each dimension."""
    indices: list[object] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            indices.extend(make(torch.int64, (n,)) for _ in range(index.dim()))
        else:
            indices.append(index)
    if not any(m is not None and m.dtype in (torch.bool, torch.uint8) and m.dim() == 0 for m in args[1]):
        return overload(args[0], indices)
    raise NotImplementedError("a mask without dimensions")


def _unique2(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    given = dict(zip(("self", "sorted", "return_inverse", "return_counts"), args, strict=False)) | kwargs
    x = given["self"]
    inverse = make(torch.int64, x.shape if given.get("return_inverse") else (0,))
    return make(x.dtype, (n,)), inverse, make(torch.int64, (n,) if given.get("return_counts") else (0,))


def _unique_consecutive(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    given = dict(zip(("self", "return_inverse", "return_counts", "dim"), args, strict=False)) | kwargs
    if given.get("dim") is not None:
        raise NotImplementedError("unique_consecutive of a dimension")
    x = given["self"]
    inverse = make(torch.int64, x.shape if given.get("return_inverse") else (0,))
    return make(x.dtype, (n,)), inverse, make(torch.int64, (n,) if given.get("return_counts") else (0,))


def _one_hot(overload: object, args: OpArgs, kwargs: dict[str, object], n: int, make: Make) -> object:
    return make(torch.int64, (*args[0].shape, n))


def _bincount(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    kind = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return make(kind, (n,))


def _repeats(overload: object, args: OpArgs, kwargs: dict[str, object], n: int, make: Make) -> object:
    return make(args[0].dtype, (n,))


def _repeat_interleave(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    x, dim = args[0], args[2] if len(args) > 2 else kwargs.get("dim")
    if dim is None:
        return make(x.dtype, (n,))
    sizes = list(x.shape)
    sizes[dim] = n
    return make(x.dtype, sizes)


def _narrow(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: int, make: Make) -> object:
    # Where it starts follows from data, how much it takes does not.
    x, dim, _, length = args
    return x.narrow(dim, 0, length)


def _pack(overload: object, args: OpArgs, kwargs: dict[str, object], n: tuple[int, int], make: Make) -> object:
    rows, steps = n
    return args[0].new_empty((rows, *args[0].shape[2:])), make(torch.int64, (steps,))


def _pad(overload: Overload, args: OpArgs, kwargs: OpKwargs, n: tuple[int, Any], make: Make) -> object:
    data, steps, batch_first, _, total = args
    length, batch = n
    padded = data.new_empty((total if total > 0 else length, batch, *data.shape[1:]))
    return (padded.transpose(0, 1) if batch_first else padded), steps.new_empty((batch,))


_RULES: dict[str, Rule] = {
    "aten.nonzero.default": _nonzero,
    "aten.argwhere.default": _nonzero,
    "aten.where.default": _where,
    "aten.nonzero_numpy.default": _where,
    "aten.masked_select.default": _masked_select,
    "aten.index.Tensor": _index,
    "aten.narrow.Tensor": _narrow,
    "aten._unique2.default": _unique2,
    "aten.unique_consecutive.default": _unique_consecutive,
    "aten.one_hot.default": _one_hot,
    "aten.bincount.default": _bincount,
    "aten.repeat_interleave.Tensor": _repeats,
    "aten.repeat_interleave.self_Tensor": _repeat_interleave,
    PACK: _pack,
    PAD: _pad,
}


def rule_of(name: str) -> Rule | None:
    """How an operator's results follow from the unknown number; None where that is not known."""
    return _RULES.get(name)
