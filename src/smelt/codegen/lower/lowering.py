"""From a functional, optimized graph with static shapes to a plan of library calls.

Each product stands with its epilogue and each fused group in one piece, otherwise the graph's order is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from smelt.codegen.lower.attention import lower_attention
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.convolution import (
    Convolution,
    convolution_of,
    lower_convolution,
    takes_library,
    without_pad,
)
from smelt.codegen.lower.expects import lower_expect
from smelt.codegen.lower.fuse import Epilogue, epilogue_of
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.kernels import with_code
from smelt.codegen.lower.library import lower_gelu, lower_pad
from smelt.codegen.lower.linear import Product, lower_product, product_of
from smelt.codegen.lower.nests import Nests
from smelt.codegen.lower.outputs import lower_outputs
from smelt.codegen.lower.own_attention import OwnAttention, lower_own_attention, own_attention_of
from smelt.codegen.lower.own_convolution import OwnConvolution, lower_own_convolution, own_convolution_of
from smelt.codegen.lower.own_matmul import OwnMatmul, lower_own_matmul, own_matmul_of
from smelt.codegen.lower.own_products import OwnProduct, lower_own_product, own_product_of
from smelt.codegen.lower.products import lower_addmm, lower_matmul, lower_mm
from smelt.codegen.lower.report import MemoryReport, Report
from smelt.codegen.lower.result import Lookup, Lowered
from smelt.codegen.lower.scalars import lower_with_numbers
from smelt.codegen.lower.sharing import is_idle_dropout, view_source
from smelt.codegen.lower.statics import STATE_OPS
from smelt.codegen.lower.views import lower_unpack, lower_view
from smelt.codegen.lower.writes import lower_write, mutations
from smelt.diag import InternalError, Options, SmeltError
from smelt.ir import NONE, Graph, Node, TensorType, TupleType, print_node
from smelt.ops.effects import effects

_RULES: dict[str, Callable[[Context, Node], bool]] = {
    "aten.mm.default": lower_mm,
    "aten.bmm.default": lower_mm,
    "aten.addmm.default": lower_addmm,
    "aten.baddbmm.default": lower_addmm,
    "aten.matmul.default": lower_matmul,
    "aten.scaled_dot_product_attention.default": lower_attention,
    "aten.gelu.default": lower_gelu,
    "aten.pad.default": lower_pad,
    "aten.constant_pad_nd.default": lower_pad,
}

_Main = Product | OwnProduct | OwnMatmul | Convolution | OwnConvolution | OwnAttention


class _Groups:
    """Products with their epilogues: which nodes wait for a later one, and what is lowered there."""

    def __init__(self, ctx: Context) -> None:
        self.at: dict[Node, tuple[_Main, Epilogue]] = {}
        self.waiting: set[Node] = set()
        self.units: list[list[Node]] = []
        claimed: set[Node] = set()
        nodes = list(ctx.graph.body)
        order = {node: i for i, node in enumerate(nodes)}
        writes = [order[node] for node in nodes if node.op == "write"]
        for node in nodes:
            product = product_of(ctx, node)
            main: _Main | None = (
                own_matmul_of(ctx, node, claimed)
                if product is None
                else own_product_of(ctx, product, claimed) or product
            )
            conv = convolution_of(ctx, node) if main is None else None
            pad = None
            if conv is not None:
                pad = conv.pad
                if pad is not None and any(order[pad] < w < order[node] for w in writes):
                    conv, pad = without_pad(ctx, conv), None
                main = own_convolution_of(ctx, conv, claimed) or (conv if takes_library(conv) else None)
                if main is not None and pad is not None:
                    self.waiting.add(pad)
            if main is None:
                main = own_attention_of(ctx, node, claimed)
            if main is None:
                continue
            if isinstance(main, OwnConvolution | OwnProduct | OwnMatmul | OwnAttention):
                epilogue = Epilogue(main.nodes, main.result)
            else:
                epilogue = epilogue_of(ctx, node, claimed, sum_then_post=conv is not None)
            if epilogue.nodes and any(order[node] < w < order[epilogue.nodes[-1]] for w in writes):
                # Waiting would carry the product past a write to what it reads.
                epilogue = Epilogue((), node.result)
                if isinstance(main, OwnConvolution | OwnProduct | OwnMatmul | OwnAttention):
                    main = main.bare()
            claimed.update(epilogue.nodes)
            self.at[epilogue.nodes[-1] if epilogue.nodes else node] = (main, epilogue)
            self.waiting.update((node, *epilogue.nodes[:-1]) if epilogue.nodes else ())
            unit = {node, *epilogue.nodes, *(() if pad is None else (pad,))}
            self.units.append(sorted(unit, key=order.__getitem__))


def lower(graph: Graph, state: Lookup, options: Options | None = None) -> Lowered:
    """The plan of a graph, with what its caller must know.

    state: (kind, path) -> the live tensor of a parameter, buffer or captured value.
    Raises: SmeltError (S0303) naming the node and its source line, where the graph cannot be in a plan: another
        device than the CPU, symbolic or unknown sizes, sparse layouts, control flow, values that are no tensors.
    """
    stages: list[tuple[str, float]] = []
    start = perf_counter()

    def stage(name: str) -> None:
        nonlocal start
        now = perf_counter()
        stages.append((name, round((now - start) * 1000, 3)))
        start = now

    _check(graph)
    ctx = Context(graph, state, options or Options())
    for value in graph.inputs:
        ctx.add_input(value)
    stage("analyse")
    groups = _Groups(ctx)
    nests = Nests(ctx, groups.units)
    stage("fuse")
    for node in nests.order:
        try:
            _lower_node(ctx, node, groups, nests)
        except (TypeError, ValueError, RuntimeError, KeyError, AssertionError) as error:
            raise _defect(node, error) from error
    stage("lower")
    parts = {"fold": ctx.statics.spent_ms, **ctx.spent_ms}
    stages.extend((f"lower: {name}", round(ms, 3)) for name, ms in parts.items())
    slots, outputs = lower_outputs(ctx)
    plan = ctx.builder.finish(slots)
    stage("memory")
    plan = with_code(ctx, plan)
    stage("kernels")
    memory = MemoryReport(
        plan.arena_nbytes,
        ctx.builder.arena_naive_nbytes,
        ctx.packed_nbytes,
        ctx.statics.folded_nbytes,
        ctx.builder.peak_nbytes,
    )
    nodes = tuple(ctx.nodes[node] for node in graph.body if node in ctx.nodes)
    texts = {symbol: source.text for symbol, source in ctx.sources.items()}
    choices = tuple(ctx.choices.values())
    report = Report(nodes, choices, memory, tuple(stages), tuple(ctx.kernels), texts, nests.decisions)
    return Lowered(plan, outputs, mutations(ctx), ctx.handles, ctx.statics.baked, report)


def _lower_node(ctx: Context, node: Node, groups: _Groups, nests: Nests) -> None:
    def single(ctx: Context, node: Node) -> None:
        _lower_single(ctx, node, nests)

    if node in groups.waiting or nests.lower(node, single):
        return
    ctx.enter(node)
    group = groups.at.get(node)
    if group is not None:
        main, epilogue = group
        if not _lower_main(ctx, main, epilogue):
            rest = (main.node, *epilogue.nodes) if isinstance(main, Convolution) else epilogue.nodes
            for each in rest:
                ctx.enter(each)
                single(ctx, each)
        return
    single(ctx, node)


def _lower_main(ctx: Context, main: _Main, epilogue: Epilogue) -> bool:
    """Lower a product or its like with what is fused behind it; False where that is left to be lowered."""
    match main:
        case Product():
            return lower_product(ctx, main, epilogue)
        case Convolution():
            return lower_convolution(ctx, main, epilogue)
        case OwnMatmul():
            lower_own_matmul(ctx, main)
        case OwnProduct():
            lower_own_product(ctx, main)
        case OwnConvolution():
            lower_own_convolution(ctx, main)
        case OwnAttention():
            lower_own_attention(ctx, main)
    return True


def _lower_single(ctx: Context, node: Node, nests: Nests) -> None:
    if node.op in STATE_OPS:
        ctx.note(node, "state")
        if not ctx.statics.is_static(node.result):
            ctx.add_state(node.result)
        return
    if node.results and all(ctx.statics.is_static(r) for r in node.results):
        ctx.note(node, "static")
        return
    if node.op == "write":
        lower_write(ctx, node)
        return
    if node.op == "expect":
        lower_expect(ctx, node)
        return
    if not any(r.users for r in node.results) and effects(node).is_pure and not effects(node).may_throw:
        ctx.note(node, "unused")
        return
    if node.op == "unpack":
        lower_unpack(ctx, node)
        return
    source = view_source(node)
    if source is not None:
        lower_view(ctx, node, source)
        return
    if nests.single(node):
        return
    rule = _RULES.get(node.op)
    if (rule is not None and rule(ctx, node)) or lower_with_numbers(ctx, node):
        return
    dispatch(ctx, node)


def _defect(node: Node, error: Exception) -> InternalError:
    """An error that no rule foresaw, with the node that shows it."""
    return InternalError(
        f"lowering {node.op} failed: {type(error).__name__}: {error}",
        where=node.span,
        why=print_node(node).splitlines()[0],
        fix="the program runs eagerly; report the line above",
    )


def _check(graph: Graph) -> None:
    """Refuse what a plan cannot hold. Raises: SmeltError (S0303)."""
    for node in graph.body:
        if node.regions:
            raise cannot_lower(node, "control flow has no place in a straight plan")
        if node.op != "write" and effects(node).writes and not is_idle_dropout(node):
            raise cannot_lower(node, "it writes to an operand, and the graph must be functional here")
        for value in node.results:
            if value.type == NONE and not value.users:
                # A tensor that an operator leaves out.
                continue
            types = value.type.elements if isinstance(value.type, TupleType) else (value.type,)
            for type_ in types:
                if not isinstance(type_, TensorType):
                    raise cannot_lower(node, f"its result is {value.type}, and only tensors can be in a plan")
                if type_.device != "cpu" or type_.layout != "strided":
                    raise cannot_lower(node, f"its result is {type_}; only strided tensors on the CPU can be")
                if not type_.is_static:
                    raise cannot_lower(node, f"its result is {type_}, whose size is not known")
    for value in graph.inputs:
        input_type = value.type
        if isinstance(input_type, TensorType) and not (
            input_type.is_static and input_type.device == "cpu" and input_type.layout == "strided"
        ):
            raise SmeltError(
                f"input %{value.name} is {input_type}",
                why="only strided tensors of known sizes on the CPU can be in a plan",
                fix="nothing needs to be done: the program runs eagerly",
                code="S0303",
            )
