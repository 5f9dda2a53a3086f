"""Compute large f32 products in bf16; everything between them stays f32.

    %1 = linear %x, %w, %b          %1 = to %x, bf16; %2 = to %w, bf16; %3 = to %b, bf16     (%2, %3: once, when built)
    %2 = gelu %1             ==>    %4 = linear %1, %2, %3; %5 = gelu %4; %6 = linear %5, ...
    %3 = linear %2, ...             %7 = to %6, f32

Narrowed are operands of linear with a static weight, of products of two activations, of attention and of convolutions
with a static weight, where `PassContext.narrowing_pays` says so. Each product sums in f32 and rounds its result once.
Norms, softmax, reductions and sums with a residual see f32. One element-wise operator between two narrowed products is
done in bf16, because that is the same: bf16 operators compute in f32 and round, which the cast behind it did before.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt._torch.library.mkldnn import POST_OPS
from smelt.analysis import is_static
from smelt.analysis.dependence import Dependence
from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, Node, TensorType, Value
from smelt.ops.effects import alias_of, effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.sets import PRODUCTS, where
from smelt.passes.base import Pass, PassContext, call_of, emitter, erase_dead
from smelt.passes.matching import is_autocast, is_used_once, static_tensor
from smelt.rewrite import Rewriter

_TO = "aten.to.dtype"

# The kind of product that an operator is, and its operands by name: those that are narrowed; static ones are weights.
_ADDING = ("aten.addmm.default", "aten.baddbmm.default")  # left alone: their alpha and beta round
_PRODUCTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{op: ("linear" if p.added else "batched", p.arguments) for op, p in PRODUCTS.items() if op not in _ADDING},
    "aten.scaled_dot_product_attention.default": ("attention", ("query", "key", "value", "attn_mask")),
    "aten.conv2d.default": ("convolution", ("input", "weight", "bias")),
    "aten.conv2d.padding": ("convolution", ("input", "weight", "bias")),
}
PRODUCT_OPS = frozenset(_PRODUCTS)
_WEIGHTED = ("linear", "convolution")

# Element by element, in f32 inside where the operands are bf16.
_POINTWISE = where(Trait.WIDE_INSIDE)
# What product libraries do as well, on sums that are not rounded yet.
_ACTIVATIONS = frozenset(post.op for post in POST_OPS if post.op in where(Trait.WIDE_INSIDE)) - {
    "aten.relu.default", "aten.leaky_relu.default", "aten.hardtanh.default",
}  # fmt: skip


def _run(graph: Graph, context: PassContext) -> bool:
    narrowing = _Narrowing(context.rewriter(graph), dict(context.dependence(graph)), context.narrowing_pays)
    for node in list(graph.walk()):
        if node.parent is not None and node.op in _PRODUCTS:
            narrowing.product(node)
    return narrowing.rewriter.edits > 0


@record
class _Narrowing:
    """One run over a graph."""

    rewriter: Rewriter
    found: dict[Value, Dependence]
    pays: Callable[[Node], bool]

    def product(self, node: Node) -> None:
        """Do a product in bf16 if its operands are f32 and it pays."""
        names = _PRODUCTS[node.op][1]
        if not self._is_candidate(node, names) or not self.pays(node):
            return
        call = call_of(node)
        with self.rewriter.builder.at(node):
            emit = emitter(self.rewriter)
            for name in names:
                operand = call[name]
                if isinstance(operand, Value) and _is(operand, DType.F32):
                    call[name] = self._narrow(emit, operand)
            made = emit.node(node.op, (), call)
            wide = _cast(emit, made.result, DType.F32)
        if wide.type != node.result.type:
            # A kernel may lay its result out by dtype; whoever follows was built for the layout that was there.
            erase_dead(self.rewriter, [n for n in (wide.node,) if n is not None])
            return
        operands = [v.node for v in node.operands() if v.node is not None]
        self.rewriter.replace_node(node, (wide,))
        erase_dead(self.rewriter, operands)
        self._activation(wide, made.result)

    def _is_candidate(self, node: Node, names: tuple[str, ...]) -> bool:
        kind = _PRODUCTS[node.op][0]
        call = call_of(node)
        tensors = [call[name] for name in names if call.get(name) is not None]
        masks = [call["attn_mask"]] if call.get("attn_mask") is not None else []
        if not call or is_autocast(node) or not _is(node.result, DType.F32) or call.get("dropout_p"):
            return False
        if not all(_is(t, DType.F32) or (t in masks and _is(t, DType.BOOL)) for t in tensors):
            return False
        static = [isinstance(t, Value) and is_static(t, self.found) for t in tensors]
        if kind in _WEIGHTED:
            return not static[0] and all(static[1:])
        return not all(static)

    def _narrow(self, emit: GraphEmitter, value: Value) -> Value:
        """`value` in bf16, made where `emit` stands."""
        source = _narrow_source(value)
        if source is not None:
            return source
        node = value.node
        if node is not None and is_used_once(value):
            operands = list(node.operands())
            narrow = [_narrow_source(v) for v in operands]
            if operands and all(n is not None for n in narrow) and _commutes(node):
                swap = {v: n for v, n in zip(operands, narrow, strict=True) if n is not None}
                made = _again(emit, node, swap)
                if made is not None and made.type == _as(value.type, DType.BF16):
                    return made
        made = _cast(emit, value, DType.BF16)
        if is_static(value, self.found):
            self.found[made] = self.found[value]
        return made

    def _activation(self, wide: Value, narrow: Value) -> None:
        """Move an activation that alone uses a product in front of the cast behind the product."""
        if not is_used_once(wide):
            return
        (user,) = wide.users
        if not isinstance(user, Node) or user.op not in _ACTIVATIONS or is_autocast(user):
            return
        with self.rewriter.builder.at(user):
            emit = emitter(self.rewriter)
            made = _again(emit, user, {wide: narrow})
            if made is None:
                return
            result = _cast(emit, made, DType.F32)
        if result.type == user.result.type:
            self.rewriter.replace_node(user, (result,))
        erase_dead(self.rewriter, [n for n in (wide.node, result.node) if n is not None])


def _is(arg: Arg, dtype: DType) -> bool:
    kind = static_tensor(arg)
    on_device = kind is not None and (kind.device == "cpu" or kind.device.startswith("cuda"))
    return kind is not None and kind.dtype is dtype and kind.numel > 0 and on_device


def _as(type_: object, dtype: DType) -> TensorType | None:
    """A tensor type with another dtype."""
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    return type_.of(dtype, type_.sizes, type_.steps, type_.device)


def _cast(emit: GraphEmitter, value: Value, dtype: DType) -> Value:
    return emit.call(_TO, value, dtype)


def _narrow_source(value: Value) -> Value | None:
    """The bf16 value that an f32 value is a widened copy of."""
    node = value.node
    if node is None or node.op != _TO or not _is(value, DType.F32) or is_autocast(node):
        return None
    source = node.args[0]
    return source if isinstance(source, Value) and _is(source, DType.BF16) else None


def _commutes(node: Node) -> bool:
    """Whether a node of f32 operands widened from bf16, rounded to bf16, gives what it gives on the bf16 themselves."""
    if is_autocast(node) or len(node.results) != 1 or not effects(node).is_reproducible:
        return False
    return node.op in _POINTWISE or (alias_of(node) is not None and node.op != _TO)


def _again(emit: GraphEmitter, node: Node, swap: dict[Value, Value]) -> Value | None:
    """The node once more, of other operands; None where it has no such form."""
    call = call_of(node)
    if not call or any(isinstance(v, tuple) and any(isinstance(i, Value) for i in v) for v in call.values()):
        return None
    return emit.node(node.op, (), {k: swap.get(v, v) if isinstance(v, Value) else v for k, v in call.items()}).result


lower_precision = Pass(
    "lower-precision",
    "%1 = linear %x, %w   ==>   %1 = to (linear (to %x, bf16), (to %w, bf16)), f32",
    _run,
    rounding=True,
)
