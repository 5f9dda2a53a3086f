"""`inference`: attention as one operator, linear layers of one input as one, and what can be one kernel.

before:  p = softmax(q @ k^T * scale + mask)   y = p @ v          after:  y = scaled_dot_product_attention(q, k, v)
before:  q = linear(x)  k = linear(x)  v = linear(x)              after:  q, k, v = merged(x)
before:  h = act(linear(x))   n = norm(h + x)   c = act(bn(conv)) after:  one region each (with fuse=True)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from smelt.compiler.object.interrupts import SignalsWait
from smelt.diag.collector import full_collections_later
from smelt.ir import Graph, Node, Value, parse
from smelt.ops.record import Trait
from smelt.ops.sets import bases_where
from smelt.schedules.applying import Taker
from smelt.schedules.attend import attend
from smelt.schedules.attention import Spelling, spelling_of, why_not
from smelt.schedules.insertion_sites import Homes, Place
from smelt.schedules.report import Ready
from smelt.scheduling import Match, Matches, Schedule
from smelt.scheduling.finding.forms import VIEW, key_of

_ACTIVATIONS = json.dumps(sorted(bases_where(Trait.ACTIVATION)))

_ONE_OPERATOR = ("aten.scaled_dot_product_", "aten._scaled_dot_product_", "aten._native_multi_head_attention")
"""Attention that needs no step."""


def inference(model: Schedule | torch.nn.Module, example_inputs: Any = None, *, fuse: bool = False) -> Ready:
    """Apply the steps that make inference faster, wherever their patterns are found.

    before:  softmax(q @ k^T / 8 + mask) @ v       after:  scaled_dot_product_attention(q, k, v, mask, scale=1/8)
    model: a schedule, or a module with the arguments of a call. Sizes must be known, so that example inputs are needed.
    Attention becomes one operator in any spelling; linear layers of one input (q, k and v, a gate beside its
    values) become one; dropout in training is drawn as before. Activations after linear layers, norms of sums, and
    convolutions with batch norm and activation are found and counted; with fuse=True each becomes native kernels if it
    measures faster than its operators. This compiles them, which is much slower than everything else, so it is not the
    default. A match that a step refuses (a module that writes a cache, a value that is used elsewhere, too) stays
    unchanged, and `skipped` reports it; `notes` reports attention that is one operator already. Where a row of scores
    is masked with -inf throughout, softmax gives NaN, and the operator zeros.
    Raises: ScheduleError (S0605) where nothing of the model can be captured.
    """
    with SignalsWait(), full_collections_later():
        return _taken(Taker(model, example_inputs), fuse=fuse)


def _taken(taker: Taker, *, fuse: bool) -> Ready:
    spelled, linears = _attention(taker), _linears(taker)
    regions = {name: taker.schedule.find(pattern()).disjoint() for name, pattern in _REGIONS}
    # All modules in one run of the model; each step by itself would be a run.
    groups = [[match for group in linears for match in group], *spelled.values()]
    homes = taker.homes([*groups, *(regions.values() if fuse else ())])
    for places in _by_turn(homes, linears):
        alone = [matches[0] for _, matches in places if len(matches) == 1]
        for match in alone:
            taker.skip("merged linears", match.path, "the others of its input are in other modules")
        taker.step("merged linears", [place for place in places if len(place[1]) > 1], _merge)
    for spelling, matches in spelled.items():
        taker.step("attention", homes.places(matches), _replacing(spelling))
    for name, matches in regions.items():
        if matches:
            taker.found[name] += len(matches)
        if fuse:
            taker.step(name, homes.places(matches), _fusing(name))
        elif matches:
            taker.skip(name, matches[0].path, "not tried; fuse=True compiles and measures it")
    return taker.report


def _attention(taker: Taker) -> dict[Spelling, Matches]:
    """The matches of each spelling of attention."""
    nodes = taker.schedule.nodes
    told = {node: spelling for node in nodes if (spelling := spelling_of(node)) is not None}
    already = Counter(node.op.split(".")[1] for node in nodes if node.op.startswith(_ONE_OPERATOR))
    for operator, count in already.items():
        taker.notes.append(f"attention: {count} already one operator, {operator}")
    spellings: dict[Spelling, Matches] = {}
    known: set[Node] = set()
    for spelling in dict.fromkeys(found for found in told.values() if isinstance(found, Spelling)):
        spellings[spelling] = Matches()
        for match in taker.schedule.find(spelling.pattern).disjoint():
            known.update(match.nodes)
            if why := why_not(match):
                taker.skip("attention", match.path, why)
            else:
                spellings[spelling].append(match)
    taker.found["attention"] += len(told)
    for node, how in told.items():
        if node not in known:
            path = next(t.path_of(node) for t in taker.schedule._state.captured[0] if node in t.position)
            taker.skip("attention", path, how if isinstance(how, str) else "its inside is used elsewhere")
    return spellings


def _linears(taker: Taker) -> list[list[Match]]:
    """Linear layers with weights of their own that have one input, by that input, two at least."""
    by_input: dict[Any, list[Match]] = {}
    for pattern, (x, weight) in ((_linear(), (0, 1)), (_addmm(), (1, 2))):
        for match in taker.schedule.find(pattern):
            given, by = match.nodes[0].args[x], match.nodes[0].args[weight]
            if isinstance(given, Value) and isinstance(by, Value) and by.node is not None and by.node.op == "param":
                by_input.setdefault((x, *_seen(given), getattr(by.type, "dtype", None)), []).append(match)
    groups = [matches for matches in by_input.values() if len(matches) > 1]
    if groups:
        taker.found["merged linears"] += sum(map(len, groups))
    return groups


def _seen(value: Value) -> tuple[Value, object]:
    """What a value is a view of, and the sizes in which it is seen."""
    source = value
    while source.node is not None and key_of(source.node) == VIEW and isinstance(source.node.args[0], Value):
        source = source.node.args[0]
    return source, getattr(value.type, "shape", None)


def _by_turn(homes: Homes, groups: list[list[Match]]) -> list[list[Place]]:
    """The groups by module, each one step: the first of every module, then the second of every module."""
    turns: list[list[Place]] = []
    had: Counter[str] = Counter()
    for group in groups:
        for path, matches in homes.places(group):
            turn = had[path or ""]
            had[path or ""] += 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append((path, matches))
    return turns


def _merge(view: Any, matches: list[Match], scope: str | None) -> None:
    view.fuse_horizontal(matches, name="merged", scope=scope)


def _replacing(spelling: Spelling) -> Callable[[Any, list[Match], str | None], object]:
    def replace(view: Any, matches: list[Match], scope: str | None) -> None:
        view.replace(attend, matches, each=True, equal=True, arguments=spelling.arguments, scope=scope)

    return replace


def _fusing(name: str) -> Callable[[Any, list[Match], str | None], object]:
    return lambda view, matches, scope: view.fuse(matches, name=name.split(",")[0].replace(" ", "_"), scope=scope)


@lru_cache(maxsize=1)
def _linear() -> Graph:
    return _graph("linear", "%x", '%y = smelt_pattern.one_of.default(["linear"], [%x])', gives="%y")


@lru_cache(maxsize=1)
def _addmm() -> Graph:
    return _graph("addmm", "%b", '%y = smelt_pattern.one_of.default(["addmm"], [%b])', gives="%y")


@lru_cache(maxsize=1)
def _linear_activation() -> Graph:
    return _graph(
        "linear_activation",
        "%x",
        '%a = smelt_pattern.one_of.default(["linear", "addmm"], [%x])',
        f"%y = smelt_pattern.one_of.default({_ACTIVATIONS}, [%a])",
        gives="%y",
    )


@lru_cache(maxsize=1)
def _norm_residual() -> Graph:
    return _graph(
        "norm_residual",
        "%x, %r",
        "%s = aten.add.Tensor(%x, %r)",
        '%y = smelt_pattern.one_of.default(["layer_norm", "rms_norm"], [%s])',
        gives="%s, %y",
    )


@lru_cache(maxsize=1)
def _conv_bn_activation() -> Graph:
    return _graph(
        "conv_bn_activation",
        "%x",
        '%c = smelt_pattern.one_of.default(["conv1d", "conv2d", "conv3d", "convolution"], [%x])',
        '%n = smelt_pattern.one_of.default(["batch_norm"], [%c])',
        f"%y = smelt_pattern.one_of.default({_ACTIVATIONS}, [%n])",
        gives="%y",
    )


def _graph(name: str, free: str, *rows: str, gives: str) -> Graph:
    """A pattern of untyped tensors."""
    typed = ", ".join(f"{value}: tensor[?]" for value in free.split(", "))
    body = "\n".join("  " + row.replace(" = ", ": tensor[?] = ", 1) for row in rows)
    result = ", ".join("tensor[?]" for _ in gives.split(", "))
    return parse(f"graph {name}({typed}) -> {result} {{\n{body}\n  return {gives}\n}}")


_REGIONS: tuple[tuple[str, Callable[[], Graph]], ...] = (
    ("linear and activation", _linear_activation),
    ("sum and norm", _norm_residual),
    ("convolution, norm and activation", _conv_bn_activation),
)
