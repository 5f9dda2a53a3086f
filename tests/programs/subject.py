"""A random program as a live object, one call of it, and the first difference between two calls.

Compared: results (structure, exact numbers, views of what), exceptions (type and text), writes to arguments and
buffers, Python's effects, printed text, torch's random state, gradients where they are asked for.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.differential.compare import Outcome, difference, leaves_of, observe, snapshot, tensor_difference
from tests.programs.objects import PLAIN, Objects, objects
from tests.programs.ways import arguments, between, mode

_LOADED = itertools.count()


@dataclass
class Subject:
    """A program's live object and what can be seen of it outside.

    earlier: where they are to be kept, what the latest calls gave and were given: later ones may change it.
    """

    space: dict[str, Any]
    fn: Any = None
    earlier: list[Any] | None = None

    def __post_init__(self) -> None:
        self.fn = self.space["make"]()

    def args(self, number: int) -> tuple[Any, ...]:
        return tuple(self.space["calls"]()[number])

    def kwargs(self, number: int) -> dict[str, Any]:
        named = self.space.get("named")
        return {} if named is None else dict(named()[number])

    @property
    def holder(self) -> Any:
        return self.space.get("STATE", self.fn)

    def tensors(self) -> list[Tensor]:
        if isinstance(self.fn, torch.nn.Module):
            return [*self.fn.buffers()]
        return [self.holder.buffer, self.holder.steps]

    def effects(self) -> tuple[Any, ...]:
        holder = self.holder
        seen = (holder.count, holder.flag, list(holder.log))
        held = self.space.get("HELD")
        return seen if held is None else (*seen, repr(held), self.space["COUNT"])

    def held(self) -> Mapping[str, Any]:
        """The attributes of its state."""
        return {name: value for name, value in vars(self.holder).items() if not name.startswith("__")}

    def state_text(self) -> str:
        """All of it as text, to be compared with what it is later."""
        return repr([[t.tolist() for t in self.tensors()], self.effects()])


def load(path: Path) -> Subject:
    """A new subject of the program in this file."""
    text = path.read_text()
    # Known to the import system under a name of its own, as classes and exceptions expect it of their module.
    module = types.ModuleType(f"{path.stem}_{next(_LOADED)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(text, str(path), "exec"), module.__dict__)
    return Subject(module.__dict__)


@dataclass
class Seen:
    """What one call did. given: the arguments afterwards. gradients: of arguments and parameters, where asked for.

    objects: those of the result, the arguments and the program's state.
    """

    outcome: Outcome
    given: tuple[Any, ...]
    printed: str
    effects: tuple[Any, ...]
    state: list[Tensor]
    gradients: list[Any] = field(default_factory=list)
    objects: Objects = field(default_factory=Objects)


def call(
    run: Callable[..., Any], subject: Subject, number: int, vary: Random | None = None, grad: Random | None = None
) -> Seen:
    """Call with fresh arguments, and note all that can be seen.

    vary: arguments, mode and state are made otherwise. grad: arguments need gradients, and these are taken.
    """
    args, kwargs = subject.args(number), subject.kwargs(number)
    leaves: list[Tensor] = []
    if vary is not None:
        between(subject.holder, vary)
        args = arguments(args, vary)
    if grad is not None:
        args = tuple(_differentiable(a, leaves, grad) for a in args)
        kwargs = {name: _differentiable(a, leaves, grad) for name, a in kwargs.items()}
        leaves += subject.fn.parameters() if isinstance(subject.fn, torch.nn.Module) else []
    out = io.StringIO()
    given = (*args, *kwargs.values())
    tensors = [a for a in leaves_of(list(given)) if isinstance(a, Tensor)]

    results = []

    def program(*_: Any) -> Any:
        try:
            results.append(run(*args, **kwargs))
        except Exception as error:
            results.append(error)
            raise
        return results[0]

    with contextlib.ExitStack() as stack:
        stack.enter_context(redirect_stdout(out))
        if grad is not None:
            stack.enter_context(torch.enable_grad())
        elif vary is not None:
            stack.enter_context(mode(vary))
        outcome = observe(program, tensors, subject.tensors(), seed=number)
        # Each subject has functions and objects of its own, whose parts are told below.
        outcome.leaves = [a if isinstance(a, (Tensor, *PLAIN)) else _told(a) for a in outcome.leaves]
        gradients = [] if grad is None else _gradients(outcome, leaves)
    state = [snapshot(t) for t in subject.tensors()]
    seen = objects(results, list(given), subject.held(), subject.earlier)
    if subject.earlier is not None:
        subject.earlier = [*subject.earlier[-1:], (_containers(results), given)]
    return Seen(outcome, given, out.getvalue(), subject.effects(), state, gradients, seen)


def _containers(results: list[Any]) -> list[Any]:
    """A result, where looking at it takes nothing from it."""
    return [result for result in results if isinstance(result, (list, tuple, dict, Tensor))]


def _differentiable(value: Any, leaves: list[Tensor], rng: Random) -> Any:
    """A float tensor that needs gradients: a leaf, or what was computed from one."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or rng.random() < 0.2:
        return value
    leaf = value.requires_grad_()
    leaves.append(leaf)
    return leaf * 1 if rng.random() < 0.7 else leaf


def _gradients(outcome: Outcome, leaves: list[Tensor]) -> list[Any]:
    ends = [t for t in outcome.leaves if isinstance(t, Tensor) and t.requires_grad and not t.is_complex()]
    if not ends or not leaves:
        return []
    try:
        total = torch.stack([(end.double() * _weights(end)).sum() * (i + 1) for i, end in enumerate(ends)]).sum()
        # Into `.grad`, whose layout follows from the leaf; `autograd.grad` hands out what the last formula left.
        torch.autograd.backward(total, inputs=leaves)
        return [leaf.grad for leaf in leaves]
    except RuntimeError as error:
        return [str(error)[:60]]
    finally:
        for leaf in leaves:
            leaf.grad = None


def _weights(end: Tensor) -> Tensor:
    """A number for each element: with equal ones a norm has no gradient but noise, and a wrong order would be right."""
    return (torch.arange(end.numel(), dtype=torch.float64) * 5 % 7 - 2.5).reshape(end.shape)


def compare(want: Seen, got: Seen, *, effects: bool = True, aliases: bool = True, random: bool = True) -> str:
    """The first difference as a sentence; empty where there is none. aliases: memory and versions are compared too."""
    a, b = want.outcome, got.outcome
    if said(a) == said(b):
        b.error = a.error
    if a.error is None and b.error is None and not aliases:
        b.shares, b.same, b.written = a.shares, a.same, a.written
    if not random:
        b.generator = a.generator
    text = difference(a, b, is_exact=False)
    if text is None and a.error is not None and a.text != b.text:
        text = f"raised {a.error.__name__}({b.text!r}) instead of ({a.text!r})"
    if text is not None:
        return text
    for i, (x, y) in enumerate(zip(a.leaves, b.leaves, strict=False)):
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.is_inference() != y.is_inference():
            return f"output {i} is {'' if y.is_inference() else 'not '}an inference tensor"
        if isinstance(x, float) and repr(x) != repr(y):
            return f"output {i} is {y!r} instead of {x!r}"
    return _outside(want, got, effects=effects)


def _outside(want: Seen, got: Seen, *, effects: bool) -> str:
    """The first difference in what a call left behind. effects: in Python's objects, too."""
    if not effects:
        return "" if want.printed == got.printed else f"printed {got.printed!r} instead of {want.printed!r}"
    found = [*parts(got.given), *got.state]
    for i, (x, y) in enumerate(zip([*parts(want.given), *want.state], found, strict=False)):
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            text = tensor_difference(x, y, is_exact=False)
            if text is not None:
                return f"argument or state {i}, after the call, {text}"
        elif _told(x) != _told(y):
            return f"argument {i}, after the call, is {y!r} instead of {x!r}"
    if len(parts(want.given)) != len(parts(got.given)):
        return "a list among the arguments has another length after the call"
    if want.printed != got.printed:
        return f"printed {got.printed!r} instead of {want.printed!r}"
    if repr(want.effects) != repr(got.effects):
        return f"effects: {got.effects} instead of {want.effects}"
    if len(want.gradients) != len(got.gradients):
        return f"{len(got.gradients)} gradients instead of {len(want.gradients)}"
    for i, (x, y) in enumerate(zip(want.gradients, got.gradients, strict=True)):
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            if x != y if isinstance(x, str) or isinstance(y, str) else x is not y:
                return f"gradient {i} is {y} instead of {x}"
            continue
        text = tensor_difference(x, y, is_exact=False)
        if text is not None:
            return f"gradient {i} {text}"
    return want.objects.difference(got.objects)


def _told(value: Any) -> str:
    """A value that is no tensor as text; an object by its class's name, since each subject has classes of its own."""
    return f"{type(value).__qualname__} {value!r}" if isinstance(value, PLAIN) else type(value).__qualname__


def said(outcome: Outcome) -> tuple[str, str] | None:
    """An error by its name, since each subject has classes of its own, and its text."""
    return None if outcome.error is None else (outcome.error.__qualname__, outcome.text)


def parts(given: tuple[Any, ...] | Mapping[str, Any]) -> list[Any]:
    """The tensors and plain values among arguments."""
    return list(leaves_of(list(given) if isinstance(given, tuple) else given))
