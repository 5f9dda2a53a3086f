"""Types of results over symbols: at the sizes at hand and at others those that eager's own operators give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from smelt.diag import InternalError
from smelt.ir import Arg, Graph, TensorType, TupleType, Type, Value, map_values
from smelt.ir.sizes import Evaluation, Range, Size, Trace, tracing
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.convert import from_torch, type_of
from smelt.ops.registry import normalize, overload, schema_of, tags_of
from smelt.ops.shapes.calls import map_dims
from smelt.ops.shapes.pointwise import pointwise_strides
from smelt.ops.shapes.symbolic import _NOT_ITERATED
from smelt.ops.shapes.views import Layout
from smelt.ops.typing import infer

_HINTS = {2: "A", 3: "B", 4: "C", 5: "D", 6: "E", 7: "F", 8: "G", 9: "H"}
# These give sizes that follow the data, or have no integer to try with.
_UNTOLD = ("aten.nonzero.default", "aten.masked_select.default")
# Of these the types of some samples are told with the sizes at hand only.
_PARTLY = frozenset((
    "aten.reshape.default", "aten.reshape_as.default", "aten.split.Tensor", "aten.chunk.default", "aten.unbind.int",
    "aten.conv1d.default", "aten._grouped_mm.default", "aten.layer_norm.default",
    "aten.scaled_dot_product_attention.default", "aten.rms_norm.default", "aten.group_norm.default", "aten.lstm.input",
    "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input", "aten.lstm_cell.default", "aten.gru_cell.default",
    "aten._pack_padded_sequence.default", "aten._pad_packed_sequence.default",
))  # fmt: skip


def _symbolic(type_: Type, trace: Trace) -> Type:
    """A type with a symbol for each size that is not 0 or 1, and strides that follow from these if they are dense."""
    if not isinstance(type_, TensorType):
        return type_
    sizes = tuple(trace.symbols.get(_HINTS.get(n, ""), n) for n in type_.sizes)  # type: ignore[arg-type]
    if type_.strides is None:
        return TensorType(type_.dtype, sizes, None, type_.device)
    order = sorted(range(len(sizes)), key=lambda d: (-type_.steps[d], d))
    steps, dense, step, plain = [1] * len(sizes), [1] * len(sizes), 1, 1
    for d in reversed(order):
        steps[d], dense[d] = step, plain
        step, plain = step * sizes[d], plain * type_.sizes[d]
    return TensorType(type_.dtype, sizes, tuple(steps) if tuple(dense) == type_.steps else type_.steps, type_.device)


def _value(graph: Graph, arg: Any, trace: Trace) -> Arg:
    if isinstance(arg, torch.Tensor):
        return Value("x", _symbolic(type_of(arg), trace), graph.body)
    if isinstance(arg, (list, tuple)):
        return tuple(_value(graph, a, trace) for a in arg)
    return from_torch(arg)


def _evaluated(type_: Type, at: Evaluation) -> Type:
    found = map_dims(type_, lambda dim: at(dim) if type(dim) is Size else dim)
    if isinstance(found, TupleType):
        return TupleType(tuple(_evaluated(t, at) for t in found.elements))
    if isinstance(found, TensorType) and found.shape is not None:
        return TensorType.of(found.dtype, found.shape, found.strides, found.device)  # type: ignore[arg-type]
    return found


@pytest.mark.spread(22)
@pytest.mark.parametrize("name", [r.name for r in CATALOGUE if r.name not in _UNTOLD])
def test_types_hold_at_other_sizes(name: str) -> None:
    """Each sample with its sizes as symbols; the same expressions must be right wherever the guards hold."""
    (record,) = (r for r in CATALOGUE if r.name == name)
    told = tried = 0
    for sample in record.samples():
        with tracing({name: (n, Range(0, 40)) for n, name in _HINTS.items()}) as trace:
            graph = Graph("g")
            args = tuple(_value(graph, a, trace) for a in sample.args)
            kwargs = {k: _value(graph, a, trace) for k, a in sample.kwargs.items()}
            positional, named = normalize(name, args, kwargs)
            tried += 1
            try:
                found = infer(name, positional, named)
            except InternalError:
                continue
            told += 1
            points = [{n: hint for hint, n in _HINTS.items()}]
            points += [{n: hint + more for hint, n in _HINTS.items()} for more in (1, 2, 5)]
            points += [{n: 11 - hint for hint, n in _HINTS.items()}]
            for i, point in enumerate(points):
                at = Evaluation(trace, point)
                if not all(map(at.holds, trace.guards)):
                    assert i > 0
                    continue
                static = {
                    v: Value(v.name, _evaluated(v.type, at), graph.body) for v in _values((*args, *kwargs.values()))
                }
                swapped = [map_values(a, static.__getitem__) for a in positional]
                try:
                    wanted = infer(name, swapped, {k: map_values(a, static.__getitem__) for k, a in named.items()})
                except InternalError:
                    # Literal sizes of the sample do not fit others.
                    assert i > 0
                    continue
                assert tuple(_evaluated(t, at) for t in found) == wanted, (point, found, wanted, trace.guards)
        assert not trace.leaks
    assert tried
    assert (told < tried) == (name in _PARTLY), (told, tried)


def _values(args: Sequence[Arg]) -> list[Value]:
    found: list[Value] = []
    for arg in args:
        if isinstance(arg, Value):
            found.append(arg)
        elif isinstance(arg, tuple):
            found.extend(_values(arg))
    return found


def _operand(rng: random.Random, shape: list[int]) -> torch.Tensor:
    sizes = [n if rng.random() < 0.8 else 1 for n in shape][rng.choice((0, 0, 0, 1)) if shape else 0 :]
    order = list(range(len(sizes)))
    if rng.random() < 0.5:
        rng.shuffle(order)
    strides, step = [0] * len(sizes), 1
    for d in reversed(order):
        strides[d] = 0 if rng.random() < 0.1 else step
        step *= max(sizes[d], 1) * (2 if rng.random() < 0.1 else 1)
    return torch.empty_strided(sizes, strides).fill_(1.5)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("with_number", [False, True])
def test_pointwise_strides_are_eagers(count: int, with_number: bool) -> None:
    rng = random.Random(count)
    torch_runs = {
        (1, False): torch.exp, (1, True): lambda x: x + 2, (2, False): torch.add,
        (2, True): lambda x, y: torch.ops.aten.mul.Tensor(x, y), (3, False): torch.addcmul,
        (3, True): lambda x, y, z: torch.where(x > 0, y, z),
    }  # fmt: skip
    for _ in range(1500):
        shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(0, 4))]
        if rng.random() < 0.1 and shape:
            shape[rng.randrange(len(shape))] = 0
        first = _operand(rng, shape)
        same = rng.random() < 0.3
        tensors = [torch.empty_strided(first.shape, first.stride()).fill_(1.0) if same else _operand(rng, shape)
                   for _ in range(count)]  # fmt: skip
        made = torch_runs[count, with_number](*tensors)
        operands = [Layout(tuple(t.shape), t.stride()) for t in tensors]
        if (count, with_number) == (1, True):
            operands.append(Layout((), ()))
        if (count, with_number) == (3, True):
            condition = tensors[0] > 0
            operands[0] = Layout(tuple(condition.shape), condition.stride())
        assert pointwise_strides(operands, tuple(made.shape)) == made.stride(), operands


def test_every_pointwise_operator_of_floats_lies_as_told() -> None:
    """Of f32 operands in random layouts, against eager: those that are left out are not told by the rule."""
    rng = random.Random(0)
    for record in CATALOGUE:
        if "pointwise" not in tags_of(record.name) or record.alias != "fresh" or record.name in _NOT_ITERATED:
            continue
        samples = [s for s in record.samples() if _is_of_f32(s.args)]
        for _ in range(40 if samples else 0):
            sample = rng.choice(samples)
            shape = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(0, 4))]
            args = [_operand(rng, shape) if isinstance(a, torch.Tensor) else a for a in sample.args]
            run: Any = overload(record.name)
            made = run(*args, **sample.kwargs)
            operands = [Layout(tuple(a.shape), a.stride()) for a in args if isinstance(a, torch.Tensor)]
            schema = schema_of(record.name)
            assert schema is not None
            names = [
                a.name for a, given in zip(schema.arguments, args, strict=False) if isinstance(given, (int, float))
            ]
            if {"self", "other"} & set(names):
                operands.append(Layout((), ()))
            assert pointwise_strides(operands, tuple(made.shape)) == made.stride(), (record.name, operands)


def _is_of_f32(args: Sequence[Any]) -> bool:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return bool(tensors) and all(t.dtype == torch.float32 for t in tensors)
