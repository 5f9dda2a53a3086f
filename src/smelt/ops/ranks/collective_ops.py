"""The operators between ranks as torch's, `smelt_dist::*`, so that a program that calls a rank's model can be captured.

    h = torch.ops.smelt_dist.all_reduce(x, "sum", "tp")      is recorded as      %1 = dist.all_reduce(%0, "sum", "tp")

Invariant: what one computes, its type and its gradient are those of the `dist.*` operator of the same name; here are
the schemas only.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

import torch

from smelt.diag.events import put_aside
from smelt.ir import Region, TensorType, Value
from smelt.ops.convert import dtype_to_torch, type_of
from smelt.ops.python.python_ops import PyOp, python_op
from smelt.ops.ranks import expert_rows

NAMESPACE: Final = "smelt_dist"
_SCHEMAS: Final = (
    "all_reduce(Tensor x, str op, str axis) -> Tensor",
    "all_gather(Tensor x, int dim, int[] sizes, int blocks, int rank, str axis, *, bool entered=False) -> Tensor",
    "reduce_scatter(Tensor x, int dim, int[] sizes, int blocks, int rank, str axis) -> Tensor",
    "all_to_all(Tensor x, int dim, int[] sizes, int blocks, int to, int[] to_sizes, int to_blocks, int rank, str axis)"
    " -> Tensor",
    "broadcast(Tensor x, int source, str axis) -> Tensor",
    "agree(Tensor x, str said, str axis) -> Tensor",
    "enter(Tensor x, str axis) -> Tensor",
    "shard(Tensor x, int dim, int[] sizes, int blocks, int rank, str axis) -> Tensor",
    "own_noise(Tensor ones, float p, int rank, str axis) -> Tensor",
    "send_rows(Tensor x, Tensor ends, int[] sizes, int count, int rank, str axis) -> Tensor",
    "return_rows(Tensor x, Tensor ends, int[] sizes, int count, int rank, str axis) -> Tensor",
    "take_rows(Tensor x, Tensor ends, int[] sizes, int rank) -> Tensor",
    "put_rows(Tensor x, Tensor ends, int[] sizes, int rank) -> Tensor",
    "own_ends(Tensor ends, int[] sizes, int rank) -> Tensor",
)
_BY_DATA: Final = frozenset(("own_noise",))
"""Those that draw random numbers."""


def name_of(overload: str) -> str:
    """The name in a graph of an operator that torch knows by this one: `dist.all_reduce` of that here, else its own."""
    space, _, rest = overload.partition(".")
    return f"dist.{rest.partition('.')[0]}" if space == NAMESPACE else overload


@lru_cache(maxsize=1)
def register() -> torch.library.Library:
    """Make the operators known to torch; what keeps them known."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        library.define(schema, tags=(torch.Tag.nondeterministic_seeded,) if name in _BY_DATA else ())
        python = python_op(f"dist.{name}")
        assert python is not None
        library.impl(name, partial(_run, python), "CPU")
        library.impl(name, partial(_typed, python), "Meta")
        if python.name in expert_rows.GRADIENTS:
            torch.library.register_autograd(
                f"{NAMESPACE}::{name}", partial(_backward, python.name), setup_context=_remember, lib=library
            )
    return library


def _run(python: PyOp, *args: Any, **kwargs: Any) -> Any:
    """Compute it; what torch.distributed does meanwhile is no part of a program that is captured."""
    with put_aside():
        return python.run(*args, **kwargs)


def _typed(python: PyOp, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A tensor without data of the type that the operator gives."""
    (type_,) = python.result(tuple(_as_value(a) for a in args))
    assert isinstance(type_, TensorType)
    tensor = next(a for a in args if isinstance(a, torch.Tensor))
    return tensor.new_empty_strided(type_.sizes, type_.steps, dtype=dtype_to_torch(type_.dtype))


def _as_value(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return Value("x", type_of(arg), Region())
    return tuple(arg) if isinstance(arg, list) else arg


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: Any = None) -> None:
    first, *rest = inputs
    ctx.first, ctx.rest, ctx.named = first.to("meta"), rest, dict(keyword_only_inputs or {})


class _Now:
    """The `Emitter` that runs what it is told, of values that stand for tensors."""

    def __init__(self) -> None:
        self.tensors: dict[int, Any] = {}

    def value(self, arg: Any) -> Any:
        """What stands for a tensor; anything else as it is."""
        made = _as_value(arg)
        if made is not arg and isinstance(made, Value):
            self.tensors[id(made)] = made, arg
        return made

    def call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """As of `Emitter`."""
        run = getattr(torch.ops.smelt_dist, op.partition(".")[2])
        return self.value(run(*(self.of(a) for a in args), **kwargs))

    def calls(self, op: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As of `Emitter`."""
        return (self.call(op, *args, **kwargs),)

    def as_torch_does(self, op: str, call: Any) -> None:
        """No collective is made of torch's own code."""

    def of(self, arg: Any) -> Any:
        """The tensor that a value stands for."""
        return self.tensors[id(arg)][1] if isinstance(arg, Value) else arg


def _backward(name: str, ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    now = _Now()
    args = [now.value(ctx.first), *map(now.value, ctx.rest)]
    found = expert_rows.GRADIENTS[name](now, args, ctx.named, now.value(grad.contiguous()))
    return (now.of(found), *(None for _ in ctx.rest))
