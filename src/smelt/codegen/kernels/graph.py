"""The values of a nest as a graph: equal ones once, each with the loops it changes along and the pass it belongs to.

A *pass* is one walk over the inner loops. A reduction is finished only after its pass, so what depends on it inside
belongs to a later one:    s = sum x (pass 0);  d = x - s / n, v = sum d * d (pass 1);  store d * rsqrt(v) (pass 2).
Inner values that two passes need are computed again if cheap, else kept in a row of scratch (`kept`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from smelt.codegen.kernels.nest import (
    POSITIONS,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Reduce,
    Ref,
    Scan,
    Store,
)
from smelt.codegen.kernels.operations import OPS
from smelt.ir import DType

KEEP_COST = 10.0
"""A value worth this many additions is kept for the next pass; a row of scratch costs a store and a load."""


def op_cost(op: str, dtype: DType) -> float:
    """How many vector additions an operation costs, roughly."""
    cost = OPS[op].cost
    if dtype.is_half:
        cost += 3.0
    return cost * (2.0 if dtype is DType.F64 and cost > 4 else 1.0)


@dataclass(slots=True, eq=False)
class Value:
    """A value. `loops`: bits of the loops it changes along. `stage`: the first pass in which it can be computed.

    `source` is the expression or statement it came from; `args` are a load's positions, then its mask.
    """

    number: int
    source: Expr | Reduce | Scan
    dtype: DType
    args: tuple[Value, ...]
    loops: int
    stage: int
    cost: float


@dataclass(slots=True, eq=False)
class StoreValue:
    """A store: what, under which mask, at which positions."""

    source: Store
    value: Value
    where: Value | None
    positions: tuple[Value, ...]
    loops: int
    stage: int

    @property
    def roots(self) -> tuple[Value, ...]:
        """Everything it needs."""
        return (self.value, *self.positions, *(() if self.where is None else (self.where,)))


@dataclass(slots=True)
class Pass:
    """What one walk over the inner loops computes."""

    reduces: list[Value] = field(default_factory=list)
    scans: list[Value] = field(default_factory=list)
    stores: list[StoreValue] = field(default_factory=list)

    @property
    def roots(self) -> list[Value]:
        """The values it needs at each inner point."""
        found = [r.args[0] for r in self.reduces] + list(self.scans)
        for store in self.stores:
            found += store.roots
        return found


class Graph:
    """The values and passes of a nest."""

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.inner_bits = sum(1 << k for k in range(len(nest.outer), len(nest.sizes)))
        self.values: list[Value] = []
        self._by_key: dict[object, Value] = {}
        self._by_id: dict[int, tuple[Expr, Value]] = {}
        self._names: dict[str, Value] = {}
        self.stores: list[StoreValue] = []
        self.reduces: list[Value] = []
        self.scans: list[Value] = []
        for statement in nest.body:
            self._add(statement)
        self.passes = self._passes()
        self.outer_stores = [s for s in self.stores if not s.loops & self.inner_bits]
        self.kept: list[Value] = []
        self.keep(KEEP_COST)

    @cached_property
    def stores_last(self) -> bool:
        """Whether the stores of a point wait until all is loaded and checked: a buffer is loaded from and stored to, or
        a store has positions that may be refused.
        """
        written = set(self.nest.writes)
        reads = any(isinstance(v.source, Load) and v.source.buffer in written for v in self.values)
        return reads or any(store.positions for store in self.stores)

    # --- building

    def _new(self, key: object, source: Expr | Reduce | Scan, dtype: DType, args: tuple[Value, ...], loops: int,
             stage: int, cost: float) -> Value:  # fmt: skip
        known = self._by_key.get(key)
        if known is None:
            known = Value(len(self.values), source, dtype, args, loops, stage, cost)
            self.values.append(known)
            self._by_key[key] = known
        return known

    def _add(self, statement: Let | Reduce | Scan | Store) -> None:
        value = self.value(statement.expr)
        match statement:
            case Let(name=name):
                self._names[name] = value
            case Reduce(name=name, kind=kind, dtype=dtype):
                result = DType.I64 if kind in POSITIONS else dtype
                key = ("reduce", kind, dtype, value.number)
                loops = value.loops & ~self.inner_bits
                made = self._new(key, statement, result, (value,), loops, value.stage + 1, 0.0)
                self._names[name] = made
                if made not in self.reduces:
                    self.reduces.append(made)
            case Scan(name=name, kind=kind, dtype=dtype):
                key = ("scan", kind, dtype, value.number)
                made = self._new(key, statement, dtype, (value,), value.loops | self.inner_bits, value.stage, 1e9)
                self._names[name] = made
                if made not in self.scans:
                    self.scans.append(made)
            case Store(index=index, where=where):
                mask = None if where is None else self.value(where)
                positions = tuple(self.value(g.position) for g in index.gathers)
                parts = (value, *positions, *(() if mask is None else (mask,)))
                loops = _index_loops(index)
                for part in parts:
                    loops |= part.loops
                self.stores.append(
                    StoreValue(statement, value, mask, positions, loops, max(part.stage for part in parts))
                )

    def value(self, expr: Expr) -> Value:
        """The value of an expression."""
        known = self._by_id.get(id(expr))
        if known is None:
            known = (expr, self._value(expr))  # the expression is held, so its id stays its own
            self._by_id[id(expr)] = known
        return known[1]

    def _value(self, expr: Expr) -> Value:
        match expr:
            case Const(value=value, dtype=dtype):
                return self._new(("const", repr(value), dtype), expr, dtype, (), 0, 0, 0.0)
            case Position(loop=loop):
                return self._new(("position", loop), expr, DType.I64, (), 1 << loop, 0, 1.0)
            case Ref(name=name):
                return self._names[name]
            case Load(buffer=buffer, index=index, dtype=dtype, where=where, other=other):
                args = tuple(self.value(g.position) for g in index.gathers)
                if where is not None:
                    args = (*args, self.value(where))
                shape = (index.offset, index.strides, tuple((g.stride, g.size, g.wraps) for g in index.gathers))
                key = ("load", buffer, shape, tuple(a.number for a in args), where is None, repr(other))
                loops = _index_loops(index)
                return self._combined(key, expr, dtype, args, loops, 1.0 + 3.0 * len(index.gathers))
            case Op(op=op, args=parts, dtype=dtype):
                args = tuple(self.value(a) for a in parts)
                if op == "cast" and args[0].dtype is dtype:
                    return args[0]
                operand = args[-1].dtype if OPS[op].gives_bool or op == "cast" else dtype
                return self._combined(
                    ("op", op, dtype, tuple(a.number for a in args)), expr, dtype, args, 0, op_cost(op, operand)
                )

    def _combined(
        self, key: object, expr: Expr, dtype: DType, args: tuple[Value, ...], loops: int, cost: float
    ) -> Value:
        stage = 0
        for arg in args:
            loops |= arg.loops
            stage = max(stage, arg.stage)
            if arg.loops & self.inner_bits:
                cost += arg.cost
        return self._new(key, expr, dtype, args, loops, stage, cost)

    # --- passes

    def _passes(self) -> list[Pass]:
        inner_stores = [s for s in self.stores if s.loops & self.inner_bits] if self.inner_bits else []
        last = -1
        for value in self.reduces:
            last = max(last, value.args[0].stage)
        for scan in self.scans:
            last = max(last, scan.stage)
        for store in inner_stores:
            last = max(last, store.stage)
        passes = [Pass() for _ in range(last + 1)]
        for value in self.reduces:
            passes[value.args[0].stage].reduces.append(value)
        for scan in self.scans:
            passes[scan.stage].scans.append(scan)
        for store in inner_stores:
            passes[store.stage].stores.append(store)
        return passes

    def keep(self, cost: float) -> None:
        """Choose `kept`: the inner values that a later pass reads from scratch as they are worth `cost` or more.

        Scans, and loads of what is stored meanwhile, cannot be done again: they are always kept.
        """
        kept: dict[int, Value] = {}
        made: set[int] = set()
        written = set(self.nest.writes)
        for step in self.passes:
            seen: set[int] = set()
            stack = list(step.roots)
            while stack:
                value = stack.pop()
                if value.number in seen or not value.loops & self.inner_bits:
                    continue
                seen.add(value.number)
                again = value.number in made
                # What a store has changed since cannot be loaded again.
                spent = isinstance(value.source, Load) and value.source.buffer in written
                if again and (value.cost >= cost or spent or isinstance(value.source, Scan)):
                    kept[value.number] = value
                else:
                    stack += value.args
            made |= seen
        self.kept = list(kept.values())


def operand_dtype(value: Value) -> DType:
    """The dtype that decides which code an operation has: the last operand's (of a select the result's)."""
    source = value.source
    assert isinstance(source, Op)
    return value.args[-1].dtype if value.args else source.dtype


def reach(roots: Iterable[Value], within: int) -> list[Value]:
    """The values under `roots` that change along any loop of the bits `within`, each once."""
    seen: dict[int, Value] = {}
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value.number in seen or not value.loops & within:
            continue
        seen[value.number] = value
        if not isinstance(value.source, Reduce):
            stack += value.args
    return list(seen.values())


def _index_loops(index: Index) -> int:
    return sum(1 << k for k, stride in enumerate(index.strides) if stride)
