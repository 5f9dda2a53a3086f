"""The symbols of a call: which of its sizes and numbers they are, and the arguments that a staged run gets instead.

A tensor with a symbolic size becomes a fake tensor of such sizes. It keeps its sizes where it is in the memory of
another argument or of the program's state, where it is a view of a complex tensor, or not strided.

Strides of a tensor that fills its memory in some order of its dimensions follow from its sizes; others are numbers,
and hold for tensors that lie so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch.library.schemas import OpKwargs
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.spec import Free, Origin, SizeFacts, SizeGuard, Spec
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import sized
from smelt.capture.structure.signature import Arguments
from smelt.capture.structure.state import STATE
from smelt.capture.structure.tree import ConstantLeaf, Container, Flattener, NumberLeaf, Tree, leaves, mapped, rebuild
from smelt.diag import CaptureError
from smelt.ir import size_terms as terms
from smelt.ir.size_trace import Range, Symbol

LARGEST = 1 << 62
"""No size is larger."""
_AXES = {1: ("N",), 2: ("B", "S"), 3: ("B", "S", "D"), 4: ("B", "C", "H", "W"), 5: ("B", "C", "D", "H", "W")}


@dataclass(slots=True)
class Symbols:
    """The symbols of one run, and what the program is called with.

    given: the values of the symbols in the call, where a hint may stand for a size of 1.
    tensors: what the program gets for each tensor of the arguments. numbers: the graph's further inputs.
    args_tree, kwargs_tree: the structure of calls, with number leaves.
    """

    trace: CaptureTrace
    origins: dict[str, Origin] = field(default_factory=dict)
    given: dict[str, int | float] = field(default_factory=dict)
    tensors: list[torch.Tensor] = field(default_factory=list)
    numbers: list[SizeSlot] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    containers: Mapping[int, str] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    kwargs: OpKwargs = field(default_factory=dict)
    args_tree: Container = field(default_factory=lambda: Container("sequence", tuple, ()))
    kwargs_tree: Container = field(default_factory=lambda: Container("mapping", dict, ()))

    def rename_containers(self, made: Mapping[str, object], given: Mapping[str, object]) -> None:
        """Note that other containers stand in the keywords of the call than were made for it, at the same places."""
        if made.get(STATE) is not given.get(STATE):
            flattener = Flattener()
            flattener.flatten(self.args, "args")
            flattener.flatten(dict(given), "kwargs")
            self.containers = flattener.containers

    def facts(self) -> SizeFacts:
        """What the run found out."""
        trace = self.trace
        guards = tuple(
            SizeGuard(
                _shown(trace, guard), None if site is None else site.span, guard.outcome, _check(trace, guard), use
            )
            for guard, site, use in zip(trace.guards, trace.sites, trace.uses, strict=True)
        )
        fixed: dict[str, int | float] = {}
        equal: dict[str, str] = {}
        for index, atom in enumerate(trace.atoms):
            if not isinstance(atom, Symbol):
                continue
            if index in trace.known_floats:
                fixed[atom.name] = trace.known_floats[index]
            elif index in trace.known:
                known = trace.resolved(terms.atom(index))
                if terms.is_constant(known):
                    fixed[atom.name] = terms.constant_of(known)
                else:
                    equal[atom.name] = trace.text(known)
        return SizeFacts(dict(self.origins), guards, fixed, equal)


def _shown(trace: CaptureTrace, guard: Any) -> str:
    """A guard with what is taken away on the other side."""
    if guard.floats is not None:
        text: str = guard.text
        return text if guard.outcome else text.removeprefix("not ")
    left = tuple(t for t in guard.poly if t[1] > 0)
    right = tuple((m, -c) for m, c in guard.poly if c < 0)
    return f"{trace.text(left)} {guard.relation} {trace.text(right)}"


def _check(trace: CaptureTrace, guard: Any) -> Callable[[Mapping[str, int | float]], bool]:
    def check(values: Mapping[str, int | float]) -> bool:
        try:
            if guard.floats is None:
                found = trace.evaluate(guard.poly, values)
                return found <= 0 if guard.relation == "<=" else (found == 0) is (guard.relation == "==")
            left, right = (trace.evaluate_float(e, values) for e in guard.floats)
            answers = {"<": left < right, "<=": left <= right, "==": left == right}
            return answers[guard.relation] is guard.outcome
        except (ArithmeticError, TypeError, ValueError):
            # What is compared has no value there: the program would have raised, or gone another way.
            return False

    return check


def make_symbols(
    spec: Spec, arguments: Arguments, fakes: FakeTensors, trace: CaptureTrace, held: frozenset[int]
) -> Symbols:
    """The symbols that a spec asks for. held: memory that belongs to state.

    Raises: CaptureError where one name is given to different values.
    """
    found = Symbols(trace)
    fakes.admit_symbols()
    taken = {free.name for free in spec.values() if free.name is not None}
    memory = [_memory(tensor) for tensor in arguments.tensors]
    for number, (tensor, path) in enumerate(zip(arguments.tensors, arguments.paths, strict=True)):
        asked = {dim: free for (place, dim), free in spec.items() if place == path and dim is not None}
        shared = memory[number] is None or memory.count(memory[number]) > 1 or memory[number] in held
        if not asked or shared or tensor.is_conj() or tensor.is_neg():
            found.tensors.append(tensor)
            continue
        found.tensors.append(_fake(found, tensor, number, asked, fakes, taken))
    found.paths = list(arguments.paths)
    values = _numbers(found, spec, arguments, taken)
    trees = [
        mapped(tree, name, lambda path, leaf: ConstantLeaf(values[path][0]) if path in values else leaf)
        for tree, name in ((arguments.args, "args"), (arguments.kwargs, "kwargs"))
    ]
    found.args, found.kwargs = (rebuild(tree, found.tensors) for tree in trees)
    flattener = Flattener()
    flattener.flatten(found.args, "args")
    flattener.flatten(found.kwargs, "kwargs")
    found.containers = flattener.containers

    def as_input(path: str, leaf: ConstantLeaf) -> Tree:
        return NumberLeaf(values[path][1], type(leaf.value)) if path in values else leaf

    args_tree, kwargs_tree = mapped(arguments.args, "args", as_input), mapped(arguments.kwargs, "kwargs", as_input)
    assert isinstance(args_tree, Container) and isinstance(kwargs_tree, Container)
    found.args_tree, found.kwargs_tree = args_tree, kwargs_tree
    return found


def _numbers(found: Symbols, spec: Spec, arguments: Arguments, taken: set[str]) -> dict[str, tuple[Any, int]]:
    """By path: what the program gets for a number that is a symbol, and which input it is."""
    values: dict[str, tuple[Any, int]] = {}
    for tree, root in ((arguments.args, "args"), (arguments.kwargs, "kwargs")):
        for path, leaf in leaves(tree, root):
            free = spec.get((path, None))
            if free is None or not isinstance(leaf, ConstantLeaf) or type(leaf.value) not in (int, float):
                continue
            value, index = leaf.value, len(found.tensors) + len(found.numbers)
            low = -math.inf if free.low is None else free.low
            high = math.inf if free.high is None else free.high
            name = free.name or _fresh("n" if isinstance(value, int) else "f", found, taken)
            number = _symbol(found, name, value, (low, high), index, None)
            if found.origins[name].input != index:
                # What it equals is read elsewhere, and this one is read here, too: that they are one is a guard.
                first = number
                number = _symbol(found, _fresh(name, found, taken), value, (low, high), index, None)
                bool(sized(found.trace, first) == sized(found.trace, number))
            found.given[name] = value
            found.numbers.append(SizeSlot(found.trace, number))
            found.paths.append(path)
            values[path] = sized(found.trace, number), index
    return values


def _fake(
    found: Symbols, tensor: torch.Tensor, number: int, asked: Mapping[int, Free], fakes: FakeTensors, taken: set[str]
) -> torch.Tensor:
    sizes: list[object] = list(tensor.shape)
    letters = _AXES.get(tensor.dim(), ())
    for dim, free in sorted(asked.items()):
        if free.only is not None:
            sizes[dim] = free.only
            continue
        given = tensor.shape[dim]
        value = free.hint if free.hint is not None and given == 1 else given
        low = min(2, value) if free.low is None else free.low
        name = free.name or _fresh(letters[dim] if dim < len(letters) else "D", found, taken)
        bounds = (low, LARGEST if free.high is None else free.high)
        sizes[dim] = sized(found.trace, _symbol(found, name, value, bounds, number, dim))
        found.given[name] = given
    strides = _strides(tensor, sizes)
    return fakes.fresh(tensor.dtype, sizes, strides, tensor.device, tensor.requires_grad)


def _symbol(found: Symbols, name: str, value: Any, bounds: tuple[float, float], index: int, dim: int | None) -> object:
    before = found.origins.get(name)
    if before is not None:
        if before.hint != value or type(before.hint) is not type(value):
            raise CaptureError(
                f"{name} is {before.hint} in one argument and {value} in another",
                why="equal names are equal sizes",
                fix="give them different names",
                code="S0106",
            )
        return found.trace.symbol(name, value, bounds)
    low, high = bounds
    limits = Range(int(low) if low > -math.inf else -LARGEST, int(high) if high < LARGEST else None)
    found.origins[name] = Origin(index, dim, value, None if isinstance(value, float) else limits)
    return found.trace.symbol(name, value, bounds)


def _fresh(base: str, found: Symbols, taken: set[str]) -> str:
    name, number = base, 1
    while name in found.origins or name in taken:
        number += 1
        name = f"{base}{number}"
    return name


def _strides(tensor: torch.Tensor, sizes: Sequence[object]) -> list[object]:
    """The strides in symbols where the tensor fills its memory, in whatever order."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    order = sorted(range(len(shape)), key=lambda i: (strides[i], shape[i] == 1 and type(sizes[i]) is int, -i))
    expected: Any = 1
    now = 1
    found = list(strides)
    for i in order:
        if strides[i] != now and shape[i] != 1:
            return strides
        if strides[i] == now:
            found[i] = expected
        expected, now = expected * sizes[i], now * shape[i]
    return found


def _memory(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided:
        return None
    storage = tensor.untyped_storage()
    return storage.data_ptr() or id(tensor)


def held_memory(tensors: Sequence[torch.Tensor]) -> frozenset[int]:
    """The memory of state."""
    return frozenset(found for tensor in tensors if (found := _memory(tensor)) is not None)


__all__ = ["Symbols", "held_memory", "make_symbols"]
