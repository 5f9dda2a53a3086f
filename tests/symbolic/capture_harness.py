"""Captures a program with symbols and holds its graph against eager at other sizes, and against static captures."""

from __future__ import annotations

import copy
from typing import Any

from smelt.capture import capture
from smelt.capture.dynamic.spec import Free, Spec
from smelt.capture.result import Captured
from smelt.capture.structure.signature import flatten_arguments
from smelt.capture.structure.tree import leaves
from smelt.codegen.lower.symbolic.substitute import specialize
from smelt.ir import Graph, TensorType, Type, parse, verify
from smelt.ops.evaluate import evaluate
from tests.staging.programs import outcome, same

_OWN = ("py.", "aten.sym_")
_STATE = ("param", "buffer", "captured", "const")


def everything(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Spec:
    """All sizes but 0 and 1, and all ints and floats."""
    spec: dict[tuple[str, int | None], Free] = {}
    flat = flatten_arguments(args, kwargs or {})
    for place, tensor in zip(flat.paths, flat.tensors, strict=True):
        spec |= {(place, dim): Free() for dim, size in enumerate(tensor.shape) if size > 1}
    parts = (*leaves(flat.args, "args"), *leaves(flat.kwargs, "kwargs"))
    numbers = (place for place, leaf in parts if type(getattr(leaf, "value", None)) in (int, float))
    spec |= {(place, None): Free() for place in numbers}
    return spec


def symbolic(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, spec: Spec | None = None
) -> Captured:
    """The capture with symbols, which must have come about."""
    given = copy.deepcopy(kwargs or {})
    found = capture(
        fn, copy.deepcopy(args), given, specialize=True, dynamic=everything(args, given) if spec is None else spec
    )
    assert found.sizes is not None, found.warnings or found.error
    assert found.graph is not None and found.signature is not None
    verify(found.graph)
    assert parse(str(found.graph), found.graph.constants) == found.graph
    return found


def values_of(found: Captured, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
    """The symbols' values in a call."""
    assert found.signature is not None and found.sizes is not None
    flat = found.signature.flatten(args, kwargs)
    return {
        name: flat[origin.input] if origin.dim is None else flat[origin.input].shape[origin.dim]
        for name, origin in found.sizes.symbols.items()
    }


def holds(found: Captured, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> bool:
    """Whether a call is within the guards."""
    assert found.sizes is not None
    return found.sizes.holds(values_of(found, args, kwargs))


def run(found: Captured, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """The result by the graph."""
    assert found.graph is not None and found.signature is not None
    flat = evaluate(found.graph, found.signature.flatten(args, kwargs), found.state.lookup)
    return found.signature.rebuild(flat, args, kwargs)


def check(
    fn: Any, args: tuple[Any, ...], *inside: tuple[Any, ...], outside: tuple[tuple[Any, ...], ...] = (),
    spec: Spec | None = None, is_straight: bool = True,
) -> Captured:  # fmt: skip
    """Capture on the first arguments: there and on `inside` the graph does what eager does, on `outside` a guard fails.

    is_straight: all of the program's nodes are those of a static capture at the same sizes, types included.
    """
    found = symbolic(fn, args, spec=spec)
    for call in (args, *inside):
        assert holds(found, call), f"{call} is outside of {[*map(str, found.sizes.guards)]}"  # type: ignore[union-attr]
        compare(fn, found, call)
        if is_straight:
            compare_nodes(fn, found, call)
    for call in outside:
        assert not holds(found, call), f"{call} is within {[*map(str, found.sizes.guards)]}"  # type: ignore[union-attr]
    return found


def compare(fn: Any, found: Captured, args: tuple[Any, ...]) -> None:
    """The graph gives, prints, raises and writes what eager does."""
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want, got = outcome(lambda: fn(*mine)), outcome(lambda: run(found, theirs))
    assert same(want, got), f"{found.graph}\n for {args}:\n{want}\n{got}"
    assert same(mine, theirs), f"{found.graph}\n for {args}: arguments are {theirs}, not {mine}"


def compare_nodes(fn: Any, found: Captured, args: tuple[Any, ...]) -> None:
    """The graph for these sizes alone is the one that a static capture has."""
    static = capture(fn, copy.deepcopy(args), specialize=True)
    assert static.graph is not None and found.graph is not None and found.sizes is not None
    symbols = values_of(found, args)
    numbers = {o.input: name for name, o in found.sizes.symbols.items() if o.dim is None}
    special = specialize(found.graph, symbols, numbers)
    want, got = _nodes(static.graph), _nodes(special)
    assert [op for op, _ in want] == [op for op, _ in got], f"{static.graph}\n{special}"
    for (op, a), (_, b) in zip(want, got, strict=True):
        assert a == b, f"{op} at {symbols} gives {[*map(str, b)]}, not {[*map(str, a)]}\n{found.graph}\n{special}"


def _nodes(graph: Graph) -> list[tuple[str, list[Type]]]:
    return [
        (node.op, [_plain(value.type) for value in node.results])
        for node in graph.walk()
        if not node.op.startswith(_OWN) and node.op not in _STATE
    ]


def _plain(type_: Type) -> Type:
    if isinstance(type_, TensorType) and type_.is_static:
        return TensorType.of(type_.dtype, type_.sizes, type_.steps, type_.device)
    return type_


__all__ = ["Free", "check", "compare", "everything", "holds", "run", "symbolic", "values_of"]
