"""Values that are computed straight into the memory that a write at the graph's end gives them.

    %1 = mul(%p, 0.9); %2 = write(%p, %1)          ==>        for i: %p[i] = 0.9 * %p[i]
    %1 = select_scatter(%c, %k, 1, 3)              ==>        for i, j: %c[i, 3, j] = %k[i, j]
    %2 = write(%c, %1)

The launch stands where the value is computed, ahead of the write; the write only counts in the tensor's version.

Invariant: nobody can tell. Behind the launch nothing reads what the memory held before, through any view, and nothing
may end the run, which is then repeated from the state that it found. What the nest itself reads of the memory are the
elements that the same point writes, and it reads them first. A kernel that refuses its data does so before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Final

from smelt.analysis import used_values
from smelt.codegen.fusion.build import Built
from smelt.codegen.fusion.chunks import may_refuse
from smelt.codegen.fusion.groups import Facts, Group
from smelt.codegen.fusion.schedule import Delays
from smelt.codegen.kernels.nest import (
    Const,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.memory.geometry import Geometry, is_dense
from smelt.codegen.lower.memory.overwriting import views_of
from smelt.codegen.lower.memory.sharing import feared_sources, sources_of, view_source
from smelt.codegen.lower.static.statics import state_name
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, DType, Node, TensorType, Value
from smelt.ir.sizes import equals, expression, is_one, is_symbolic
from smelt.ops.effects import effects
from smelt.ops.registry import Schema, arguments_of, schema_of
from smelt.ops.shapes.views import Layout, view_layouts

_COPY = "aten.index_copy.default"
PUTS: Final = {_COPY: "aten.index_copy_.default", "aten.index_put.default": "aten.index_put_.default"}
"""Writes at positions of the run, and what does the same in place."""
_VIEWS = {"aten.select_scatter.default": "aten.select.int", "aten.slice_scatter.default": "aten.slice.Tensor"}


@record
class Target:
    """Where a value is written: `place` takes `source`, which is the value or, of a part, what is new in it.

    whole: where the value lies then. write: the node that need not copy it.
    """

    write: Node
    whole: Place
    source: Value
    place: Place


class InPlace:
    """Which values of a graph's body may be computed where they are written to."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._writes: dict[Hashable, list[Node]] = {}
        self._readers: dict[Hashable, list[Node]] = {}
        self._blocked: set[Hashable] = set()
        self._stops: list[Node] = []
        self._at: dict[Node, int] = {}
        self._last: dict[Node, int] = {}
        self._end = -1
        for node in ctx.graph.body:
            self._note(node)
            if may_end_run(node, ctx.statics.is_static):
                self._stops.append(node)

    def _note(self, node: Node) -> None:
        operands = used_values(node)
        if node.op == "write" and isinstance(node.args[0], Value):
            self._writes.setdefault(memory_of(self._ctx, node.args[0]), []).append(node)
            operands = (v for v in node.args[1:] if isinstance(v, Value))
        feared = feared_sources(node)
        for value in operands:
            memory = None if _is_written(value) else memory_of(self._ctx, value)
            if memory is None:
                continue
            if _may_hold(node) or value in feared:
                self._blocked.add(memory)
            elif view_source(node) is not value:
                self._readers.setdefault(memory, []).append(node)

    def delays(self, groups: Iterable[Group], facts: Facts) -> Delays:
        """Groups, by their last nodes, that only make what is written, with the nodes behind which they should run."""
        found: dict[Node, list[Node]] = {}
        for group in groups:
            memories = [memory_of(self._ctx, write.args[0]) for write in filter(None, map(_only_write, group.roots))]
            members = set(group.nodes)
            if memories and all(facts.users(root)[0] <= members for root in group.roots):
                found[group.nodes[-1]] = [n for memory in memories for n in self._readers.get(memory, ())]
        return Delays(found, self._stops)

    def settle(self, order: Sequence[Node], units: Iterable[Sequence[Node]], passed: Set[Node]) -> None:
        """Say how nodes are lowered: in this order, but those of a unit with the last of it (of several units, where
        they are computed again), and those of `passed` somewhere behind their place.
        """
        self._at = {node: i for i, node in enumerate(order)}
        self._last = dict(self._at)
        for nodes in units:
            end = self._at[nodes[-1]]
            for node in nodes:
                self._last[node] = max(self._last[node], end)
        self._last.update((node, len(order)) for node in passed)
        self._end = max((self._last[node] for node in self._stops), default=-1)

    def targets(self, nodes: Sequence[Node], roots: Iterable[Value]) -> dict[Value, Target]:
        """Where the values that nodes store, run together, may be written, as far as the graph tells."""
        found: dict[Value, Target] = {}
        end = self._at.get(nodes[-1])
        if end is None or not self._writes or not self._runs_on(nodes, end):
            return found
        for root in roots:
            target = self._target(root, end, nodes)
            if target is not None:
                found[root] = target
        return found

    def _runs_on(self, nodes: Sequence[Node], end: int) -> bool:
        """Whether nothing behind these nodes ends a run, in which all is in range that they check."""
        if self._end <= end:
            return True
        checked = frozenset().union(*map(_checked, nodes))
        later = (node for node in self._stops if self._last[node] > end)
        return bool(checked) and all(_checked(node) and _checked(node) <= checked for node in later)

    def _target(self, root: Value, end: int, members: Sequence[Node]) -> Target | None:
        ctx = self._ctx
        write = _only_write(root)
        if write is None or ctx.escapes(root) or ctx.is_aimed(root):
            return None
        target = write.args[0]
        assert isinstance(target, Value)
        memory = memory_of(ctx, target)
        if memory is None or memory in self._blocked or len(self._writes[memory]) != 1:
            return None
        if any(self._last[reader] > end for reader in self._readers.get(memory, ())):
            return None
        place = ctx.origin(target)
        type_ = tensor_type(root)
        if place is None or place.geometry != place.storage.base or place.storage.dtype is not torch_dtype(root):
            return None
        if len(place.geometry.sizes) != type_.rank or not all(map(equals, place.geometry.sizes, type_.sizes)):
            return None
        if not is_apart_everywhere(place.geometry):
            return None
        source, geometry = _new_part(ctx, root, target, place.geometry, members)
        if source.node in members and source.node is not None and source.node.op in PUTS:
            base, *others = source.node.operands()
            if not _lies_at(ctx, base, target, geometry) or any(memory_of(ctx, v) == memory for v in others):
                return None
        return Target(write, place, source, Place(place.storage, geometry))


def memory_of(ctx: Context, value: Arg) -> Hashable | None:
    """What names the memory from outside that a value lies in; None for memory that the run makes."""
    if not isinstance(value, Value):
        return None
    root = ctx.root(value)
    if root.node is None:
        return root if root in ctx.inputs else None
    return state_name(root.node) if root.node.op in STATE_OPS else None


def _is_written(value: Value) -> bool:
    """Whether a value is what memory holds behind a write."""
    return any(v.node is not None and v.node.op == "write" for v in sources_of(value))


def may_end_run(node: Node, is_static: Callable[[Value], bool]) -> bool:
    """Whether a run may end at a node, for its data or for what Python does there."""
    if node.op == "write" or (node.results and all(map(is_static, node.results))):
        return False
    found = effects(node)
    return _may_hold(node) or found.may_throw or found.io or found.stops


def _checked(node: Node) -> frozenset[Hashable]:
    """What a write at positions checks: which positions, along how long a dimension."""
    if node.op not in PUTS:
        return frozenset()
    whole = node.args[0]
    assert isinstance(whole, Value)
    sizes = tensor_type(whole).sizes
    at = node.args[1]
    if node.op == _COPY:
        at = (*[None] * (at % len(sizes) if isinstance(at, int) and sizes else 0), node.args[2])
    assert isinstance(at, tuple)
    if not all(index is None or _is_of_positions(index) for index in at):
        return frozenset()
    given = zip(at, sizes, strict=False)
    return frozenset((node.op, _position(index), expression(n)) for index, n in given if index is not None)


def _is_of_positions(index: Arg) -> bool:
    return isinstance(index, Value) and tensor_type(index).dtype in (DType.I32, DType.I64)


def _position(index: Arg) -> Arg:
    node = index.node if isinstance(index, Value) else None
    return index if node is None or node.op != "aten.scalar_tensor.default" else node.args[0]


def _may_hold(node: Node) -> bool:
    """Whether a node may keep an operand, or give it on, in other ways than as a view."""
    return bool(node.regions) or node.op.startswith("py.")


def _only_write(root: Value) -> Node | None:
    """The write of a value that nothing else keeps: all other users are operators that read it."""
    found: Node | None = None
    for value in views_of(root):
        for user in value.users:
            if not isinstance(user, Node) or _may_hold(user) or value in feared_sources(user):
                return None
            if user.op == "write":
                if found is not None or user.args[1] is not root:
                    return None
                found = user
    return found


def is_apart_everywhere(at: Geometry) -> bool:
    """Whether no two elements lie at one place, as far as strides tell."""
    if any(map(is_symbolic, (*at.sizes, *at.strides))):
        return is_dense(at.sizes, at.strides)
    dims = [(step, size) for step, size in zip(at.strides, at.sizes, strict=True) if not is_one(size)]
    reach = 0
    for step, size in sorted(dims):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


# --- parts


def _new_part(
    ctx: Context, root: Value, target: Value, at: Geometry, members: Sequence[Node]
) -> tuple[Value, Geometry]:
    """What a value is but for the tensor that it is written to, and where in that tensor it lies.

    %a = select(%t, 0, 1); %b = slice_scatter(%a, %v, 0, 2, 3); %c = select_scatter(%t, %b, 0, 1)
        ==>   %v, at %t[1, 2:3]
    """
    source, base = root, target
    while True:
        node = source.node
        if (
            node is None
            or node.op not in _VIEWS
            or node not in members
            or (source is not root and len(source.users) > 1)
        ):
            return source, at
        call = arguments_of(_schema(node.op), node.args, node.kwargs)
        whole, new = call["self"], call["src"]
        if not isinstance(whole, Value) or not isinstance(new, Value) or not _lies_at(ctx, whole, base, at):
            return source, at
        found = view_layouts(_VIEWS[node.op], Layout(at.sizes, at.strides, at.offset), call)
        if found is None or not isinstance(new.type, TensorType) or new.type.dtype is not tensor_type(root).dtype:
            return source, at
        (part,) = found
        if len(part.sizes) != new.type.rank or not all(map(equals, part.sizes, new.type.sizes)):
            return source, at
        if any(equals(n, 0) for n in part.sizes):
            return source, at
        source, at = new, Geometry(part.sizes, part.strides, part.offset)


def _schema(op: str) -> Schema:
    found = schema_of(op)
    assert found is not None
    return found


def _lies_at(ctx: Context, value: Value, target: Value, at: Geometry) -> bool:
    """Whether a value is the part of a tensor that lies at a place."""
    if _is_written(value) or memory_of(ctx, value) != memory_of(ctx, target):
        return False
    place = ctx.origin(value)
    return place is not None and place.geometry == at


# --- what the nest does


def why_not(built: Built, targets: Mapping[Value, Hashable], is_cut: bool) -> dict[Value, str]:
    """The targets that a nest may not write to, and why: by what it reads of them, and where it may refuse its data.

    targets: the keys of the buffers that values are stored to. is_cut: it runs as several kernels.
    """
    nest = built.nest
    found: dict[Value, str] = {}
    reads = False
    for root, key in targets.items():
        buffer = built.keys.index(key)
        stores = [s for s in nest.body if isinstance(s, Store) and s.buffer == buffer]
        loads = [load for load in _loads(nest) if load.buffer == buffer]
        reads = reads or bool(loads)
        if len(stores) != 1 or stores[0].mode != "set" or stores[0].where is not None:
            found[root] = "it is written more than once"
        elif not all(_is_same_place(load.index, stores[0].index) for load in loads):
            found[root] = "other elements of it are read"
        elif loads and not all(equals(step, 0) for step in stores[0].index.strides[len(nest.outer) :]):
            found[root] = "its elements are read more than once"
    if not found and may_refuse(nest) and (is_cut or not _refuses_at_once(nest, reads)):
        return dict.fromkeys(targets, "the kernel may refuse its data when it has written")
    return found


def _loads(nest: Nest) -> list[Load]:
    return [e for s in nest.body for x in expressions(s) for e in walk(x) if isinstance(e, Load)]


def _is_same_place(one: Index, other: Index) -> bool:
    if one.gathers or other.gathers or len(one.strides) != len(other.strides):
        return False
    return equals(one.offset, other.offset) and all(map(equals, one.strides, other.strides))


def _refuses_at_once(nest: Nest, reads: bool) -> bool:
    """Whether a kernel that refuses its data does so at its first point, before it stores anything."""
    stores = [s for s in nest.body if isinstance(s, Store)]
    is_last = len(stores) == 1 or reads or any(s.index.gathers for s in stores)
    if nest.inner or not is_last:
        return False
    fixed: set[str] = set()
    for statement in nest.body:
        if isinstance(statement, Let) and _is_fixed(statement.expr, fixed):
            fixed.add(statement.name)
    return all(_is_fixed(e, fixed) for s in nest.body for e in _refusing(s))


def _refusing(statement: Statement) -> Iterable[Expr]:
    """What a statement computes that a kernel may refuse: positions, and operands of divisions of integers."""
    if isinstance(statement, Store):
        yield from (g.position for g in statement.index.gathers)
    for part in (e for x in expressions(statement) for e in walk(x)):
        match part:
            case Load(index=index):
                yield from (g.position for g in index.gathers)
            case Op(op="idiv" | "floordiv" | "rem" | "fmod"):
                yield from part.args
            case _:
                pass


def _is_fixed(expr: Expr, fixed: Set[str]) -> bool:
    """Whether an expression is the same at all points."""
    match expr:
        case Const():
            return True
        case Ref(name=name):
            return name in fixed
        case Op(args=args):
            return all(_is_fixed(a, fixed) for a in args)
        case Load(index=index, where=where):
            parts = [g.position for g in index.gathers] + ([] if where is None else [where])
            return all(equals(s, 0) for s in index.strides) and all(_is_fixed(p, fixed) for p in parts)
        case _:
            return False


def reads_first(nest: Nest) -> Nest:
    """The nest with all that is loaded from a buffer that it stores to ahead of its stores."""
    stores = [s for s in nest.body if isinstance(s, Store)]
    written = {s.buffer for s in stores}
    if len(stores) < 2 or not any(load.buffer in written for load in _loads(nest)):
        return nest
    before: list[Statement] = []
    after: list[Statement] = []
    for statement in nest.body:
        if not isinstance(statement, Store):
            before.append(statement)
        elif isinstance(statement.expr, Const | Ref):
            after.append(statement)
        else:
            name = f"w{len(after)}"
            before.append(Let(name, statement.expr))
            after.append(Store(statement.buffer, statement.index, Ref(name, statement.expr.dtype), statement.where))
    return Nest(nest.buffers, nest.outer, nest.inner, (*before, *after), nest.ordered)
