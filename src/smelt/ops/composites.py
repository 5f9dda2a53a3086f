"""Composite operators as what torch itself makes of them.

einsum("bhid,bhdj->bhij", [%q, %k])   ==>   %1 = permute %q ..; %2 = permute %k ..; %3 = bmm %1 %2; ...

The composite's own code runs over memory that is never touched, and each operator that it calls becomes a node: none
of them runs. Its way depends on types alone, so these are the operators that eager runs, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import raw_schema
from smelt._torch.seen.dispatch_mode import AVAILABLE, intercepting
from smelt.diag import InternalError
from smelt.ir import Arg, TensorType, Value, values_in
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.convert import dummy_of, from_torch, to_torch
from smelt.ops.record import Call, Emitter, Lowering
from smelt.ops.registry import functional_twin, overload, schema_of, tags_of


class CannotFollow(Exception):
    """The composite does something that is not one node with one tensor as its result."""


def as_torch_does(op: str) -> Lowering:
    """The lowering of a composite with one result, by following torch's own code for it."""

    def lower(b: Emitter, call: Call) -> Arg | None:
        try:
            if current_trace() is not None and any(map(_has_sizes, operands_of(call))):
                return _at_all_sizes(op, b, call)
            return follow(op, b, call)
        except (CannotFollow, InternalError, RuntimeError):
            # What torch refuses raises where the program runs.
            return None

    return lower


def follow(op: str, b: Emitter, call: Mapping[str, Any]) -> Value:
    """The result of the nodes that torch's code comes to. Raises: CannotFollow, and what torch raises."""
    found, schema = overload(op), schema_of(op)
    if found is None or schema is None or not AVAILABLE:
        raise CannotFollow
    walk = _Walk(b)
    positional = [a.name for a in schema.positional]
    args = [walk.start(call[name]) for name in positional]
    kwargs = {name: walk.start(value) for name, value in call.items() if name not in positional}
    with torch.enable_grad(), intercepting(walk.step):
        result = found(*args, **kwargs)
    return walk.value(result)


def operands_of(call: Mapping[str, Any]) -> list[Value]:
    """The values of a call, each once."""
    return list(dict.fromkeys(v for arg in call.values() for v in values_in(arg)))


def _has_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and is_symbolic((value.type.shape, value.type.strides))


def _at_all_sizes(op: str, b: Emitter, call: Mapping[str, Any]) -> Value:
    # What tells types asks the catalogue, which asks this module.
    from smelt.ops.shapes.composites import follow_at_all_sizes  # noqa: PLC0415

    return follow_at_all_sizes(op, b, call)


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
