"""A graph with symbols in its types, lowered once for all sizes that its guards allow.

The graph is lowered with `Size`s in the place of its symbols: what comes out is a plan whose numbers are expressions.
It is then lowered again at other sizes within the guards, with the same blind decisions and without building
kernels, and every number, slot and kernel is compared with the first plan's expressions there. Where anything differs,
asks for a number, or becomes text, the graph is not symbolic (`NotSymbolic`), and is lowered for each tuple of sizes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from itertools import islice
from typing import Any

import torch

from smelt.codegen.lower.lowering import lower
from smelt.codegen.lower.result import Lookup, Lowered, OutputRecipe
from smelt.codegen.lower.symbolic.code import guards_function, words_function
from smelt.codegen.lower.symbolic.prologue import Prologue, prologue_of
from smelt.codegen.lower.symbolic.substitute import substituted
from smelt.codegen.lower.symbolic.template import NotSymbolic, at_hand, numbers_of, templated
from smelt.diag import InternalError, Options, SmeltError
from smelt.diag.records import distinct_record
from smelt.ir import Graph, Sym, TensorType
from smelt.ir.sizes import Evaluation, Range, Size, Trace, evaluating, tracing
from smelt.runtime.encoding.sizes import Held, SizedExecutable, SizedPlan, filled
from smelt.runtime.plan import CheckLayout

_CHECKS = 2
_ATTEMPTS = 4000


@distinct_record
class SymbolicLowered:
    """A plan for many sizes with what its caller must know.

    lowered: the plan at the sizes of the hints, with its handles, constants, mutations and report. guards: what must
    hold beside the ranges, each with the line that asked. outputs: as of `Lowered`, for each tuple of sizes. checked:
    the sizes at which another lowering came to the same plan; `check`: has that done where it has not been yet.
    """

    plan: SizedPlan
    lowered: Lowered
    guards: tuple[tuple[str, str], ...]
    outputs: Callable[[tuple[int, ...]], tuple[OutputRecipe, ...]]
    _pending: list[Callable[[], tuple[tuple[int, ...], ...]]]
    _checked: list[tuple[int, ...]]

    @property
    def checked(self) -> tuple[tuple[int, ...], ...]:
        """The sizes at which another lowering came to the same plan."""
        return tuple(self._checked)

    def check(self) -> None:
        """Lower again at other sizes, unless that was done: before, the plan is right for the sizes at hand alone.

        Raises: NotSymbolic where that comes to another plan.
        """
        if self._pending:
            self._checked.extend(self._pending[0]())
            self._pending.clear()

    def at(self, sizes: tuple[int, ...]) -> Lowered:
        """The plan for these sizes alone."""
        return replace(self.lowered, plan=self.plan.at(sizes), outputs=self.outputs(sizes))

    def recipes(self, sizes: tuple[int, ...]) -> Lowered:
        """The same for a caller that runs `executable.at(sizes)`: its plan is that of the hints, whose slots, outputs
        and held tensors are those of all sizes.
        """
        return replace(self.lowered, outputs=self.outputs(sizes))

    def executable(self, machine_code: bytes | None) -> SizedExecutable:
        """What runs the plan, to be made once: it keeps one encoding for all sizes."""
        return SizedExecutable(self.plan, machine_code)


def lower_symbolic(
    graph: Graph,
    state: Lookup,
    options: Options | None,
    hints: Mapping[str, int],
    ranges: Mapping[str, Range],
    *,
    inputs: Mapping[int, str] | None = None,
    holds: Callable[..., bool] | None = None,
    for_files: bool = False,
    checks_later: bool = False,
) -> SymbolicLowered:
    """The plan of an optimized graph for all sizes of its symbols.

    hints: the sizes at hand. inputs: inputs that are numbers and symbols, by position. holds: what else must hold of
    the symbols, in order, for the graph to be right. for_files: another process runs the plan, which is told how held
    tensors are made; it computes nothing by torch for each tuple of sizes, and may not be run here. checks_later: other
    sizes are checked when they are asked for (`SymbolicLowered.check`).
    Raises: NotSymbolic; SmeltError (S0303) where the graph has no plan at all.
    """
    names = tuple(hints)
    prologue = _prologue(graph, state, hints, inputs or {}) if not for_files else None
    if prologue is not None:
        graph = prologue.rest
    first = _Attempt.of(graph, state, options, hints, ranges, inputs, {}, build=True, later=for_files)
    bounds = {name: ranges[name].bounds for name in names}
    own = guards_function(first.trace, first.trace.guards, bounds)
    both = own if holds is None else _both(own, holds)
    if prologue is not None:
        both = _both(both, _fits(prologue, names))
    given = first.lowered.plan.inputs
    template, numbers = templated(first.lowered.plan, lambda function: _sized(first.trace, names, function))
    recipes, more = templated(first.lowered.outputs, lambda function: function)
    words = words_function(first.trace, numbers)
    can_share = _can_share(first)
    plan = SizedPlan(names, _sources(graph, names, inputs or {}), template, words, both, can_share)
    if prologue is not None:
        own_count = len(given) - prologue.count
        template = replace(template, inputs=given[:own_count])
        plan = replace(plan, template=template, more=_more(prologue, names, given[own_count:], state))
    at_hints, within = tuple(hints.values()), list(bounds.values())
    if next(_other_sizes(at_hints, within, both), None) is None:
        raise NotSymbolic("no other sizes are within its guards", *map(str, first.trace.guards))

    def check() -> tuple[tuple[int, ...], ...]:
        checked = []
        for sizes in islice(_other_sizes(at_hints, within, both), _CHECKS):
            at = dict(zip(names, sizes, strict=True))
            again = _Attempt.of(graph, state, options, at, ranges, inputs, first.trace.decisions, build=False)
            first.compare(again, sizes)
            checked.append(sizes)
            if _are_far(sizes, at_hints):
                break
        return tuple(checked)

    baked = () if prologue is None else prologue.state
    constants = tuple(dict.fromkeys((*first.lowered.constants, *baked)))
    made = replace(at_hand(first.lowered), plan=plan.at(tuple(hints.values())), constants=constants)
    lowered = SymbolicLowered(
        plan,
        made,
        tuple((guard.text, guard.where) for guard in first.trace.guards),
        _outputs(recipes, words_function(first.trace, more)),
        [check],
        [],
    )
    if not checks_later:
        lowered.check()
    return lowered


def _prologue(graph: Graph, state: Lookup, hints: Mapping[str, int], inputs: Mapping[int, str]) -> Prologue | None:
    """What is worth computing once for each tuple of sizes, if it can be at those at hand."""
    found = prologue_of(graph, inputs)
    if found is None or not found.fits(hints):
        return None
    try:
        found.values(hints, state)
    except Exception:  # whatever torch refuses is the program's own error, and comes where it stands
        return None
    return found


def _fits(prologue: Prologue, names: Sequence[str]) -> Callable[..., bool]:
    return lambda *sizes: prologue.fits(dict(zip(names, sizes, strict=True)))


def _more(prologue: Prologue, names: Sequence[str], slots: Sequence[int], state: Lookup) -> Held:
    """(sizes) -> the tensors that a plan holds for these sizes, by slot."""

    def more(sizes: tuple[int, ...]) -> tuple[tuple[int, torch.Tensor], ...]:
        found = prologue.values(dict(zip(names, sizes, strict=True)), state)
        return tuple(zip(slots, found, strict=True))

    return more


def _can_share(first: _Attempt) -> Callable[..., bool]:
    """At which sizes records serve all: layouts are not compared along dimensions of size 1."""
    steps = (i for i in first.lowered.plan.instructions if isinstance(i, CheckLayout))
    doubtful = [n for i in steps for n in i.sizes if type(n) is Size and first.trace.bounds(n.poly)[0] <= 1]
    if not doubtful:
        return lambda *sizes: True
    words = words_function(first.trace, doubtful)
    return lambda *sizes: min(words(*sizes)) > 1


def _both(first: Callable[..., bool], second: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *sizes: second(*sizes) and first(*sizes)


def _sized(trace: Trace, names: Sequence[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """(sizes) -> the function, within which sizes of the trace are numbers."""

    def at(sizes: tuple[int, ...]) -> Callable[..., Any]:
        evaluation = Evaluation(trace, dict(zip(names, sizes, strict=True)))
        made: list[Callable[..., Any]] = []

        def run(*args: Any) -> Any:
            if not made:
                # torch takes numbers only where it does not ask Python; what a closure keeps asks `evaluating`.
                made.append(evaluation(function) if is_dataclass(function) else function)
            with evaluating(trace, evaluation):
                return made[0](*args)

        return run

    return at


def _outputs(
    recipes: Any, words: Callable[..., tuple[Any, ...]]
) -> Callable[[tuple[int, ...]], tuple[OutputRecipe, ...]]:
    return lambda sizes: filled(recipes, words(*sizes), sizes)


def _sources(graph: Graph, names: Sequence[str], inputs: Mapping[int, str]) -> tuple[tuple[int, int | None], ...]:
    """Where each symbol is read: a number among the inputs, or a dimension that is the symbol and nothing else."""
    found: dict[str, tuple[int, int | None]] = {name: (index, None) for index, name in inputs.items()}
    for index, value in enumerate(graph.inputs):
        if isinstance(value.type, TensorType):
            for axis, dim in enumerate(value.type.shape or ()):
                if isinstance(dim, Sym):
                    found.setdefault(dim.name, (index, axis))
    missing = [name for name in names if name not in found]
    if missing:
        raise NotSymbolic(f"no input has the size {missing[0]}")
    return tuple(found[name] for name in names)


def _other_sizes(
    hints: tuple[int, ...], bounds: Sequence[tuple[float, float]], holds: Callable[..., bool]
) -> Iterator[tuple[int, ...]]:
    """Sizes within the guards, other than those at hand: all of them changed where that can be."""
    steps: list[Callable[[int], int]] = [
        lambda n: n + 1, lambda n: 2 * n + 1, lambda n: n // 2, lambda n: 3 * n, lambda n: n - 1, lambda n: 5 * n + 3,
        lambda n: n + 7, lambda n: 2 * n, lambda n: n + 16, lambda n: n // 3 + 1,
    ]  # fmt: skip
    seen = {hints}
    generator = random.Random(0)

    def candidates() -> Iterator[tuple[int, ...]]:
        yield tuple((5 + 2 * i) * n + 1 for i, n in enumerate(hints))
        for shift in range(len(steps)):
            yield tuple(steps[(shift + 3 * i) % len(steps)](n) for i, n in enumerate(hints))
        for step in steps:
            yield tuple(map(step, hints))
        for _ in range(_ATTEMPTS):
            chosen = [generator.choice((n, generator.choice(steps)(n), generator.randint(1, 4 * n + 8))) for n in hints]
            yield tuple(chosen)

    for sizes in candidates():
        within = all(low <= n <= high for n, (low, high) in zip(sizes, bounds, strict=True))
        if sizes not in seen and within and holds(*sizes):
            seen.add(sizes)
            yield sizes


def _are_far(sizes: tuple[int, ...], hints: tuple[int, ...]) -> bool:
    """Whether no size is near the one at hand, or a multiple of it: one comparison tells more there than two near."""
    return all(
        hint > 0 and size > 4 * hint and (hint == 1 or size % hint) for size, hint in zip(sizes, hints, strict=True)
    )


@distinct_record
class _Attempt:
    """One lowering in a trace."""

    trace: Trace
    lowered: Lowered

    @staticmethod
    def of(
        graph: Graph,
        state: Lookup,
        options: Options | None,
        sizes: Mapping[str, int],
        ranges: Mapping[str, Range],
        inputs: Mapping[int, str] | None,
        decisions: Mapping[str, Any],
        *,
        build: bool,
        later: bool = False,
    ) -> _Attempt:
        """Raises: NotSymbolic where something asks for a number, or holds a size as text."""
        with tracing({name: (sizes[name], ranges[name]) for name in sizes}, decisions) as trace:
            try:
                lowered = lower(substituted(graph, trace.symbols, inputs), state, options, build=build, later=later)
            except SmeltError as error:
                if not isinstance(error, InternalError):
                    raise
                raise NotSymbolic(str(error), *trace.leaks) from error
            except Exception as error:  # whatever does not take a size for a number says so in its own way
                raise NotSymbolic(f"{type(error).__name__}: {error}", *trace.leaks) from error
        if trace.leaks:
            raise NotSymbolic("a number was read", *trace.leaks)
        return _Attempt(trace, lowered)

    def compare(self, other: _Attempt, sizes: tuple[int, ...]) -> None:
        """Raises: NotSymbolic where another lowering's plan is not this one's at its sizes."""
        guards = [[str(guard) for guard in trace.guards] for trace in (self.trace, other.trace)]
        if guards[0] != guards[1]:
            raise NotSymbolic(f"at {sizes} other guards apply", *sorted(set(guards[0]) ^ set(guards[1])))
        at = Evaluation(self.trace, dict(zip(self.trace.symbols, sizes, strict=True)))
        for what, mine, found in (
            ("plan", self.lowered.plan, other.lowered.plan),
            ("outputs", self.lowered.outputs, other.lowered.outputs),
            ("mutations", self.lowered.mutations, other.lowered.mutations),
            ("handles", self.lowered.handles, other.lowered.handles),
            ("constants", self.lowered.constants, other.lowered.constants),
        ):
            ours, theirs = numbers_of(mine), numbers_of(found)
            pairs = zip(ours, theirs, strict=False)
            different = next(
                (
                    path
                    for (path, a), (there, b) in pairs
                    if path != there or not _same(_plain(a, at), _plain(b, at_hand))
                ),
                None,
            )
            if different is not None or len(ours) != len(theirs):
                raise NotSymbolic(f"at {sizes} the {what} is another: {different}")


def _plain(x: Any, number: Callable[[Any], Any]) -> Any:
    return x if type(x) is int or type(x) is str else number(x)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        # Packed weights have corners that nobody fills, so contents are not compared; none can hold a size unseen.
        return isinstance(b, torch.Tensor) and _layout(a) == _layout(b)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, tensor.stride() if tensor.layout == torch.strided else None
