"""More or fewer results of a node with regions: an `if` or a loop together with what its regions take and yield.

Invariant: results, yields and, for loops, first values and parameters stay in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from smelt.ir import Arg, Builder, Node, Region, Type, Value, clone_node, map_values
from smelt.rewrite.rewriter import Event, Rewriter


def known_range(node: Node) -> range | None:
    """What a `for` counts, where its bounds are known numbers; None for any other node."""
    if node.op != "for":
        return None
    bounds = [bound for bound in node.args[:3] if type(bound) is int]
    return range(*bounds) if len(bounds) == 3 and bounds[2] else None


def copy_nodes(
    builder: Builder, region: Region, mapping: dict[Value, Arg], on_copy: Callable[[Node], None] | None = None
) -> tuple[Arg, ...]:
    """Copy a region's nodes to where the builder stands, under new names; what the region yields, as copied.

    mapping: what stands for the region's parameters, and for whatever else is not to be what it was; the copies of all
    values are added. on_copy: is told of each copy.
    """
    for node in list(region):
        copy = clone_node(node, mapping)
        for value in _defined_by(copy):
            value.name = builder.fresh_name()
        builder.region.insert(copy, builder.before)
        if on_copy is not None:
            on_copy(copy)
    return tuple(map_values(arg, lambda v: mapping.get(v, v)) for arg in region.yields)


def _defined_by(node: Node) -> Iterable[Value]:
    yield from node.results
    for region in node.regions:
        yield from region.params
        for inner in region:
            yield from _defined_by(inner)


def first_carried(node: Node) -> int:
    """How many arguments of a loop stand before the first values of what it carries."""
    return 3 if node.op == "for" else 0


def carried_params(node: Node, index: int) -> tuple[Value, ...]:
    """The parameters of a loop's regions for one carried value: of test and body, or of the body."""
    skip = 1 if node.op == "for" else 0
    return tuple(region.params[index + skip] for region in node.regions)


def yielding_regions(node: Node) -> Sequence[int]:
    """The numbers of the regions that yield a node's results: both arms, or the body."""
    return (0, 1) if node.op == "if" else (len(node.regions) - 1,)


def add_result(rewriter: Rewriter, node: Node, type_: Type) -> Value:
    """One more result; its yields are the caller's business."""
    value = Value(rewriter.builder.fresh_name(), type_, node)
    node.results.append(value)
    rewriter.tell(Event("arguments", node))
    return value


def add_carried(rewriter: Rewriter, node: Node, first: Arg, type_: Type) -> tuple[Value, ...]:
    """One more carried value of a loop, without its result and yield; the new parameter of each region."""
    rewriter.set_arguments(node, (*node.args, first))
    return tuple(rewriter.builder.add_param(region, "", type_) for region in node.regions)


def drop_results(rewriter: Rewriter, node: Node, indices: Iterable[int]) -> None:
    """Take out results that nobody uses, with what belongs to them; parameters may be used by what goes with them.

    The caller has seen to it that no other node uses the parameters.
    """
    gone = set(indices)
    for number in yielding_regions(node):
        region = node.regions[number]
        rewriter.set_yields(region, tuple(a for i, a in enumerate(region.yields) if i not in gone))
    if node.op != "if":
        skip = first_carried(node)
        rewriter.set_arguments(node, tuple(a for i, a in enumerate(node.args) if i - skip not in gone))
        for region in node.regions:
            offset = len(region.params) - len(node.results)
            region.params[:] = [p for i, p in enumerate(region.params) if i - offset not in gone]
    node.results[:] = [r for i, r in enumerate(node.results) if i not in gone]
    rewriter.tell(Event("arguments", node))
