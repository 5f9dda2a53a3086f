"""Inputs of a graph whose strides along sizes of 1 may be any: nothing that is computed or returned follows from them.

A size of 1 is never stepped over, so its stride says nothing of where elements lie; but torch carries it on into views
and copies, and Python may ask for it. `ids[:, -1:]` of one row has another one with each length.

Invariant: an input is named only where all that the strides reach are views, copies with the same strides, and
operators whose results lie alike whatever they are; and none of these is returned.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt.capture import Captured
from smelt.capture.recording.spans import is_smelts
from smelt.capture.staging.fakes import patches
from smelt.ir import Graph, Node, TensorType, Value, values_in
from smelt.ir.nodes import Region
from smelt.ir.python_operators import COMPARISONS
from smelt.ops.record import Trait
from smelt.ops.sets import where

_CARRYING = where(Trait.CARRIES_STRIDES)
"""Their results have strides that follow from the first operand's."""
_TOLD = frozenset(("aten.sym_size.int", "aten.size.int", "aten.sym_numel.default", "aten.numel.default"))
"""Sizes alone."""
_OF_ONE = frozenset(f"aten.{o.name}.{kind}" for o in COMPARISONS for kind in ("Scalar", "Tensor"))
"""Pointwise, into memory of their own: with one element all strides are 1."""
_ASKING = ("stride", "dim_order", "numpy", "__array", "dlpack", "_layout", "is_strides_like", "__repr__")
"""In the names of what tells strides, or hands them on to what does."""
_MOST_AXES = 3
"""With more axes the strides along sizes of 1 tell one memory format from another, and Python may ask for that."""


# Where the staged run, which puts back what it changes, does not find them.
_asked: ContextVar[list[str]] = ContextVar("smelt strides read")


@contextmanager
def telling() -> Iterator[list[str]]:
    """What was asked in the block for strides."""
    found: list[str] = []
    before = _asked.set(found)
    try:
        yield found
    finally:
        _asked.reset(before)


class StrideReads(TorchFunctionMode):
    """Tells the block of `telling` where anything but Smelt asks a tensor how it lies, by whatever name."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # While a run is staged, methods of tensors have other names.
        is_asking = func is torch.Tensor.stride or any(word in _name_of(func) for word in _ASKING)
        if is_asking and not _is_smelts_own(sys._getframe(1)):
            _asked.get().append(_name_of(func))
        return func(*args, **(kwargs or {}))


def _name_of(func: Any) -> str:
    # Of a property's getter, `__get__` says nothing.
    return f"{func} {getattr(func, '__name__', '')} {getattr(getattr(func, '__self__', None), '__name__', '')}"


def _is_smelts_own(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == patches.__file__:
        frame = frame.f_back  # it asks for whoever called it
    return frame is not None and is_smelts(frame.f_code.co_filename)


def free_of_strides(captured: Captured) -> frozenset[int]:
    """The inputs, by position, that have a size of 1 whose stride may be any."""
    graph, facts = captured.graph, captured.sizes
    if graph is None or facts is None or facts.reads_strides:
        return frozenset()
    ones = [i for i, value in enumerate(graph.inputs) if _has_one(value)]
    return frozenset(i for i in ones if _ends(graph, graph.inputs[i]))


def needs_strides(captured: Captured, places: Collection[str]) -> bool:
    """Whether an argument at one of these places has sizes of 1 whose strides must be what they were."""
    if captured.graph is None or captured.signature is None:
        return True
    asked = {i for i, place in enumerate(captured.signature.inputs) if place in places}
    return not asked <= free_of_strides(captured)


def _has_one(value: Value) -> bool:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape is not None and any(type(size) is int and size == 1 for size in shape)


def _ends(graph: Graph, start: Value) -> bool:
    """Whether what the strides of this input reach ends before the graph does."""
    assert isinstance(start.type, TensorType) and start.type.shape is not None
    if len(start.type.shape) > _MOST_AXES or start.type.layout != "strided":
        return False
    reached, waiting = {start}, [start]
    while waiting:
        value = waiting.pop()
        for user in value.users:
            if isinstance(user, Region):
                return False
            carried = _carried(user, value)
            if carried is None:
                return False
            waiting += [result for result in carried if result not in reached]
            reached.update(carried)
    return True


def _carried(node: Node, value: Value) -> Iterable[Value] | None:
    """The results whose strides follow from this operand's; None where that is not known."""
    rest = chain(values_in(node.args[1:]), *(values_in(arg) for arg in node.kwargs.values()))
    if node.op in _CARRYING:
        return None if value in rest else node.results
    if node.op in _TOLD:
        return ()
    if node.op == "aten.embedding.default":
        return () if node.args[0] is not value else None
    if node.op in _OF_ONE and all(_has_one_element(result) for result in node.results):
        return ()
    return None


def _has_one_element(value: Value) -> bool:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape is not None and all(type(size) is int and size == 1 for size in shape)
