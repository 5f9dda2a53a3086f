"""Loop nests: what a fused kernel computes, as loops, loads, expressions, reductions and stores.

A nest has *outer* loops, whose points are independent of one another, and *inner* loops, over which a point may
reduce or scan. A value is *inner* if it changes along an inner loop, else it is a value of the outer point. Nothing
here says how the loops run (which is vectorised, what is recomputed or kept in a row of scratch): that is emission's.

    nest(%x: f32, %w: f32, %out: f32)                        # layer norm of f32[1024, 768] without bias
      for i0 < 1024:
        s = sum f32 over (j0 < 768) of %x[768*i0 + j0]
        m = div(s, 768.0)
        d = sub(%x[768*i0 + j0], m)                          # inner: for each j0
        v = sum f32 over (j0 < 768) of mul(d, d)
        r = rsqrt(add(div(v, 768.0), 1e-05))
        %out[768*i0 + j0] = mul(mul(d, r), %w[j0])

Invariants: sizes are at least 1 (an empty nest is never made); loops are numbered outer first, and an `Index` has one
stride, in elements, for each; statements refer only to earlier ones; every element of a stored buffer that any point
writes is written by one outer point only. An `Op` of dtype bf16 or f16 computes in f32 and rounds its result to that
dtype, as eager does at each op. Evaluation order of floating-point sums is free within DESIGN's bound; everything
else is exact to eager's op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from smelt.diag import ScheduleError
from smelt.ir import DType

# --- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a kernel is given: a name for people, and what its elements are."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Gather:
    """One indirect term of an index: `position` (an i64 expression) times `stride`.

    A negative position counts from the end of `size` where `wraps`; outside [0, size) the kernel fails with `FAILED`
    (the caller then lets eager raise its error), unless the load is masked off there.
    """

    position: Expr
    stride: int
    size: int
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """Element `offset + sum(strides[k] * loop k) + gathers` of a buffer."""

    offset: int
    strides: tuple[int, ...]
    gathers: tuple[Gather, ...] = ()


FAILED = 1
"""The code a kernel returns when an index is out of range."""

# --- expressions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """A number of a dtype; floats may be nan or infinite."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Position:
    """The i64 counter of a loop."""

    loop: int

    @property
    def dtype(self) -> DType:
        """Counters are i64."""
        return DType.I64


@dataclass(frozen=True, slots=True)
class Load:
    """An element of buffer number `buffer`. Where `where` (bool) is false, `other` without touching memory."""

    buffer: int
    index: Index
    dtype: DType
    where: Expr | None = None
    other: Const | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier `Let`, `Reduce` or `Scan`."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of `operations.OPS` on expressions. Its dtype is the result's; operands are cast explicitly."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType


Expr: TypeAlias = Const | Position | Load | Ref | Op

ACC = "acc"
"""The name under which an epilogue refers to the contraction's element (f32 before any rounding)."""

# --- statements -------------------------------------------------------------------------------------------------------

ReduceKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "argmax_element", "argmin_element"]
"""max and min are NaN if any element is; argmax and argmin give the i64 row-major position over the inner loops of the
first extreme element, NaN counting as the extreme (as torch), and their `_element` kinds that very element: of equal
zeros the first one's sign."""

POSITIONS: tuple[ReduceKind, ...] = ("argmax", "argmin")
"""Kinds whose result is a position."""

ScanKind = Literal["sum", "prod", "max", "min"]


@dataclass(frozen=True, slots=True)
class Let:
    """Names a value, at the level (inner or outer) of its expression."""

    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Reduce:
    """A value of the outer point: `expr` combined over all inner loops. `dtype` is the accumulator's and the result's
    (for positions the result is i64). Sums are two-level.
    """

    name: str
    kind: ReduceKind
    expr: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """An inner value: `expr` combined with all earlier ones along the single inner loop and itself."""

    name: str
    kind: ScanKind
    expr: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Store:
    """Writes `expr` to an element of a buffer, where `where` holds. "add" adds to what is there (in loop order)."""

    buffer: int
    index: Index
    expr: Expr
    where: Expr | None = None
    mode: Literal["set", "add"] = "set"


Statement: TypeAlias = Let | Reduce | Scan | Store


@dataclass(frozen=True, slots=True)
class Nest:
    """A kernel. `outer` and `inner` are the loops' sizes; loop k is `outer[k]`, then `inner[k - len(outer)]`.

    `ordered`: the outer points must run in order (a scatter with equal indices): one item.
    """

    buffers: tuple[Buffer, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    body: tuple[Statement, ...]
    ordered: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of all loops."""
        return self.outer + self.inner

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the buffers that are written, ascending."""
        return tuple(sorted({s.buffer for s in self.body if isinstance(s, Store)}))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# --- walking ----------------------------------------------------------------------------------------------------------


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside one."""
    match expr:
        case Op(args=args):
            return args
        case Load(index=index, where=where):
            inside = tuple(g.position for g in index.gathers)
            return inside if where is None else (*inside, where)
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything inside it, each occurrence: what is around something before it, left to right."""
    # A generator in a generator would hand each of them on once for each level.
    pending = [expr]
    while pending:
        found = pending.pop()
        yield found
        # As `children`, without a tuple for each leaf.
        if found.__class__ is Op:
            pending.extend(found.args[::-1])
        elif found.__class__ is Load and (found.where is not None or found.index.gathers):
            pending.extend(reversed(children(found)))


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """The expressions of a statement, those in its index and mask included."""
    match statement:
        case Store(index=index, expr=expr, where=where):
            inside = (expr, *(g.position for g in index.gathers))
            return inside if where is None else (*inside, where)
        case _:
            return (statement.expr,)


def inner_names(nest: Nest) -> frozenset[str]:
    """Names of the values that change along an inner loop."""
    names: set[str] = set()
    for statement in nest.body:
        if isinstance(statement, Scan) or (
            isinstance(statement, Let) and is_inner(statement.expr, len(nest.outer), names)
        ):
            names.add(statement.name)
    return frozenset(names)


def is_inner(expr: Expr, nouter: int, names: frozenset[str] | set[str]) -> bool:
    """Whether an expression changes along an inner loop, given the names of the values that do."""
    for item in walk(expr):
        match item:
            case Position(loop=loop) if loop >= nouter:
                return True
            case Ref(name=name) if name in names:
                return True
            case Load(index=index) if any(index.strides[nouter:]):
                return True
            case _:
                pass
    return False


# --- text -------------------------------------------------------------------------------------------------------------


def loop_name(nest: Nest, loop: int) -> str:
    """What a loop is called in text: `i0`, `i1`, ... outer loops, `j0`, ... inner ones."""
    n = len(nest.outer)
    return f"i{loop}" if loop < n else f"j{loop - n}"


def loop_named(nest: Nest, name: str) -> int:
    """The number of a loop. Raises: ScheduleError (S0614) where the kernel has none of this name."""
    names = [loop_name(nest, k) for k in range(len(nest.sizes))]
    if name not in names:
        known = ", ".join(f"{n} < {size}" for n, size in zip(names, nest.sizes, strict=True))
        fix = "name one of these; s.kernels() shows them"
        raise ScheduleError(
            f"there is no loop {name!r}", why=f"the kernel has {known or 'no loop'}", fix=fix, code="S0614"
        )
    return names.index(name)


def _index_text(nest: Nest, index: Index) -> str:
    terms = [str(index.offset)] if index.offset else []
    for loop, stride in enumerate(index.strides):
        if stride:
            terms.append(loop_name(nest, loop) if stride == 1 else f"{stride}*{loop_name(nest, loop)}")
    for gather in index.gathers:
        place = f"at({expr_text(nest, gather.position)} < {gather.size}{', wraps' if gather.wraps else ''})"
        terms.append(place if gather.stride == 1 else f"{gather.stride}*{place}")
    return " + ".join(terms) or "0"


def expr_text(nest: Nest, expr: Expr) -> str:
    """An expression as a person reads it."""
    match expr:
        case Const(value=value):
            return str(value)
        case Position(loop=loop):
            return loop_name(nest, loop)
        case Ref(name=name):
            return name
        case Load(buffer=buffer, index=index, where=where, other=other):
            text = f"{nest.buffers[buffer].name}[{_index_text(nest, index)}]"
            if where is None:
                return text
            return f"({text} if {expr_text(nest, where)} else {0 if other is None else other.value})"
        case Op(op=op, args=args, dtype=dtype):
            inside = ", ".join(expr_text(nest, a) for a in args)
            return f"{op}[{dtype}]({inside})" if op == "cast" else f"{op}({inside})"


def _lines(nest: Nest) -> Iterator[str]:
    yield head_text(nest)
    over = ", ".join(f"{loop_name(nest, k)} < {n}" for k, n in enumerate(nest.outer))
    yield f"  {'for' if nest.outer else 'once'}{' in order' if nest.ordered else ''}{' ' + over if over else ''}:"
    yield from (f"    {line}" for line in body_lines(nest))


def head_text(nest: Nest) -> str:
    """The first line of a nest's text: its buffers."""
    return f"nest({', '.join(f'{b.name}: {b.dtype}' for b in nest.buffers)})"


def body_lines(nest: Nest) -> Iterator[str]:
    """The statements of a nest as a person reads them."""
    inside = ", ".join(f"j{k} < {n}" for k, n in enumerate(nest.inner))
    names = inner_names(nest)
    for statement in nest.body:
        match statement:
            case Let(name=name, expr=expr):
                note = f"    # for each {inside}" if name in names else ""
                yield f"{name} = {expr_text(nest, expr)}{note}"
            case Reduce(name=name, kind=kind, expr=expr, dtype=dtype):
                yield f"{name} = {kind} {dtype} over ({inside}) of {expr_text(nest, expr)}"
            case Scan(name=name, kind=kind, expr=expr, dtype=dtype):
                yield f"{name} = scan {kind} {dtype} along ({inside}) of {expr_text(nest, expr)}"
            case Store(buffer=buffer, index=index, expr=expr, where=where, mode=mode):
                sign = "=" if mode == "set" else "+="
                mask = f" if {expr_text(nest, where)}" if where is not None else ""
                target = f"{nest.buffers[buffer].name}[{_index_text(nest, index)}]"
                yield f"{target} {sign} {expr_text(nest, expr)}{mask}"
