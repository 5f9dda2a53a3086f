"""What torch's higher-order operators do, as Python with branches and loops, which a capture keeps as such.

Each takes the operator's own arguments and gives its results, in the same order and structure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.library.pytree import tree_flatten, tree_leaves, tree_unflatten

Function = Callable[..., Any]
_UNROLLED = 8


def plain(function: Function) -> Function:
    """A region without what torch.fx wraps around the call of a module, which no number of the data's gets through."""
    forward: Function = getattr(function, "forward", function)
    return forward


def cond(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any] = ()) -> Any:
    """One of two functions of the same operands."""
    if pred:
        return plain(true_fn)(*operands)
    return plain(false_fn)(*operands)


def while_loop(
    cond_fn: Function, body_fn: Function, carried_inputs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> Any:
    """What is carried, once the condition does not hold for it; never the very tensors that were handed in."""
    carried = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried_inputs)
    test, body = plain(cond_fn), plain(body_fn)
    while test(*carried, *additional_inputs):
        carried = tuple(body(*carried, *additional_inputs))
    return carried


def scan(
    combine_fn: Function, init: Sequence[Any], xs: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> list[Any]:
    """The last carry, and what the function gives beside it at each row of `xs`, stacked."""
    count = len(init)
    found = list(combine_fn(*init, *[x[0] for x in xs], *additional_inputs))
    carry, stacked = found[:count], [_room(row, xs[0]) for row in found[count:]]
    for index in range(1, _rows(xs[0])):
        found = list(combine_fn(*carry, *[x[index] for x in xs], *additional_inputs))
        carry = found[:count]
        for into, row in zip(stacked, found[count:], strict=True):
            into[index].copy_(row)
    return [*carry, *stacked]


def map_impl(f: Function, xs: Sequence[Any], pos_args: Sequence[Any] = ()) -> Any:
    """A function of each row of `xs`, its results stacked."""
    first, structure = tree_flatten(f(*[x[0] for x in xs], *pos_args))
    stacked = [None if row is None else _room(row, xs[0]) for row in first]
    for index in range(1, _rows(xs[0])):
        leaves = tree_leaves(f(*[x[index] for x in xs], *pos_args))
        for into, row in zip(stacked, leaves, strict=True):
            if into is not None:
                into[index].copy_(row)
    return tree_unflatten(stacked, structure)


def _room(row: Any, like: Any) -> Any:
    """Room for a row of results for each row of `like`, the first one filled in."""
    made = row.new_empty((like.shape[0], *row.shape))
    made[0].copy_(row)
    return made


def _rows(x: Any) -> int:
    """How many rows there are; where they are many, as a number of the data's, so that the loop stays a loop."""
    rows: int = x.shape[0]
    return rows if rows <= _UNROLLED else rows + int(torch.count_nonzero(x[:0]))
