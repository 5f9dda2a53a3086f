"""A program surveyed: compiled, measured against eager, each optimisation omitted once, with other sizes, trained.

Invariant: every ratio is of results that agree with eager's; what cannot be measured says why and stops nothing else.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import smelt
from smelt.analysis.cost import Cost, total_cost
from smelt.compiler import Unit
from smelt.compiler.training.training import TrainingUnit
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.inspect.atlas.card import Card, Effect, Training
from smelt.inspect.kernels import compiled_units
from smelt.inspect.page.steps import steps_of
from smelt.inspect.roofline import Ceilings
from smelt.inspect.shares import profile_of
from smelt.inspect.shown import size
from smelt.inspect.verdict import Race, race
from smelt.ir import STATE_OPS, Graph
from smelt.ops.catalogue import family_of

_ROUNDS, _SAMPLE_S = 40, 1e-3
_TOLERANCE = 2e-3  # relative to the largest value of a result
_SETTINGS: Mapping[str, Any] = {"adaptive": False}


def survey(
    name: str,
    summary: str,
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    ceilings: Ceilings | None = None,
    seconds: float = 0.3,
    ablate: bool = True,
    cpu: bool = False,
) -> Card:
    """The card of a program. seconds: the longest that one pair is measured. ablate: omit optimisations, one by one.

    cpu: by the processor's time of the calling thread, for busy machines; on one thread of torch.
    """
    measuring = _Measuring(seconds, cpu)
    kwargs = dict(kwargs or {})
    try:
        with torch.no_grad():
            expected = _tensors(target(*_fresh(args), **kwargs))
            compiled = smelt.compile(target, options=_SETTINGS)
            found = _again(compiled, args, kwargs)
    except Exception as error:  # whatever a program raises: the others are surveyed all the same
        return Card(name, summary, failed=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    units = compiled_units(compiled)
    if len(units) != 1 or units[0].lowered is None:
        return Card(name, summary, failed=smelt.explain(compiled).verdict["what"])
    unit = units[0]
    unit.optimize()  # of a plan from disk, the passes that another process did
    with torch.no_grad():
        times = measuring.race(target, compiled, args, kwargs, changes=unit.acts)
        split = _split(unit, args, kwargs, times)
        effects = _effects(target, compiled, unit, args, kwargs, expected, measuring) if ablate else ()
        sizes = _other_sizes(target, args, kwargs)
    card = _card(name, summary, unit, times, _error(found, expected), split, ceilings)
    training = _train(target, args, kwargs, measuring)
    whole = replace(card, effects=effects, sizes=sizes, training=training)
    return replace(whole, advice=_advice(whole, unit))


def _card(
    name: str,
    summary: str,
    unit: Unit,
    times: Race,
    error: float,
    split: Mapping[str, float],
    ceilings: Ceilings | None,
) -> Card:
    assert unit.lowered is not None and unit.optimized is not None
    report = unit.lowered.report
    spent = total_cost(unit.optimized)
    memory = report.memory
    total = sum(k.flops for k in report.kernels)
    return Card(
        name,
        summary,
        captured=_count(unit.graph),
        optimized=_count(unit.optimized),
        modules=len({node.scope for node in unit.graph.walk() if node.scope}),
        operators=_operators(unit.graph),
        regions=dict(Counter(n.op for n in unit.graph.walk() if n.op in ("if", "for", "while"))),
        nbytes=int(spent.nbytes),
        flops=int(spent.flops),
        kernels=len(report.kernels),
        distinct=len({k.symbol for k in report.kernels}),
        fused=sum(d.fused for d in report.decisions),
        apart=sum(not d.fused for d in report.decisions),
        own_flops=min(1.0, total / spent.flops) if spent.flops else None,
        eager_us=times.eager.median * 1e6,
        smelt_us=times.compiled.median * 1e6,
        speed_up=times.speed_up,
        is_measurement=not times.is_busy,
        error=error,
        arena=memory.arena_nbytes,
        arena_naive=memory.arena_naive_nbytes,
        split=split,
        bound="" if times.is_busy else _bound(split, spent, times.compiled.median * 1e6, ceilings),
    )


# --- what it is made of


def _count(graph: Graph) -> int:
    return sum(node.op not in STATE_OPS for node in graph.walk())


def _operators(graph: Graph) -> dict[str, int]:
    found: Counter[str] = Counter()
    for node in graph.walk():
        if node.op in STATE_OPS or node.op in ("const", "unpack", "write"):
            continue
        found[_kind(node.op)] += 1
    return dict(found.most_common())


def _kind(op: str) -> str:
    if op in ("if", "for", "while") or op.startswith("py."):
        return "control"
    return family_of(op)


# --- times


@record
class _Measuring:
    """How pairs are measured: as `smelt bench` does, several calls a sample, behind as many that are not timed."""

    seconds: float
    cpu: bool

    def race(
        self,
        first: Callable[..., Any],
        second: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        changes: bool = False,
    ) -> Race:
        """changes: a call changes the program, so that each is timed by itself."""
        return self.of(lambda: first(*args, **kwargs), lambda: second(*args, **kwargs), 0.0 if changes else _SAMPLE_S)

    def of(self, first: Callable[[], Any], second: Callable[[], Any], sample_s: float) -> Race:
        return race(first, second, _ROUNDS, self.seconds, sample_s=sample_s, cpu=self.cpu)


def _split(unit: Unit, args: tuple[Any, ...], kwargs: Mapping[str, Any], times: Race) -> dict[str, float]:
    """Microseconds of a call by kinds of steps; what none of them explains are guards, entry and results."""
    measured = None if unit.acts else profile_of(unit, args, kwargs)
    if measured is None or unit.lowered is None:
        return {}
    found: dict[str, float] = {}
    for step in steps_of(measured.plan, unit.lowered.report, measured.rows):
        found[step.kind] = found.get(step.kind, 0.0) + (step.us or 0.0)
    rest = 0.0 if times.is_busy else times.compiled.median * 1e6 - sum(found.values())
    split = {kind: us for kind, us in sorted(found.items(), key=lambda item: -item[1]) if us}
    return {**split, "guards, entry, results": max(rest, 0.0)}


def _bound(split: Mapping[str, float], spent: Cost, us: float, ceilings: Ceilings | None) -> str:
    outside = split.get("guards, entry, results", 0.0)
    if us and outside > 0.4 * us:
        return "overhead of a call"
    if ceilings is None:
        return ""
    of_memory, of_arithmetic = spent.nbytes / ceilings.gbps / 1e3, spent.flops / ceilings.gflops / 1e3
    floor = max(of_memory, of_arithmetic)
    if us and floor < 0.1 * us:
        return "many small steps"
    return "memory" if of_memory > of_arithmetic else "arithmetic"


# --- one optimisation omitted


def _effects(
    target: Callable[..., Any],
    compiled: Callable[..., Any],
    unit: Unit,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expected: Sequence[Tensor],
    measuring: _Measuring,
) -> list[Effect]:
    fired: dict[str, str] = {}
    for ran in unit.passes:
        if ran.changed and ran.name not in ("functionalize", "inline"):
            fired[ran.name] = f"{ran.nodes_before} to {ran.nodes_after} nodes"
    trials: list[tuple[str, str, dict[str, Any]]] = [(p, told, {"skip": [p]}) for p, told in fired.items()]
    trials.append(("own kernels", "fusion and generated kernels", {"own_kernels": False}))
    return [
        _effect(what, told, {**_SETTINGS, **options}, target, compiled, unit, args, kwargs, expected, measuring)
        for what, told, options in trials
    ]


def _effect(
    what: str,
    told: str,
    options: Mapping[str, Any],
    target: Callable[..., Any],
    compiled: Callable[..., Any],
    unit: Unit,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    expected: Sequence[Tensor],
    measuring: _Measuring,
) -> Effect:
    try:
        without = smelt.compile(target, options=options)
        found = _again(without, args, kwargs)
        others = compiled_units(without)
    except SmeltError as error:
        return Effect(what, told, None, None, False, f"it does not compile without: {error.what}")
    if _error(found, expected) > _TOLERANCE:
        return Effect(what, told, None, None, False, "the results differ without it, so no time is shown")
    if len(others) != 1 or others[0].lowered is None:
        return Effect(what, told, None, None, False, "without it the program is not compiled as one graph")
    times = measuring.race(without, compiled, args, kwargs, changes=unit.acts)
    low, high = sorted((times.eager.quartiles, times.compiled.quartiles))
    mine, other = unit.lowered.report.memory if unit.lowered else None, others[0].lowered.report.memory
    memory = other.peak_nbytes / mine.peak_nbytes if mine is not None and mine.peak_nbytes else None
    note = "busy machine: no measurement" if times.is_busy else ""
    return Effect(what, told, times.eager.median / times.compiled.median, memory, low[1] >= high[0], note)


# --- other sizes


def _other_sizes(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What a fresh compiled object does when the first size of the arguments changes twice."""
    compiled = smelt.compile(target, options=_SETTINGS)
    compiled(*_fresh(args), **kwargs)
    for times in (2, 3):
        given = tuple(_longer(value, args, times) for value in args)
        try:
            expected = _tensors(target(*given, **kwargs))
        except Exception:  # eager's own word on it
            return "the program itself is for these sizes alone"
        found = _again(compiled, given, kwargs)
        if _error(found, expected) > _TOLERANCE:
            return f"the results differ with {times} times the rows"
    builds = compiled.stats().builds  # type: ignore[attr-defined]
    misses = list(compiled.stats().guard_failures)  # type: ignore[attr-defined]
    if builds < 3:
        return ("one build serves", "the second build serves")[builds - 1] + " all sizes"
    return f"{builds} builds for three sizes: {misses[0] if misses else 'falls back to eager'}"


def _longer(value: Any, args: tuple[Any, ...], times: int) -> Any:
    rows = next((a.shape[0] for a in args if isinstance(a, Tensor) and a.ndim), None)
    if not isinstance(value, Tensor) or not value.ndim or value.shape[0] != rows:
        return value
    return torch.cat([value] * times)


# --- training


def _train(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], measuring: _Measuring) -> Training | None:
    if not isinstance(target, nn.Module) or not any(p.requires_grad for p in target.parameters()):
        return None
    eager, mine = target, copy.deepcopy(target)
    compiled = smelt.compile(mine, options={**_SETTINGS, "train": True})

    def step(module: Any, owner: nn.Module) -> None:
        owner.zero_grad(set_to_none=True)
        results = [t for t in _tensors(module(*args, **kwargs)) if t.is_floating_point() and t.requires_grad]
        torch.autograd.backward([t.float().pow(2).mean() for t in results])

    try:
        step(eager, eager)
        step(compiled, mine)  # the recorded run
        step(compiled, mine)
    except Exception as error:  # what a program, or its gradient, raises
        return Training(
            0, 0, 0, None, 0.0, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    pairs = [(a.grad, b.grad) for a, b in zip(eager.parameters(), mine.parameters(), strict=True)]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    # All gradients as one: some are zero but for rounding, as those of the keys' bias.
    worst = _error(*([torch.cat([pair[i].flatten() for pair in both])] for i in (1, 0))) if both else 0.0
    rows = [r.entry for r in compiled.stats().rows if isinstance(r.entry, TrainingUnit)]
    trained = next((r.trainable for r in rows if r.trainable is not None), None)
    if trained is None:
        why = next(iter(compiled.stats().fallbacks), "no plan")
        return Training(0, 0, 0, None, worst, f"falls back to eager: {why}")
    times = measuring.of(lambda: step(eager, eager), lambda: step(compiled, mine), _SAMPLE_S)
    speed_up = None if times.is_busy else times.speed_up
    eager.zero_grad(set_to_none=True)
    forward, backward = _count(trained.forward.optimized), _count(trained.backward.optimized)
    return Training(forward, backward, trained.halves.nbytes, speed_up, worst)


# --- in words


def _advice(card: Card, unit: Unit) -> list[str]:
    """What would help next, most of all first."""
    assert unit.lowered is not None
    report = unit.lowered.report
    found: list[str] = []
    total = sum(card.split.values())
    python = [node for node in report.nodes if node.how == "python"]
    if python:
        found.append(
            f"{len(python)} nodes run in Python ({python[0].op} at {python[0].where}): write them with tensor operators"
        )
    others = card.split.get("dispatcher", 0.0) + card.split.get("library", 0.0)
    if total and others > 0.3 * total:
        names = Counter(node.op for node in report.nodes if node.how in ("dispatcher", "library")).most_common(2)
        told = " and ".join(op for op, _ in names)
        found.append(
            f"{others / total:.0%} of a call are in torch's own operators ({told}), which nothing is fused into"
        )
    if card.bound == "overhead of a call":
        found.append("guards and entry take longer than the work: give it more rows a call, or compile what calls it")
    if card.bound == "memory" and card.operators.get("product"):
        found.append('reading memory bounds it: options={"dtype": "bf16"} halves what products read')
    if card.bound == "many small steps":
        found.append(f"{card.kernels} launches are small for this machine: larger sizes cost little more time")
    refused = sorted((d for d in report.decisions if not d.fused), key=lambda d: d.nbytes_after - d.nbytes_before)
    if refused and refused[0].nbytes_before > refused[0].nbytes_after:
        gain = size(refused[0].nbytes_before - refused[0].nbytes_after)
        found.append(f"{' + '.join(refused[0].group)} are not fused, which would save {gain}: {refused[0].why}")
    if "builds for three sizes" in card.sizes:
        found.append(f"sizes that change: {card.sizes}")
    if card.training is not None and card.training.note:
        found.append(f"training: {card.training.note}")
    return found or ["nothing that Smelt could tell: most of a call is in its own kernels"]


# --- tensors of results


def _fresh(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in args)


def _again(compiled: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The results of a second call: those of the first may be the recorded run's."""
    compiled(*_fresh(args), **kwargs)
    return _tensors(compiled(*_fresh(args), **kwargs))


def _tensors(result: Any) -> list[Tensor]:
    return list(_walk(result))


def _walk(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for item in result.values():
            yield from _walk(item)
    elif isinstance(result, tuple | list):
        for item in result:
            yield from _walk(item)


def _error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference, relative to the largest value of a result."""
    worst = 0.0
    if len(found) != len(expected):
        return float("inf")
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel():
            x, y = a.detach().double(), b.detach().double()
            worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp(min=1e-12)))
    return worst
