"""A nest in the making: values are pulled element by element from what is stored to what is loaded.

    store y[i, j];  y = softmax(x): pull x[i, j]; j becomes the inner loop; max, sum over it; exp, div

Every operator of a group has a *rule* that says how an element of its result comes of elements of its operands. Equal
expressions are made once. The loops are those of the largest stored value; a rule that reduces turns some of them into
inner loops, or adds new ones. Where a dimension must be taken apart, its loop is split and the nest made again.

Invariant: statements refer to earlier ones; loops are named by number until `tidy` orders them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, TypeAlias

from smelt.codegen.fusion.index import (
    ZERO,
    Idx,
    Indirect,
    Ix,
    NeedSplit,
    Unfusible,
    bounds,
    broadcast,
    reshaped,
    unravelled,
)
from smelt.codegen.fusion.rules.promote import LARGEST, LIMITS, NUMBER_TYPES, number
from smelt.codegen.kernels.nest import (
    POSITIONS,
    Buffer,
    Const,
    Expr,
    Gather,
    Index,
    Let,
    Load,
    Op,
    Position,
    Reduce,
    ReduceKind,
    Ref,
    Scan,
    ScanKind,
    Statement,
    Store,
)
from smelt.codegen.kernels.operations import DTYPES, INTEGERS, OPS
from smelt.codegen.kernels.sizes import at_most
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.diag.records import record
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ir.sizes import equals, is_one, is_symbolic, is_whole
from smelt.ops.python.python_numbers import FITS
from smelt.ops.registry import arguments_of, schema_of

Rule: TypeAlias = "Callable[[Pull, Node, Idx, int], Expr]"
"""The element at an index of a node's result number k."""

FAR = 1 << 40
"""Beyond every index."""

MAX_DEPTH = 120
MAX_ELEMENTS = 2048  # of all values at all places: where each is put together of two others, they double at each step
MAX_WRITES = 2  # writes to parts that are computed from earlier writes: each doubles what is pulled
"""Rules within rules; deeper groups are not made."""


@record
class Memory:
    """Where a value lies: a buffer (equal keys are one buffer), and how the value lies in it."""

    key: Hashable
    name: str
    geometry: Geometry


Where: TypeAlias = Callable[[Value], Memory]


class Pull:
    """One attempt at a nest. `inside`: the values that it computes; all others it loads.

    splits: for each dimension that loops are made for, by number, the sizes of its loops where there are several.
    """

    def __init__(
        self,
        inside: frozenset[Value],
        rules: Mapping[str, Rule],
        where: Where,
        splits: Mapping[int, tuple[int, ...]],
        given: Mapping[Value, Expr] | None = None,
    ) -> None:
        self.inside = inside
        self.given = given or {}
        self.inner: tuple[int, ...] | None = None
        # Something combines over dimensions of size 1 only, hence over no loop: none may be made inner below it.
        self._combines_nothing = False
        self.sizes: dict[int, int] = {}
        self.statements: list[Statement] = []
        self.buffers: dict[Hashable, int] = {}
        self.kinds: list[Buffer] = []
        self.ordered = False
        # What was loaded: value, index in it, key of its memory.
        self.loads: list[tuple[Value, Idx, Hashable]] = []
        self._rules = rules
        self._where = where
        self._splits = splits
        self._dims: list[tuple[int, ...]] = []
        self._known: dict[Hashable, Expr] = {}
        self._numbered: dict[Hashable, Ref] = {}
        self._loops_of: dict[str, frozenset[int]] = {}
        self._calls: dict[Node, dict[str, Arg]] = {}
        self._mask: Expr | None = None
        # Of positions along dimensions of size 1, which no index is left of: whether they are in range.
        self._in_range: list[Expr] = []
        self._depth = 0
        self._writes = 0

    # --- loops

    def dimension(self, size: int) -> Ix:
        """A new dimension of the nest: its index, running over one loop or, where it is split, several."""
        if is_one(size):
            return ZERO
        factors = self._splits.get(len(self._dims), (size,))
        loops = []
        for factor in factors:
            loops.append(len(self.sizes))
            self.sizes[loops[-1]] = factor
        self._dims.append(tuple(loops))
        return self._over(loops)

    def _over(self, loops: Sequence[int]) -> Ix:
        """The row-major index over several loops."""
        terms, step = [], 1
        for loop in reversed(loops):
            terms.append((loop, step))
            step *= self.sizes[loop]
        return Ix(0, tuple(sorted(terms)))

    def split(self, need: NeedSplit) -> tuple[int, tuple[int, ...]]:
        """The dimension to split, and the sizes of its loops then."""
        for number_, loops in enumerate(self._dims):
            if need.loop in loops:
                factors: list[int] = []
                for loop in loops:
                    size = self.sizes[loop]
                    factors.extend((size // need.inner, need.inner) if loop == need.loop else (size,))
                return number_, tuple(factors)
        raise Unfusible("a loop that is to be split belongs to no dimension")

    @property
    def outer(self) -> tuple[int, ...]:
        """The loops over which nothing is reduced."""
        inner = self.inner or ()
        return tuple(loop for loop in self.sizes if loop not in inner)

    def loops_of(self, expr: Expr) -> frozenset[int]:
        """The loops that an expression changes with."""
        match expr:
            case Position(loop=loop):
                return frozenset((loop,))
            case Ref(name=name):
                return self._loops_of.get(name, frozenset())
            case Op(args=args):
                return frozenset().union(*(self.loops_of(a) for a in args))
            case Load(index=index, where=where):
                found = {loop for loop, stride in enumerate(index.strides) if stride}
                for gather in index.gathers:
                    found |= self.loops_of(gather.position)
                return frozenset(found | (self.loops_of(where) if where is not None else frozenset()))
        return frozenset()

    def loops_at(self, idx: Idx) -> frozenset[int]:
        """The loops that an index changes with."""
        found: frozenset[int] = frozenset()
        for ix in idx:
            found |= ix.loops
            for g in ix.indirect:
                found |= self.loops_of(g.position)
        return found

    # --- values

    def call(self, node: Node) -> dict[str, Any]:
        """All arguments of a node by name."""
        if node not in self._calls:
            schema = schema_of(node.op)
            assert schema is not None
            self._calls[node] = arguments_of(schema, node.args, node.kwargs)
        return self._calls[node]

    def element(self, value: Value, idx: Idx) -> Expr:
        """The element of a value at an index. Raises: Unfusible, NeedSplit."""
        key = (value, idx, self._mask)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_ELEMENTS:
                raise Unfusible("it needs too many elements for each one that it stores")
            found = self._known[key] = self._element(value, idx)
        return found

    def _element(self, value: Value, idx: Idx) -> Expr:
        given = self.given.get(value)
        if given is not None:
            self._check_given(value, idx)
            return given
        if value not in self.inside:
            return self._load(value, idx)
        node = value.node
        assert node is not None
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unfusible("it is a long chain")
        outer, self._in_range = self._in_range, []
        try:
            return self.checked(self._rules[node.op](self, node, idx, node.results.index(value)))
        finally:
            self._depth -= 1
            self._in_range = outer

    def place(self, position: Expr, size: int, wraps: bool = False) -> Ix:
        """The index that a position read at run time is; `checked` sees to it where no index is left."""
        if not is_one(size):
            return at_run_time(position, size, wraps)
        low = self.op("ge", DType.BOOL, position, self.const(-1 if wraps else 0, DType.I64))
        fits = self.op("and", DType.BOOL, low, self.op("le", DType.BOOL, position, self.const(0, DType.I64)))
        if self._mask is not None:
            fits = self.op("or", DType.BOOL, fits, self.op("not", DType.BOOL, self._mask))
        self._in_range.append(fits)
        return ZERO

    def checked(self, expr: Expr) -> Expr:
        """An expression that is refused where a position that it was made with is out of range."""
        for fits in self._in_range:
            expr = self.unless_refused(fits, expr)
        self._in_range = []
        return expr

    def _check_given(self, value: Value, idx: Idx) -> None:
        type_ = value.type
        assert isinstance(type_, TensorType)
        expected = [self._over(loops) for loops in self._dims]
        found = [ix for ix, size in zip(idx, type_.sizes, strict=True) if not is_one(size)]
        at_hand = len(found) <= len(expected) and all(map(Ix.is_same, found, expected))
        if not at_hand or self._mask is not None:
            raise Unfusible("the product is needed at another element than the one at hand")

    def operand(self, arg: Any, idx: Idx, dtype: DType) -> Expr:
        """A tensor's element (broadcast to a result's index) or a number, in a dtype."""
        if isinstance(arg, Value) and arg.type in NUMBER_TYPES:
            return self.cast(self._number_for(arg, dtype), dtype)
        if isinstance(arg, Value):
            type_ = arg.type
            assert isinstance(type_, TensorType)
            return self.cast(self.element(arg, broadcast(idx, type_.sizes)), dtype)
        if isinstance(arg, (bool, int, float)):
            return number(arg, dtype)
        raise Unfusible(f"{arg!r} is neither a tensor nor a number")

    def number(self, value: Value) -> Load:
        """A number of the run, loaded as what its memory holds."""
        memory, dtype = self._where(value), NUMBER_TYPES[value.type]
        return Load(self._buffer(memory, dtype), self.index(memory.geometry, ()), dtype)

    def _number_for(self, value: Value, dtype: DType) -> Load:
        """A number of the run that is a number of a dtype, if only modulo its range."""
        found = self.number(value)
        if (dtype in INTEGERS and found.dtype is DType.F64) or (dtype is DType.BOOL and found.dtype is not DType.BOOL):
            raise Unfusible(f"{value.type} of the run beside {dtype}")
        return found

    def scalar(self, arg: Any, dtype: DType) -> Expr:
        """A number whose range torch looks at: the kernel refuses one that is beyond, and torch raises."""
        if not isinstance(arg, Value) or arg.type not in NUMBER_TYPES:
            return self.operand(arg, (), dtype)
        found = self._number_for(arg, dtype)
        made = arg.node
        if made is not None and made.op == FITS and made.args[1] == str(dtype):
            return self.cast(found, dtype)
        fits = self._fits(found, dtype)
        if fits is None:
            return self.cast(found, dtype)
        return self.unless_refused(fits, self.cast(found, dtype))

    def unless_refused(self, holds: Expr, value: Expr) -> Expr:
        """A value; where the condition does not hold the kernel refuses its data, and torch decides."""
        # A division by zero is what kernels refuse.
        one, none = Const(1, DType.I64), Const(0, DType.I64)
        checked = self.op("idiv", DType.I64, one, self.op("select", DType.I64, holds, one, none))
        is_fine = self.op("ne", DType.BOOL, checked, none)
        return self.op("select", value.dtype, is_fine, value, number(0, value.dtype))

    def _fits(self, found: Load, dtype: DType) -> Expr | None:
        """Whether a number of the run is in a dtype's range; None where each one is."""
        if dtype in INTEGERS and found.dtype is DType.I64 and dtype is not DType.I64:
            low, high = (self.const(limit, DType.I64) for limit in LIMITS[dtype])
            above, below = self.op("ge", DType.BOOL, found, low), self.op("le", DType.BOOL, found, high)
            return self.op("and", DType.BOOL, above, below)
        if dtype in LARGEST and found.dtype is not DType.BOOL and dtype is not DType.F64:
            wide = self.cast(found, DType.F64)
            largest = self.const(LARGEST[dtype], DType.F64)
            beyond = self.op("gt", DType.BOOL, self.op("abs", DType.F64, wide), largest)
            finite = self.op("not", DType.BOOL, self.op("isinf", DType.BOOL, wide))
            return self.op("not", DType.BOOL, self.op("and", DType.BOOL, beyond, finite))
        return None

    def _load(self, value: Value, idx: Idx) -> Load:
        type_ = value.type
        if not isinstance(type_, TensorType) or type_.dtype not in DTYPES:
            raise Unfusible(f"%{value.name} is {type_}")
        memory = self._where(value)
        self.loads.append((value, idx, memory.key))
        buffer = self._buffer(memory, type_.dtype)
        other = None if self._mask is None else Const(False if type_.dtype is DType.BOOL else 0, type_.dtype)
        return Load(buffer, self.index(memory.geometry, idx), type_.dtype, self._mask, other)

    def _buffer(self, memory: Memory, dtype: DType) -> int:
        if memory.key not in self.buffers:
            self.buffers[memory.key] = len(self.kinds)
            self.kinds.append(Buffer(memory.name, dtype))
        return self.buffers[memory.key]

    def index(self, at: Geometry, idx: Idx) -> Index:
        """An index of a tensor as a place in its buffer."""
        total = ZERO
        for ix, stride, size in zip(idx, at.strides, at.sizes, strict=True):
            if not is_one(size):
                total = total.plus(ix.scaled(stride))
        strides = [0] * (max((loop for loop, _ in total.terms), default=-1) + 1)
        for loop, c in total.terms:
            strides[loop] = c
        gathers = tuple(
            Gather(g.position, g.coefficient, g.size, g.wraps) for g in total.indirect if not equals(g.coefficient, 0)
        )
        return Index(at.offset + total.offset, tuple(strides), gathers)

    def store(self, memory: Memory, dtype: DType, idx: Idx, expr: Expr, *, add: bool = False) -> None:
        """Write an element."""
        buffer = self._buffer(memory, dtype)
        self.statements.append(Store(buffer, self.index(memory.geometry, idx), expr, None, "add" if add else "set"))

    # --- expressions

    def op(self, name: str, dtype: DType, *args: Expr) -> Expr:
        """An operation, made once for equal operands."""
        if OPS[name].arity != len(args):
            raise ValueError(f"{name} takes {OPS[name].arity} operands")
        if dtype not in DTYPES:
            raise Unfusible(f"{dtype} is no type of a nest")
        return self._named(Op(name, args, dtype), (name, dtype, *map(_key, args)))

    def _named(self, expr: Op, key: Hashable) -> Ref:
        known = self._numbered.get(key)
        if known is None:
            name = f"v{len(self._loops_of)}"
            known = self._numbered[key] = Ref(name, expr.dtype)
            self._loops_of[name] = self.loops_of(expr)
            self.statements.append(Let(name, expr))
        return known

    def cast(self, expr: Expr, dtype: DType) -> Expr:
        """An expression in another dtype, as torch's `to`."""
        if expr.dtype is dtype:
            return expr
        if isinstance(expr, Const) and not is_symbolic(expr.value):
            return number(expr.value, dtype)
        return self.op("cast", dtype, expr)

    def const(self, value: float | int | bool, dtype: DType) -> Const:
        """A number of a dtype."""
        return number(value, dtype)

    def position(self, ix: Ix) -> Expr:
        """An index as an i64."""
        parts: list[Expr] = []
        for loop, c in ix.terms:
            at = Position(loop)
            parts.append(at if is_one(c) else self.op("mul", DType.I64, at, Const(c, DType.I64)))
        for g in ix.indirect:
            at_run = g.position
            if g.wraps:
                below = self.op("lt", DType.BOOL, at_run, Const(0, DType.I64))
                beyond = self.op("add", DType.I64, at_run, Const(g.size, DType.I64))
                at_run = self.op("select", DType.I64, below, beyond, at_run)
            parts.append(
                at_run if is_one(g.coefficient) else self.op("mul", DType.I64, at_run, Const(g.coefficient, DType.I64))
            )
        if not parts or not equals(ix.offset, 0):
            parts.append(Const(ix.offset, DType.I64))
        total = parts[0]
        for part in parts[1:]:
            total = self.op("add", DType.I64, total, part)
        return total

    def between(self, ix: Ix, low: int, high: int) -> Expr | bool:
        """Whether low <= index < high: a bool expression, or True or False where it is always so."""
        if not ix.indirect:
            least, most = bounds(ix, self.sizes)
            if at_most(most + 1, low) or at_most(high, least):
                return False
            needs_low = not equals(low, -FAR) and not at_most(low, least)
            needs_high = not equals(high, FAR) and not at_most(most + 1, high)
            if not needs_low and not needs_high:
                return True
        else:
            needs_low = needs_high = True
        at = self.position(ix)
        found: Expr | bool = True
        if needs_low:
            found = self.op("ge", DType.BOOL, at, Const(low, DType.I64))
        if needs_high:
            found = self.both(found, self.op("lt", DType.BOOL, at, Const(high, DType.I64)))
        return found

    def both(self, a: Expr | bool, b: Expr | bool) -> Expr | bool:
        """The conjunction of two conditions, known ones folded."""
        if isinstance(a, bool):
            return b if a else False
        if isinstance(b, bool):
            return a if b else False
        return self.op("and", DType.BOOL, a, b)

    def choose(self, condition: Expr | bool, yes: Callable[[], Expr], no: Callable[[], Expr]) -> Expr:
        """`yes` where a condition holds, else `no`; neither reads memory where it is not chosen."""
        if isinstance(condition, bool):
            return yes() if condition else no()
        with self.masked(condition):
            chosen = yes()
        with self.masked(self.op("not", DType.BOOL, condition)):
            other = no()
        return self.op("select", chosen.dtype, condition, chosen, other)

    def written(self, condition: Expr | bool, new: Callable[[], Expr], old: Callable[[], Expr]) -> Expr:
        """What a write to a part leaves: `new` where a condition holds, else `old`. Raises: Unfusible."""

        def deeper() -> Expr:
            if self._writes >= MAX_WRITES:
                raise Unfusible("many writes to slices are computed from each other")
            self._writes += 1
            try:
                return new()
            finally:
                self._writes -= 1

        return self.choose(condition, deeper, old)

    @contextmanager
    def masked(self, condition: Expr | bool) -> Iterator[None]:
        """Loads inside touch memory only where the condition holds."""
        before = self._mask
        if not isinstance(condition, bool):
            combined = condition if before is None else self.both(before, condition)
            assert not isinstance(combined, bool)
            self._mask = combined
        try:
            yield
        finally:
            self._mask = before

    @property
    def is_masked(self) -> bool:
        """Whether values are pulled that may not be there, so that nothing may trap on them."""
        return self._mask is not None

    # --- reductions

    def along(self, kept: Sequence[Ix | None], shape: Sequence[int]) -> Idx:
        """The index of an operand of `shape` whose dimensions without an index (None) run over the inner loops."""
        if 0 in shape:
            raise Unfusible("there are no elements")
        used = self.loops_at(tuple(ix for ix in kept if ix is not None))
        needed = [size for ix, size in zip(kept, shape, strict=True) if ix is None and not is_one(size)]
        if self.inner is None and needed:
            free = [loop for loop in self.sizes if loop not in used]
            self._make_inner(free or [loop for size in needed for loop, _ in self._new(size)])
        self._combines_nothing |= not needed and not self.inner and None in kept
        inner = list(self.inner or ())
        if used.intersection(inner):
            raise Unfusible("it reduces over loops that its reader runs over")
        over = self._matched(inner, needed) if needed else []
        parts = iter(over)
        return tuple(
            ix if ix is not None else (ZERO if is_one(size) else next(parts))
            for ix, size in zip(kept, shape, strict=True)
        )

    def _new(self, size: int) -> list[tuple[int, int]]:
        return sorted(self.dimension(size).terms)

    def _matched(self, inner: Sequence[int], needed: Sequence[int]) -> list[Ix]:
        """For each size an index over the next inner loops that make it up, all of them used."""
        found, at = [], 0
        for size in needed:
            reach, taken = 1, []
            while at < len(inner) and not _covers(reach, size):
                taken.append(inner[at])
                reach *= self.sizes[inner[at]]
                at += 1
            more = not equals(reach, size) and is_whole(reach, size)
            if more and is_whole(self.sizes[taken[-1]], reach // size):
                raise NeedSplit(taken[-1], reach // size)
            if not equals(reach, size):
                raise Unfusible("it reduces over other dimensions than its neighbours")
            found.append(self._over(taken))
        if at != len(inner):
            raise Unfusible("it reduces over fewer dimensions than its neighbours")
        return found

    def rows(self, idx: Idx, dims: Sequence[int], shape: Sequence[int]) -> None:
        """Make the loops of some dimensions of an index the inner ones."""
        loops: list[int] = []
        for dim in sorted(dims):
            ix, size = idx[dim], shape[dim]
            if is_one(size):
                continue
            own = self._by_step(ix)
            if not ix.is_same(self._over(own)) or not equals(bounds(ix, self.sizes)[1], size - 1):
                raise Unfusible("only part of a row is needed")
            loops.extend(own)
        rest = self.loops_at(tuple(ix for dim, ix in enumerate(idx) if dim not in dims))
        if not loops and not self.inner:
            self._combines_nothing = True
            return
        if self.inner is None:
            self._make_inner(loops)
        if sorted(self.inner or ()) != sorted(loops):
            raise Unfusible("it works along another dimension than its neighbours")
        if rest.intersection(loops):
            raise Unfusible("its row is not a row of its operand")

    def _make_inner(self, loops: Sequence[int]) -> None:
        if self._combines_nothing:
            raise Unfusible("it works along a dimension, and its reader along dimensions of size 1")
        self.inner = tuple(loops)

    def _by_step(self, ix: Ix) -> list[int]:
        """The loops of an index from the largest step to the smallest, if each runs through the next one's."""
        left, step, found = dict(ix.terms), 1, list[int]()
        while left:
            loop = next((loop for loop, c in left.items() if equals(c, step)), None)
            if loop is None:
                raise Unfusible("only part of a row is needed")
            found.append(loop)
            step *= self.sizes[loop]
            del left[loop]
        return found[::-1]

    def window(self, sizes: Sequence[int]) -> Idx:
        """New inner loops of their own, the same for every window of these sizes."""
        needed = [size for size in sizes if not is_one(size)]
        if self.inner is None and needed:
            self._make_inner([loop for size in needed for loop, _ in self._new(size)])
        self._combines_nothing |= not needed and not self.inner
        parts = iter(self._matched(list(self.inner or ()), needed) if needed else ())
        return tuple(ZERO if is_one(size) else next(parts) for size in sizes)

    def reduce(self, kind: ReduceKind, dtype: DType, expr: Expr) -> Expr:
        """An expression combined over the inner loops (over none: itself)."""
        loops = self.loops_of(expr)
        if not self.inner:
            return Const(0, DType.I64) if kind in POSITIONS else self.cast(expr, dtype)
        if not loops.intersection(self.inner):
            raise Unfusible("what it reduces is the same for all")
        self._check_mask()
        key = ("reduce", kind, dtype, _key(expr))
        known = self._numbered.get(key)
        if known is None:
            result = DType.I64 if kind in POSITIONS else dtype
            known = self._numbered[key] = Ref(f"r{len(self._loops_of)}", result)
            self._loops_of[known.name] = loops.difference(self.inner)
            self.statements.append(Reduce(known.name, kind, expr, dtype))
        return known

    def scan(self, kind: ScanKind, dtype: DType, expr: Expr) -> Expr:
        """An expression combined with all before it along the inner loop."""
        if not self.inner:
            return self.cast(expr, dtype)
        if len(self.inner) != 1:
            raise Unfusible("it runs along a dimension that is split")
        self._check_mask()
        key = ("scan", kind, dtype, _key(expr))
        known = self._numbered.get(key)
        if known is None:
            known = self._numbered[key] = Ref(f"s{len(self._loops_of)}", dtype)
            self._loops_of[known.name] = self.loops_of(expr).union(self.inner)
            self.statements.append(Scan(known.name, kind, expr, dtype))
        return known

    def _check_mask(self) -> None:
        """Under a mask that changes along a row, part of the row would not be read."""
        if self._mask is not None and self.loops_of(self._mask).intersection(self.inner or ()):
            raise Unfusible("only part of its row is needed")

    # --- stored values

    def index_of_root(self, shape: Sequence[int], first: tuple[Sequence[int], Idx]) -> Idx:
        """The index of a second stored value: over all loops where it is as large as the first, else the outer."""
        numel, whole = prod(shape), prod(first[0])
        if equals(numel, whole):
            return reshaped(first[1], first[0], shape, self.sizes)
        outer = self.outer
        if self.inner is None or not equals(numel, prod(self.sizes[loop] for loop in outer)):
            raise Unfusible("the values that are stored have sizes of their own")
        return unravelled(self._over(outer), shape, self.sizes)


def _covers(reach: int, size: int) -> bool:
    """Whether loops that reach so far hold a dimension of a size: no fewer turns, or a multiple if all is known."""
    return is_whole(reach, size) if is_symbolic(reach) or is_symbolic(size) else reach >= size


def _key(expr: Expr) -> Hashable:
    # Equal floats of other sign, and NaN, are other constants.
    return ("const", repr(expr.value), expr.dtype) if isinstance(expr, Const) else expr


def at_run_time(position: Expr, size: int, wraps: bool = False) -> Ix:
    """The index that a position read at run time is."""
    return Ix(0, (), (Indirect(position, 1, size, wraps),))
