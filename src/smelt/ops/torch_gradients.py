"""`py.vjp`: the gradient of an operator by torch's own backward, for operators that have none in the catalogue.

    %3: (f32[4], f32[4]) = py.vjp("aten.hypot.default", [0, 1], [%g], %x, %y)

The operator runs again, and autograd goes back through it. Of a gradient by `py.vjp` the gradient is one, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch

from smelt.ir import ANY, Arg, TensorType, TupleType, Type, values_in
from smelt.ops.called import as_called
from smelt.ops.registry import overload

NAME = "py.vjp"


def vjp(name: str, positions: Sequence[int], grads: Sequence[Any], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The gradients of an operator's operands, counted among its tensors and numbers that are values, contiguous.

    positions: of which operands. grads: of its results, None for one that has none.
    """
    with torch.enable_grad():
        given = [_as_leaf(a) if i in positions else a for i, a in enumerate(_values(args, kwargs))]
        own_args, own_kwargs = _with(args, kwargs, given)
        made = _results(name, positions, grads, own_args, own_kwargs)
    return [g.detach().contiguous() for g in made]


def _results(
    name: str, positions: Sequence[int], grads: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """The same with a history of its own, of operands that have one."""
    given = list(_values(args, kwargs))
    wanted = [given[i] for i in positions]  # each use apart, though two may be one tensor
    aliases = [t.view_as(t) for t in wanted]
    for i, alias in zip(positions, aliases, strict=True):
        given[i] = alias
    own_args, own_kwargs = _with(args, kwargs, given)
    results = _called(name, own_args, own_kwargs)
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in wanted]
    outputs, own_grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, aliases, own_grads, create_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def _called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if name == NAME:
        inner, positions, grads, *operands = args
        return _results(inner, positions, grads, tuple(operands), kwargs)
    found, operands = as_called(name, overload(name), list(args))
    result = found(*operands, **kwargs)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _values(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The tensors of a call, in order."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _values(arg, {})


def _with(args: Any, kwargs: dict[str, Any], given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    left = iter(given)

    def swapped(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return next(left)
        return [swapped(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

    return tuple(map(swapped, args)), {name: swapped(arg) for name, arg in kwargs.items()}


def types_of_vjp(args: Sequence[Arg]) -> tuple[Type, ...]:
    """One tuple of the operands' types, row-major; `any` where the arguments are no call of it."""
    positions = args[1]
    operands = [v.type for v in values_in(tuple(args[3:]))]
    chosen = [operands[i] for i in positions if isinstance(i, int) and i < len(operands)] if _is_list(positions) else []
    made = [TensorType(t.dtype, t.shape, None, t.device) for t in chosen if isinstance(t, TensorType)]
    return (TupleType(tuple(made)) if _is_list(positions) and len(made) == len(positions) else ANY,)


def _is_list(arg: Arg) -> TypeGuard[tuple[Arg, ...]]:
    return isinstance(arg, tuple)
