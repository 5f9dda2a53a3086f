"""Regions without detours: what a branch or a loop hands on unchanged is used directly.

%r = if %c { %a = add_ %x 1; yield %a } else { yield %x }     ==>   use %x for %r
%r = for ... with (%p = %x) { %a = add_ %p 1; yield %a }      ==>   use %x for %p and %r

An in-place operator gives its operand itself, so after this every such name is the one tensor that it names. State
that is read inside a region is read before it, and once for each name.
"""

from __future__ import annotations

from smelt.ir import STATE_OPS, Arg, Node, Region, Value
from smelt.passes.mutation.mutations import mutation_of
from smelt.rewrite import Rewriter, carried_params, drop_results, first_carried


def settle(rewriter: Rewriter) -> None:
    """Do it for a whole graph; where it has no regions nothing changes."""
    structured = [n for n in rewriter.graph.walk() if n.regions]
    if not structured:
        return
    _hoist_state(rewriter)
    before = -1
    while rewriter.edits > before:
        before = rewriter.edits
        for node in structured:
            if node.op in ("if", "for", "while"):
                _settle(rewriter, node)


def _hoist_state(rewriter: Rewriter) -> None:
    """One node for each name, before everything that uses it."""
    graph = rewriter.graph
    first: dict[tuple[str, Arg], Node] = {}
    inner: list[Node] = []
    for node in graph.walk():
        if node.op not in STATE_OPS:
            continue
        if node.parent is graph.body:
            first.setdefault((node.op, node.args[0]), node)
        else:
            inner.append(node)
    for node in inner:
        key = (node.op, node.args[0])
        there = first.get(key)
        if there is None or not rewriter.is_visible(there.result, node):
            top = graph.body.first
            assert top is not None
            if there is None:
                there = rewriter.insert(node.op, node.args, (node.result.type,), before=top)
                there.span, there.scope, there.mode = node.span, node.scope, node.mode
                first[key] = there
            else:
                rewriter.move(there, top)
        rewriter.replace_node(node, (there.result,))


def _settle(rewriter: Rewriter, node: Node) -> None:
    gone: list[int] = []
    for i, result in enumerate(node.results):
        if node.op == "if":
            first, second = (_identity(region.yields[i]) for region in node.regions)
            if isinstance(first, Value) and first is second and _is_outside(first, node):
                rewriter.replace_all_uses(result, first)
                gone.append(i)
            continue
        params = carried_params(node, i)
        if _identity(node.regions[-1].yields[i]) is not params[-1]:
            continue
        init = node.args[first_carried(node) + i]
        for value in (*params, result):
            rewriter.replace_all_uses(value, init)
        gone.append(i)
    if gone:
        drop_results(rewriter, node, gone)


def _identity(arg: Arg) -> Arg:
    """The value that an argument surely is: an in-place operator's result is its operand."""
    while isinstance(arg, Value) and arg.node is not None and "." in arg.node.op and not arg.node.regions:
        node = arg.node
        if not _may_be_in_place(node.op):
            break
        mutation = mutation_of(node)
        source = mutation.results[node.results.index(arg)] if mutation is not None and mutation.results else None
        if not isinstance(source, Value) or source.type != arg.type:
            break
        arg = source
    return arg


def _may_be_in_place(op: str) -> bool:
    name = op.split(".")[1]
    return name.endswith("_") or op.endswith("out") or ".out" in op


def _is_outside(value: Value, node: Node) -> bool:
    region: Region | None = value.owner if isinstance(value.owner, Region) else value.owner.parent
    while region is not None:
        owner = region.owner
        if owner is node:
            return False
        region = owner.parent if isinstance(owner, Node) else None
    return True
