"""Programs with the control flow that people write run whole and as in eager, whatever way their inputs take."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import smelt
from smelt.runtime.plan import PyCall
from tests.promises.whole_programs import CASES

# The graphs that serve all calls: one with all ways in it; one for each shape of tree, where recursion follows Python's
# objects; a path for each parse, where a list is taken from as often as data say.
KINDS: dict[str, list[str]] = {name: ["staged"] for name in CASES}
KINDS |= {"tree_lstm": ["staged"] * 3, "stack_tree_lstm": ["path"] * 2}
IN_ONE_GRAPH = [name for name, kinds in KINDS.items() if kinds == ["staged"]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with torch.no_grad():
        yield


def _run(fn: Any, args: tuple[Any, ...]) -> Any:
    torch.manual_seed(11)
    return fn(*args)


def _assert_same(got: Any, expected: Any) -> None:
    ours, spec = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(expected)
    assert spec == wanted
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4, check_stride=False)
        else:
            assert type(mine) is type(other) and mine == other


def _way(name: str, args: tuple[Any, ...], result: Any) -> Any:
    """What tells which way a call took."""
    match name:
        case "greedy" | "beam" | "top_k_sampling" | "nms":
            return pytree.tree_leaves(result)[0].shape
        case "early_exit" | "newton":
            return result[1]
        case "adaptive_rnn":
            return result[1].item()
        case "router":
            chosen = CASES[name].make().gate(args[0]).topk(2, -1).indices
            return tuple((chosen == number).any().item() for number in range(5))
        case "ragged":
            return result[0].shape, result[1]
        case "tree_lstm":
            return len(pytree.tree_leaves(_nested(args[0]))), args[0].left and args[0].left.word is None
    return tuple(args[1].tolist())


def _nested(tree: Any) -> Any:
    return 0 if tree.word is not None else [_nested(tree.left), _nested(tree.right)]


@pytest.mark.parametrize("name", CASES)
def test_calls_take_different_ways(name: str) -> None:
    program = CASES[name].make()
    ways = {_way(name, args, _run(program, args)) for args in CASES[name].calls()}
    assert len(ways) >= (2 if name == "stack_tree_lstm" else 3), ways


ORDERS = ("as they are", "from the middle")


@pytest.mark.spread(10)
@pytest.mark.parametrize(("name", "order"), [(name, ORDERS[i % 2]) for i, name in enumerate(CASES)])
def test_whole_and_as_in_eager(name: str, order: str) -> None:
    _check(name, order)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "order"), [(name, ORDERS[1 - i % 2]) for i, name in enumerate(CASES)])
def test_whole_and_as_in_eager_the_other_way_round(name: str, order: str) -> None:
    _check(name, order)


def _check(name: str, order: str) -> None:
    program, calls = CASES[name].make(), CASES[name].calls()
    if order == "from the middle":
        calls = calls[len(calls) // 2 :] + calls[: len(calls) // 2][::-1]
    expected = [_run(program, args) for args in calls]
    compiled = smelt.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of calls that are left to eager, or cut
        for _ in range(3):
            for args, wanted in zip(calls, expected, strict=True):
                _assert_same(_run(compiled, args), wanted)
    stats = compiled.stats()
    assert not stats.fallbacks
    entries = [row.entry for row in stats.rows]
    assert all(entry is not None for entry in entries), "it is cut into pieces"
    kinds = ["staged" if e.is_staged else "path" if e.outcomes else "plain" for e in entries if e is not None]
    assert kinds == KINDS[name]
    assert stats.builds == len(kinds)


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", IN_ONE_GRAPH)
def test_one_traced_graph_holds_for_all_ways(name: str) -> None:
    program, calls = CASES[name].make(), CASES[name].calls()
    traced = smelt.trace(program, calls[0])
    for args in (*calls, *calls[::-1]):
        _assert_same(_run(traced, args), _run(program, args))


@pytest.mark.parametrize("name", ["nms", "router", "ragged"])
def test_sizes_from_data_never_enter_python(name: str) -> None:
    program, calls = CASES[name].make(), CASES[name].calls()
    compiled = smelt.compile(program)
    _run(compiled, calls[0])
    (row,) = compiled.stats().rows
    assert row.entry is not None
    assert not [i for i in row.entry.lowered.plan.instructions if isinstance(i, PyCall)]


def test_why_a_stack_is_captured_by_paths() -> None:
    program, calls = CASES["stack_tree_lstm"].make(), CASES["stack_tree_lstm"].calls()
    compiled = smelt.compile(program)
    _run(compiled, calls[0])
    (row,) = compiled.stats().rows
    assert row.entry is not None and "pop from empty list" in row.entry.why_paths
