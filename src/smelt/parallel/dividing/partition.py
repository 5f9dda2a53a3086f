"""One rank's part of a program, along one axis of a mesh.

    %x: f32[8, 64]  R                              the inputs' placements are given
    %w: f32[256, 64]  S(0)
    %0 = dist.enter(%x, "tp")                      work that differs between ranks begins
    %1: f32[8, 128] = aten.linear.default(%0, %w)  S(1)
    %2: f32[8, 64] = aten.linear.default(%1, %v)   P(sum), as %v is S(1)
    %3 = dist.all_reduce(%2, "sum", "tp")          R: here the whole is needed

Nodes are gone through in order. Each is divided along one of its labels (`ops.ranks.placements`) along which an operand
is divided already, or done by all ranks on whole tensors: whichever sends fewer bytes. A tensor is moved to another
placement at most once, before its first use there.

Invariant: whatever is divided how, the ranks together compute what the graph computes; the gradient of what all have
is one that all have. Ranks come to collectives in the same order, since choices do not depend on the rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from smelt.analysis import used_by
from smelt.autodiff.activity import may_depend
from smelt.diag import SmeltError, Span
from smelt.ir import (
    STATE_OPS,
    Arg,
    Builder,
    Graph,
    Node,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    is_under,
    map_values,
    values_in,
)  # fmt: skip
from smelt.ops.catalogue import record_of
from smelt.ops.catalogue.sharding import correspondences_of
from smelt.ops.catalogue.sharding.forming import Exchange
from smelt.ops.catalogue.sharding.forms import FORMS
from smelt.ops.catalogue.sharding.terms import is_known, laid_out
from smelt.ops.catalogue.sharding.terms import results as result_types
from smelt.ops.effects import alias_of, effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import (
    WHOLE,
    Correspondence,
    Division,
    Order,
    Partial,
    Placement,
    Replicate,
    Rows,
    Shard,
    division_of,
)  # fmt: skip
from smelt.ops.record import Trait
from smelt.ops.registry import arguments_of, as_call, schema_of
from smelt.parallel.dividing.control import named_as, write_control
from smelt.parallel.dividing.retyping import types_of
from smelt.rewrite import Rewriter

_TOO_MUCH = 1e15  # times what is sent: where anything else can be done, it is


@dataclass(eq=False, slots=True)
class Placed:
    """A value of the program as the rank has it: in which placements, each a value of the rank's graph.

    base: the one that it was computed in. entered: the whole one for work that differs between ranks.
    level: the region that it was made in. is_stored: a parameter, which is not moved where anything else can be.
    """

    base: Placement
    forms: dict[Placement, Value]
    level: Region
    entered: Value | None = None
    is_stored: bool = False


@dataclass(slots=True)
class Partition:
    """A rank's graph, and how its inputs, state and outputs lie.

    placements: of all values, by name. names: of those that have another one now, that. before: of those in `syncs`,
    how they came; where: at which line.
    """

    graph: Graph
    axis: str
    rank: int
    inputs: dict[str, Placement]
    outputs: list[Placement]
    placements: dict[str, Placement] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    before: dict[str, Placement] = field(default_factory=dict)
    where: dict[str, Span | None] = field(default_factory=dict)


def partition(
    graph: Graph,
    axis: str,
    ranks: int,
    rank: int,
    given: Mapping[str, Placement],
    *,
    outputs: Sequence[Placement | None] | None = None,
    syncs: Mapping[str, Placement] | None = None,
    gathered: frozenset[str] = frozenset(),
    in_time: bool = False,
    is_batch: bool = False,
    forks: Sequence[str] = (),
) -> Partition:
    """What one rank of an axis computes of a functional graph.

    given: how inputs (by name) and parameters and buffers (by path) lie; others are whole. outputs: how results are
    wanted, None for as they come; by default whole. syncs: values, by name, that are put into a placement where they
    are made. gathered: what is stored divided and used whole. in_time: "ranks" come one after the other: what they make
    can be summed, and not brought together. is_batch: the batch is divided: what all have of it is computed once
    more, divided, instead of being sliced. forks: modules in which each rank draws random numbers of its own.
    """
    made = _Partitioner(graph, axis, ranks, rank, given, syncs or {}, gathered, in_time, is_batch or in_time, forks)
    return made.run(outputs)


class _Partitioner:
    def __init__(
        self, graph: Graph, axis: str, ranks: int, rank: int, given: Mapping[str, Placement],
        syncs: Mapping[str, Placement], gathered: frozenset[str], in_time: bool,
        is_batch: bool, forked: Sequence[str],
    ) -> None:  # fmt: skip
        self.forked = forked
        self.graph, self.axis, self.ranks, self.rank = graph, axis, ranks, rank
        self.given, self.syncs, self.gathered = given, syncs, gathered
        self.in_time, self.is_batch = in_time, is_batch
        self.made = Graph(graph.name)
        self.made.constants = dict(graph.constants)
        self.builder = Builder(self.made)
        # Values keep their names; what is added gets others.
        self.builder.reserve(value.name for value in graph.values())
        self.emitter = GraphEmitter(self.builder)
        self.placed: dict[Value, Placed] = {}
        self.exchanges: dict[Placement, Exchange] = {}
        self.tuples: dict[Value, tuple[Value, list[Placement]]] = {}
        self.plain: dict[Value, Arg] = {}
        self.state: dict[tuple[str, str], Placed] = {}
        self.node: Node | None = None
        self.inputs: dict[str, Placement] = {}
        self.gathers: set[Value] = set()
        self.bound: set[Value] | None = None
        self.before: dict[str, Placement] = {}
        self.lines: dict[str, Span | None] = {}

    # --- the whole

    def run(self, outputs: Sequence[Placement | None] | None) -> Partition:
        for value in self.graph.inputs:
            self._input(value)
        self.body(self.graph.body)
        wanted = outputs if outputs is not None else [WHOLE] * len(self.graph.outputs)
        yields, lie = [], list[Placement]()
        for arg, want in zip(self.graph.outputs, wanted, strict=True):
            at = self.placement(arg) if isinstance(arg, Value) else WHOLE
            keeps = isinstance(at, Shard) or (self.in_time and not isinstance(at, Rows | Order))
            target = want if want is not None else (at if keeps else WHOLE)
            yields.append(map_values(arg, lambda v, t=target: self.arg(v, t)))  # type: ignore[misc]
            lie.append(target)
        self.made.body.set_yields(tuple(yields))
        self._drop_gathers()
        placements = {value.name: placed.base for value, placed in self.placed.items()}
        now = {value.name: placed.forms[placed.base].name for value, placed in self.placed.items()}
        names = {name: other for name, other in now.items() if other != name}
        return Partition(self.made, self.axis, self.rank, self.inputs, lie, placements, names, self.before, self.lines)

    def _drop_gathers(self) -> None:
        """Take out what was gathered for nobody, with views of it."""
        rewriter = Rewriter(self.made)
        for node in reversed(list(self.made.walk())):
            is_unused = len(node.results) == 1 and not node.regions and not node.result.users
            is_view = is_unused and node.op != "write" and alias_of(node) is not None
            if is_unused and (node.result in self.gathers or is_view):
                rewriter.erase(node)

    def _input(self, value: Value) -> None:
        at = self.given.get(value.name, WHOLE)
        self.inputs[value.name] = at
        made = self._param(self.made.body, value, at)
        self.know(value, made, at)
        if isinstance(value.type, TensorType):
            self._wished(value, at)

    def _param(self, region: Region, value: Value, at: Placement) -> Value:
        made = self.builder.add_param(region, "", self.local_type(value.type, at))
        made.name = value.name
        return made

    def _is_stored(self, value: Value) -> bool:
        """Whether a value is made of parameters alone."""
        node = value.node
        tensors = [v for v in node.operands() if isinstance(v.type, TensorType)] if node is not None else []
        return bool(tensors) and all(v in self.placed and self.placed[v].is_stored for v in tensors)

    def know(self, value: Value, made: Value, at: Placement) -> None:
        """Note which value of the rank stands for one of the program."""
        if isinstance(value.type, TensorType):
            self.placed[value] = Placed(at, {at: made}, self.builder.region, is_stored=self._is_stored(value))
        elif isinstance(value.type, TupleType):
            self.tuples[value] = (made, [at] * len(value.type.elements))
        else:
            self.plain[value] = made

    def body(self, region: Region) -> None:
        """All nodes of a region, written where the builder is."""
        for node in region:
            builder = self.builder
            builder.span, builder.scope, builder.mode = node.span, node.scope, node.mode
            self.node = node
            self._node(node)
        self.node = None

    def _node(self, node: Node) -> None:
        if node.op in STATE_OPS:
            return self._state(node)
        if node.op == "unpack":
            return self._unpack(node)
        if node.op == "write":
            return self._write(node)
        if node.regions:
            return write_control(self, node)
        if not any(isinstance(v.type, TensorType | TupleType) for v in node.operands()) or node.op == "const":
            return self._by_all(node)
        if self._formed(node):
            return None
        with_experts = [v for v in node.operands() if v in self.placed and self.placed[v].base in self.exchanges]
        if with_experts and not self._stays(node):
            for value in with_experts:
                self._bring_back(value)
            if self._formed(node):
                return None
        return self._operator(node)

    def _formed(self, node: Node) -> bool:
        form = FORMS.get(node.op) if is_known(node) else None
        found = form(self, node) if form is not None else None
        for result, (made, at) in zip(node.results, found or (), strict=found is not None):
            self.put(result, made, at)
        return found is not None

    def _stays(self, node: Node) -> bool:
        """Whether a node is computed of rows where their experts are."""
        chosen = self._choose(node, correspondences_of(node))
        return chosen is not None and isinstance(chosen[1], Division) and chosen[1].spare

    def _bring_back(self, value: Value) -> None:
        """Have rows where they came from."""
        back = self.exchanges[self.placed[value].base].back
        self.placed[value] = Placed(back, {back: self.get(value, back)}, self.builder.region)

    def put(self, value: Value, made: Value, at: Placement) -> None:
        """Note it, and in which placement `syncs` wants it besides."""
        self.know(value, made, at)
        self._wished(value, at)

    def _wished(self, value: Value, at: Placement) -> None:
        """Bring a value into the placement that a step asks for."""
        wish = self.syncs.get(value.name)
        if wish is None:
            return
        self.before.setdefault(value.name, at)
        self.lines[value.name] = self.where()
        if wish != at:
            self.placed[value] = Placed(wish, {wish: self.get(value, wish)}, self.builder.region)

    # --- nodes of some kinds

    def _state(self, node: Node) -> None:
        key = (node.op, str(node.args[0]))
        known = self.state.get(key)
        if known is None or known.level is not self.builder.region:
            at = self.given.get(key[1], WHOLE)
            self.inputs[key[1]] = at
            type_ = self.local_type(node.result.type, at)
            made = named_as(self.builder.add(node.op, node.args, [type_]), node).result
            known = Placed(at, {at: made}, self.builder.region, is_stored=True)
            if key[1] in self.gathered and isinstance(at, Shard):
                # Never used as it is stored. Where all ranks do the same with the whole, their gradients are the same;
                # where each does its own, its gradient is its share. What nobody uses is not made, see `run`.
                whole, entered = self._gather(made, at), self._gather(made, at, entered=True)
                self.gathers |= {whole, entered}
                known = Placed(WHOLE, {WHOLE: whole}, self.builder.region, entered=entered, is_stored=True)
            self.state[key] = known
        self.placed[node.result] = known

    def _unpack(self, node: Node) -> None:
        source = node.args[0]
        assert isinstance(source, Value)
        if source not in self.tuples:
            return self._by_all(node)
        made, places = self.tuples[source]
        assert isinstance(made.type, TupleType)
        elements = named_as(self.builder.add("unpack", (made,), made.type.elements), node).results
        for result, one, at in zip(node.results, elements, places, strict=True):
            self.put(result, one, at)
        return None

    def _write(self, node: Node) -> None:
        target, value = node.args
        assert isinstance(target, Value)
        at = self.placed[target].base
        made = self.builder.add(
            "write", (self.get(target, at), self.arg(value, at)), [self.local_type(node.result.type, at)]
        )
        named_as(made, node)
        self.know(node.result, made.result, at)

    def _by_all(self, node: Node) -> None:
        """The node on whole tensors, by every rank."""
        whole = self.whole_arg if not effects(node).rng else self._drawn_with
        args = tuple(map_values(a, whole) for a in node.args)
        kwargs = {k: map_values(a, whole) for k, a in node.kwargs.items()}
        given = [v for arg in (*args, *kwargs.values()) for v in values_in(arg)]
        types: Sequence[Type] = [r.type for r in node.results]
        if [v.type for v in given] != [v.type for v in node.operands()]:
            types = types_of(node, args, kwargs)
        made = named_as(self.builder.add(node.op, args, types, kwargs), node)
        for result, value in zip(node.results, made.results, strict=True):
            if isinstance(result.type, TensorType):
                self.put(result, value, WHOLE)
            else:
                self.know(result, value, WHOLE)

    def _operator(self, node: Node) -> None:
        if _asks_type_only(node) and all(v in self.placed for v in node.operands()):
            return self._of_type(node)
        if any(map(self._is_divided, node.operands())) and not effects(node).rng:
            chosen = self._choose(node, correspondences_of(node))
            if chosen is not None:
                return self._divided(node, *chosen)
        return self._by_all(node)

    def _of_type(self, node: Node) -> None:
        """A tensor that an operand is asked for the type of alone: any part of that tells it."""
        args = [map_values(a, lambda v: self.placed[v].forms[self.placed[v].base]) for a in node.args]
        made = named_as(self.builder.add(node.op, args, [node.result.type], node.kwargs), node)
        self.put(node.result, made.result, WHOLE)

    def _is_divided(self, value: Value) -> bool:
        if value in self.tuples:
            return any(not isinstance(at, Replicate) for at in self.tuples[value][1])
        return value in self.placed and not isinstance(self.placed[value].base, Replicate)

    # --- choosing

    def _choose(
        self, node: Node, ways: Sequence[Correspondence]
    ) -> tuple[Correspondence, Division | frozenset[int]] | None:
        """Along which label a node is divided; a sum passes through where nothing needs it sooner."""
        operands = [v for v in node.operands() if isinstance(v.type, TensorType)]
        ways = [one for one in ways if len(one.operands) == len(operands)]
        for found in ways:
            through = self._through(operands, found)
            if through is not None:
                return found, through
        best, least = None, self._price(operands, [WHOLE] * len(operands), entered=False)
        for found in ways:
            for division in self._divisions(operands, found):
                wanted = [division.placement(dims) or WHOLE for dims in found.operands]
                price = self._price(operands, wanted, entered=True)
                if price <= least:
                    best, least = (found, division), price
        return best

    def _divisions(self, operands: Sequence[Value], found: Correspondence) -> list[Division]:
        """Those of labels along which an operand is divided."""
        options: dict[Division, None] = {}
        for value, dims in zip(operands, found.operands, strict=True):
            for at in self.placed[value].forms:
                division = division_of(at, dims)
                if division is not None and self._is_whole_division(division, operands, found):
                    options[division] = None
        return list(options)

    def _is_whole_division(self, division: Division, operands: Sequence[Value], found: Correspondence) -> bool:
        """Whether the label is as long in all that have it, and no result needs all of it."""
        for value, dims in zip(operands, found.operands, strict=True):
            at = division.placement(dims)
            assert isinstance(value.type, TensorType)
            if not division.fits(dims) or (isinstance(at, Shard) and at.total != value.type.sizes[at.dim]):
                return False
        if any(not division.fits(dims) for dims in found.results):
            return False
        has = [division.placement(dims) is not None for dims in found.results]
        if all(has) or division.spare:
            return all(has)
        return (not any(has) and division.label in found.reduces) or self._are_mixed(division, found, has)

    def _are_mixed(self, division: Division, found: Correspondence, has: Sequence[bool]) -> bool:
        return division.label in found.reduces and any(has)

    def _through(self, operands: Sequence[Value], found: Correspondence) -> frozenset[int] | None:
        """The operands, by number, whose sums a node hands on as sums; other sums are needed whole."""
        partial = {i for i, v in enumerate(operands) if isinstance(self.placed[v].base, Partial)}
        if not partial or any(isinstance(self.placed[v].base, Shard | Rows) for v in operands):
            return None
        for kept in found.linear:
            if not kept or not kept <= partial:
                continue
            values = [operands[i] for i in kept]
            if any(self.placed[v].base != Partial() or WHOLE in self.placed[v].forms for v in values):
                continue
            # Where another use needs the sum soon, one is enough.
            if self.in_time or all(sum(v.users.values()) == 1 for v in values):
                return kept
        return None

    def _price(self, operands: Sequence[Value], wanted: Sequence[Placement], *, entered: bool) -> float:
        """Bytes that a rank sends to have operands so, backward included."""
        total, seen = 0.0, set[tuple[Value, Placement]]()
        for value, want in zip(operands, wanted, strict=True):
            if (value, want) in seen:
                continue
            seen.add((value, want))
            total += self._price_of(value, want, entered=entered)
        return total

    def _price_of(self, value: Value, want: Placement, *, entered: bool) -> float:
        placed, type_ = self.placed[value], value.type
        assert isinstance(type_, TensorType)
        share = (self.ranks - 1) / self.ranks * type_.nbytes
        if want in placed.forms:
            needs_entry = entered and isinstance(want, Replicate) and may_depend(type_) and placed.entered is None
            return share if needs_entry and not placed.is_stored and not self.in_time else 0.0
        if isinstance(want, Rows):
            return inf
        if isinstance(placed.base, Replicate):
            return 0.0
        if isinstance(placed.base, Rows | Order):
            return _TOO_MUCH * share
        if placed.is_stored or self.in_time:
            return _TOO_MUCH * share
        if isinstance(placed.base, Partial):
            return share if isinstance(want, Shard) else 2 * share
        return share / self.ranks if isinstance(want, Shard) else share

    # --- a node that is divided

    def _divided(self, node: Node, found: Correspondence, chosen: Division | frozenset[int]) -> None:
        operands = [v for v in node.operands() if isinstance(v.type, TensorType)]
        if isinstance(chosen, frozenset):
            wanted: list[Placement] = [Partial() if i in chosen else WHOLE for i in range(len(operands))]
            results: list[Placement] = [Partial() for _ in found.results]
        else:
            wanted = [chosen.placement(dims) or WHOLE for dims in found.operands]
            reduced = found.reduces.get(chosen.label, "")
            results = [chosen.placement(dims) or Partial(reduced) for dims in found.results]
        given = [self.get(v, at, entered=True) for v, at in zip(operands, wanted, strict=True)]
        made = self._call(node, found, given, results, chosen)
        self._results(node, made, results)

    def _results(self, node: Node, made: Node, results: Sequence[Placement]) -> None:
        if len(node.results) == 1 and isinstance(node.result.type, TupleType):
            self.tuples[node.result] = (made.result, list(results))
            return
        for result, value, at in zip(node.results, made.results, results, strict=True):
            self.put(result, value, at)

    def _call(
        self, node: Node, found: Correspondence, given: Sequence[Value], results: Sequence[Placement],
        chosen: Division | frozenset[int], *, named: bool = True,
    ) -> Node:  # fmt: skip
        left = iter(given)

        def swap(value: Value) -> Arg:
            return next(left) if isinstance(value.type, TensorType) else self.plain[value]

        args: tuple[Arg, ...] = tuple(map_values(a, swap) for a in node.args)
        kwargs: dict[str, Arg] = {k: map_values(a, swap) for k, a in node.kwargs.items()}
        if found.local is not None and isinstance(chosen, Division):
            schema = schema_of(node.op)
            assert schema is not None
            call = arguments_of(schema, args, kwargs)
            sizes = [v.type.sizes for v in given if isinstance(v.type, TensorType)]
            local = [self.local_sizes(t, at) for t, at in zip(result_types(node), results, strict=True)]
            call.update(found.local(sizes, local))
            args, kwargs = as_call(schema, call)
        made = self.emitter.node(node.op, args, kwargs)
        return named_as(made, node) if named else made

    # --- what forms and nodes ask for

    def summed(self, made: Value, node: Node) -> tuple[Value, Placement]:
        """What a rank's share of a node's sum becomes: the sum, or the part of it that a step asks for."""
        value = node.results[0]
        self.before[value.name] = Partial()
        wish = self.syncs.get(value.name, WHOLE)
        return self._move(made, Partial(), wish, value), wish

    def forks(self, node: Node) -> bool:
        """Whether ranks draw other random numbers for a node."""
        return any(is_under(node.scope, path) for path in self.forked)

    def placement(self, value: Value) -> Placement:
        """In which placement a value was computed."""
        return self.placed[value].base if value in self.placed else WHOLE

    def arg(self, arg: Arg, at: Placement, *, entered: bool = False) -> Arg:
        """An argument in a placement."""
        if isinstance(arg, Value):
            return self.get(arg, at, entered=entered) if arg in self.placed else self.whole_arg(arg)
        return map_values(arg, lambda v: self.arg(v, at, entered=entered))

    def whole_arg(self, value: Value) -> Arg:
        """The whole of a value, or of all elements of a tuple."""
        if value in self.placed:
            return self.get(value, WHOLE)
        if value in self.tuples:
            made, places = self.tuples[value]
            if any(not isinstance(at, Replicate) for at in places):
                return self._whole_tuple(value, made, places)
            return made
        return self.plain[value]

    def _drawn_with(self, value: Value) -> Arg:
        """What decides how many random numbers are drawn, in the program's order of memory."""
        made = self.whole_arg(value)
        if isinstance(made, Value) and isinstance(value.type, TensorType) and made.type != value.type:
            return laid_out(self.emitter, made, value.type)
        return made

    def _whole_tuple(self, value: Value, made: Value, places: Sequence[Placement]) -> Arg:
        if any(isinstance(at, Rows | Order) for at in places):
            return self._whole_again(value)
        assert isinstance(made.type, TupleType) and isinstance(value.type, TupleType)
        elements = self.builder.add("unpack", (made,), made.type.elements).results
        whole = [self._move(one, at, WHOLE, value) for one, at in zip(elements, places, strict=True)]
        return self.builder.add("py.tuple", tuple(whole), [value.type]).result

    def get(self, value: Value, at: Placement, *, entered: bool = False) -> Value:
        """A value in a placement, moved there where it is not there yet.

        entered: for work that differs between ranks.
        """
        placed = self.placed[value]
        with self._visible(placed):
            entered = entered and isinstance(at, Replicate) and may_depend(value.type)
            if entered and self._entered_before(value):
                assert placed.entered is not None
                return placed.entered
            if at not in placed.forms:
                had = placed.forms[placed.base]
                if entered and isinstance(placed.base, Shard):
                    placed.entered = self._gather(had, placed.base, entered=True)
                    return placed.entered
                placed.forms[at] = self._move(had, placed.base, at, value)
            if entered:
                placed.entered = self.emitter.call(dist.ENTER, placed.forms[at], self.axis)
                return placed.entered
            return placed.forms[at]

    def _entered_before(self, value: Value) -> bool:
        """Whether work with a value that differs between ranks has begun; of a view, with what it shows."""
        placed, node = self.placed[value], value.node
        if placed.entered is not None:
            return True
        source = alias_of(node) if node is not None and not node.regions and len(node.results) == 1 else None
        if node is None or not isinstance(source, Value) or set(node.operands()) != {source}:
            return False
        if source not in self.placed or placed.base != WHOLE or not self._entered_before(source):
            return False
        begun = self.placed[source].entered
        assert begun is not None
        args = [map_values(a, lambda v: begun) for a in node.args]
        placed.entered = self.builder.add(node.op, args, [value.type], node.kwargs).result
        return True

    @contextmanager
    def _visible(self, placed: Placed) -> Iterator[None]:
        """Write where all that can see a value can see what is made of it."""
        here: Region | None = self.builder.region
        holder: Node | None = None
        while here is not None and here is not placed.level:
            owner = here.owner
            holder = owner if isinstance(owner, Node) else None
            here = holder.parent if holder is not None else None
        if holder is None:
            yield
            return
        with self.builder.at(holder):
            yield

    def _move(self, had: Value, base: Placement, at: Placement, value: Value) -> Value:
        axis, rank, call = self.axis, self.rank, self.emitter.call
        if base == at:
            return had
        exchange = self.exchanges.get(base)
        if exchange is not None:
            had, base = self._returned(had, exchange), exchange.back
            return self._move(had, base, at, value)
        if isinstance(base, Rows | Order):
            whole = self._whole_again(value)
            return whole if isinstance(at, Replicate) else self._move(whole, WHOLE, at, value)
        if isinstance(base, Partial):
            if isinstance(at, Shard) and base.op == "sum":
                return call(dist.REDUCE_SCATTER, had, at.dim, at.sizes, at.blocks, rank, axis)
            had, base = call(dist.ALL_REDUCE, had, base.op, axis), WHOLE
            if isinstance(at, Replicate):
                return had
        if isinstance(at, Partial):
            raise SmeltError(f"%{value.name} cannot become a sum over ranks", self.where(), code="S0641")
        if isinstance(at, Rows | Order):
            raise SmeltError(
                f"%{value.name} cannot be brought into the order of %{at.order}", self.where(), code="S0641"
            )
        if isinstance(base, Replicate):
            assert isinstance(at, Shard)
            again = self._again(value, at) if self.is_batch else None
            if again is not None:
                return again
            return call(dist.SHARD, had, at.dim, at.sizes, at.blocks, rank, axis)
        if isinstance(at, Replicate):
            return self._gather(had, base)
        if at.dim == base.dim:
            whole = self._gather(had, base)
            return call(dist.SHARD, whole, at.dim, at.sizes, at.blocks, rank, axis)
        return call(dist.ALL_TO_ALL, had, base.dim, base.sizes, base.blocks, at.dim, at.sizes, at.blocks, rank, axis)

    def _again(self, value: Value, at: Shard) -> Value | None:
        """A whole value, computed once more as shares: what falls into microbatches then is what it is made of.

        None where it has to be cut itself: it is made of no parameter, or cannot be divided so.
        """
        node = value.node
        if node is None or node.regions or len(node.results) != 1 or effects(node).rng or not self._is_bound(value):
            return None
        operands = [v for v in node.operands() if isinstance(v.type, TensorType)]
        for found in correspondences_of(node):
            if len(found.operands) != len(operands):
                continue
            division = division_of(at, found.results[0])
            if division is None or not self._is_whole_division(division, operands, found):
                continue
            wanted = [division.placement(dims) or WHOLE for dims in found.operands]
            given = [self.get(v, to, entered=True) for v, to in zip(operands, wanted, strict=True)]
            return self._call(node, found, given, [at], division, named=False).result
        return None

    def _returned(self, had: Value, exchange: Exchange) -> Value:
        back, call = exchange.back, self.emitter.call
        if isinstance(back, Rows):
            count = back.local(self.rank)
            return call(dist.RETURN_ROWS, had, exchange.ends, exchange.sizes, count, self.rank, self.axis)
        return call(dist.PUT_ROWS, had, exchange.ends, exchange.sizes, self.rank)

    def _whole_again(self, value: Value) -> Value:
        """What ranks have in orders of their own, computed once more from whole tensors."""
        node = value.node
        assert node is not None
        if node.op == "unpack":
            return self._unpacked_again(value, node)
        args = tuple(map_values(a, self.whole_arg) for a in node.args)
        kwargs = {k: map_values(a, self.whole_arg) for k, a in node.kwargs.items()}
        made = self.builder.add(node.op, args, types_of(node, args, kwargs), kwargs)
        for result, one in zip(node.results, made.results, strict=True):
            if result is not value and result in self.placed:
                self.placed[result].forms.setdefault(WHOLE, one)
        return made.results[node.results.index(value)]

    def _unpacked_again(self, value: Value, node: Node) -> Value:
        source = node.args[0]
        assert isinstance(source, Value) and source.node is not None
        whole = self._whole_again(source)
        assert isinstance(whole.type, TupleType)
        made = self.builder.add("unpack", (whole,), whole.type.elements).results
        return made[node.results.index(value)]

    def _is_bound(self, value: Value) -> bool:
        """Whether a value depends on a parameter."""
        if self.bound is None:
            self.bound = {n.result for n in self.graph.walk() if n.op == "param"}
            for node in self.graph.body:
                if any(v in self.bound for v in used_by(node)):
                    self.bound.update(node.results)
        return value in self.bound

    def _gather(self, had: Value, base: Shard, *, entered: bool = False) -> Value:
        given = {"entered": True} if entered else {}
        return self.emitter.call(dist.ALL_GATHER, had, base.dim, base.sizes, base.blocks, self.rank, self.axis, **given)

    def where(self) -> Span | None:
        """The user's line of the node that is being written."""
        return self.node.span if self.node is not None else None

    # --- types

    def local_type(self, type_: Type, at: Placement) -> Type:
        """A type as the rank has it; shares are row-major."""
        if isinstance(type_, TensorType) and isinstance(at, Shard | Rows | Order):
            return TensorType(type_.dtype, self.local_sizes(type_, at), None, type_.device)
        return type_

    def local_sizes(self, type_: TensorType, at: Placement) -> tuple[int, ...]:
        """The sizes of it."""
        sizes = list(type_.sizes)
        if isinstance(at, Shard | Rows):
            sizes[at.dim] = at.local(self.rank)
        elif isinstance(at, Order):
            sizes[0] = at.local(self.rank)
        return tuple(sizes)


def _asks_type_only(node: Node) -> bool:
    """Whether the result's sizes are among the arguments, and its elements, too."""
    record = record_of(node.op)
    is_new = node.op.startswith("aten.new_") and record is not None and Trait.TYPE_ONLY in record.traits
    return is_new and len(node.results) == 1 and not any(list(values_in(a)) for a in node.kwargs.values())
