"""The only place where passes are put in order.

FUNCTIONAL makes the raw capture the graph that people read; OPTIMIZED makes that the graph that runs. PREPARED, which
`codegen.lower.preparing` has in order, gives what a plan has no form for another one: each lowering does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from smelt._torch import versions
from smelt.autodiff import computes_gradients, detach_islands, write_gradients
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.preparing import PREPARED
from smelt.codegen.lower.products.merging import merging_pays
from smelt.codegen.lower.products.narrowing import narrowing_pays
from smelt.compiler.training.recompute import recompute
from smelt.diag import Options, SmeltError
from smelt.ir import Graph
from smelt.ops.evaluate import Lookup
from smelt.ops.ranks.collectives import COLLECTIVES
from smelt.passes.attentions.attention import attention, attention_fast
from smelt.passes.attentions.strided_operands import strided_operands
from smelt.passes.base import Pass, PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.early_expects import early_expects
from smelt.passes.elide_copies import elide_copies
from smelt.passes.fit_numbers import fit_numbers
from smelt.passes.fold import fold
from smelt.passes.inline import inline
from smelt.passes.layers.bags import gathered_bags
from smelt.passes.layers.decompose import decompose
from smelt.passes.layers.expand_layers import expand_layers
from smelt.passes.layers.expand_recurrent import expand_recurrent
from smelt.passes.layers.explicit_casts import explicit_casts
from smelt.passes.layers.frames import images_of_frames
from smelt.passes.layers.resampling import commute_resampling, expand_resampling
from smelt.passes.layers.transposed import woven_convolutions
from smelt.passes.loops.hoist_invariants import hoist_invariants
from smelt.passes.loops.unroll import unroll
from smelt.passes.manager import Culprit, PassReport, Watcher, bisect, run_passes
from smelt.passes.mutation.functionalize import functionalize
from smelt.passes.order import order
from smelt.passes.peephole import peephole
from smelt.passes.pool import pool
from smelt.passes.products.fold_batch_norm import fold_batch_norm
from smelt.passes.products.fuse_bias import fuse_bias
from smelt.passes.products.hoist_products import hoist_products
from smelt.passes.products.loop_products import loop_products
from smelt.passes.products.lower_precision import lower_precision
from smelt.passes.products.merge_linears import merge_linears
from smelt.passes.products.narrow_gathers import narrow_gathers
from smelt.passes.products.spell_linear import spell_linear
from smelt.passes.products.vector_products import vector_products
from smelt.passes.ranks.local import localize
from smelt.passes.ranks.overlap import overlap, sign
from smelt.passes.sized import Sizes

FUNCTIONAL: tuple[Pass, ...] = (
    inline,
    # Mutation and aliasing end here: every later pass may move, merge and drop pure nodes.
    functionalize,
)

OPTIMIZED: tuple[Pass, ...] = (
    # First, for what is matched are operators on known sizes.
    unroll,
    # Under autocast nothing else is matched.
    explicit_casts,
    # Before dead code, for of a layer seldom all results are used.
    expand_layers,
    expand_recurrent,
    dce,
    # Whole operators are matched before anything takes them apart.
    decompose,
    peephole,
    fold,
    pool,
    cse,
    attention,
    attention_fast,
    strided_operands,
    # Behind attention, which matches what is added to scores as it was written.
    narrow_gathers,
    gathered_bags,
    # One spelling of products, so that bias, batch norm and merging see all of them.
    spell_linear,
    fuse_bias,
    fold_batch_norm,
    # Behind it, for a convolution whose norm is folded has its sum behind it.
    commute_resampling,
    expand_resampling,
    # Norms are folded into the convolution that was written.
    images_of_frames,
    woven_convolutions,
    # Before merging, so that the whole tensors' products are merged where pieces' were.
    hoist_products,
    loop_products,
    merge_linears,
    vector_products,
    # All products are spelled and merged; what it leaves between them is cleaned up below.
    lower_precision,
    # The rewrites above leave views of views and copies behind.
    peephole,
    elide_copies,
    # What the rewrites made of weights inside loops and branches is computed outside.
    hoist_invariants,
    cse,
    dce,
    fit_numbers,
    # Last: they decide nothing but when things happen.
    order,
    early_expects,
    # Behind them, for it looks at the order.
    recompute,
)

# Runs only when named in `enable`: it gives 0 where eager gives NaN.
_OPTIONAL = frozenset((attention_fast.name,))
# Runs only with options={"dtype": "bf16"}.
_NARROWING = frozenset((lower_precision.name,))
# Does not run with options={"numerics": "eager-library"}.
_RESPELLING = frozenset(
    (
        expand_layers.name, expand_recurrent.name, commute_resampling.name, expand_resampling.name,
        gathered_bags.name, images_of_frames.name, woven_convolutions.name,
        strided_operands.name, narrow_gathers.name, hoist_products.name, loop_products.name, vector_products.name,
    )
)  # fmt: skip
# Write what own kernels alone are fast at.
_OWN = frozenset((expand_recurrent.name, gathered_bags.name, images_of_frames.name, woven_convolutions.name))


def pass_names() -> tuple[str, ...]:
    """The names that `options={"skip": [...]}` and "enable" take, in order of first use."""
    return tuple(dict.fromkeys(p.name for p in OPTIMIZED))


def chosen_passes(options: Options) -> tuple[Pass, ...]:
    """The passes behind `optimized_graph`, in order."""
    left_out = set(options.skip) | (_OPTIONAL - set(options.enable))
    if options.dtype != "bf16":
        left_out |= _NARROWING
    if options.numerics == "eager-library":
        left_out |= _RESPELLING
    if not options.own_kernels or host_isa() is None:
        left_out |= _OWN
    return tuple(p for p in OPTIMIZED if p.name not in left_out)[: options.stop_after]


def first_wrong_pass(graph: Graph, inputs: Sequence[Any], options: Options, lookup: Lookup) -> Culprit | None:
    """The first pass after which the reference evaluator's answer for these inputs differs; None if all keep it.

    A pass that differs because it was asked to (`dtype`) is left out.
    """
    return bisect(graph, [*exact_passes(options), *(one.as_pass(options) for one in PREPARED)], inputs, lookup)


def exact_passes(options: Options) -> list[Pass]:
    """The chosen passes without those that are asked to change values (`dtype`)."""
    return [one for one in chosen_passes(options) if one.name not in _NARROWING]


def functional_graph(
    raw: Graph,
    options: Options,
    entangled: frozenset[str] = frozenset(),
    sizes: Sizes | None = None,
    watcher: Watcher | None = None,
) -> tuple[Graph, Sequence[PassReport]]:
    """A functional copy of a raw capture; writes to external values that share memory (`entangled`) stay in place.

    sizes, watcher: as of `optimized_graph`; what is done to gradients behind the passes is not watched.
    Raises: SmeltError (S0301 for an unknown pass in an option, S0901 where a pass fails).
    """
    check_options(options)
    graph = raw.clone()
    # Nothing downstream understands a graph that still mutates in place, so this part is never cut short.
    context = PassContext(entangled=entangled, sizes=sizes)
    reports = run_passes(graph, FUNCTIONAL, context, check=options.verify, dump=options.dump, watcher=watcher)
    if computes_gradients(graph):
        if any("autocast" in node.mode for node in graph.walk()):
            # Of a product in another dtype the gradient is that of the casts, too.
            detach_islands(graph)
            reports = (*reports, *run_passes(graph, (explicit_casts,), context, check=options.verify))
        begun = write_gradients(graph, memory_budget=options.memory_budget)
    else:
        begun = ()
    if any(node.op in COLLECTIVES for node in graph.walk()):
        localize(graph)
        overlap(graph, begun)
        sign(graph)
    return graph, reports


def optimized_graph(
    graph: Graph, options: Options, lookup: Lookup, sizes: Sizes | None = None, watcher: Watcher | None = None
) -> tuple[Graph, Sequence[PassReport]]:
    """An optimized copy of a functional graph. Raises: SmeltError (S0901 a failing pass).

    sizes: the graph's symbols; what passes come to rely on is added to its conditions. watcher: as of `run_passes`.
    """
    result = graph.clone()
    reports = run_passes(
        result,
        chosen_passes(options),
        PassContext(
            lookup,
            merging_pays=partial(merging_pays, options=options),
            narrowing_pays=partial(narrowing_pays, options=options),
            sizes=sizes,
            memory_budget=options.memory_budget,
        ),
        check=options.verify,
        dump=f"{options.dump}/optimize" if options.dump and watcher is None else "",
        watcher=watcher,
    )
    return result, reports


def check_options(options: Options) -> None:
    """Before anything is compiled. Raises: SmeltError (S0301) for a name of a pass that there is not."""
    versions.notice()
    for option in ("skip", "enable"):
        for name in getattr(options, option):
            if name not in pass_names():
                raise SmeltError(
                    f"there is no pass {name!r} to {option}",
                    why=f"the passes are {', '.join(pass_names())}",
                    fix="correct the name",
                    code="S0301",
                )
