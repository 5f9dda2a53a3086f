"""Composite operators as what torch itself makes of them.

einsum("bhid,bhdj->bhij", [%q, %k])   ==>   %1 = permute %q ..; %2 = permute %k ..; %3 = bmm %1 %2; ...

The composite's own code runs over memory that is never touched, and each operator that it calls becomes a node: none
of them runs. Its path depends on types alone, so these are the operators that eager runs, one by one. Torch's code
takes numbers, so where sizes are known at run time only it is followed at several sizes: it must come to the same
operators everywhere, and each number that they are passed must be one expression of the operands' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import raw_schema
from smelt._torch.seen.dispatch_mode import AVAILABLE, intercepting
from smelt._torch.seen.light_fake import unmarked
from smelt.diag import InternalError
from smelt.ir import Arg, Graph, TensorType, Value, map_values, values_in
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.convert import dummy_of, from_torch, to_torch
from smelt.ops.record import Call, Emitter
from smelt.ops.registry import functional_twin, overload, schema_of, tags_of
from smelt.ops.shapes.points import points, type_at
from smelt.ops.shapes.symbolic import CannotTell, Fit, sizes_in
from smelt.ops.typing import infer


class CannotFollow(Exception):
    """The composite does something that is not one node with one tensor as its result."""


class FollowsTorch:
    """What an `Emitter` has for composites."""

    def as_torch_does(self: Emitter, op: str, call: Call) -> Arg | None:
        """The result of what torch's own code for a composite comes to; None where that cannot be told."""
        try:
            if current_trace() is not None and any(map(_has_sizes, operands_of(call))):
                return follow_at_all_sizes(op, self, call)
            return follow(op, self, call)
        except (CannotFollow, InternalError, RuntimeError):
            # What torch refuses raises where the program runs.
            return None


def follow(op: str, b: Emitter, call: Mapping[str, Any]) -> Value:
    """The result of the nodes that torch's code comes to. Raises: CannotFollow, and what torch raises."""
    found, schema = overload(op), schema_of(op)
    if found is None or schema is None or not AVAILABLE:
        raise CannotFollow
    walk = _Walk(b)
    positional = [a.name for a in schema.positional]
    args = [walk.start(call[name]) for name in positional]
    kwargs = {name: walk.start(value) for name, value in call.items() if name not in positional}
    with torch.enable_grad(), unmarked(), intercepting(walk.step):
        result = found(*args, **kwargs)
    return walk.value(result)


def operands_of(call: Mapping[str, Any]) -> list[Value]:
    """The values of a call, each once."""
    return list(dict.fromkeys(v for arg in call.values() for v in values_in(arg)))


def _has_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and is_symbolic((value.type.shape, value.type.strides))


class _Walk:
    """A run over tensors without content, and the value that each of them stands for."""

    def __init__(self, b: Emitter) -> None:
        self.b = b
        self.started: dict[Value, torch.Tensor] = {}
        # Tensors are kept, so that no two have had the same identity.
        self.known: dict[int, tuple[torch.Tensor, Value]] = {}
        self.shared: set[int] = set()

    def start(self, arg: Any) -> Any:
        """An argument of the composite, for torch."""
        if isinstance(arg, Value):
            if not isinstance(arg.type, TensorType) or not arg.type.is_static or arg.type.device != "cpu":
                raise CannotFollow
            if arg not in self.started:
                self.started[arg] = dummy_of(arg.type)
                self.keep(self.started[arg], arg)
            return self.started[arg]
        return [self.start(item) for item in arg] if isinstance(arg, tuple) else to_torch(arg)

    def keep(self, tensor: torch.Tensor, value: Value) -> torch.Tensor:
        self.known[id(tensor)] = (tensor, value)
        return tensor

    def value(self, tensor: Any) -> Value:
        """What a tensor stands for."""
        found = self.known.get(id(tensor))
        if found is None:
            raise CannotFollow
        return found[1]

    def step(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """One operator that the composite calls: a node, and a tensor like its result."""
        schema = raw_schema(func)
        if len(schema.returns) != 1 or not torch.is_grad_enabled():
            raise CannotFollow  # what it does without gradients is constant to autograd, and not to a graph
        if schema.is_mutable:
            return self.update(func, args, kwargs)
        if str(func) == "aten._reshape_alias.default":
            func, args, kwargs = torch.ops.aten.view.default, args[:2], {}
        made = self.b.call(str(func), *map(self._arg, args), **{k: self._arg(v) for k, v in kwargs.items()})
        if not isinstance(made.type, TensorType) or not made.type.is_static:
            raise CannotFollow
        result = self.keep(dummy_of(made.type), made)
        if schema.returns[0].alias_info is not None:
            self.shared.update(map(id, (result, *(arg for arg in args if isinstance(arg, torch.Tensor)))))
        return result

    def update(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        """An operator that works in place, on a tensor of the composite's own that no other shares."""
        twin, target = functional_twin(str(func)), args[0]
        draws = "nondeterministic_seeded" in tags_of(str(func))
        is_own = isinstance(target, torch.Tensor) and all(target is not given for given in self.started.values())
        if twin is None or draws or not is_own or id(target) in self.shared:
            raise CannotFollow
        before = self.value(target)
        made = self.b.call(twin, *map(self._arg, args), **{k: self._arg(v) for k, v in kwargs.items()})
        if made.type != before.type:
            raise CannotFollow
        return self.keep(target, made)

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, torch.Tensor):
            return self.value(arg)
        return tuple(map(self._arg, arg)) if isinstance(arg, (list, tuple)) else from_torch(arg)


class _Noted(FollowsTorch):
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
