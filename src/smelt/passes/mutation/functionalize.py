"""Values instead of mutation.

%b = select %x 0 1; %c = add_ %b 1; %d = sin %x        ==>
%b = select %x 0 1; %n = add %b 1; %x1 = select_scatter %x %n 0 1; %d = sin %x1; %w = write %x %x1

Each memory (`root`) that operators write has a current content, a value of the root's own type. A write through a view
makes new content by the inverse of each view on the way, once something else than this view and views of it is read or
written; a read of any alias takes its views of the current content again. A branch that writes memory from outside
yields its content as one more result, a loop carries it. What belongs to the caller is written back once, at the end,
and outputs that lie in it are views of the write's result. Memory for which any of this cannot be told for sure (an
unknown mutating operator, a random fill, a resize, a write to elements that share an address, a place counted from a
storage's start, arguments that share memory, tensors of which a branch or a container may hold either and that are seen
again under another name) keeps its operators, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

from smelt.analysis import is_external
from smelt.diag import InternalError
from smelt.ir import Graph, Node, Region, TensorType, TupleType, Value, map_values, values_in
from smelt.ops.effects import aliases as node_aliases
from smelt.ops.lowering import GraphEmitter
from smelt.passes.base import Pass, PassContext, emitter
from smelt.passes.loops.identities import settle
from smelt.passes.mutation.diagonals import fill_diagonals
from smelt.passes.mutation.fresh_outs import fill_fresh_outs
from smelt.passes.mutation.functional_plan import Plan, Step, plan_of, step_of
from smelt.passes.mutation.fused_updates import write_updates_out
from smelt.passes.mutation.gradient_scaling import write_scaling_out
from smelt.passes.mutation.lists_apart import take_lists_apart
from smelt.passes.mutation.made_views import view_made_tensors
from smelt.passes.mutation.mutations import Mutation
from smelt.passes.mutation.parents import parent_of
from smelt.passes.mutation.view_inverses import fitted
from smelt.rewrite import Rewriter, add_carried, add_result


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    settle(rewriter)
    view_made_tensors(rewriter)
    emit = emitter(rewriter)
    take_lists_apart(rewriter, emit)
    write_scaling_out(rewriter, emit)
    write_updates_out(rewriter, emit)
    fill_fresh_outs(rewriter, emit)
    fill_diagonals(rewriter, emit)
    plan = plan_of(graph, context.entangled)
    if plan.mutations:
        _Functionalizer(rewriter, plan).run()
    return rewriter.edits > 0


def _laid_out(b: GraphEmitter, new: Value, old: Value) -> Value:
    """`new` in the layout of a result that goes: the functional operator may have chosen other strides."""
    if new.type == old.type:
        return new
    if not isinstance(old.type, TensorType) or not old.type.is_static:
        raise _lost(old)
    room = b.call("aten.new_empty_strided.default", new, old.type.sizes, old.type.steps)
    return fitted(b, new, room)


class _Functionalizer:
    """Walks a graph in order with the current content of each root.

    content: the value that a root's memory holds. ahead: views of it, each one of the view before, that hold more than
    what they are views of: what was written to them since. version: a number for each content. seen: for values that
    lie in written memory, an equal value and the version for which it is equal. What an inner region learns is
    forgotten at its end, because its values are not seen outside.
    """

    def __init__(self, rewriter: Rewriter, plan: Plan) -> None:
        self.rewriter = rewriter
        self.plan = plan
        self.content: dict[Value, Value] = {root: root for root in plan.roots}
        self.ahead: dict[Value, list[tuple[Value, Value]]] = {root: [] for root in plan.roots}
        self.version: dict[Value, int] = dict.fromkeys(plan.roots, 0)
        self.versions = count(1)
        self.seen: dict[Value, tuple[int, Value]] = {}
        # Mutations are planned beforehand, with the results of nodes that have gone since.
        self.renamed: dict[Value, Value] = {}
        self.done: list[Node] = []
        self.emit = emitter(rewriter)
        # As captured, because the walk changes what nodes are applied to.
        followed = [v for v in plan.aliases.roots if v not in plan.roots and self.root(v) is not None]
        self.parents: dict[Value, Value | None] = {v: parent_of(v) for v in followed}
        self.steps: dict[Value, Step | None] = {v: step_of(v) for v in followed}
        # What an operator in place gives is its operand.
        self.same = {v: step.base for v, step in self.steps.items() if step is not None and step.is_same}
        for value, base in self.same.items():
            while base in self.same:
                base = self.same[base]
            self.same[value] = base
        self.captured = {v.node: (v.node.args, v.node.kwargs) for v in followed if v.node is not None}
        self.written_in = _written_in(plan)

    def run(self) -> None:
        body = self.rewriter.graph.body
        self.walk(body)
        with self.rewriter.builder.inside(body):
            self.finish(body)
        for node in reversed(self.done):
            self.rewriter.erase(node)

    def walk(self, region: Region) -> None:
        for node in list(region):
            with self.rewriter.builder.at(node):
                if node in self.plan.mutations:
                    self.mutate(node, self.plan.mutations[node])
                    self.done.append(node)
                    continue
                self._substitute_arguments(node)
                if node.regions:
                    self.catch_up()
            if node.regions:
                self.structured(node)
            for result in node.results:
                root = self.root(result)
                if root is not None:
                    self.seen[result] = (self.version[root], result)

    # --- regions

    def structured(self, node: Node) -> None:
        """The regions of a node, with what they write of memory from outside as further results."""
        written = self.written_in.get(node, [])
        if node.op not in ("if", "for", "while"):
            for region in node.regions:
                self.inner(region, {}, ())
            return
        params = [add_carried(self.rewriter, node, self.content[r], r.type) for r in written if node.op != "if"]
        for number, region in enumerate(node.regions):
            starts = {r: mine[number] for r, mine in zip(written, params, strict=False)}
            is_test = node.op == "while" and number == 0
            self.inner(region, starts, () if is_test else written)
        for root in written:
            self.set_content(root, add_result(self.rewriter, node, root.type))

    def inner(self, region: Region, starts: dict[Value, Value], yielded: Iterable[Value]) -> None:
        """One region: the contents that roots start with, and the roots whose content it yields besides its own."""
        with self.apart():
            for root, value in starts.items():
                self.set_content(root, value)
            self.walk(region)
            with self.rewriter.builder.inside(region):
                self.catch_up()
                own = {self.root(value) for arg in region.yields for value in values_in(arg)} - {None}
                for root in dict.fromkeys((*yielded, *(r for r in self.plan.roots if r in own))):
                    # What is handed on beside a content lies in it, as its aliases do.
                    self.version[root] = next(self.versions)
                self._substitute_yields(region)
                more = tuple(self.content[root] for root in yielded)
            if more:
                self.rewriter.set_yields(region, (*region.yields, *more))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Forget afterwards what is learned meanwhile."""
        kept = dict(self.content), dict(self.version), dict(self.seen)
        yield
        self.content, self.version, self.seen = kept

    def set_content(self, root: Value, value: Value) -> None:
        self.content[root] = value
        self.version[root] = next(self.versions)

    # --- reading

    def root(self, value: Value) -> Value | None:
        """The root of a value that lies in memory which this walk follows."""
        roots = self.plan.aliases.roots.get(value, frozenset())
        return next(iter(roots)) if len(roots) == 1 and roots <= self.plan.roots else None

    def current(self, value: Value) -> Value:
        """A value's content now, as a value of the same type; views are taken again where they are out of date."""
        value = self.same.get(value, value)
        root = self.root(value)
        if root is None:
            return self.renamed.get(value, value)
        self.catch_up(root, value)
        # Views of views, from the first one on: there may be more of them than Python's stack has room for.
        stale: list[Value] = []
        above: Value | None = value
        while above is not None and self._known(above, root) is None:
            stale.append(above)
            above = self.parents[above]
            above = None if above is None else self.same.get(above, above)
        for one in reversed(stale):
            parent = self.parents[one]
            if one.node is None or parent is None:
                raise _lost(one)
            if one.node in self.plan.mutations:
                self.seen[one] = (self.version[root], self.current(parent))
            else:
                self.replay(one.node, one, root)
        found = self._known(value, root)
        assert found is not None
        return found

    def _known(self, value: Value, root: Value) -> Value | None:
        """What a value holds now, where that is at hand."""
        base, content = self.ahead[root][-1] if self.ahead[root] else (root, self.content[root])
        if value is base:
            return content
        version, found = self.seen.get(value, (-1, None))
        return found if version == self.version[root] else None

    def replay(self, node: Node, value: Value, root: Value) -> None:
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
        """Replacements of the values that are out of date."""
        found = {}
        for value in dict.fromkeys(values):
            if self.root(value) is not None:
                now = self.current(value)
                if now is not value:
                    found[value] = now
        return found

    # --- writing

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
                self.renamed[result] = value
                self.rewriter.replace_all_uses(result, value)

    def cast(self, new: Value, target: Value) -> Value:
        """New content in the dtype and sizes of what it is written to; its strides may still differ."""
        a, b = new.type, target.type
        same = isinstance(a, TensorType) and isinstance(b, TensorType) and (a.dtype, a.shape) == (b.dtype, b.shape)
        # Of sizes that are not known two may look alike and differ, which eager refuses and the copy does, too.
        is_known = isinstance(a, TensorType) and a.is_static
        return new if same and is_known else self.emit.call("aten.copy.default", self.current(target), new)

    def assign(self, value: Value, new: Value) -> None:
        """From now on `value` holds `new`."""
        value = self.same.get(value, value)
        root = self.root(value)
        if root is None:
            raise _lost(value)
        ahead = self.ahead[root]
        if value is root:
            ahead.clear()
            self.set_content(root, fitted(self.emit, new, self.content[root]))
            return
        self.catch_up(root, value)
        if ahead and ahead[-1][0] is value:
            ahead.pop()
        ahead.append((value, new))
        self.version[root] = next(self.versions)
        if new.type != value.type:
            self._write_back(root)

    def catch_up(self, root: Value | None = None, value: Value | None = None) -> None:
        """Have what a value lies in hold all that was written; without one, all that one root, or each, holds."""
        for one in self.ahead if root is None else (root,):
            while self.ahead[one] and (value is None or not self._lies_in(value, self.ahead[one][-1][0])):
                self._write_back(one)

    def _lies_in(self, value: Value | None, view: Value) -> bool:
        """Whether a value is a view, or a view of it."""
        while value is not None and value is not view:
            value = self.parents.get(value)
            value = None if value is None else self.same.get(value, value)
        return value is view

    def _write_back(self, root: Value) -> None:
        """Put what the last view holds into what it is a view of."""
        ahead = self.ahead[root]
        value, new = ahead.pop()
        base, content = ahead[-1] if ahead else (root, self.content[root])
        written: list[tuple[Value, Value]] = []
        while value is not base:
            step = self.steps[value]
            if step is None:
                raise _lost(value)
            written.append((value, new))
            new = step.inverse(self.emit, self.current(step.base), new, step.node)
            value = self.same.get(step.base, step.base)
        new = fitted(self.emit, new, content)
        if ahead:
            ahead[-1] = (base, new)
            self.version[root] = next(self.versions)
        else:
            self.set_content(root, new)
        for view, held in written:
            if held.type == view.type:
                self.seen[view] = (self.version[root], held)

    def finish(self, body: Region) -> None:
        """Write back what belongs to the caller, and let the graph return current contents."""
        self.catch_up()
        external = [r for r in self.content if is_external(r) and self.content[r] is not r]
        followed = set(external)
        places = {node: i for i, node in enumerate(self.rewriter.graph.body)}

        def order(root: Value) -> tuple[int, int]:
            owner = root.owner
            return (0, owner.params.index(root)) if isinstance(owner, Region) else (1, places[owner])

        values = {r: self._apart(self.content[r], r, followed) for r in sorted(external, key=order)}
        for root, value in values.items():
            written = self.rewriter.insert("write", (root, value), (root.type,), end_of=body)
            self.content[root] = written.result
        for root in self.version:
            # Whatever is yielded must lie in the one memory, as its aliases do.
            self.version[root] = next(self.versions)
        self._substitute_yields(body)

    def _apart(self, value: Value, root: Value, external: set[Value]) -> Value:
        """The value, copied if it lies in memory that is about to be written; it may be the written tensor itself."""
        pending = [(value, True)]
        known: set[Value] = set()
        while pending:
            one, is_whole = pending.pop()
            if one in known:
                continue
            known.add(one)
            if one in external and not (is_whole and one is root):
                return self.emit.call("aten.clone.default", value)
            node = one.node
            if node is None and isinstance(one.owner, Region) and isinstance(one.owner.owner, Node):
                node = one.owner.owner
            if node is not None and node.regions:
                # What a branch or a loop hands on is one of these, as it is.
                yielded = (v for region in node.regions for arg in region.yields for v in values_in(arg))
                pending.extend((v, is_whole) for v in (*node.operands(), *yielded))
            elif node is not None:
                pending.extend((v, False) for v in node_aliases(node)[node.results.index(one)])
        return value


def _written_in(plan: Plan) -> dict[Node, list[Value]]:
    """For each node with regions, the roots bound outside it that are written inside, in the order of the writes."""
    found: dict[Node, dict[Value, None]] = {}
    for node, mutation in plan.mutations.items():
        for value, _ in mutation.written:
            (root,) = plan.aliases.roots[value]
            home = root.owner if isinstance(root.owner, Region) else root.owner.parent
            region = node.parent
            while region is not None and region is not home and isinstance(region.owner, Node):
                found.setdefault(region.owner, {})[root] = None
                region = region.owner.parent
    return {node: list(roots) for node, roots in found.items()}


def _lost(value: Value) -> InternalError:
    return InternalError(f"the memory of %{value.name} is not followed, though the plan said so", code="S0901")


functionalize = Pass("functionalize", "%c = add_ %x 1   ==>   %n = add %x 1; %w = write %x %n", _run)
