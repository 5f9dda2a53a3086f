"""A program as the matrix runs it: what to call, with what, whether it trains; and the same with more rows.

Invariant: `flat()` computes what the program computes, from a flat tuple of tensors, which every exporter takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.models import Built, Model, flatten
from smelt.bench.training_models import Gradients
from smelt.diag.records import record


@record
class Program:
    """What to measure. trains: a call is a step of training, whose loss is the program's result."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = False

    def flat(self) -> Built:
        """The program itself if it takes tensors by position only, else a module that fills them in."""
        if not self.kwargs and all(isinstance(value, Tensor) for value in self.args):
            return self.function, self.args
        held = (list(self.args), dict(self.kwargs))
        return Filled(self.function, *held), tuple(_tensors(held))


def program_of(model: Model) -> Program:
    """A model of the benchmark as a program; of one that is trained its loss."""
    target, args = model.build()
    return Program(model.name, target.loss if isinstance(target, Gradients) else target, args, trains=model.trains)


class Filled(nn.Module):
    """`function` called with these arguments, in the place of whose tensors stand, in order, those it is given."""

    def __init__(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.args: list[Any] = _filled(args, lambda: _HOLE)
        self.kwargs: dict[str, Any] = _filled(kwargs, lambda: _HOLE)

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        args: list[Any] = _filled(self.args, lambda: next(rest))
        kwargs: dict[str, Any] = _filled(self.kwargs, lambda: next(rest))
        return self.function(*args, **kwargs)


_HOLE = "<tensor>"


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in lists, tuples and dictionaries, in order."""
    if isinstance(value, Tensor):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in inner for tensor in _tensors(item)]


def _filled(value: Any, fill: Callable[[], Any]) -> Any:
    """Lists, tuples and dictionaries anew, each tensor, or where one was taken out, filled in."""
    if isinstance(value, Tensor) or value is _HOLE:
        return fill()
    if isinstance(value, Mapping):
        return {key: _filled(item, fill) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_filled(item, fill) for item in value])
    return value


class Loss(nn.Module):
    """A program as the loss of a step of training: its result, if that is one number, else the mean of its squares."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        found = [t for t in flatten(self.function(*args)) if t.is_floating_point()]
        if len(found) == 1 and found[0].ndim == 0:
            return found[0]
        return torch.stack([t.float().square().mean() for t in found]).sum()


def rows_of(args: tuple[Tensor, ...]) -> int | None:
    """The size of the first dimension of the first argument that has one: the rows of a batch."""
    return next((a.shape[0] for a in args if a.ndim), None)


def with_rows(args: tuple[Tensor, ...], times: int) -> tuple[Tensor, ...]:
    """The arguments with `times` the rows: all whose first dimension is as large as the first argument's."""
    rows = rows_of(args)
    return tuple(torch.cat([a] * times) if a.ndim and a.shape[0] == rows else a for a in args)
