"""Multiply the same input by several static weights at once.

    %q = linear %x, %wq, %bq                     %w = cat [%wq, %wk]; %b = cat [%bq, %bk]
    %k = linear %x, %wk, %bk            ==>      %1 = linear %x, %w, %b
                                                 %q = slice %1, -1, 0, n; %k = slice %1, -1, n, n + m

The parts are views with the strides of the whole, so a product takes part only if all that use it take these strides
and nothing with them reaches an output. Whether it pays depends on the machine: `PassContext.merging_pays` says.
"""

from __future__ import annotations

from smelt.analysis import is_static
from smelt.analysis.dependence import Dependence
from smelt.diag.records import record
from smelt.ir import Arg, Graph, Node, Region, TensorType, Value
from smelt.ir.sizes import value as at_hand
from smelt.passes.base import Pass, PassContext, call_of, emitter
from smelt.passes.layouts import plan_layouts, set_layouts
from smelt.passes.matching import FLOATS, Disturbances, is_autocast, static_tensor
from smelt.rewrite import Rewriter

_LINEAR = "aten.linear.default"


@record
class _Linear:
    """f32[..., k] times weight f32[columns, k], transposed."""

    node: Node
    x: Value
    weight: Value
    bias: Value | None
    columns: int


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    found = context.dependence(graph)
    disturbances = Disturbances(graph)
    groups: dict[tuple[Region | None, Value, bool, str], list[_Linear]] = {}
    for node in graph.walk():
        linear = _linear(node, found)
        if linear is not None:
            key = (node.parent, linear.x, linear.bias is None, node.mode)
            groups.setdefault(key, []).append(linear)
    for group in groups.values():
        members = _mergeable(rewriter, group, disturbances)
        if len(members) > 1 and _pays(members, context):
            _merge(rewriter, members)
    return rewriter.edits > 0


def _linear(node: Node, found: dict[Value, Dependence]) -> _Linear | None:
    if node.op != _LINEAR or is_autocast(node):
        return None
    call = call_of(node)
    x, weight, bias = call["input"], call["weight"], call["bias"]
    kind, matrix, result = static_tensor(x), static_tensor(weight), static_tensor(node.result)
    if kind is None or matrix is None or result is None or kind.dtype not in FLOATS:
        return None
    assert isinstance(x, Value) and isinstance(weight, Value)
    if bias is not None and not (isinstance(bias, Value) and is_static(bias, found)):
        return None
    columns = matrix.sizes[0] if len(matrix.sizes) == 2 else 0
    if not columns or not kind.numel or result.strides is not None or not is_static(weight, found):
        return None
    if matrix.dtype is not kind.dtype or (
        bias is not None and static_tensor(bias) != result.of(kind.dtype, (columns,))
    ):
        return None
    return None if is_static(x, found) else _Linear(node, x, weight, bias, columns)


def _mergeable(rewriter: Rewriter, group: list[_Linear], disturbances: Disturbances) -> list[_Linear]:
    """Those that may be computed where the first is, and may be views of one result."""
    if len(group) < 2:
        return []
    first = group[0].node
    members = [m for m in group if m.node is first or not disturbances.between(rewriter, first, m.node)]
    while len(members) > 1:
        total = sum(m.columns for m in members)
        fitting = [m for m in members if plan_layouts({m.node.result: _part_type(m, total)}) is not None]
        if len(fitting) == len(members):
            break
        members = fitting
    return members


def _pays(members: list[_Linear], context: PassContext) -> bool:
    kind = static_tensor(members[0].x)
    assert kind is not None
    k = kind.sizes[-1]
    return context.merging_pays(at_hand(kind.numel // k), [m.columns for m in members], at_hand(k), kind.dtype)


def _part_type(member: _Linear, total: int) -> TensorType:
    """The type of one part of the merged result."""
    result = static_tensor(member.node.result)
    assert result is not None
    whole = result.of(result.dtype, (*result.sizes[:-1], total), None, result.device)
    return result.of(result.dtype, result.sizes, whole.steps, result.device)


def _merge(rewriter: Rewriter, members: list[_Linear]) -> None:
    total = sum(m.columns for m in members)
    # Two parts may meet in one user, so that what each may do alone need not do for all.
    plan = plan_layouts({m.node.result: _part_type(m, total) for m in members})
    if plan is None:
        return
    first = members[0]
    for member in members:
        for value in (member.weight, member.bias):
            if value is not None:
                _hoist(rewriter, value, first.node)
    with rewriter.builder.at(first.node):
        emit = emitter(rewriter)
        weight = emit.call("aten.cat.default", tuple(m.weight for m in members))
        biases: tuple[Arg, ...] = tuple(m.bias for m in members if m.bias is not None)
        bias = emit.call("aten.cat.default", biases) if biases else None
        whole = emit.call(_LINEAR, first.x, weight, bias)
        parts: dict[Value, Value] = {}
        start = 0
        for member in members:
            parts[member.node.result] = emit.call("aten.slice.Tensor", whole, -1, start, start + member.columns)
            start += member.columns
    set_layouts(rewriter, parts, plan)
    for member in members:
        rewriter.erase(member.node)


def _hoist(rewriter: Rewriter, value: Value, before: Node) -> None:
    """Move a static value, and what it is made of, up to where it is needed."""
    node = value.node
    if node is None or rewriter.is_visible(value, before):
        return
    for operand in node.operands():
        _hoist(rewriter, operand, before)
    rewriter.move(node, before)


merge_linears = Pass(
    "merge-linears",
    "%q = linear %x, %wq; %k = linear %x, %wk   ==>   %1 = linear %x, cat [%wq, %wk]; %q, %k = slices of %1",
    _run,
    rounding=True,
)
