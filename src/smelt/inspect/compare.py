"""Two compiled programs, or one with two sets of options, side by side: graphs, kernels, memory, results.

Invariant: plain data; what only one of both has is listed by name, so that a person can look it up in its page.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from smelt.compiler import Unit
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph


@record
class Comparison:
    """What differs. Pairs are (of the first, of the second).

    operators: counts of those that differ. graph: changed lines of the optimized graphs, as a unified diff.
    kernels: what each computes, of those that only one has. results: the first value that differs, in words, or "".
    """

    nodes: tuple[int, int]
    operators: Mapping[str, tuple[int, int]]
    graph: Sequence[str]
    kernels: tuple[Sequence[str], Sequence[str]]
    shared_kernels: int
    memory: Mapping[str, tuple[int, int]]
    results: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data that `json.dumps` takes."""
        return asdict(self)


def compare_units(first: Unit, second: Unit, results: tuple[Any, Any] | None = None) -> Comparison:
    """Two compiled units; results: what each returned for the same arguments, if they are to be compared."""
    graphs = first.optimize(), second.optimize()
    counts = [Counter(node.op for node in graph.walk() if node.op not in STATE_OPS) for graph in graphs]
    differing = {op: (counts[0][op], counts[1][op]) for op in sorted(counts[0] | counts[1])}
    texts = [_lines(graph) for graph in graphs]
    lines = difflib.unified_diff(texts[0], texts[1], "first", "second", lineterm="", n=1)
    kernels = [_kernels(unit) for unit in (first, second)]
    only = [[what for symbol, what in mine.items() if symbol not in other] for mine, other in (kernels, kernels[::-1])]
    sums = [{} if unit.lowered is None else unit.lowered.report.to_dict()["memory"] for unit in (first, second)]
    return Comparison(
        (sum(counts[0].values()), sum(counts[1].values())),
        {op: pair for op, pair in differing.items() if pair[0] != pair[1]},
        list(lines),
        (only[0], only[1]),
        len(kernels[0].keys() & kernels[1].keys()),
        {what: (n, sums[1].get(what, 0)) for what, n in sums[0].items() if n != sums[1].get(what, 0)},
        "" if results is None else first_difference(*results),
    )


def _lines(graph: Graph) -> list[str]:
    bare = graph.clone()
    for node in bare.walk():
        node.span = None
    return str(bare).splitlines()


def _kernels(unit: Unit) -> dict[str, str]:
    if unit.lowered is None:
        return {}
    return {
        kernel.symbol: kernel.label or ", ".join(node.split(" = ")[-1] for node in kernel.nodes)
        for kernel in unit.lowered.report.kernels
    }


def first_difference(first: Any, second: Any, place: str = "result", relative: float = 1e-4) -> str:
    """The first value of two results that differs by more than rounding explains, in words; "" where none does."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return _of_tensors(first, second, place, relative)
    if type(first) is not type(second):
        return f"{place}: {type(first).__name__} and {type(second).__name__}"
    if isinstance(first, Mapping):
        if first.keys() != second.keys():
            return f"{place}: keys {list(first)} and {list(second)}"
        pairs = [(f"{place}[{key!r}]", value, second[key]) for key, value in first.items()]
    elif isinstance(first, list | tuple):
        if len(first) != len(second):
            return f"{place}: {len(first)} and {len(second)} items"
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))]
    else:
        return "" if first == second or first != first else f"{place}: {first!r} and {second!r}"
    return next(filter(None, (first_difference(a, b, where, relative) for where, a, b in pairs)), "")


def _of_tensors(first: torch.Tensor, second: torch.Tensor, place: str, relative: float) -> str:
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{place}: {first.dtype} {list(first.shape)} and {second.dtype} {list(second.shape)}"
    if not first.numel():
        return ""
    a, b = first.detach(), second.detach()
    if a.is_floating_point() or a.is_complex():
        scale = float(a.abs().nan_to_num(0, 0, 0).max()) or 1.0
        wrong = ~torch.isclose(a, b, rtol=relative, atol=relative * scale, equal_nan=True)
    else:
        wrong = a != b
    if not bool(wrong.any()):
        return ""
    at = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    return (
        f"{place}{list(at) if at else ''}: {a[at].item()} and {b[at].item()}; {count:,} of {a.numel():,} values differ"
    )
