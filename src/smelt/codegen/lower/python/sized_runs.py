"""Nodes on tensors of unknown sizes, taken together in runs that become one call each (`sized_block`).

    %k: f32[1, 2, _, 8] = aten.cat.default([%cache, %new], 2)        ==>    PyCall(block of both, slots of what they
    %o: f32[1, 2, 1, 8] = aten.scaled_dot_product_attention(...)                   use), outs: %k, %o

Within a run, neighbours whose sizes are known once those of their operands are become such a block; the others (what
follows data, lists and strings) are called one by one.

Invariant: the nodes of a run stand where its last one does; nothing in between uses what they make, and none of them
acts outside or draws random numbers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from smelt.analysis import used_values
from smelt.codegen.fusion.rules.indexed_writes import part_of
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.python.appends import is_append, lower_append
from smelt.codegen.lower.python.growing import Lists
from smelt.codegen.lower.python.plain import is_number, is_plain_type
from smelt.codegen.lower.python.python_nodes import emit_python
from smelt.codegen.lower.python.python_parts import around, parts_of
from smelt.ir import NONE, Node, Value
from smelt.ops.effects import effects


class SizedRuns:
    """The runs among the nodes of a region, without `cuts`. at: each by its last node; waiting: the nodes before it."""

    def __init__(self, order: Iterable[Node], lists: Lists, cuts: Container[Node] = ()) -> None:
        self.at: dict[Node, tuple[Node, ...]] = {}
        self.waiting: set[Node] = set()
        run: list[Node] = []
        made: set[Value] = set()
        for node in order:
            if node not in cuts and _belongs(node, made, lists):
                run.append(node)
                made.update(node.results)
            elif run and (any(v in made for v in used_values(node)) or not _may_be_passed(node)):
                self._close(run)
                run, made = [], set()
                if _belongs(node, made, lists):
                    run, made = [node], set(node.results)
        self._close(run)

    def _close(self, run: list[Node]) -> None:
        if run:
            self.at[run[-1]] = tuple(run)
            self.waiting.update(run[:-1])


def _may_be_passed(node: Node) -> bool:
    """Whether nodes before it may as well stand behind it."""
    inner = [n for region in node.regions for n in region.walk()]
    return not node.regions and part_of(node) is None and all(effects(n).is_pure for n in (node, *inner))


def _belongs(node: Node, made: set[Value], lists: Lists) -> bool:
    """Whether a node can be part of a run that makes these values: only Python computes it, or Python does as well."""
    if node.regions or not node.results or node in lists.idle or not effects(node).is_pure:
        return False
    if any(_has_buffer(value, lists) for value in node.operands()):
        return False
    # A result that is none, and that nobody uses, is an undefined tensor.
    results = [r for r in node.results if r.type != NONE or r.users]
    types = [v.type for v in (*node.operands(), *results)]
    if all(is_number(t) or is_plain_type(t) for t in types):
        return node.op.startswith("py.") and all(map(is_number, types)) and any(v in made for v in node.operands())
    return True


def _has_buffer(value: Value, lists: Lists) -> bool:
    """Whether a value is a list whose tensors lie in one buffer."""
    return value.node is not None and value.node.results.index(value) in lists.growing.get(value.node, {})


def lower_sized(ctx: Context, nodes: Sequence[Node]) -> None:
    """One call for a run of nodes, or one for each where that is all that there is to do."""
    if all(map(is_append, nodes)) and not any(v in ctx.lists for node in nodes for v in node.operands()):
        for node in nodes:
            lower_append(ctx, node)
        return
    uses, gives = around(nodes)
    parts = parts_of(nodes, ctx.statics.graph, ctx.lookup, ctx.compiler)
    emit_python(ctx, parts, uses, gives)
    for node in nodes:
        ctx.note(node, "python", f"with {len(nodes) - 1} others" if len(nodes) > 1 else node.op)
