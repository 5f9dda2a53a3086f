"""Type functions tell what eager gives, for all samples of the catalogue: of numbers, free sizes, unknown ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from smelt.ir import UNKNOWN_DIM, Arg, Graph, TensorType, TupleType, Type, Value, fits
from smelt.ir.sizes import Evaluation, Range, Size, Trace, UndecidedError, tracing
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.convert import from_torch, type_of
from smelt.ops.meta import CannotRun, static_outcome
from smelt.ops.record import OpRecord, Sample
from smelt.ops.registry import normalize, overload
from smelt.ops.shapes.calls import infer_of_unknown, map_dims
from smelt.ops.shapes.symbolic import CannotTell, has_type_function, infer_ruled

NAMES = [record.name for record in CATALOGUE if has_type_function(record.name)]
_RECORDS = {record.name: record for record in CATALOGUE}
_NO_NUMBERS = frozenset(("aten._pack_padded_sequence.default", "aten._pad_packed_sequence.default"))
"""Only data say how many rows these give."""


def _arg(graph: Graph, obj: Any, trace: Trace | None) -> Arg:
    if isinstance(obj, torch.Tensor):
        type_ = type_of(obj)
        return Value("x", type_ if trace is None else _free(type_, trace), graph.body)
    if isinstance(obj, (list, tuple)):
        return tuple(_arg(graph, o, trace) for o in obj)
    return from_torch(obj)


def _free(type_: TensorType, trace: Trace) -> TensorType:
    """A row-major type with a symbol for each size but 0 and 1; any other as it is."""
    if type_.strides is not None:
        return type_
    return TensorType(type_.dtype, tuple(_symbol(trace, n) for n in type_.sizes), None, type_.device)


def _symbol(trace: Trace, size: int) -> int:
    return trace.symbols.get(f"n{size}", size)


def _told(record: OpRecord, sample: Sample, trace: Trace | None) -> tuple[Type, ...] | None:
    graph = Graph("g")
    args = tuple(_arg(graph, a, trace) for a in sample.args)
    kwargs = {k: _arg(graph, a, trace) for k, a in sample.kwargs.items()}
    positional, named = normalize(record.name, args, kwargs)
    try:
        found = infer_ruled(record.name, positional, named, lambda v: v.type, static_outcome)
    except (CannotTell, CannotRun, UndecidedError):
        return None
    return None if found is None else found[0]


def _eager(record: OpRecord, sample: Sample) -> list[Type]:
    found: Any = overload(record.name)(*sample.args, **sample.kwargs)  # type: ignore[misc]
    flat = list(found) if isinstance(found, (list, tuple)) else [found]
    return [type_of(t) for t in flat]


def _flat(types: Sequence[Type]) -> Iterator[Type]:
    for type_ in types:
        yield from _flat(type_.elements) if isinstance(type_, TupleType) else (type_,)


def _at(type_: Type, at: Evaluation) -> Type:
    found = map_dims(type_, lambda dim: at(dim) if type(dim) is Size else dim)
    assert isinstance(found, TensorType)
    return TensorType.of(found.dtype, found.sizes, found.strides, found.device)


@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str) -> None:
    record, told = _RECORDS[name], 0
    for sample in record.samples():
        types = _told(record, sample, None)
        if types is not None:
            told += 1
            assert [_plain(t) for t in _flat(types)] == _eager(record, sample), sample
    assert (told == 0) == (name in _NO_NUMBERS)


def _plain(type_: Type) -> Type:
    assert isinstance(type_, TensorType)
    return TensorType.of(type_.dtype, type_.sizes, type_.strides, type_.device)


@pytest.mark.parametrize("name", NAMES)
def test_free_sizes(name: str) -> None:
    record = _RECORDS[name]
    for sample in record.samples():
        with tracing({f"n{n}": (n, Range()) for n in range(2, 40)}) as trace:
            with trace.without_guards():
                types = _told(record, sample, trace)
            at = Evaluation(trace, {f"n{n}": n for n in range(2, 40)})
            assert not trace.guards
            if types is not None:
                assert [_at(t, at) for t in _flat(types)] == _eager(record, sample), sample


@pytest.mark.parametrize("name", NAMES)
def test_of_free_sizes_that_happen_to_be_equal_nothing_is_concluded(name: str) -> None:
    record = _RECORDS[name]
    for sample in record.samples():
        tensors = [t for t in (*sample.args, *sample.kwargs.values()) if isinstance(t, torch.Tensor)]
        if len(tensors) != 1 or tensors[0].dim() != 2 or not tensors[0].is_contiguous():
            continue
        with tracing({"a": (4, Range()), "b": (4, Range())}) as trace, trace.without_guards():
            free = TensorType(type_of(tensors[0]).dtype, (trace.symbols["a"], trace.symbols["b"]), None)
            value = Value("x", free, Graph("g").body)
            args = tuple(value if a is tensors[0] else _arg(Graph("g"), a, None) for a in sample.args)
            kwargs = {k: value if a is tensors[0] else _arg(Graph("g"), a, None) for k, a in sample.kwargs.items()}
            positional, named = normalize(name, args, kwargs)
            try:
                found = infer_ruled(name, positional, named, lambda v: v.type, static_outcome)
            except (CannotTell, CannotRun, UndecidedError):
                continue
            other = Evaluation(trace, {"a": 3, "b": 5})
            if found is not None and not any(isinstance(a, tuple) for a in args):
                other_args = [torch.ones(3, 5).to(tensors[0].dtype) if a is tensors[0] else a for a in sample.args]
                try:
                    wanted = overload(name)(*other_args, **sample.kwargs)  # type: ignore[misc]
                except RuntimeError:
                    continue
                wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
                assert [_at(t, other) for t in _flat(found[0])] == [type_of(t) for t in wanted], sample


def _unknown(type_: TensorType, mode: str) -> TensorType:
    """A row-major type with all sizes, or the first one, unknown."""
    if type_.strides is not None or not type_.shape:
        return type_
    left = () if mode == "all" else type_.shape[1:]
    return TensorType(type_.dtype, (*[UNKNOWN_DIM] * (len(type_.shape) - len(left)), *left), None, type_.device)


@pytest.mark.parametrize("mode", ["first", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_unknown_sizes(name: str, mode: str) -> None:
    """What is told holds of eager's results."""
    record, graph = _RECORDS[name], Graph("g")

    def arg(obj: Any) -> Arg:
        if isinstance(obj, torch.Tensor):
            return Value("x", _unknown(type_of(obj), mode), graph.body)
        return tuple(map(arg, obj)) if isinstance(obj, (list, tuple)) else from_torch(obj)

    for sample in record.samples():
        positional, named = normalize(name, tuple(map(arg, sample.args)), {k: arg(a) for k, a in sample.kwargs.items()})
        found = infer_of_unknown(name, positional, named, static_outcome)
        if found is None:
            continue
        for told, given in zip(_flat(found), _eager(record, sample), strict=True):
            assert fits(given, told), (sample, told, given)
