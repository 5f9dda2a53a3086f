"""What is divided along with a parameter: the program's dimensions that are gone through together, up to their ends.

A weight's rows are the columns of a product, those of what activations make of it, and the inner dimension of the next
product, which is summed over. There the division ends, in a sum over ranks. If nothing on the way needs the whole, all
these tensors can lie divided, and nothing is sent but that sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import gcd, lcm

from smelt.ir import STATE_OPS, Graph, Node, TensorType, TupleType, Value
from smelt.ops.catalogue.sharding import correspondences_of
from smelt.ops.catalogue.sharding.forms import WANTS
from smelt.ops.ranks.placements import Correspondence, Dims, Division, Rows, Shard, division_of, evenly
from smelt.ops.registry import arguments_of, schema_of

_MOST_TRIES = 8


@dataclass(slots=True)
class Reach:
    """state: parameters and buffers by path. count: how many units are divided. ends: nodes in which the division is
    summed over. breaks: nodes that need the whole. cuts: nodes that make the whole of what is divided behind them, for
    which nothing is sent on the way there.
    """

    count: int = 0
    state: dict[str, Shard] = field(default_factory=dict)
    ends: list[Node] = field(default_factory=list)
    breaks: list[Node] = field(default_factory=list)
    cuts: list[Node] = field(default_factory=list)


class Reaches:
    """What reaches how far in one graph, for a number of ranks."""

    def __init__(self, graph: Graph, ranks: int) -> None:
        self.graph, self.ranks = graph, ranks
        self.by_path: dict[str, list[Value]] = {}
        for node in graph.walk():
            if node.op in STATE_OPS:
                self.by_path.setdefault(str(node.args[0]), []).append(node.result)
        self._ways = cache(_ways)

    def of(self, path: str, dim: int) -> Reach | None:
        """What is divided with a dimension of a parameter; None where no division has whole units for all ranks."""
        type_ = self.by_path[path][0].type
        assert isinstance(type_, TensorType)
        size = type_.sizes[dim]
        return self._tried(path, dim, size, lenient=False) or self._tried(path, dim, size, lenient=True)

    def _tried(self, path: str, dim: int, size: int, *, lenient: bool) -> Reach | None:
        """lenient: what is made in larger units than there are ranks is made whole, and divided behind."""
        unit, blocks = 1, 1
        for _ in range(_MOST_TRIES):
            if size % (unit * blocks) or size // (unit * blocks) < self.ranks:
                return None
            count = size // (unit * blocks)
            counts = evenly(count, self.ranks)
            run = _Run(self, Shard(dim, tuple(c * unit for c in counts), blocks), path, lenient)
            if run.unit is None and run.count == count:
                run.reach.count = count
                return run.reach
            if run.unit is None:
                unit = size // (blocks * run.count)
                continue
            unit, blocks = lcm(unit, run.unit[0]), lcm(blocks, run.unit[1])
        return None


class _Run:
    """One attempt. unit: what the division has to be made of instead: elements, blocks. count: how many units there are
    that all labels on the way can be divided in."""

    def __init__(self, reaches: Reaches, at: Shard, path: str, lenient: bool) -> None:
        self.reaches, self.reach, self.lenient = reaches, Reach(), lenient
        self.unit: tuple[int, int] | None = None
        self.count = sum(at.sizes)
        self.wished: tuple[int, int] | None = None
        self.found: dict[Value, Shard] = {}
        self.pending: list[Value] = []
        self.seen_ends: set[Node] = set()
        self._state(path, at)
        while self.pending and self.unit is None:
            value = self.pending.pop()
            for node in _around(value):
                self._node(node)

    def _state(self, path: str, at: Shard) -> None:
        self.reach.state[path] = at
        for value in self.reaches.by_path[path]:
            if value not in self.found:
                self.found[value] = at
                self.pending.append(value)

    def _assign(self, value: Value, at: Shard, node: Node) -> None:
        known = self.found.get(value)
        if known is not None:
            if known != at:
                self.reach.breaks.append(node)
            return
        maker = value.node
        if maker is not None and maker.op in STATE_OPS:
            self._state(str(maker.args[0]), at)
            return
        self.found[value] = at
        self.pending.append(value)

    def _node(self, node: Node) -> None:
        if node.op in STATE_OPS or node.op == "unpack":
            return
        operands, results = _operands(node), _results(node)
        self.wished = None
        if any(v in self.found and v not in operands and v not in results for v in node.operands()):
            self.reach.breaks.append(node)
            return
        for found in self.reaches._ways(node):
            division = self._division(found, operands, results)
            if division is not None and self._take(node, found, division, operands, results):
                return
        only_made = not any(v in self.found for v in operands)
        if only_made and self.lenient:
            self.wished = None
        if self.unit is None and not self._ends(node, operands, results):
            (self.reach.cuts if only_made else self.reach.breaks).append(node)

    def _division(self, found: Correspondence, operands: Sequence[Value], results: Sequence[Value]) -> Division | None:
        """The one that what is known of its operands and results says."""
        if len(found.operands) != len(operands) or len(found.results) != len(results):
            return None
        for value, dims in (*zip(operands, found.operands, strict=True), *zip(results, found.results, strict=True)):
            at = self.found.get(value)
            if at is None:
                continue
            division = division_of(at, dims)
            if division is None:
                self._wish(at, dims)
                return None
            return division
        return None

    def _wish(self, at: Shard, dims: Sequence[object]) -> None:
        """Note in what units the dimension would have to be divided."""
        dim = dims[at.dim] if at.dim < len(dims) else None
        factor, blocks = getattr(dim, "factor", 1), getattr(dim, "blocks", 1)
        unit = (factor if any(s % factor for s in at.sizes) else 1, blocks if at.blocks != blocks and blocks > 1 else 1)
        if unit != (1, 1) and (unit[1] == 1 or at.blocks == 1) and self.wished is None:
            self.wished = unit

    def _take(
        self, node: Node, found: Correspondence, division: Division, operands: Sequence[Value],
        results: Sequence[Value],
    ) -> bool:  # fmt: skip
        lie = [_share(division, dims) for dims in found.operands]
        makes = [_share(division, dims) for dims in found.results]
        for value, at in (*zip(operands, lie, strict=True), *zip(results, makes, strict=True)):
            known = self.found.get(value)
            if known is not None and known != at:
                return False
            type_ = value.type
            assert isinstance(type_, TensorType)
            if at is not None and at.total != type_.sizes[at.dim]:
                return False
        if not all(makes):
            if any(makes) or division.label not in found.reduces:
                return False
            self._end(node)
        self.count = gcd(self.count, sum(division.sizes))
        for value, at in (*zip(operands, lie, strict=True), *zip(results, makes, strict=True)):
            if at is not None:
                self._assign(value, at, node)
        return True

    def _end(self, node: Node) -> None:
        if node not in self.seen_ends:
            self.seen_ends.add(node)
            self.reach.ends.append(node)

    def _ends(self, node: Node, operands: Sequence[Value], results: Sequence[Value]) -> bool:
        wants, schema = WANTS.get(node.op), schema_of(node.op)
        if wants is None or schema is None or any(v in self.found for v in results):
            return self._again()
        call = arguments_of(schema, node.args, node.kwargs)
        for name, arg in call.items():
            at = self.found.get(arg) if isinstance(arg, Value) else None
            if at is None:
                continue
            others = wants(call, name, at)
            if others is None:
                continue
            self._end(node)
            for other, lies in others.items():
                value = call[other]
                assert isinstance(value, Value)
                self._assign(value, lies, node)
            return True
        return self._again()

    def _again(self) -> bool:
        if self.wished is not None:
            self.unit = self.wished
            return True
        return False


def _share(division: Division, dims: Dims) -> Shard | None:
    at = division.placement(dims)
    assert not isinstance(at, Rows)
    return at


def _around(value: Value) -> Iterator[Node]:
    if value.node is not None:
        yield value.node
        if value.node.op == "unpack":
            source = value.node.args[0]
            if isinstance(source, Value) and source.node is not None:
                yield source.node
    for user in value.users:
        if isinstance(user, Node):
            yield user


def _operands(node: Node) -> list[Value]:
    return [v for v in node.operands() if isinstance(v.type, TensorType)]


def _results(node: Node) -> list[Value]:
    """The results; elements of a tuple as the values that it is unpacked to."""
    if len(node.results) == 1 and isinstance(node.result.type, TupleType):
        for user in node.result.users:
            if isinstance(user, Node) and user.op == "unpack":
                return list(user.results)
    return list(node.results)


def _ways(node: Node) -> tuple[Correspondence, ...]:
    return () if node.regions else correspondences_of(node)
