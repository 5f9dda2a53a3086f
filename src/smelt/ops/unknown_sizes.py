"""Types of results where sizes, ranks, or numbers among the arguments are known at run time only.

The operator is asked for several static calls that the call may stand for. What all answers share is kept: a size that
stays is that size, one that follows a symbol is the symbol (or what it follows: `(2 * s)`, `(s + 1)`, `(B * S)`),
any other is `_`; where ranks differ the rank is unknown. Ranks are kept wherever the operator keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations, islice, product

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    UNKNOWN_DIM,
    Arg,
    Dim,
    ListType,
    OptionalType,
    Sym,
    SymExpr,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    Value,
    contiguous_strides,
    join_all,
    known_steps,
    map_values,
    values_in,
)
from smelt.ir.dims import symbols
from smelt.ir.types import type_symbols
from smelt.ops.registry import schema_of

Infer = Callable[[str, Sequence[Arg], Mapping[str, Arg]], tuple[Type, ...]]

# Sizes that are tried for everything at once: with many divisors, and those that broadcast.
_EQUAL = (24, 36, 2, 1)
# Sizes that tell symbols apart: each symbol takes every so many-th.
_PRIMES = (29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
_RANKS = (1, 2, 3, 4, 0)
# Ways in which a tensor of unknown strides may lie.
_LAYOUTS = 7
# Numbers between the places of one operand and the next.
_PLACES = 256
_MOST_BASES = 3
_MOST_PAIRS = 40
# Answers that are enough to call a size known.
_FEW = 3


class _CannotTry(Exception):
    """Nothing static stands for an operand."""


@record
class _Trial:
    """One choice of everything unknown.

    size: of each `_`, where not all are to be distinct. numbers: the first that stands for an int, and how far each is
    from the one before. ranks: of tensors of unknown rank, the first and the others. variant: of strides, and of what
    is a switch. changed: single sizes and numbers, by their place, that are otherwise.
    """

    symbols: Mapping[str, int]
    size: int
    numbers: tuple[int, int]
    ranks: tuple[int, int]
    variant: int
    is_distinct: bool = False
    changed: Mapping[int, int] = field(default_factory=dict)

    def dim(self, dim: Dim, place: int) -> int:
        match dim:
            case int():
                return dim
            case Sym():
                return self.symbols[dim.name]
            case SymExpr():
                return _calculate(dim.op, self.dim(dim.left, place), self.dim(dim.right, place))
            case UnknownDim():
                if place in self.changed:
                    return self.changed[place]
                return self.size if not self.is_distinct else _PRIMES[-1 - place % 8] + 4 * place


def _calculate(op: str, a: int, b: int) -> int:
    match op:
        case "+":
            return a + b
        case "-":
            return max(a - b, 0)
        case "*":
            return a * b
        case "//":
            return a // b if b else 0
        case "%":
            return a % b if b else 0
        case "max":
            return max(a, b)
    return min(a, b)


def is_static_call(args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> bool:
    """Whether all operands are tensors of static types, or tuples of such."""
    return all(_is_static(v.type) for arg in (*args, *kwargs.values()) for v in values_in(arg))


def _is_static(type_: Type) -> bool:
    if isinstance(type_, TensorType):
        return type_.is_static
    return isinstance(type_, TupleType) and all(map(_is_static, type_.elements))


def infer_unknown(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], ways: Sequence[Infer]) -> tuple[Type, ...]:
    """The types of results as far as the first of `ways` that answers static calls at all tells them; else `any`."""
    for infer in ways:
        answers = _answers(op, args, kwargs, infer)
        if answers:
            count = min(len(types) for _, types in answers)
            found = tuple(_combine([(trial, types[i]) for trial, types in answers]) for i in range(count))
            values = [v for arg in (*args, *kwargs.values()) for v in values_in(arg)]
            # There are more ways to lie than were tried.
            return tuple(map(_of_any_strides, found)) if any(_has_unknown_strides(v.type) for v in values) else found
    return _by_schema(op)


def _of_any_strides(type_: Type) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_of_any_strides, type_.elements)))
    if not isinstance(type_, TensorType) or type_.strides is None:
        return type_
    return TensorType(type_.dtype, type_.shape, (UNKNOWN_DIM,) * len(type_.strides), type_.device, type_.layout)


def _answers(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], infer: Infer
) -> list[tuple[_Trial, tuple[Type, ...]]]:
    operands = list(dict.fromkeys(v for arg in (*args, *kwargs.values()) for v in values_in(arg)))
    answers: list[tuple[_Trial, tuple[Type, ...]]] = []

    def ask(trial: _Trial) -> bool:
        try:
            stand = _standins(operands, trial)
            swap = stand.__getitem__
            static = tuple(map_values(a, swap) for a in args), {k: map_values(a, swap) for k, a in kwargs.items()}
            answers.append((trial, infer(op, *static)))
        except Exception:
            # The operator refuses these sizes, with any kind of error; others may be meant.
            return False
        return True

    bases: dict[tuple[int, int], _Trial] = {}
    literals = [a for a in (*args, *kwargs.values()) if isinstance(a, (int, tuple))]
    for trial in _trials(operands, literals):
        if ask(trial) and not trial.is_distinct:
            bases.setdefault((trial.size, trial.ranks[0] - trial.ranks[1]), trial)
    # What was tried alike need not be alike.
    for base in list(bases.values())[:_MOST_BASES]:
        for changed in _changes(operands, base, [n for n in _ints(literals) if n > 1][:4]):
            ask(replace(base, changed=changed))
    return answers


def _changes(operands: Sequence[Value], base: _Trial, literals: Sequence[int]) -> Iterator[dict[int, int]]:
    """Other sizes and numbers at one place, or at two."""
    now = dict(_places(operands, base))
    for place, size in now.items():
        for other in (size + 1, 2 * size, 1, *literals):
            yield {place: other}
    for (p, a), (q, b) in islice(combinations(now.items(), 2), _MOST_PAIRS):
        yield from (
            {p: a + 1, q: b + 1},
            {p: 2 * a, q: 2 * b},
            {p: b, q: a},
            {p: a + 1, q: b - 1},
            {p: a - 1, q: b + 1},
        )


def _places(operands: Sequence[Value], base: _Trial) -> Iterator[tuple[int, int]]:
    numbers, unranked = 0, 0
    for i, value in enumerate(operands):
        rank = base.ranks[1 if unranked else 0]
        unranked += _has_unknown_rank(value.type)
        if value.type == INT:
            yield _PLACES * i, base.numbers[0] + numbers * base.numbers[1]
            numbers += 1
        for j, type_ in enumerate(_tensors(value.type)):
            for k, dim in enumerate((UNKNOWN_DIM,) * rank if type_.shape is None else type_.shape):
                if dim == UNKNOWN_DIM:
                    yield _PLACES * i + 8 * j + k, base.size


def _by_schema(op: str) -> tuple[Type, ...]:
    schema = schema_of(op)
    if schema is None:
        raise InternalError(f"the result type of {op} cannot be determined", code="S0902")
    kinds: dict[str, Type] = {"int": INT, "bool": BOOL, "float": FLOAT}
    return tuple(ListType(ANY) if r.type.startswith("List[") else kinds.get(r.type, ANY) for r in schema.returns)


# --- trials


def _trials(operands: Sequence[Value], literals: Sequence[Arg]) -> Iterator[_Trial]:
    names = sorted(frozenset().union(*(type_symbols(v.type) for v in operands)))
    numbers = any(v.type == INT for v in operands)
    unranked = [v for v in operands if _has_unknown_rank(v.type)]
    ranks = _RANKS if unranked else (0,)
    variants = range(2 if unranked else _LAYOUTS) if any(_has_unknown_strides(v.type) for v in operands) else (0,)
    switches = any(v.type in (BOOL, FLOAT, COMPLEX) or isinstance(v.type, (ListType, OptionalType)) for v in operands)
    sizes = dict.fromkeys((*_EQUAL, *sorted(_static_sizes(operands))[:4]))
    for rank in product(ranks, ranks if len(unranked) > 1 else (0,)):
        for variant in variants:
            for i, size in enumerate(sizes):
                equal = dict.fromkeys(names, size)
                for number in _numbers(size, i) if numbers else ((0, 0),):
                    yield _Trial(equal, size, number, rank, variant + (_LAYOUTS * i if switches else 0))
            largest = max((abs(n) for n in _ints(literals) if abs(n) < 1 << 40), default=0)
            for step, offset in ((1, 0), (3, 0), (2, 2 * largest)):
                own = {name: _PRIMES[(i + 1) * step % 13] + offset + i for i, name in enumerate(names)}
                # Other numbers than any size, for a place where a number is a size.
                yield _Trial(own, 0, (101 * step + offset, 4), rank, variant, is_distinct=True)


def _numbers(size: int, i: int) -> tuple[tuple[int, int], ...]:
    """First number and step of those that stand for ints: they may be sizes, or places, bounds of a part."""
    return (size, 0), (2 * size, 0), (i % 3, 0), (i % 3, 1), (0, max(size // 2, 1)), (size, -1)


def _ints(args: Iterable[Arg]) -> Iterator[int]:
    for arg in args:
        if isinstance(arg, tuple):
            yield from _ints(arg)
        elif type(arg) is int:
            yield arg


def _static_sizes(operands: Sequence[Value]) -> set[int]:
    types = [t for v in operands for t in _tensors(v.type)]
    return {d for t in types for d in t.shape or () if isinstance(d, int) and d > 0}


def _tensors(type_: Type) -> Iterator[TensorType]:
    match type_:
        case TensorType():
            yield type_
        case TupleType(elements=elements):
            for inner in elements:
                yield from _tensors(inner)
        case ListType(element=inner) | OptionalType(element=inner):
            yield from _tensors(inner)


def _has_unknown_rank(type_: Type) -> bool:
    return any(t.shape is None for t in _tensors(type_))


def _has_unknown_strides(type_: Type) -> bool:
    return any(UNKNOWN_DIM in (t.strides or ()) or t.shape is None for t in _tensors(type_))


def _standins(operands: Sequence[Value], trial: _Trial) -> dict[Value, Arg]:
    """For each operand a value of a static type, or a literal."""
    found: dict[Value, Arg] = {}
    numbers, unranked = 0, 0
    for i, value in enumerate(operands):
        if value.type == INT:
            found[value] = trial.changed.get(_PLACES * i, trial.numbers[0] + numbers * trial.numbers[1])
            numbers += 1
            continue
        rank = trial.ranks[1 if unranked else 0]
        unranked += _has_unknown_rank(value.type)
        found[value] = _standin(value, value.type, replace(trial, ranks=(rank, rank)), _PLACES * i)
    return found


def _standin(value: Value, type_: Type, trial: _Trial, place: int) -> Arg:
    match type_:
        case TensorType():
            return Value(value.name, _static(type_, trial, place), value.owner)
        case TupleType(elements=elements) if all(isinstance(t, TensorType) for t in elements):
            tensors = [t for t in elements if isinstance(t, TensorType)]
            static = tuple(_static(t, trial, place + 8 * j) for j, t in enumerate(tensors))
            return Value(value.name, TupleType(static), value.owner)
        case TupleType(elements=elements):
            return tuple(_standin(value, t, trial, place) for t in elements)
        case ListType(element=inner):
            return tuple(_standin(value, inner, trial, place) for _ in range(1 + trial.variant // _LAYOUTS % 3))
        case OptionalType(element=inner):
            return None if trial.variant // _LAYOUTS % 2 else _standin(value, inner, trial, place)
    is_odd = trial.variant // _LAYOUTS % 2 == 1
    if type_ == INT:
        return trial.numbers[0]
    if type_ == BOOL:
        return is_odd
    if type_ == FLOAT:
        return 2.0 if is_odd else 1.5
    if type_ == COMPLEX:
        return complex(1.5, 2.0)
    if type_ == NONE:
        return None
    raise _CannotTry(f"nothing represents {type_}")


def _static(type_: TensorType, trial: _Trial, place: int) -> TensorType:
    if type_.layout != "strided":
        raise _CannotTry(f"{type_} is not strided")
    dims: Sequence[Dim] = (UNKNOWN_DIM,) * trial.ranks[0] if type_.shape is None else type_.shape
    shape = tuple(trial.dim(d, place + i) for i, d in enumerate(dims))
    return TensorType.of(type_.dtype, shape, _steps(type_, shape, trial, place), type_.device)


def _steps(type_: TensorType, shape: tuple[int, ...], trial: _Trial, place: int) -> tuple[int, ...]:
    """Strides that the type allows: dense ones, spread ones, turned ones, channels last, or all elements in one."""
    strides = type_.strides
    if strides is None and type_.shape is not None:
        return contiguous_strides(shape)
    rank = len(shape)
    order = list(range(rank))
    match trial.variant % _LAYOUTS:
        case 2:
            order.reverse()
        case 3 if rank > 2:
            order = [0, *range(2, rank), 1]
        case 4 if rank > 1:
            order[-2:] = rank - 1, rank - 2
        case 6 if rank > 2:
            order[-3:-1] = rank - 2, rank - 3  # heads, as attention has them
        case 5:
            return tuple(0 if d == UNKNOWN_DIM else trial.dim(d, place) for d in strides or (UNKNOWN_DIM,) * rank)
    dense = contiguous_strides([shape[d] * (2 if trial.variant % _LAYOUTS == 1 else 1) for d in order])
    own = tuple(dense[order.index(d)] for d in range(rank))
    if strides is None:
        return own
    return tuple(own[i] if d == UNKNOWN_DIM else trial.dim(d, place + i) for i, d in enumerate(strides))


# --- what answers share


def _combine(answers: Sequence[tuple[_Trial, Type]]) -> Type:
    types = [type_ for _, type_ in answers]
    if all(isinstance(t, TupleType) for t in types) and len({len(t.elements) for t in types}) > 1:  # type: ignore[union-attr]
        return ListType(join_all(e for t in types for e in t.elements))  # type: ignore[union-attr]
    if all(isinstance(t, TupleType) for t in types):
        columns = range(len(types[0].elements))  # type: ignore[union-attr]
        return TupleType(tuple(_combine([(trial, t.elements[i]) for trial, t in answers]) for i in columns))  # type: ignore[union-attr]
    found = join_all(dict.fromkeys(types))
    if not isinstance(found, TensorType) or found.shape is None:
        return found
    if len(types) < _FEW:
        unknown = (UNKNOWN_DIM,) * len(found.shape)
        return TensorType(found.dtype, unknown, unknown, found.device, found.layout)
    tensors = [(trial, t) for trial, t in answers if isinstance(t, TensorType)]
    shape = _resolved(found.shape, [(trial, t.shape or ()) for trial, t in tensors])
    strides = found.strides
    if strides is not None:
        strides = _resolved(strides, [(trial, known_steps(t)) for trial, t in tensors])
    return TensorType(found.dtype, shape, strides, found.device, found.layout)


def _resolved(dims: Sequence[Dim], answers: Sequence[tuple[_Trial, Sequence[Dim]]]) -> tuple[Dim, ...]:
    """Sizes or strides that the answers share, with what those follow that they do not."""
    return tuple(
        _followed([(trial, found[i]) for trial, found in answers]) if dim == UNKNOWN_DIM else dim
        for i, dim in enumerate(dims)
    )


def _followed(dims: Sequence[tuple[_Trial, Dim]]) -> Dim:
    """The expression that a size is in every trial; `_` where there is none, or where too few tell symbols apart."""
    sizes = [(trial, dim) for trial, dim in dims if isinstance(dim, int)]
    if len(sizes) < len(dims):
        return UNKNOWN_DIM
    telling = [(trial, size) for trial, size in sizes if trial.is_distinct]
    names = sorted(sizes[0][0].symbols)
    if len(telling) < 3:
        return UNKNOWN_DIM
    for candidate in _candidates(names, telling):
        if all(trial.dim(candidate, 0) == size for trial, size in sizes if symbols(candidate) <= trial.symbols.keys()):
            return candidate
    return UNKNOWN_DIM


def _candidates(names: Sequence[str], telling: Sequence[tuple[_Trial, int]]) -> Iterator[Dim]:
    (first, a), (second, b) = telling[:2]
    for name in names:
        x, y = first.symbols[name], second.symbols[name]
        if x == y:
            continue
        factor, rest = divmod(a - b, x - y)
        offset = a - factor * x
        if rest or factor < 1:
            continue
        size: Dim = Sym(name) if factor == 1 else SymExpr("*", Sym(name), factor)
        yield size if offset == 0 else SymExpr("+" if offset > 0 else "-", size, abs(offset))
    for left, right in combinations(names, 2):
        product = first.symbols[left] * first.symbols[right]
        if product and a % product == 0 and a:
            both: Dim = SymExpr("*", Sym(left), Sym(right))
            yield both if a == product else SymExpr("*", both, a // product)
