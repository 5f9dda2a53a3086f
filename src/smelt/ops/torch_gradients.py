"""`py.vjp`: the gradient of an operator by torch's own backward, for operators that have none in the catalogue.

    %3: (f32[3, 3], f32[3, 2]) = py.vjp("aten.linalg_solve.default", [0, 1], [%g], [], %a, %y)
    %4: (f32[4],) = py.vjp("aten.cumprod.default", [0], [%g], ["dtype"], %x, 0, f32)

The operator runs again, and autograd goes back through it. Of a gradient by `py.vjp` the gradient is one, too.

`py.gradient`: the gradient of what the program computed so far, as `backward()` and `autograd.grad` give it.

    %7: (f32[8, 4],) = py.gradient([%loss], [None], [%weight])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch

from smelt.ir import ANY, Arg, TensorType, TupleType, Type, values_in
from smelt.ops.python.called import as_called
from smelt.ops.registry import overload

NAME = "py.vjp"
GRADIENT = "py.gradient"


def vjp(
    name: str, positions: Sequence[int], grads: Sequence[Any], names: Sequence[str], *args: Any
) -> list[torch.Tensor]:
    """The gradients of an operator's operands, counted among the tensors in `args`, row-major.

    positions: of which operands. grads: of its results, None for one that has none. names: of the last arguments, which
    are passed by name.
    """
    with torch.enable_grad():
        own = _with(args, [_as_leaf(a) if i in positions else a for i, a in enumerate(_values(args))])
        made = _results(name, positions, grads, names, own)
    return [g.detach().contiguous() for g in made]


def _results(
    name: str, positions: Sequence[int], grads: Sequence[Any], names: Sequence[str], args: Sequence[Any]
) -> list[torch.Tensor]:
    """The same with a history of its own, of operands that have one."""
    given = list(_values(args))
    wanted = [given[i] for i in positions]  # each use apart, though two may be one tensor
    aliases = [t.view_as(t) if t.layout == torch.strided else t.clone() for t in wanted]
    for i, alias in zip(positions, aliases, strict=True):
        given[i] = alias
    results = _called(name, _with(args, given), names)
    pairs = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in wanted]
    outputs, own_grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, aliases, own_grads, create_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]


def _called(name: str, args: Sequence[Any], names: Sequence[str]) -> list[Any]:
    if name == NAME:
        inner, positions, grads, inner_names, *operands = args
        return _results(inner, positions, grads, inner_names, operands)
    count = len(args) - len(names)
    found, operands = as_called(name, overload(name), list(args[:count]))
    result = found(*operands, **dict(zip(names, args[count:], strict=True)))
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _values(args: Any) -> Iterator[Any]:
    """The tensors of a call, in order."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _values(arg)


def _with(args: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    left = iter(given)

    def swapped(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return next(left)
        return [swapped(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

    return list(map(swapped, args))


def gradient(
    roots: Sequence[torch.Tensor], grads: Sequence[Any], wrt: Sequence[torch.Tensor], *, create_graph: bool = False
) -> list[torch.Tensor]:
    """The gradients of `roots` by `wrt`, added up; grads: those of the roots, None for a one.

    Of a graph that runs under autograd; else the gradients are written out in it (`autodiff.with_gradients`).
    """
    found = torch.autograd.grad(
        roots, wrt, grads, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )  # fmt: skip
    return list(found)


def types_of_gradient(args: Sequence[Arg]) -> tuple[Type, ...]:
    """One tuple of the types of what the gradients are by."""
    types = [v.type for v in values_in(args[2])]
    made = [TensorType(t.dtype, t.shape, None, t.device) for t in types if isinstance(t, TensorType)]
    return (TupleType(tuple(made)) if len(made) == len(types) else ANY,)


def types_of_vjp(args: Sequence[Arg]) -> tuple[Type, ...]:
    """One tuple of the operands' types, row-major; `any` where the arguments are no call of it."""
    positions = args[1]
    operands = [v.type for v in values_in(tuple(args[4:]))]
    chosen = [operands[i] for i in positions if isinstance(i, int) and i < len(operands)] if _is_list(positions) else []
    made = [TensorType(t.dtype, t.shape, None, t.device) for t in chosen if isinstance(t, TensorType)]
    return (TupleType(tuple(made)) if _is_list(positions) and len(made) == len(positions) else ANY,)


def _is_list(arg: Arg) -> TypeGuard[tuple[Arg, ...]]:
    return isinstance(arg, tuple)
