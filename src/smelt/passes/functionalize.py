"""Values instead of mutation.

%b = select %x 0 1; %c = add_ %b 1; %d = sin %x        ==>
%b = select %x 0 1; %n = add %b 1; %x1 = select_scatter %x %n 0 1; %d = sin %x1; %w = write %x %x1

Each memory (`root`) that operators write has a current content, a value of the root's own type. A write through a
view makes new content by the inverse of each view on the way; a read of any alias takes its views of the current
content again. What belongs to the caller is written back once, at the end, and outputs that lie in it are views of
the write's result. Memory for which any of this cannot be told for sure (an unknown mutating operator, a random fill,
a resize, elements that share an address, arguments that share memory, a write inside control flow) keeps its in-place
operators, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from smelt.analysis import Aliases, alias_analysis, is_external
from smelt.diag import InternalError
from smelt.ir import Graph, Node, Region, TensorType, TupleType, Value, map_values, values_in
from smelt.ops.effects import aliases as node_aliases
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.passes.base import Pass, PassContext, emitter
from smelt.passes.mutations import Mutation, holds, mutation_of
from smelt.passes.view_inverses import Inverse, element_inverse, fitted, inverse_of
from smelt.rewrite import Rewriter

_STATE = ("param", "buffer", "captured")


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for region in _inner_first(graph.body):
        plan = _plan(region, graph, context.entangled)
        if plan.mutations:
            _Functionalizer(rewriter, region, plan).run()
    return rewriter.edits > 0


def _inner_first(region: Region) -> Iterator[Region]:
    for node in region:
        for inner in node.regions:
            yield from _inner_first(inner)
    yield region


# --- what can be made functional


@dataclass(frozen=True, slots=True)
class _Plan:
    """The writing nodes to replace, and the roots of the memory they write."""

    mutations: dict[Node, Mutation]
    roots: frozenset[Value]
    aliases: Aliases


def _plan(region: Region, graph: Graph, entangled: frozenset[str]) -> _Plan:
    aliases = alias_analysis(graph)
    mutations: dict[Node, Mutation] = {}
    kept = {root for roots in aliases.roots.values() for root in roots if is_external(root) and root.name in entangled}
    for node in region:
        writes = effects(node).writes
        if not writes:
            continue
        mutation = mutation_of(node) if not node.regions and node.op != "write" else None
        if mutation is None:
            kept |= aliases.of_all(writes)
        else:
            mutations[node] = mutation
    if mutations:
        written = aliases.of_all(v for m in mutations.values() for v, _ in m.written)
        kept |= _unfit_roots(region, aliases, written)
        for node, mutation in mutations.items():
            for value, _ in mutation.written:
                if not _can_write_through(value, aliases) or _reads_itself_turned(node, value, aliases):
                    kept |= aliases.of(value)
        _drop_kept(mutations, kept, aliases)
    roots = aliases.of_all(v for m in mutations.values() for v, _ in m.written)
    return _Plan(mutations, roots, aliases)


def _reads_itself_turned(node: Node, target: Value, aliases: Aliases) -> bool:
    """Whether a node reads all the memory that it writes in another order: eager sees what it has written already."""

    def covers(value: Value) -> bool:
        kinds = (value.type, *(root.type for root in aliases.of(value)))
        return len({k.numel if isinstance(k, TensorType) and k.is_static else None for k in kinds}) == 1

    return any(
        operand is not target and operand.type != target.type and covers(operand) and covers(target)
        for operand in node.operands()
        if aliases.may_share(operand, target)
    )


def _drop_kept(mutations: dict[Node, Mutation], kept: set[Value], aliases: Aliases) -> None:
    """A node that writes kept memory stays, and then all the memory it writes is kept."""
    changed = True
    while changed:
        changed = False
        for node, mutation in list(mutations.items()):
            touched = aliases.of_all(v for v, _ in mutation.written)
            if touched & kept:
                kept |= touched
                del mutations[node]
                changed = True


def _unfit_roots(region: Region, aliases: Aliases, written: frozenset[Value]) -> set[Value]:
    unfit = {root for root in written if not (_belongs(root, region) and isinstance(root.type, TensorType))}
    for value in _values_inside(region):
        roots = aliases.of(value)
        if roots & written and (len(roots) > 1 or (value not in roots and not _is_replayable(value))):
            unfit |= roots
    return unfit


def _values_inside(region: Region) -> Iterator[Value]:
    yield from region.params
    for node in region.walk():
        yield from node.results
        for inner in node.regions:
            yield from inner.params


def _belongs(root: Value, region: Region) -> bool:
    """Whether memory is made in the region, or handed to the graph and written back at its end."""
    if isinstance(root.owner, Region):
        return root.owner is region and isinstance(region.owner, Graph)
    if root.owner.parent is not region:
        return False
    return isinstance(region.owner, Graph) or root.owner.op not in _STATE


def _is_replayable(value: Value) -> bool:
    """Whether a view can be taken again of other content: not where it names a place in its storage."""
    node = value.node
    if node is None or node.regions or "as_strided" in node.op or _parent(value) is None:
        return False
    return node.op in ("unpack", "write") or isinstance(value.type, (TensorType, TupleType))


def _parent(value: Value) -> Value | None:
    """The operand that a value is a view of, or None for a root."""
    node = value.node
    if node is None or node.op in _STATE or node.op == "const":
        return None
    shared = node_aliases(node)[node.results.index(value)]
    return shared[0] if len(shared) == 1 else None


def _can_write_through(value: Value, aliases: Aliases) -> bool:
    roots = aliases.of(value)
    current = value
    while current not in roots:
        if not holds(current.type):
            return False
        step = _step(current)
        if step is None:
            return False
        current = step.base
    return holds(current.type) and isinstance(current.type, TensorType)


@dataclass(frozen=True, slots=True)
class _Step:
    """One view back: the base, and how to write through the view."""

    base: Value
    node: Node
    inverse: Inverse


def _step(value: Value) -> _Step | None:
    parent, node = _parent(value), value.node
    if parent is None or node is None or not isinstance(value.type, TensorType):
        return None
    if node.op == "unpack":
        source = parent.node
        base = _parent(parent)
        if source is None or base is None or not isinstance(parent.type, TupleType):
            return None
        if not isinstance(base.type, TensorType):
            return None
        found = element_inverse(source, parent.type, node.results.index(value), base.type)
        return None if found is None else _Step(base, source, found)
    if not isinstance(parent.type, TensorType):
        return None
    if effects(node).writes:
        # An in-place operator returns the operand itself.
        return _Step(parent, node, _identity) if parent.type == value.type else None
    inverse = inverse_of(node, parent.type, value.type)
    return None if inverse is None else _Step(parent, node, inverse)


def _identity(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return new


def _laid_out(b: GraphEmitter, new: Value, old: Value) -> Value:
    """`new` in the layout of a result that goes: the functional operator may have chosen other strides."""
    if new.type == old.type:
        return new
    if not isinstance(old.type, TensorType):
        raise _lost(old)
    room = b.call("aten.new_empty_strided.default", new, old.type.sizes, old.type.steps)
    return fitted(b, new, room)


# --- doing it


class _Functionalizer:
    """Walks one region in order with the current content of each root.

    content: the value that a root's memory holds. version: how often it changed. seen: for values that lie in written
    memory, an equal value and the version for which it is equal.
    """

    def __init__(self, rewriter: Rewriter, region: Region, plan: _Plan) -> None:
        self.rewriter = rewriter
        self.region = region
        self.plan = plan
        self.content: dict[Value, Value] = {root: root for root in plan.roots}
        self.version: dict[Value, int] = dict.fromkeys(plan.roots, 0)
        self.seen: dict[Value, tuple[int, Value]] = {}
        self.emit = emitter(rewriter)
        # As captured, because the walk changes what nodes are applied to.
        followed = [v for v in plan.aliases.roots if v not in plan.roots and self.root(v) is not None]
        self.parents: dict[Value, Value | None] = {v: _parent(v) for v in followed}
        self.steps: dict[Value, _Step | None] = {v: _step(v) for v in followed}
        self.captured = {v.node: (v.node.args, v.node.kwargs) for v in followed if v.node is not None}

    def run(self) -> None:
        done: list[Node] = []
        for node in list(self.region):
            with self.rewriter.builder.at(node):
                if node in self.plan.mutations:
                    self.mutate(node, self.plan.mutations[node])
                    done.append(node)
                    continue
                self.substitute(node)
            for result in node.results:
                root = self.root(result)
                if root is not None:
                    self.seen[result] = (self.version[root], result)
        with self.rewriter.builder.inside(self.region):
            self.finish()
        for node in reversed(done):
            self.rewriter.erase(node)

    def root(self, value: Value) -> Value | None:
        """The root of a value that lies in memory which this walk follows."""
        roots = self.plan.aliases.roots.get(value, frozenset())
        return next(iter(roots)) if len(roots) == 1 and roots <= self.plan.roots else None

    def current(self, value: Value) -> Value:
        """A value's content now, as a value of the same type; views are taken again where they are out of date."""
        root = self.root(value)
        if root is None:
            return value
        if value is root:
            return self.content[root]
        known = self.seen.get(value)
        if known is not None and known[0] == self.version[root]:
            return known[1]
        node = value.node
        parent = self.parents[value]
        if node is None or parent is None:
            raise _lost(value)
        if node in self.plan.mutations:
            found = self.current(parent)
            self.seen[value] = (self.version[root], found)
            return found
        return self.replay(node, value, root)

    def replay(self, node: Node, value: Value, root: Value) -> Value:
        args, kwargs = self.captured[node]
        copy = self.rewriter.builder.add(
            node.op,
            [map_values(a, self.current) for a in args],
            [r.type for r in node.results],
            {k: map_values(a, self.current) for k, a in kwargs.items()},
        )
        copy.span, copy.scope, copy.mode = node.span, node.scope, node.mode
        self.rewriter.adopt(copy)
        for old, new in zip(node.results, copy.results, strict=True):
            if self.root(old) is root:
                self.seen[old] = (self.version[root], new)
        return self.seen[value][1]

    def substitute(self, node: Node) -> None:
        """Let a node, and everything in its regions, read current contents."""
        self._substitute_arguments(node)
        for region in node.regions:
            for inner in region.walk():
                self._substitute_arguments(inner)
                for nested in inner.regions:
                    self._substitute_yields(nested)
            self._substitute_yields(region)

    def _substitute_arguments(self, node: Node) -> None:
        mapping = self._stale(node.operands())
        if mapping:
            self.rewriter.set_arguments(
                node,
                tuple(map_values(a, lambda v: mapping.get(v, v)) for a in node.args),
                {k: map_values(a, lambda v: mapping.get(v, v)) for k, a in node.kwargs.items()},
            )

    def _substitute_yields(self, region: Region) -> None:
        mapping = self._stale(v for arg in region.yields for v in values_in(arg))
        if mapping:
            self.rewriter.set_yields(region, tuple(map_values(a, lambda v: mapping.get(v, v)) for a in region.yields))

    def _stale(self, values: Iterable[Value]) -> dict[Value, Value]:
        """Replacements of the values that are out of date. Values made inside an inner region read what is current."""
        found = {}
        for value in dict.fromkeys(values):
            home = value.owner if isinstance(value.owner, Region) else value.owner.parent
            if home is self.region and self.root(value) is not None:
                now = self.current(value)
                if now is not value:
                    found[value] = now
        return found

    def mutate(self, node: Node, mutation: Mutation) -> None:
        args = tuple(map_values(a, self.current) for a in mutation.args)
        kwargs = {k: map_values(a, self.current) for k, a in mutation.kwargs.items()}
        made = self.emit.node(mutation.op, args, kwargs)
        results: tuple[Value, ...] = tuple(made.results)
        if len(results) == 1 and isinstance(results[0].type, TupleType):
            unpacked = self.rewriter.builder.add("unpack", (results[0],), results[0].type.elements)
            self.rewriter.adopt(unpacked)
            results = tuple(unpacked.results)
        for value, index in mutation.written:
            self.assign(value, self.cast(results[index], value))
        for result, source in zip(node.results, mutation.results, strict=True):
            if not isinstance(source, int):
                continue
            value = _laid_out(self.emit, results[source], result)
            if result in self.content:
                # Written later on: its uses are replaced one by one, by what it holds there.
                self.content[result] = value
            else:
                self.rewriter.replace_all_uses(result, value)

    def cast(self, new: Value, target: Value) -> Value:
        """New content in the dtype and sizes of what it is written to; its strides may still differ."""
        a, b = new.type, target.type
        same = isinstance(a, TensorType) and isinstance(b, TensorType) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return new if same else self.emit.call("aten.copy.default", self.current(target), new)

    def assign(self, value: Value, new: Value) -> None:
        """From now on `value` holds `new`."""
        root = self.root(value)
        if root is None:
            raise _lost(value)
        if value is root:
            self.content[root] = fitted(self.emit, new, self.content[root])
            self.version[root] += 1
            return
        step = self.steps[value]
        if step is None:
            raise _lost(value)
        whole = self.current(step.base)
        self.assign(step.base, step.inverse(self.emit, whole, new, step.node))
        if new.type == value.type:
            self.seen[value] = (self.version[root], new)

    def finish(self) -> None:
        """Write back what belongs to the caller, and let the region yield current contents."""
        external = [r for r in self.content if is_external(r) and self.content[r] is not r]
        followed = set(external)
        values = {r: self._apart(self.content[r], followed) for r in sorted(external, key=self._order)}
        for root, value in values.items():
            written = self.rewriter.insert("write", (root, value), (root.type,), end_of=self.region)
            self.content[root] = written.result
        for root in self.version:
            # Whatever is yielded must lie in the one memory, as its aliases do.
            self.version[root] += 1
        self._substitute_yields(self.region)

    def _order(self, root: Value) -> tuple[int, int]:
        if isinstance(root.owner, Region):
            return (0, root.owner.params.index(root))
        return (1, next(i for i, n in enumerate(self.region) if n is root.owner))

    def _apart(self, value: Value, external: set[Value]) -> Value:
        """The value, copied if it lies in memory that is about to be written."""
        pending = [value]
        while pending:
            one = pending.pop()
            if one in external:
                return self.emit.call("aten.clone.default", value)
            node = one.node
            if node is not None:
                pending.extend(node_aliases(node)[node.results.index(one)])
        return value


def _lost(value: Value) -> InternalError:
    return InternalError(f"the memory of %{value.name} is not followed, though the plan said so", code="S0901")


functionalize = Pass("functionalize", "%c = add_ %x 1   ==>   %n = add %x 1; %w = write %x %n", _run)
