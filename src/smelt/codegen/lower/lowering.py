"""From a functional, optimized graph to a plan.

Each product stands with its epilogue and each fused group in one piece, otherwise the graph's order is kept. Branches
and loops become blocks of the plan; what has no native form is a call of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final

import torch

from smelt.analysis import alias_analysis
from smelt.codegen.fusion.groups import has_numbers
from smelt.codegen.fusion.rules.indexed_writes import writes_parts
from smelt.codegen.llvm.isa import is_for_elsewhere
from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.expects import lower_expect
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.gpu.lowering import gpu_of, lower_on_gpu
from smelt.codegen.lower.images.attention import lower_attention
from smelt.codegen.lower.images.convolution import (
    Convolution,
    convolution_of,
    lower_convolution,
    takes_library,
    without_pad,
)
from smelt.codegen.lower.images.convolution_gradients import (
    OwnWeightGradient,
    image_gradient_of,
    lower_own_weight_gradient,
    own_weight_gradient_of,
    transposed_convolution_of,
)
from smelt.codegen.lower.images.embedding_gradient import lower_embedding_gradient
from smelt.codegen.lower.images.own_attention import OwnAttention, lower_own_attention, own_attention_of
from smelt.codegen.lower.images.own_convolution import OwnConvolution, lower_own_convolution, own_convolution_of
from smelt.codegen.lower.images.trained_attention import FLASH, FLASH_BACKWARD, lower_flash, lower_flash_backward
from smelt.codegen.lower.launched_kernels import with_code
from smelt.codegen.lower.library import lower_gelu, lower_histc, lower_pad
from smelt.codegen.lower.memory.in_place import PUTS
from smelt.codegen.lower.memory.outputs import lower_outputs
from smelt.codegen.lower.memory.relaying import relay
from smelt.codegen.lower.memory.sharing import is_idle_dropout, view_source
from smelt.codegen.lower.memory.views import lower_resolved, lower_unpack, lower_view
from smelt.codegen.lower.memory.writes import lower_write, mutations
from smelt.codegen.lower.nests import Nests
from smelt.codegen.lower.preparing import prepared
from smelt.codegen.lower.products.fuse import Epilogue, epilogue_of
from smelt.codegen.lower.products.linear import Product, lower_product, product_of
from smelt.codegen.lower.products.narrow_products import NarrowProduct, lower_narrow_product, narrow_product_of
from smelt.codegen.lower.products.own_matmul import OwnMatmul, lower_own_matmul, own_matmul_of
from smelt.codegen.lower.products.own_products import OwnProduct, lower_own_product, own_product_of
from smelt.codegen.lower.products.products import lower_addmm, lower_matmul, lower_mm
from smelt.codegen.lower.products.recurrent import lower_recurrent
from smelt.codegen.lower.python.lists import lower_joined
from smelt.codegen.lower.python.numbers import lower_number
from smelt.codegen.lower.python.plain import is_plain, is_plain_type
from smelt.codegen.lower.python.puts import lower_put
from smelt.codegen.lower.python.python_nodes import lower_python
from smelt.codegen.lower.python.scalars import lower_with_numbers
from smelt.codegen.lower.python.sized_block import Compile, Run
from smelt.codegen.lower.python.sized_runs import SizedRuns, lower_sized
from smelt.codegen.lower.regions import is_native, lower_for, lower_if, lower_while
from smelt.codegen.lower.report import MemoryReport, Report
from smelt.codegen.lower.result import EAGER, Layouts, Lookup, Lowered
from smelt.codegen.lower.unknown.adding import lower_index_add
from smelt.codegen.lower.unknown.compaction import lower_places
from smelt.codegen.lower.unknown.cutting import lower_cut
from smelt.diag import InternalError, Options, SmeltError
from smelt.ir import STATE_OPS, Graph, Node, TensorType, TupleType, print_node
from smelt.ops.effects import effects
from smelt.ops.evaluate import no_state
from smelt.ops.own.recurrent_steps import CELLS
from smelt.ops.python.python_ops import NAMESPACES
from smelt.passes.mutation.mutations import mutation_of
from smelt.passes.mutation.overlaps import reads_what_it_writes
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import code_cache

LOWERINGS: dict[str, Callable[[Context, Node], bool]] = {
    "aten.mm.default": lower_mm,
    "aten.bmm.default": lower_mm,
    "aten.addmm.default": lower_addmm,
    "aten.baddbmm.default": lower_addmm,
    "aten.matmul.default": lower_matmul,
    "aten.scaled_dot_product_attention.default": lower_attention,
    FLASH: lower_flash,
    FLASH_BACKWARD: lower_flash_backward,
    "aten.gelu.default": lower_gelu,
    "aten.embedding_dense_backward.default": lower_embedding_gradient,
    "aten.histc.default": lower_histc,
    "aten.pad.default": lower_pad,
    "aten.constant_pad_nd.default": lower_pad,
    "aten.nonzero_static.default": lower_places,
    "aten.index_add.default": lower_index_add,
    "aten.resolve_conj.default": lower_resolved,
    "aten.resolve_neg.default": lower_resolved,
}

_Fusing = OwnConvolution | OwnProduct | OwnMatmul | OwnAttention | NarrowProduct
_Main = (
    Product | OwnProduct | OwnMatmul | NarrowProduct | Convolution | OwnConvolution | OwnWeightGradient | OwnAttention
)


class _Groups:
    """Products with their epilogues: which nodes wait for a later one, and what is lowered there."""

    def __init__(self, ctx: Context) -> None:
        self.at: dict[Node, tuple[_Main, Epilogue]] = {}
        self.waiting: set[Node] = set()
        self.units: list[list[Node]] = []
        claimed: set[Node] = set()
        nodes = list(ctx.graph.body)
        order = {node: i for i, node in enumerate(nodes)}
        writes = [order[node] for node in nodes if node.op == "write" or writes_parts(node)]
        for node in filter(is_plain, nodes):
            if node.results and all(map(ctx.statics.is_static, node.results)):
                # Computed once, before the first run.
                continue
            product = product_of(ctx, node)
            main: _Main | None = (
                narrow_product_of(ctx, node, claimed) or own_matmul_of(ctx, node, claimed)
                if product is None
                else own_product_of(ctx, product, claimed) or product
            )
            conv = None
            if main is None:
                conv = convolution_of(ctx, node) or image_gradient_of(ctx, node) or transposed_convolution_of(ctx, node)
            pad = None
            if conv is not None:
                pad = conv.pad
                if pad is not None and any(order[pad] < w < order[node] for w in writes):
                    conv, pad = without_pad(ctx, conv), None
                main = own_convolution_of(ctx, conv, claimed) or (conv if takes_library(conv) else None)
                if main is not None and pad is not None:
                    self.waiting.add(pad)
            if main is None:
                main = own_weight_gradient_of(ctx, node) or own_attention_of(ctx, node, claimed)
            if main is None:
                continue
            if isinstance(main, OwnWeightGradient):
                self.at[node] = main, Epilogue((), main.result)
                self.units.append([node])
                continue
            if isinstance(main, _Fusing):
                epilogue = Epilogue(main.nodes, main.result)
            else:
                epilogue = epilogue_of(ctx, node, claimed, sum_then_post=conv is not None)
            if epilogue.nodes and any(order[node] < w < order[epilogue.nodes[-1]] for w in writes):
                # Waiting would carry the product past a write to what it reads.
                epilogue = Epilogue((), node.results[0])
                if isinstance(main, _Fusing):
                    main = main.bare()
            claimed.update(epilogue.nodes)
            self.at[epilogue.nodes[-1] if epilogue.nodes else node] = (main, epilogue)
            self.waiting.update((node, *epilogue.nodes[:-1]) if epilogue.nodes else ())
            unit = {node, *epilogue.nodes, *(() if pad is None else (pad,))}
            self.units.append(sorted(unit, key=order.__getitem__))


def lower(
    graph: Graph, state: Lookup, options: Options | None = None, *, build: bool = True, later: bool = False,
    layouts: Layouts = EAGER,
) -> Lowered:  # fmt: skip
    """The plan of a graph, with what its caller must know.

    state: (kind, path) -> the live tensor of a parameter, buffer or captured value. build: make its kernels' code.
    later: weights are still being packed: nothing may run before `Lowered.fills` are done.
    layouts: of what goes from one plan to another.
    Raises: SmeltError (S0303) naming the node and its source line, where the graph cannot be in a plan: another
        device than the CPU, sparse layouts, inputs of unknown sizes or that are neither tensors nor numbers.
    """
    stages: list[tuple[str, float]] = []
    start = perf_counter()

    def stage(name: str) -> None:
        nonlocal start
        now = perf_counter()
        stages.append((name, round((now - start) * 1000, 3)))
        start = now

    own = options or Options()
    gpu = gpu_of(graph)
    _check(graph, gpu or "cpu")
    if gpu:
        return lower_on_gpu(graph, state, own, gpu, compiler(own), later=later)
    ready = prepared(graph, own)
    graph, chosen = ready.graph, ready.chosen
    ctx = Context(graph, state, own)
    ctx.compiler, ctx.copier = compiler(ctx.options), partial(relay, ctx)
    ctx.told.update(choice.which for choice in chosen.values())
    ctx.set_free(layouts.free)
    for number, value in enumerate(graph.inputs):
        ctx.add_input(value, layouts.given.get(number))
    stage("analyse")
    stages.extend((f"analyse: {name}", ms) for name, ms in ready.stages)
    body = _Body(ctx)
    stage("fuse")
    body.lower()
    stage("lower")
    parts = {"fold": ctx.statics.spent_ms, **ctx.spent_ms}
    stages.extend((f"lower: {name}", round(ms, 3)) for name, ms in parts.items())
    slots, outputs = lower_outputs(ctx, chosen)
    plan = ctx.builder.finish(slots)
    stage("memory")
    if not own.release_originals:  # these go one after the other
        ctx.fills.start()
    if build:
        plan = with_code(ctx, plan)
    stage("kernels")
    if not later:
        ctx.fills.finish()
        stage("pack")
    memory = MemoryReport(
        plan.arena_nbytes,
        ctx.builder.arena_naive_nbytes,
        ctx.packed_nbytes,
        ctx.statics.folded_nbytes,
        ctx.builder.peak_nbytes,
    )
    nodes = tuple(ctx.nodes[node] for node in graph.walk() if node in ctx.nodes)
    texts = {symbol: source.text for symbol, source in ctx.sources.items()}
    choices = tuple(ctx.choices.values())
    report = Report(
        nodes, choices, memory, tuple(stages), tuple(ctx.kernels), texts, tuple(ctx.decisions), tuple(ctx.nests)
    )  # fmt: skip
    strides = {n: ctx.place(v).geometry.strides for n, v in ctx.free.items()}
    made = Lowered(plan, outputs, mutations(ctx), ctx.handles, ctx.statics.baked, report, strides=strides)
    if not later:
        return made
    # What is saved goes with these very contents.
    is_told = is_for_elsewhere() or not ctx.decided_by_contents
    return replace(made, fills=ctx.fills, how_made=ctx.made if is_told else None)


def compiler(options: Options) -> Compile:
    """What compiles graphs of known sizes, for runs of nodes whose sizes are told only when they come."""
    inner = replace(options, profile=False, loops=())

    def compiled(graph: Graph) -> Run:
        lowered = lower(graph, no_state, inner)
        executable = Executable(lowered.plan, executor_object(code_cache(inner.cache_dir, inner.cache_limit_mb)))

        def run(found: Sequence[Any]) -> Sequence[Any]:
            inputs = [value for value in found if isinstance(value, torch.Tensor | float)]
            return lowered.rebuild(executable.run(inputs), inputs, no_state)

        return run

    return compiled


class _Body:
    """The nodes of one region, fused among themselves; those of its regions are lowered where they stand."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.groups = _Groups(ctx)
        self.nests = Nests(ctx, self.groups.units)
        self.sized = SizedRuns(self.nests.order, ctx.growing, ctx.cuts)
        self.nests.settle(self.sized.waiting)

    def lower(self) -> None:
        """Lower all nodes. Raises: SmeltError, InternalError with the node that shows a defect."""
        for node in self.nests.order:
            try:
                _lower_node(self.ctx, node, self)
            except (TypeError, ValueError, RuntimeError, KeyError, AssertionError) as error:
                raise _defect(node, error) from error
        self.ctx.decisions.extend(self.nests.decisions)


def _lower_node(ctx: Context, node: Node, body: _Body) -> None:
    groups, nests = body.groups, body.nests

    def single(ctx: Context, node: Node) -> None:
        _lower_single(ctx, node, nests)

    if node in groups.waiting or node in body.sized.waiting or nests.lower(node, single):
        return
    ctx.enter(node)
    run = body.sized.at.get(node)
    if run is not None:
        lower_sized(ctx, run)
        return
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
        case NarrowProduct():
            lower_narrow_product(ctx, main)
        case OwnConvolution():
            lower_own_convolution(ctx, main)
        case OwnWeightGradient():
            lower_own_weight_gradient(ctx, main)
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
    if not is_plain(node):
        _lower_mixed(ctx, node, nests)
        return
    if node.op in CELLS and lower_recurrent(ctx, node):
        return
    if node.op.startswith(NAMESPACES):
        lower_python(ctx, node)
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
    if node.op in PUTS and lower_put(ctx, node, nests.target):
        return
    rule = LOWERINGS.get(node.op)
    if (rule is not None and rule(ctx, node)) or lower_with_numbers(ctx, node):
        return
    dispatch(ctx, node)


def _lower_mixed(ctx: Context, node: Node, nests: Nests) -> None:
    """A node with regions, or with operands or results that are no plain tensors."""
    if node in ctx.cuts and lower_cut(ctx, node):
        return
    if node in ctx.growing.idle and not _keeps(ctx, node):
        ctx.note(node, "fused", "a list's buffer")
    elif node.regions and is_native(ctx, node):
        rule = {"if": lower_if, "for": lower_for, "while": lower_while}[node.op]
        rule(ctx, node, lambda region: _Body(ctx).lower())
    elif node.regions or not (
        lower_number(ctx, node) or lower_joined(ctx, node) or (has_numbers(node) and nests.single(node))
    ):
        lower_python(ctx, node)


def _keeps(ctx: Context, node: Node) -> bool:
    """Whether a list is needed after all: by a loop that is no block."""
    users = [user for result in node.results for user in result.users if isinstance(user, Node)]
    return any(user.regions and not is_native(ctx, user) for user in users)


def _defect(node: Node, error: Exception) -> InternalError:
    """An error that no rule foresaw, with the node that shows it."""
    return InternalError(
        f"lowering {node.op} failed: {type(error).__name__}: {error}",
        where=node.span,
        why=print_node(node).splitlines()[0],
        fix="the program runs eagerly; report the line above",
    )


_WRITES: Final = (
    "it writes to memory that other tensors may share, which is not known before the call; write to a .clone()"
)
_NO_TWIN: Final = "no operator computes that without a write; write to a tensor of its result's own size and dtype"
_SEES_ITS_WRITES: Final = (
    "it reads other elements of the memory that it writes, where eager sees what it has written already; have it read "
    "a copy (.clone()), if it is to see what was there before"
)


def _check(graph: Graph, device: str) -> None:
    """Refuse what a plan on a device cannot hold. Raises: SmeltError (S0303)."""
    for node in graph.walk():
        if node.op != "write" and not node.regions and effects(node).writes and not is_idle_dropout(node):
            aliases = alias_analysis(graph)
            turned = any(reads_what_it_writes(node, value, aliases) for value in effects(node).writes)
            told = _SEES_ITS_WRITES if turned else _NO_TWIN if mutation_of(node) is None else _WRITES
            raise cannot_lower(node, told)
        if node.op == "write" and node.parent is not graph.body:
            raise cannot_lower(node, "it writes back inside a region")
        if node.op == "aten._efficientzerotensor.default":
            raise cannot_lower(node, "it makes zeros without memory, for which operators give results of their own")
        for value in node.results:
            types = value.type.elements if isinstance(value.type, TupleType) else (value.type,)
            for type_ in types:
                if isinstance(type_, TensorType) and (type_.device not in ("cpu", device) or type_.layout != "strided"):
                    raise cannot_lower(node, f"its result is {type_}; only strided tensors on the CPU or a GPU can be")
                if isinstance(type_, TensorType) and type_.dtype.is_quantized:
                    raise cannot_lower(node, f"its result is {type_}, quantized with a scale that no type tells")
    for value in graph.inputs:
        input_type = value.type
        if isinstance(input_type, TensorType) and not is_plain_type(input_type):
            raise SmeltError(
                f"input %{value.name} is {input_type}",
                why="only strided tensors of known sizes on the CPU or a GPU can be in a plan",
                fix="nothing needs to be done: the program runs eagerly",
                code="S0303",
            )
