"""Which linear layers of a program run over few bits: as many as the named error allows, found by running them.

    options={"dtype": "int8", "max_error": 0.02}

An output's error is the root of the mean square of its difference to the program in floats, divided by the root of the
output's own mean square, on the inputs of the first call. If with all layers over few bits some output has more, the
layers with the greatest errors of their own fall back to floats, until no output has.
With all of them the program runs as it will, by its plan, which is kept where it holds; other choices are evaluated.
Invariant: what is returned was itself run, and held.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from smelt.analysis.dependence import Dependence, dependence, is_static
from smelt.codegen.lower.result import Lookup
from smelt.compiler.copies import copies_of
from smelt.compiler.programs.few_bits_gpu import is_on_gpu, weight_only
from smelt.compiler.programs.precision import output_errors, why_not_repeatable
from smelt.diag import Options, SmeltError, SmeltWarning, user_level
from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.ops.own.narrow_linear import GROUP, INT4, INT8, MOST_TERMS, as_int4, byte_rows, byte_weight
from smelt.passes.base import emitter, erase_dead
from smelt.rewrite import Rewriter

Planned: TypeAlias = Callable[[Graph], Sequence[Any] | None]
"""The outputs that the plan of a graph gives; None where there is none by itself."""
NARROW = ("int8", "int4")
"""What `options["dtype"]` is for layers over few bits."""
_ALLOWED = {"int8": 0.05, "int4": 0.25}
_LINEAR = "aten.linear.default"
_FEW_LAYERS = 24  # of so many each one's part in the outputs' error is measured, of more its own error alone
_LEAST_TERMS, _LEAST_WEIGHT = 32, 1 << 12


@record
class Layer:
    """A linear layer: its module, its matrix, what it runs in and why; own: its error on the floats it gets, None where
    that was not measured.
    """

    module: str
    sizes: tuple[int, int]
    dtype: str
    why: str
    own: float | None = None


@record
class Narrowed:
    """What became of a program's layers. chosen: which of the candidates, by number; count: how many there are.

    reached: the greatest error of an output; None where it was not measured.
    """

    chosen: frozenset[int] = frozenset()
    count: int = 0
    layers: tuple[Layer, ...] = ()
    reached: float | None = None


def narrowed_from(told: Mapping[str, Any]) -> Narrowed:
    """What `dataclasses.asdict` gave of one, its set as a list. Raises: whatever another mapping leads to."""
    layers = tuple(Layer(**{**layer, "sizes": tuple(layer["sizes"])}) for layer in told["layers"])
    chosen = frozenset(map(int, told["chosen"]))
    if not chosen <= frozenset(range(int(told["count"]))):
        raise ValueError("more layers are chosen than there are")
    return Narrowed(chosen, int(told["count"]), layers, told["reached"])


def allowed_error(options: Options) -> float:
    """The bound that a program's outputs keep."""
    return _ALLOWED[options.dtype] if options.max_error is None else options.max_error


def narrowed(
    name: str, graph: Graph, options: Options, lookup: Lookup, sample: Sequence[Any] | None, planned: Planned
) -> tuple[Graph, Narrowed]:
    """The graph with the layers over few bits that keep the bound, and which these are; a warning where none is.

    planned: what the plan of a graph gives for the sample.
    """
    nodes, refused = _candidates(graph, options.dtype)
    why = "its linear layers are too small, or not of f32 weights that stay" if refused else "it has no linear layer"
    if nodes:
        why = _why_not_measured(graph, sample)
    if why or sample is None:
        _warn(name, options, why)
        return graph, Narrowed(count=len(nodes), layers=tuple(_layer(n, "f32", why) for n in nodes))
    trial = _Trial(graph, options, lookup, sample)
    bound, everything = allowed_error(options), frozenset(range(len(nodes)))
    whole = with_layers(graph, options, everything)
    reached = trial.error_of(whole, planned(whole))
    if reached <= bound:
        return whole, Narrowed(everything, len(nodes), _told(nodes, refused, options, everything), reached)
    own = trial.own_errors(nodes)
    ranked = sorted(everything, key=lambda i: own[i])
    if len(nodes) <= _FEW_LAYERS:
        alone = {i: trial.error(frozenset((i,))) for i in everything}
        ranked.sort(key=alone.__getitem__)
    chosen, reached = _most(trial, ranked, bound)
    if not chosen:
        least = trial.error(frozenset(ranked[:1]))
        _warn(name, options, f"with one layer alone the error of an output is {least:.2g}, beyond {bound:g}")
    told = _told(nodes, refused, options, chosen, own)
    return with_layers(graph, options, chosen), Narrowed(chosen, len(nodes), told, reached)


def _told(
    nodes: Sequence[Node], refused: Sequence[tuple[Node, str]], options: Options, chosen: frozenset[int],
    own: Mapping[int, float] = MappingProxyType({}),
) -> tuple[Layer, ...]:  # fmt: skip
    """What is told of each layer. own: their own errors, where they were measured."""
    layers = (
        _layer(n, options.dtype if i in chosen else "f32", "" if i in chosen else "the outputs' error", own.get(i))
        for i, n in enumerate(nodes)
    )
    return (*layers, *(_layer(node, "f32", why_not) for node, why_not in refused))


def narrowed_alike(graph: Graph, options: Options, known: Narrowed) -> Graph:
    """Another graph of the same program with the same layers over few bits; as it is where it has others."""
    nodes, _ = _candidates(graph, options.dtype)
    return with_layers(graph, options, known.chosen) if len(nodes) == known.count else graph


def with_layers(graph: Graph, options: Options, chosen: frozenset[int]) -> Graph:
    """A copy of the graph in which these candidates are over few bits."""
    if not chosen:
        return graph
    made = graph.clone()
    nodes, _ = _candidates(made, options.dtype)
    rewriter = Rewriter(made)
    for i in sorted(chosen):
        operands = _operands(nodes[i])
        with rewriter.builder.at(nodes[i]):
            emit = emitter(rewriter)
            if is_on_gpu(operands[0]):
                result = weight_only(emit, options.dtype, *operands)
            else:
                result = emit.call(INT8, *operands) if options.dtype == "int8" else emit.call(INT4, *operands, GROUP)
        rewriter.replace_node(nodes[i], (result,))
        erase_dead(rewriter, [nodes[i]])
    return made


def _most(trial: _Trial, ranked: Sequence[int], bound: float) -> tuple[frozenset[int], float]:
    """As many of the layers, from the first, as keep the bound, and the error then; each number was run."""
    least, most, reached = 0, len(ranked), 0.0
    while most - least > 1:
        middle = (least + most) // 2
        error = trial.error(frozenset(ranked[:middle]))
        if error <= bound:
            least, reached = middle, error
        else:
            most = middle
    return frozenset(ranked[:least]), reached


def _candidates(graph: Graph, dtype: str) -> tuple[list[Node], list[tuple[Node, str]]]:
    """The layers that can be over few bits, in order, and others, each with the reason."""
    found = dependence(graph)
    nodes: list[Node] = []
    refused: list[tuple[Node, str]] = []
    for node in graph.walk():
        if node.op != _LINEAR:
            continue
        why = _obstacle(node, dtype, found)
        if why:
            refused.append((node, why))
        else:
            nodes.append(node)
    return nodes, refused


def _obstacle(node: Node, dtype: str, found: dict[Value, Dependence]) -> str:
    """Why a layer stays in floats; nothing where it need not."""
    x, weight, bias = _operands(node)
    if not (_is_f32(x) and _is_f32(weight) and _is_f32(node.result)) or "autocast" in node.mode:
        return "it is not of f32"
    if not is_static(weight, found) or is_static(x, found) or not (bias is None or _is_f32(bias)):
        return "its weight is computed at each call"
    assert isinstance(weight.type, TensorType)
    if len(weight.type.sizes) != 2 or not weight.type.is_static:
        return "its weight is no matrix"
    n, k = weight.type.sizes
    if k < _LEAST_TERMS or n * k < _LEAST_WEIGHT or k > MOST_TERMS:
        return f"its weight is {n} x {k}"
    if dtype == "int4" and k % GROUP:
        return f"its {k} terms are no multiple of {GROUP}"
    return ""


def _operands(node: Node) -> tuple[Any, Any, Arg]:
    """x, weight and bias."""
    return node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None


def _is_f32(arg: Any) -> bool:
    type_ = arg.type if isinstance(arg, Value) else None
    if not isinstance(type_, TensorType) or type_.shape is None:
        return False
    if type_.device != "cpu" and not is_on_gpu(arg):
        return False
    return type_.dtype is DType.F32 and type_.layout == "strided"


def _layer(node: Node, dtype: str, why: str, own: float | None = None) -> Layer:
    weight = node.args[1]
    sizes = weight.type.sizes if isinstance(weight, Value) and isinstance(weight.type, TensorType) else (0, 0)
    return Layer(node.scope or f"%{node.result.name}", (int(sizes[0]), int(sizes[-1])), dtype, why, own)


def _why_not_measured(graph: Graph, sample: Sequence[Any] | None) -> str:
    if sample is None:
        return "there are no example inputs to measure an error on"
    if any(effects(node).rng for node in graph.walk()):
        return "it draws random numbers, so that no error can be measured"
    if any(effects(node).io for node in graph.walk()):
        return "it has side effects, which measuring an error would repeat"
    return ""


def can_measure(graph: Graph, sample: Sequence[Any] | None) -> bool:
    """Whether a plan may be run on the first call's inputs to see what error it has: the program writes nothing."""
    return not _why_not_measured(graph, sample) and not why_not_repeatable(graph)


def _warn(name: str, options: Options, why: str) -> None:
    warnings.warn(f"{name} is computed in f32, not {options.dtype}: {why}", SmeltWarning, stacklevel=user_level())


class _Trial:
    """Runs of a graph on the sample, nothing of which is seen outside."""

    def __init__(self, graph: Graph, options: Options, lookup: Lookup, sample: Sequence[Any]) -> None:
        self.graph, self.options, self.lookup, self.sample = graph, options, lookup, sample
        self._expected: list[Any] | None = None

    def run(self, graph: Graph, observe: Any = None) -> list[Any]:
        """The outputs; the inputs and the state stay as they are."""
        tensors = iter(copies_of([value for value in self.sample if isinstance(value, torch.Tensor)]))
        inputs = [next(tensors) if isinstance(value, torch.Tensor) else value for value in self.sample]
        copies: dict[tuple[str, str], torch.Tensor] = {}
        is_written = any(node.op == "write" or effects(node).writes for node in graph.walk())

        def lookup(kind: str, path: str) -> torch.Tensor:
            if not is_written:
                return self.lookup(kind, path)
            if (kind, path) not in copies:
                (copies[kind, path],) = copies_of([self.lookup(kind, path)])
            return copies[kind, path]

        with torch.no_grad():
            return list(evaluate(graph, inputs, lookup, observe=observe, silent=True))

    @property
    def expected(self) -> list[Any]:
        """What the program in floats gives."""
        if self._expected is None:
            self._expected = self.run(self.graph)
        return self._expected

    def error(self, chosen: frozenset[int]) -> float:
        """The greatest error of an output with these layers over few bits; infinity where they cannot be run."""
        return self.error_of(with_layers(self.graph, self.options, chosen))

    def error_of(self, graph: Graph, found: Sequence[Any] | None = None) -> float:
        """The same of a graph; found: its outputs, where somebody ran it already."""
        try:
            expected, found = self.expected, self.run(graph) if found is None else found
        except (SmeltError, RuntimeError):  # what the data makes an operator raise
            return math.inf
        pairs = [(a, b) for a, b in zip(expected, found, strict=True) if isinstance(a, torch.Tensor)]
        errors = output_errors(*zip(*pairs, strict=True)) if pairs else ()
        return max((relative_error(one.rms, one.scale, one.nonfinite) for one in errors), default=0.0)

    def own_errors(self, nodes: Sequence[Node]) -> dict[int, float]:
        """The error of each layer's own result for the operands that it has in floats."""
        wanted, numbers = {v for node in nodes for v in node.operands()}, {node: i for i, node in enumerate(nodes)}
        values: dict[Value, torch.Tensor] = dict(zip(self.graph.inputs, self.sample, strict=True))
        found: dict[int, float] = {}

        def observe(node: Node, results: Sequence[Any]) -> None:
            values.update((v, r) for v, r in zip(node.results, results, strict=True) if v in wanted)
            if node in numbers:
                x, weight, bias = (values[a] if isinstance(a, Value) else None for a in _operands(node))
                assert x is not None and weight is not None
                made = _linear(self.options.dtype, x, weight, bias)
                (error,) = output_errors((results[0],), (made,))
                found[numbers[node]] = relative_error(error.rms, error.scale, error.nonfinite)

        self.run(self.graph, observe)
        return {i: found.get(i, math.inf) for i in numbers.values()}


def _linear(dtype: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A layer over few bits, summed in floats."""
    if dtype == "int4":
        return torch.nn.functional.linear(x, as_int4(weight, GROUP), bias)
    steps, scale, _ = byte_rows(x.reshape(-1, x.shape[-1]))
    of_weight, columns = byte_weight(weight)
    made = torch.nn.functional.linear(steps, of_weight.float()) * scale * columns
    return (made if bias is None else made + bias).view(*x.shape[:-1], -1)


def relative_error(rms: float, scale: float, nonfinite: int) -> float:
    """An output's error against its own size."""
    if nonfinite or math.isnan(rms):
        return math.inf
    return rms / scale if scale else (math.inf if rms else 0.0)
