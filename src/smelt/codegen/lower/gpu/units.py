"""Products with what one kernel computes around them.

    %1 = linear(%x, %w, %b); %2 = gelu(%1); %3 = add(%2, %r)      ==>      one kernel that stores %3
    %1 = relu(%x); %2 = linear(%1, %w)                            ==>      one kernel, whose operand is relu(%x)
    %1 = linear(%x, %a); %2 = relu(%1); %3 = linear(%x, %b); %4 = mul(%2, %3)      ==>      one kernel of two products

Invariant: a unit is convex: nobody but its later nodes needs what its earlier ones make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from smelt.codegen.fusion.build import Built, build, eager_memory
from smelt.codegen.fusion.epilogue import epilogue_nodes
from smelt.codegen.fusion.groups import Facts, is_fusible
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.rules.gathered import GATHERED_RULES
from smelt.codegen.fusion.rules.products import PRODUCT_RULES, is_product
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.kernels.graph import Graph as NestGraph
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.triton.contraction import contraction
from smelt.codegen.triton.emit import unsupported
from smelt.diag.records import record
from smelt.ir import Graph, Node, TensorType, Value
from smelt.ops.own.narrow_linear import BYTES, NIBBLES
from smelt.ops.sets import is_by_elements

UNIT_RULES = {**RULES, **PRODUCT_RULES, **GATHERED_RULES}
"""All that the nests of a unit may hold."""

_CASTS = ("aten.to.dtype", "aten._to_copy.default")
"""Changes of dtype, as autocast and products of few bits have around them."""
_MOST_BEFORE = 3
"""Nodes that are computed anew for each tile of a product."""
_CHEAP = 8.0
"""What an operand's element may cost, in additions: it is computed again for each tile of the result that needs it."""


@record
class Unit:
    """Nodes in the graph's order, the last of which makes `roots`, each by a kernel of its own."""

    nodes: tuple[Node, ...]
    roots: tuple[Value, ...]

    @property
    def products(self) -> tuple[Node, ...]:
        """Its products and convolutions."""
        return tuple(node for node in self.nodes if is_product(node))

    @property
    def convolves(self) -> bool:
        """Whether its product is a convolution, for which torch has a flag of its own."""
        return any("conv" in node.op for node in self.nodes)


def units_of(graph: Graph, facts: Facts) -> list[Unit]:
    """The units of a functional graph's products."""
    found: list[Unit] = []
    claimed: set[Node] = set()
    # From the last on, so that of two factors of a gated layer the later one takes in the earlier one.
    for node in reversed(list(graph.body)):
        if node in claimed or not (is_product(node) or node.op in GATHERED_RULES):
            continue
        unit = next((u for u in _attempts(node, facts, claimed) if _is_one_kernel(u, facts)), None)
        if unit is not None:
            found.append(unit)
            claimed.update(unit.nodes)
    return found


def _attempts(node: Node, facts: Facts, claimed: set[Node]) -> Iterator[Unit]:
    """Units from the largest down."""
    roots = tuple(r for r in node.results if isinstance(r.type, TensorType) and r.users)
    if len(roots) != 1 or node.op in GATHERED_RULES:
        yield Unit((node,), roots)
        return

    def is_free(other: Node) -> bool:
        # Waiting would carry the product past a write to what it reads.
        return other not in claimed and is_fusible(other) and facts.segment[other] == facts.segment[node]

    after = epilogue_nodes(roots[0], is_free, also=_CASTS)
    beside = _beside(node, after, facts, is_free)
    before = _before(node, is_free)
    for nodes in ((*before, *beside, node, *after), (*beside, node, *after), (*before, node, *after), (node, *after)):
        yield _unit(nodes, facts)
    if len(after) > 1:
        yield _unit((node, after[0]), facts)
    yield _unit((node,), facts)


def _unit(nodes: Sequence[Node], facts: Facts) -> Unit:
    ordered = sorted(set(nodes), key=facts.order.__getitem__)
    return Unit(tuple(ordered), tuple(r for r in ordered[-1].results if isinstance(r.type, TensorType) and r.users))


def _before(node: Node, is_free: Callable[[Node], bool]) -> list[Node]:
    """Operators by elements that nobody but the product needs, or those behind them."""
    found: list[Node] = []
    pending = [v for v in node.operands() if isinstance(v, Value)]
    while pending and len(found) < _MOST_BEFORE:
        made = pending.pop(0).node
        if made is None or made in found or not _is_by_elements(made) or not is_free(made):
            continue
        if all(set(r.users) <= {node, *found} for r in made.results):
            found.append(made)
            pending += [v for v in made.operands() if isinstance(v, Value)]
    return found


def _is_by_elements(node: Node) -> bool:
    """Whether a node's elements follow each from one of its operand's."""
    return node.op in (BYTES, NIBBLES, *_CASTS) or (node.op.startswith("aten.") and is_by_elements(node.op))


def _beside(node: Node, after: Sequence[Node], facts: Facts, is_free: Callable[[Node], bool]) -> list[Node]:
    """The other product of a gated layer, of the same left operand, with what stands between it and this chain."""
    for user in after:
        for operand in user.operands():
            chain: list[Node] = []
            made = operand.node
            while made is not None and made not in after and made is not node and _may_join(made, is_free):
                if any(len(r.users) != 1 for r in made.results):
                    break
                chain.append(made)
                if is_product(made):
                    same = made.op == node.op and made.args[0] is node.args[0]
                    return chain if same and facts.segment[made] == facts.segment[node] else []
                inner = [v for v in made.operands() if isinstance(v.type, TensorType)]
                made = inner[0].node if len(inner) == 1 else None
    return []


def _may_join(node: Node, is_free: Callable[[Node], bool]) -> bool:
    """Whether a node may join: a free operator, or a product."""
    return is_product(node) or bool(is_free(node) and _is_by_elements(node))


def _is_one_kernel(unit: Unit, facts: Facts) -> bool:
    """Whether a unit's nests can be made, and are worth it: their operands cheap, their products on tensor cores."""
    try:
        built = [built_unit(unit, root, facts) for root in unit.roots]
    except Unfusible:
        return False
    if not built or any(unsupported(one.nest) for one in built):
        return False
    if len(unit.nodes) == 1:
        return True
    graphs = [NestGraph(simplify_nest(one.nest)) for one in built]
    products = sum(map(is_product, unit.nodes))
    for graph in graphs:
        found = contraction(graph)
        if found is None:
            # A row times a matrix: it reads each element once, so nothing before it would be computed twice.
            if products > 1:
                return False
            continue
        if len(found.factors) != products:
            return False
        if not _has_before(unit):
            continue
        cost = max(max(f.left.cost, f.right.cost) for f in found.factors)
        # Where a window is over its image is told for each element, whatever stands before it.
        # Half bytes are taken apart at each tile, and still a quarter of the memory is read.
        is_dear = unit.convolves or any(node.op == NIBBLES for node in unit.nodes)
        if cost > (4 * _CHEAP if is_dear else _CHEAP):
            return False
    return True


def _has_before(unit: Unit) -> bool:
    """Whether an operand of its products is computed in it."""
    products = unit.products
    made = {result for node in unit.nodes if node not in products for result in node.results}
    return any(operand in made for node in products for operand in node.operands())


def built_unit(unit: Unit, root: Value, facts: Facts) -> Built:
    """The nest of one of a unit's results, with values where eager has them. Raises: Unfusible."""
    return build((root,), facts.inside(unit.nodes), UNIT_RULES, eager_memory, eager_memory)
