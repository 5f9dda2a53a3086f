"""A graph with sizes that follow data as one of known sizes, as far as that goes.

    %3: f32[_, 8] = aten.index.Tensor(%x, [%m])         %p: i64[18, 1] = aten.nonzero_static(...); %n: int = ...
    %4: f32[_, 8] = aten.tanh.default(%3)         ==>   %3: f32[18, 8] = aten.index(...); %4: f32[18, 8] = aten.tanh(%3)
    return %4                                           %5: f32[_, 8] = aten.slice.Tensor(%4, 0, None, %n); return %5

Each node on padded tensors has a rule (`rules`, `selecting`); one that has none gets the exact tensors, cut from the
padded ones, and runs as it ever did. What a loop carries is padded if a turn never needs more than what it started
with. Where one of these turns out not to hold, all begins anew without it. Invariant: the new graph gives what the old
one gives, by the same operators' meaning: the evaluator runs both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from smelt.codegen.lower.unknown.branches import rewrite_branch
from smelt.codegen.lower.unknown.carried import Carried
from smelt.codegen.lower.unknown.cost import added_ns, saved_ns
from smelt.codegen.lower.unknown.facts import Facts, known_outcome
from smelt.codegen.lower.unknown.outside_memory import Sharing, reached
from smelt.codegen.lower.unknown.rules import rule_for
from smelt.codegen.lower.unknown.unpadding import Leaving
from smelt.codegen.lower.unknown.values import Buffer, Emitter, Held, Padded, Parts, Refused
from smelt.codegen.lower.unknown.well_formed import Exact, check, has_unknown, is_by_columns, sweep, tensor_type
from smelt.diag import SmeltError
from smelt.ir import (
    UNKNOWN_DIM,
    Arg,
    Builder,
    Graph,
    ListType,
    MemoryFormat,
    Node,
    Region,
    TensorType,
    Type,
    Value,
    map_values,
    may_hold_tensor,
    values_in,
)
from smelt.ops.catalogue.packed import OF_PACKED, PACK
from smelt.ops.effects import aliases, effects
from smelt.ops.record import Trait
from smelt.ops.registry import arguments_of, schema_of
from smelt.ops.sets import where

_MOST_ATTEMPTS = 24
_SOURCES = where(Trait.SIZED_BY_RUN) | {
    "aten.argwhere.default",
    "aten.nonzero_numpy.default",
    "aten.where.default",
    PACK,
}
"""Operators whose results may be as long as data say."""
_OF_STRIDES = where(Trait.OWN_STRIDES) | {"aten.argwhere.default"}
"""What gives rows that lie one column after the other even where there are none: strides of 1 and 0."""


def padded(graph: Graph, *, layers: bool = True) -> Graph:
    """The graph with known sizes as far as that goes; the graph itself where nothing is gained.

    layers: recurrent layers over packed sequences may become steps of our own.
    """
    if not any(_is_source(node) for node in graph.walk()):
        return graph
    exact: set[Hashable] = set() if layers else {node for node in graph.walk() if node.op in OF_PACKED}
    for _ in range(_MOST_ATTEMPTS):
        rewriting = Rewriting(graph, exact)
        try:
            made = rewriting.run()
        except Exact as found:
            exact.add(found.what)
            continue
        if not rewriting.padded:
            return graph
        dear = rewriting.too_dear()
        if dear is None:
            return made
        exact.add(dear)
    return graph


def _is_source(node: Node) -> bool:
    """Whether a node makes a tensor that is as long as data say, or a list that a loop may make so long."""
    if node.op == "py.list":
        return any(isinstance(user, Node) and user.op == "while" for user in node.result.users)
    return (node.op in _SOURCES or node.op == "if") and any(has_unknown(r.type) for r in node.results)


def _views_columns(value: Value) -> bool:
    """Whether a tensor, which may be a view itself, is of rows of unknown number that lie column after column."""
    return any(isinstance(v.type, TensorType) and is_by_columns(v.type) for v in reached([value]))


def _may_be_given_back(node: Node) -> bool:
    """Whether a node gives its operand itself where that lies so, which data decide."""
    source = node.args[0] if node.op == "aten.contiguous.default" else None
    type_ = source.type if isinstance(source, Value) else None
    return isinstance(type_, TensorType) and type_.strides is not None and has_unknown(type_)


class Rewriting:
    """One attempt. held: what stands for each value of the old graph; padded: nodes that were, with what it costs."""

    def __init__(self, graph: Graph, exact: set[Hashable]) -> None:
        self.graph, self.exact = graph, exact
        self.held: dict[Value, Held] = {}
        self.padded: list[tuple[Node, float]] = []
        self.builder = Builder.new(graph.name, {})
        self.emit = Emitter(self.builder)
        self.facts = Facts()
        self.sharing = Sharing(graph)
        # The most that a count can be, where a tensor of that length is to be made.
        self.bounds: dict[Value, int] = {}
        self._leaving_exactly = Leaving(self)

    def run(self) -> Graph:
        """The new graph. Raises: Exact."""
        builder = self.builder
        builder.graph.constants = dict(self.graph.constants)
        for value in self.graph.inputs:
            self.held[value] = builder.add_param(builder.graph.body, value.name, value.type)
        self.visit(self.graph.body)
        left: list[tuple[set[Value], set[Value]]] = []
        made = builder.finish([map_values(arg, lambda v: self._leaving(v, left)) for arg in self.graph.outputs])
        sweep(made.body)
        return made

    def _leaving(self, old: Value, left: list[tuple[set[Value], set[Value]]]) -> Arg:
        """An output, in memory of its own where the old graph's is; what is computed once stands for equal ones.

        Raises: Exact where it shares memory with another output, and their copies would not.
        """
        if not may_hold_tensor(old.type):
            return self.exact_value(self.held[old], old.type, old)
        memory = reached([old])
        for value in memory:
            if value.node is not None and value.node not in self.exact and _may_be_given_back(value.node):
                raise Exact(value.node)
        leaving = self._leaving_exactly.value(old)
        made = reached(values_in(leaving))
        if isinstance(leaving, Value) and any(made & other and not memory & known for other, known in left):
            leaving = self.builder.add("aten.clone.default", (leaving,), [leaving.type]).result
        made = reached(values_in(leaving))
        for other, known in left:
            shared = memory & known
            if shared and not made & other:
                self._keep_together(shared)
        left.append((made, memory))
        return leaving

    def _keep_together(self, shared: set[Value]) -> None:
        """Raises: Exact for what made memory that several outputs are, where that is known."""
        for value in sorted(shared, key=lambda v: v.name):
            node = value.node
            if node is None or node.regions or node in self.exact:
                continue
            if not any(source in shared for sources in aliases(node) for source in sources):
                raise Exact(node)

    def too_dear(self) -> Hashable | None:
        """The dearest source of padding, where computing what does not count takes longer than calling what does."""
        if sum(ns for _, ns in self.padded) <= saved_ns(len(self.padded)):
            return None
        sources = [(ns, k) for k, (node, ns) in enumerate(self.padded) if _is_source(node)]
        return self.padded[max(sources)[1]][0] if sources else self.padded[0][0]

    # --- nodes

    def visit(self, region: Region) -> None:
        """Rewrite the nodes of a region where the builder stands."""
        for node in region:
            self.builder.span, self.builder.scope, self.builder.mode = node.span, node.scope, node.mode
            if node.op == "if":
                rewrite_branch(self, node)
            elif node.regions:
                Carried(self, node).rewrite()
            elif not self._by_rule(node):
                self._as_it_is(node)

    def _by_rule(self, node: Node) -> bool:
        operands = [self.held[v] for v in node.operands()]
        concerned = any(isinstance(h, (Padded, Buffer, Parts)) for h in operands)
        known = known_outcome(node)
        if known is not None:
            self.held[node.result] = known
            return True
        if node.op == "py.list" and self._begins_buffer(node):
            return True
        if not concerned and not any(has_unknown(r.type) for r in node.results):
            return False
        rule = rule_for(node.op)
        if rule is None or node in self.exact or node.mode or not effects(node).is_pure:
            return False
        first = len(self.emit.added)
        try:
            schema = schema_of(node.op)
            call = {} if schema is None else arguments_of(schema, node.args, node.kwargs)
            found = rule(self, node, call)
            for held, result in zip(found, node.results, strict=True):
                check(held, result.type, lies=self._lies_as_told(node))
        except (Refused, SmeltError):
            self.emit.take_back(first)
            return False
        for held, result in zip(found, node.results, strict=True):
            self.held[result] = held
            self.note_bounds(held)
        self.padded.append((node, added_ns(node, self.emit.added[first:])))
        return True

    def _lies_as_told(self, node: Node) -> bool:
        """Whether a cut is of memory that lies as that of the exact tensor does, whatever its strides are."""
        held = self.held[node.args[0]] if node.op == "aten.slice.Tensor" and isinstance(node.args[0], Value) else None
        if isinstance(held, Padded):
            return held.type.strides is None and all(count is None for count in held.counts[1:])
        return isinstance(held, Value)

    def _begins_buffer(self, node: Node) -> bool:
        """Whether a list is only given to a loop that may keep it in a buffer: then it is begun there."""
        (user, *others) = node.result.users or (None,)
        if others or not isinstance(user, Node) or user.op != "while" or node in self.exact:
            return False
        if not isinstance(node.result.type, ListType) or node.result.users[user] != 1:
            return False
        self.held[node.result] = Parts(tuple(self.held[a] if isinstance(a, Value) else a for a in node.args))
        return True

    def _as_it_is(self, node: Node) -> None:
        args = [self.exactly(arg) for arg in node.args]
        kwargs = {name: self.exactly(arg) for name, arg in node.kwargs.items()}
        self._copied(node, args, kwargs)

    def _copied(self, node: Node, args: Sequence[Arg], kwargs: dict[str, Arg]) -> None:
        made = self.builder.add(
            node.op, args, [r.type for r in node.results], kwargs, names=[r.name for r in node.results]
        )
        self.held.update(zip(node.results, made.results, strict=True))

    # --- what stands for values

    def get(self, arg: Arg) -> Held:
        """What stands for an argument. Raises: Refused for a sequence that holds padded tensors."""
        if isinstance(arg, Value):
            return self.held[arg]
        return map_values(arg, self.plain) if isinstance(arg, tuple) else arg

    def plain(self, value: Value) -> Arg:
        """What stands for a value that is not padded. Raises: Refused."""
        held = self.held[value]
        if isinstance(held, (Padded, Buffer, Parts)):
            raise Refused(f"%{value.name} is padded")
        return held

    def whole(self, value: Value) -> Arg:
        """What stands for a value, padding included. Raises: Refused for lists."""
        held = self.held[value]
        if isinstance(held, (Buffer, Parts)):
            raise Refused(f"%{value.name} is a sequence")
        return held.tensor if isinstance(held, Padded) else held

    def exactly(self, arg: Arg) -> Arg:
        """An argument with exact tensors in it. Raises: Exact where that cannot be had."""
        return map_values(arg, lambda v: self.exact_value(self.held[v], v.type, v))

    def exact_value(self, held: Held, type_: Type, old: Value | None = None) -> Arg:
        """The exact tensor, cut from the padded one. Raises: Exact for a list with a buffer, views of columns."""
        if isinstance(held, Buffer):
            raise Exact(held.start)
        if isinstance(held, Parts):
            raise Exact(old.node if old is not None else None)
        if not isinstance(held, Padded):
            return held
        assert isinstance(type_, TensorType)
        if is_by_columns(type_):
            return self._by_columns(held, type_, old)
        node = old.node if old is not None else None
        shared = aliases(node)[node.results.index(old)] if node is not None and old is not None else ()
        if len(held.counts) > 1 and any(map(_views_columns, shared)):
            raise Exact(node)
        current, shape = held.tensor, list(held.type.sizes)
        counted = [dim for dim, count in enumerate(held.counts) if count is not None]
        is_first = len(counted) == 1 and all(size == 1 for size in shape[: counted[0]])
        # The stride of a dimension of one element is seen, too: that of the exact tensor is of its own sizes.
        is_as_it_lies = type_.strides is not None or (counted == [0] and held.type.strides is None)
        steps = held.type.strides if is_first else held.type.steps
        for dim in counted:
            shape[dim] = UNKNOWN_DIM  # type: ignore[call-overload]
            part = TensorType(held.type.dtype, tuple(shape), steps)
            is_last = dim == counted[-1]
            made = part if not (is_last and is_as_it_lies) else type_
            current = self.builder.add("aten.slice.Tensor", (current, dim, None, held.counts[dim]), [made]).result
        if not counted or is_as_it_lies:
            return current
        kwargs = {"memory_format": MemoryFormat("contiguous_format")}
        return self.builder.add("aten.clone.default", (current,), [type_], kwargs).result

    def _by_columns(self, held: Padded, type_: TensorType, old: Value | None) -> Value:
        """The exact tensor of rows that lie one column after the other, as torch's `nonzero` gives them.

        Raises: Exact for a view, which has the stride of all the rows that there were.
        """
        node = old.node if old is not None else None
        if node is None or any(aliases(node)):
            raise Exact(node)
        dtype, (most, width) = held.type.dtype, held.type.sizes
        flipped = self.emit("aten.permute.default", held.tensor, (1, 0))
        part = TensorType(dtype, (width, UNKNOWN_DIM), (1, width) if held.type.strides is None else (most, 1))
        count = held.counts[0]
        cut = self.builder.add("aten.slice.Tensor", (flipped, 1, None, count), [part]).result
        dense = TensorType(dtype, (width, UNKNOWN_DIM))
        kwargs = {"memory_format": MemoryFormat("contiguous_format")}
        made = self.builder.add("aten.clone.default", (cut,), [dense], kwargs).result
        assert isinstance(count, Value)
        step: Arg = count
        first: Arg = 1
        if node.op not in _OF_STRIDES:
            # Of nothing, the others make rows one after the other.
            number = self.emit.number
            step = number("max", count, 1)
            first = number("max", number("sub", width, number("mul", count, width)), 1)
        return self.builder.add("aten.as_strided.default", (made, (count, width), (first, step)), [type_]).result

    # --- pieces of blocks

    def result(self, node: Node, name: str, type_: Type) -> Value:
        """One more result of a node."""
        value = Value(self.builder.fresh_name(name), type_, node)
        node.results.append(value)
        return value

    def note_bounds(self, held: Held) -> None:
        """Remember how much the counts of a tensor can be."""
        for count, size in zip(held.counts, held.type.sizes, strict=True) if isinstance(held, Padded) else ():
            if isinstance(count, Value):
                self.bounds[count] = min(size, self.bounds.get(count, size))

    def expect(self, truth: Arg) -> None:
        """The rest holds only where this is true."""
        self.emit.added.append(self.builder.add("expect", (truth, True), []))

    def refusal(self, what: Hashable) -> Exact:
        """The error that says what must not be padded."""
        return Exact(what)

    def flat(self, form: Held, type_: TensorType, counted: Sequence[bool]) -> list[Arg]:
        """A padded tensor, or the rows of a list, as values: itself in the sizes of a type, and its counts."""
        if isinstance(form, Buffer):
            return [form.rows, form.count]
        assert isinstance(form, (Padded, Value))
        tensor = form.tensor if isinstance(form, Padded) else form
        found = tensor_type(form)
        assert found is not None
        missing = [most - size for most, size in zip(type_.sizes, found.sizes, strict=True)]
        if any(missing):
            pads = tuple(n for more in reversed(missing) for n in (0, more))
            tensor = self.emit("aten.constant_pad_nd.default", tensor, pads, 0)
        counts: list[Arg] = []
        for dim, is_counted in enumerate(counted):
            if is_counted:
                count = form.counts[dim] if isinstance(form, Padded) else None
                counts.append(found.sizes[dim] if count is None else count)
        return [tensor, *counts]
