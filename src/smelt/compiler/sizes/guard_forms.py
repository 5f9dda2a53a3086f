"""What guards are told of free sizes and numbers: which arguments have some, and what these must fulfil.

Invariant: a call whose arguments have these forms, and fulfil these checks, is one that the graph holds for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smelt.capture import Captured, Signature
from smelt.capture.dynamic.spec import Origin, SizeFacts, Spot
from smelt.capture.structure.signature import NAMES
from smelt.capture.structure.tree import ConstantLeaf, leaves
from smelt.compiler.sizes.size_one_strides import free_of_strides
from smelt.compiler.sizes.size_texts import readable
from smelt.diag import InternalError
from smelt.ir import TensorType
from smelt.ir.dims import Dim, UnknownDim
from smelt.runtime.guarding.guard_sizes import row_major
from smelt.runtime.guarding.guards import Form, NumberForm, SizeCheck, TensorForm

ANY = -(1 << 62)
"""A number without a bound below."""


def free_spots(captured: Captured) -> frozenset[Spot]:
    """The sizes and numbers of the arguments that may differ from call to call."""
    facts, signature = captured.sizes, captured.signature
    if facts is None or signature is None:
        return frozenset()
    origins = ((name, origin) for name, origin in facts.symbols.items() if name not in facts.fixed)
    return frozenset((signature.inputs[origin.input], origin.dim) for _, origin in origins)


def forms_of(captured: Captured) -> Mapping[str, Form]:
    """By place, the arguments that are not compared as a whole. Raises: InternalError for a size that nobody knows."""
    facts, graph, signature = captured.sizes, captured.graph, captured.signature
    if facts is None or graph is None or signature is None:
        return {}
    places: dict[int, str] = {}
    for i, place in _guard_places(signature):
        places.setdefault(i, place)  # a tensor that is given twice is looked at where it stands first
    forms: dict[str, Form] = {}
    of_any_stride = free_of_strides(captured)
    for i, value in enumerate(graph.inputs):
        names = {origin.dim: name for name, origin in facts.symbols.items() if origin.input == i}
        if not isinstance(value.type, TensorType):
            forms[places[i]] = NumberForm(names[None])
        elif names or not value.type.is_static or i in of_any_stride:
            forms[places[i]] = _form(value.type, names, i in of_any_stride)
    return forms


def _form(type_: TensorType, names: Mapping[int | None, str], is_of_any_stride: bool) -> TensorForm:
    # Every symbol is bound where it is read, also one that must be a number, or equal another: that is a check.
    assert type_.shape is not None
    sizes = tuple(names.get(dim) or _shown(size) for dim, size in enumerate(type_.shape))
    strides: tuple[int | str | None, ...] | None = None if type_.strides is None else tuple(map(_shown, type_.strides))
    if is_of_any_stride and (strides is not None or type_.is_static):
        known = row_major([int(size) for size in sizes]) if strides is None else strides
        strides = tuple(None if size == 1 else stride for size, stride in zip(sizes, known, strict=True))
    return TensorForm(sizes, strides)


def checks_of(captured: Captured) -> tuple[SizeCheck, ...]:
    """What the free sizes and numbers must fulfil: their ranges, and the guards that the capture found."""
    facts = captured.sizes
    if facts is None:
        return ()
    floats = {name for name, origin in facts.symbols.items() if origin.range is None}
    return (
        *ranges_of(facts),
        *(SizeCheck(readable(guard.text, floats), guard.outcome, guard.span) for guard in facts.guards),
    )


def ranges_of(facts: SizeFacts) -> list[SizeCheck]:
    """What the free sizes and numbers were to be."""
    return [check for item in facts.symbols.items() for check in _range(*item)]


def _range(name: str, origin: Origin) -> list[SizeCheck]:
    if origin.range is None:
        return []
    low, high = origin.range.low, origin.range.high
    checks = [SizeCheck(f"{name} >= {low}")] if low > (ANY if origin.dim is None else 0) else []
    return checks if high is None else [*checks, SizeCheck(f"{name} <= {high}")]


def _guard_places(signature: Signature) -> Iterator[tuple[int, str]]:
    """Where guards find each input: they count the fields of a named tuple."""
    for name, tree in zip(NAMES, (signature.args, signature.kwargs), strict=True):
        for place, leaf in leaves(tree, name):
            if not isinstance(leaf, ConstantLeaf):
                yield leaf.index, place


def _shown(dim: Dim) -> int | str:
    if isinstance(dim, UnknownDim):
        raise InternalError("an input has a size that no symbol represents")
    return dim if isinstance(dim, int) else str(dim)
