"""Autocast as casts.   %1: bf16 = linear %x %w ["autocast(bf16)"]   ==>   %2 = to %x bf16; ...; %1 = linear %2 %3

Invariant: an operator is cast as the recorded run did, which its result's type tells: to the lower type, to f32, or to
the widest of what it joins; where not exactly one of these gives that type, it stays under autocast.

Grad and inference mode are left out of nodes of torch's own: plans run without gradients, and values are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from smelt._torch.autocast import is_cast, is_composite
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, Node, TensorType, Value, map_values
from smelt.ir.dtypes import BY_LABEL
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.ops.typing import infer
from smelt.passes.base import Pass, PassContext, emitter
from smelt.rewrite import Rewriter

_AUTOCAST = re.compile(r"\s*autocast\((?:(cuda), )?(bf16|f16)\)\s*;?")
_OFF = re.compile(r"\s*autocast\((?:cpu, |cuda, )?off\)\s*;?")
_GRAD = re.compile(r"\s*\b(?:no_grad|enable_grad|inference)\b\s*;?")
_KNOWN = ("aten.", "prims.", "py.")  # others may ask for the mode

# What torch makes of operators that autocast leaves alone.
_UNTOUCHED = where(Trait.IGNORES_AUTOCAST) | {
    f"aten.{name}"
    for name in (
        "dropout_.default", "tensor_split.sections", "tensor_split.indices", "broadcast_to.default",
        "max_pool1d.default", "hstack.default", "vstack.default",
    )
}  # fmt: skip
_JOINING = ("aten.cat.default", "aten.stack.default")
# What torch writes as one other operator, which autocast looks at.
_IS = {"aten.square.default": "aten.pow.Tensor_Scalar"}


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in graph.walk():
        if node.mode and (node.op.startswith(_KNOWN) or "." not in node.op) and _GRAD.search(node.mode):
            node.mode = _GRAD.sub(" ", node.mode).strip()
            rewriter.edits += 1
    if any(node.regions and _AUTOCAST.search(node.mode) for node in graph.walk()):
        return rewriter.edits > 0  # it is on for all that stands in them
    for node in list(graph.walk()):
        if node.mode and not node.regions and not _AUTOCAST.search(node.mode) and _OFF.search(node.mode):
            node.mode = _OFF.sub(" ", node.mode).strip()  # as it is wherever plans run
            rewriter.edits += 1
        found = _AUTOCAST.search(node.mode)
        if found is None or node.mode.count("autocast") > 1 or node.regions:
            continue
        rest = (node.mode[: found.start()] + node.mode[found.end() :]).strip()
        casts = _Casts(found[1] or "cpu", BY_LABEL[found[2]])
        fitting = [cast for cast in casts.ways(node) if _fits(node, cast)]
        if len(fitting) == 1:
            _rewrite(rewriter, node, fitting[0], rest)
    return rewriter.edits > 0


def is_casting(node: Node) -> bool:
    """Whether autocast casts a node's operands to its lower type."""
    found = _AUTOCAST.search(node.mode)
    if found is None or not is_cast(node.op, found[1] or "cpu"):
        return False
    types = [result.type for result in node.results]
    return any(isinstance(t, TensorType) and t.dtype is BY_LABEL[found[2]] for t in types)


Cast = Callable[[Value], DType | None]
"""The other element type that an operand is cast to, if any."""


@record
class _Casts:
    """What autocast of a device ("cpu", "cuda") does, to a lower type."""

    device: str
    low: DType

    def ways(self, node: Node) -> Iterator[Cast]:
        """To what element type each operand may have been cast: the possible ways."""
        if node.op.startswith("py.") or node.op in ("unpack", "const"):
            yield self._to(None)
            return
        if not node.op.startswith("aten."):
            return
        cast = is_cast(_IS.get(node.op, node.op), self.device)
        if node.op in _IS:
            yield self._to(DType.F32 if cast else None)
        elif cast is False:
            if is_composite(node.op) is False or node.op in _UNTOUCHED:
                yield self._to(None)
        elif cast and node.op in _JOINING:
            yield self._to(_widest([t.dtype for v in node.operands() if (t := self._floating(v)) is not None]))
        elif cast:
            yield self._to(self.low)
            yield self._to(DType.F32)

    def _to(self, dtype: DType | None) -> Cast:
        def cast(value: Value) -> DType | None:
            type_ = self._floating(value)
            return dtype if type_ is not None and dtype is not None and type_.dtype is not dtype else None

        return cast

    def _floating(self, value: Value) -> TensorType | None:
        """The type of what autocast may cast: it leaves doubles, integers and tensors elsewhere alone."""
        type_ = value.type
        if not isinstance(type_, TensorType) or type_.device.partition(":")[0] != self.device:
            return None
        return type_ if type_.dtype is DType.F32 or type_.dtype.is_half else None


def _widest(dtypes: Sequence[DType]) -> DType | None:
    return None if len(set(dtypes)) < 2 else DType.F32


def _fits(node: Node, cast: Cast) -> bool:
    """Whether the operator on cast operands gives the types that the node has."""
    if not node.op.startswith("aten."):
        return True
    supposed: dict[Value, Value] = {}

    def suppose(value: Value) -> Arg:
        to, type_ = cast(value), value.type
        if to is None or not isinstance(type_, TensorType):
            return value
        if value not in supposed:
            supposed[value] = Value(value.name, TensorType(to, type_.shape, type_.strides, type_.device), value.owner)
        return supposed[value]

    args = [map_values(arg, suppose) for arg in node.args]
    kwargs = {name: map_values(arg, suppose) for name, arg in node.kwargs.items()}
    try:
        return list(infer(node.op, args, kwargs)) == [result.type for result in node.results]
    except (SmeltError, TypeError, ValueError, RuntimeError):
        return False


def _rewrite(rewriter: Rewriter, node: Node, cast: Cast, mode: str) -> None:
    """Put the operator on cast operands in a node's place."""
    builder = rewriter.builder
    with builder.at(node):
        builder.mode = mode
        emit = emitter(rewriter)
        made: dict[Value, Value] = {}

        def given(value: Value) -> Arg:
            to = cast(value)
            if to is None:
                return value
            if value not in made:
                made[value] = emit.call("aten.to.dtype", value, to)
            return made[value]

        args = tuple(map_values(arg, given) for arg in node.args)
        kwargs = {name: map_values(arg, given) for name, arg in node.kwargs.items()}
        new = builder.add(node.op, args, [result.type for result in node.results], kwargs)
        rewriter.adopt(new)
    rewriter.replace_node(node, tuple(new.results))


explicit_casts = Pass(
    "explicit-casts", '%1: bf16 = linear %x %w ["autocast(bf16)"]   ==>   %2 = to %x bf16; ...; %1 = linear %2 %3', _run
)
