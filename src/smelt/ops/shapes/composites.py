"""Composites as what torch makes of them, where sizes are known at run time only.

    einsum("bsd,btd->bst", [%x, %y]): f32[B, S, T]   ==>   %1 = permute %x ..; %2 = view %1 [B, S, 4]; %3 = bmm ...

Torch's code takes numbers, so it is followed at several sizes. It must come to the same operators everywhere, and each
number that they are given must be one expression of the operands' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.ir import Arg, Graph, Value, map_values
from smelt.ir.sizes import current_trace
from smelt.ops.composites import CannotFollow, follow, operands_of
from smelt.ops.record import Emitter
from smelt.ops.shapes.points import points, type_at
from smelt.ops.shapes.symbolic import CannotTell, Fit, sizes_in
from smelt.ops.typing import infer


class _Noted:
    """An emitter that only notes what it is asked for."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, tuple[Arg, ...], dict[str, Arg], Value]] = []

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        made = Value(f"step{len(self.steps)}", infer(op, args, kwargs)[0], Graph("steps").body)
        self.steps.append((op, args, kwargs, made))
        return made

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        raise CannotFollow


def follow_at_all_sizes(op: str, b: Emitter, call: Mapping[str, Any]) -> Value:
    """Torch's way at several sizes: it must be the same one, and its numbers must follow from sizes alike."""
    trace = current_trace()
    assert trace is not None
    operands = operands_of(call)
    ways: list[tuple[dict[Value, int], _Noted, Value]] = []
    sizes = sizes_in([v.type for v in operands])
    for at in (tried := points(trace, sizes)):
        noted = _Noted()
        standins = {v: Value(v.name, type_at(v.type, at), v.owner) for v in operands}
        swapped = {name: map_values(arg, standins.__getitem__) for name, arg in call.items()}
        result = follow(op, noted, swapped)
        numbers = {v: i for i, v in enumerate((*standins.values(), *(step[3] for step in noted.steps)))}
        ways.append((numbers, noted, result))
    fit = Fit(op, tried, sizes)
    if len({tuple(step[0] for step in noted.steps) for _, noted, _ in ways}) != 1 or len(tried) < 3:
        raise CannotFollow
    made: list[Value] = list(operands)

    def joined(args: Sequence[Arg]) -> Arg:
        first = args[0]
        if isinstance(first, Value):
            places = {numbers[arg] for (numbers, _, _), arg in zip(ways, args, strict=True) if isinstance(arg, Value)}
            if len(places) != 1:
                raise CannotFollow
            return made[places.pop()]
        if isinstance(first, tuple):
            if any(not isinstance(arg, tuple) or len(arg) != len(first) for arg in args):
                raise CannotFollow
            return tuple(map(joined, zip(*args, strict=True)))
        if type(first) is int:
            try:
                return fit.number(args, fit.pool)  # type: ignore[arg-type]
            except CannotTell as error:
                raise CannotFollow from error
        if any(arg != first for arg in args):
            raise CannotFollow
        return first

    for steps in zip(*(noted.steps for _, noted, _ in ways), strict=True):
        op_name, _, names, _ = steps[0]
        args = [joined(column) for column in zip(*(step[1] for step in steps), strict=True)]
        kwargs = {name: joined([step[2][name] for step in steps]) for name in names}
        made.append(b.call(op_name, *args, **kwargs))
    (place,) = {numbers[result] for numbers, _, result in ways}
    return made[place]
