"""The types of an operator's results where ranks or element types of operands are unknown, too.

The last rung of `typing` for these: the operator is asked, on tensors without data, for a few of the types that may
stand there. What all answers share is kept: the element type, and the rank where several ranks were tried. Answers are
kept by operator, operand types and literals.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from smelt.diag import InternalError
from smelt.ir import (
    ANY,
    INT,
    NONE,
    UNKNOWN_DIM,
    Arg,
    DType,
    ListType,
    TensorType,
    TupleType,
    Type,
    Value,
    map_values,
    values_in,
)
from smelt.ops.meta import CannotRun, Operand, call_key, meta_outcome
from smelt.ops.registry import schema_of
from smelt.ops.unknown_sizes import Infer

TENSOR = TensorType(DType.UNKNOWN, None)
_LIST = ListType(INT)
_DTYPES = (DType.F32, DType.I64, DType.F64, DType.BOOL, DType.C64)
_MOST_TRIALS = 60
_FEW_RANKS = 3
_LENGTHS = (2, 1, 3)
# Of any operand: no trial without data tells.
POSITIONS = TensorType(DType.I64, (UNKNOWN_DIM,), (UNKNOWN_DIM,))
_OF_POSITIONS = ("aten.nonzero_numpy.default", "aten.where.default")
_SHAPED_BY_DATA: dict[str, Type] = dict.fromkeys(_OF_POSITIONS, ListType(POSITIONS))
# Their kernels take every tensor for a matrix, and read past the sizes of one that is none.
_OF_MATRICES = frozenset((
    "aten.gru_cell.default", "aten.lstm_cell.default", "aten.rnn_tanh_cell.default", "aten.rnn_relu_cell.default",
))  # fmt: skip


def infer_kinds(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], infer: Infer) -> tuple[Type, ...]:
    """One type per result, as far as these operands tell. An operator that all of them refuse may give anything.

    infer: tells the types where those of the operands are known.
    """
    key, _ = call_key(args, kwargs)
    return _infer(op, key, infer)


@lru_cache(maxsize=8192)
def _infer(op: str, key: object, infer: Infer) -> tuple[Type, ...]:
    args, kwargs = _call_of(key)
    if op in _SHAPED_BY_DATA:
        return _declared(op, (_SHAPED_BY_DATA[op],))
    types = {v: v.type for a in (*args, *kwargs.values()) for v in values_in(a)}
    if all(map(is_known, types.values())):
        try:
            return _declared(op, infer(op, args, kwargs))
        except (InternalError, TypeError):
            return _declared(op, None)
    found = list(_answers(op, args, kwargs, types))
    return _declared(op, _shared(found, op in _OF_MATRICES, types))


def is_known(type_: Type) -> bool:
    """Whether rank and element type of all tensors in a type are known."""
    if isinstance(type_, TensorType):
        return type_.shape is not None and type_.dtype != DType.UNKNOWN
    if isinstance(type_, TupleType):
        return all(map(is_known, type_.elements))
    return not isinstance(type_, ListType) or is_known(type_.element)


def _call_of(key: Any) -> tuple[list[Arg], dict[str, Arg]]:
    """A call again, from its key: values of the types that stand in it."""
    made: dict[int, Value] = {}

    def arg(item: Any) -> Any:
        if isinstance(item, Operand):
            return made.setdefault(item.number, Value(f"v{item.number}", item.type, None))  # type: ignore[arg-type]
        if len(item) == 2 and isinstance(item[0], type):
            kind, value = item
            return kind(value) if kind in (float, complex) else value
        return tuple(arg(inner) for inner in item)

    return [arg(a) for a in key[0]], {k: arg(a) for k, a in key[1]}


# --- trials ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trial:
    """What stands for what is unknown: an element type, ranks of tensors, a size, a length of lists of numbers."""

    dtype: DType
    ranks: tuple[int, ...]
    size: int
    length: int


def _answers(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], types: Mapping[Value, Type]
) -> Iterator[tuple[_Trial, tuple[Type, ...]]]:
    """What was tried, and the types that came of it, until nothing more can be learnt."""
    found: list[tuple[_Trial, tuple[Type, ...]]] = []
    trials = [t for t in _trials(types) if op not in _OF_MATRICES or set(t.ranks) <= {2}]
    for trial in trials[:_MOST_TRIALS]:
        chosen = _stand_ins(types, trial)
        if chosen is None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what no run may be
                outcome, _ = meta_outcome(
                    op,
                    [map_values(a, chosen.__getitem__) for a in args],
                    {k: map_values(a, chosen.__getitem__) for k, a in kwargs.items()},
                )
        except (CannotRun, TypeError):
            continue
        found.append((trial, outcome.types))
        yield found[-1]
        if len(found) > 1 and _tells_nothing([t for _, t in found]):
            return


def _trials(types: Mapping[Value, Type]) -> Iterator[_Trial]:
    """An element type for what has none, ranks for what has none, and a size for what has none."""
    tensors = [t for t in map(_tensor_of, types.values()) if t is not None]
    count = sum(t.shape is None for t in tensors)
    known = [t for t in tensors if t.shape is not None]
    sizes = list(dict.fromkeys([4, 1, *(d for t in known for d in t.shape or () if isinstance(d, int) and d)]))[:4]
    most = max((t.rank or 0 for t in known), default=0)
    ranks = list(dict.fromkeys((2, 3, 1, most + 1, 4, most + 2, 0)))
    combinations: list[tuple[int, ...]] = [(r,) * count for r in ranks]
    if 1 < count < 4:
        combinations[2:2] = [
            tuple(a if i == k else b for i in range(count)) for k in range(count) for a, b in ((0, 2), (2, 0))
        ]
    dtypes = _DTYPES if any(t.dtype == DType.UNKNOWN for t in tensors) else _DTYPES[:1]
    lengths = _LENGTHS if _LIST in types.values() else _LENGTHS[:1]
    for size, ranks_, length, dtype in product(sizes, combinations if count else [()], lengths, dtypes):
        yield _Trial(dtype, ranks_, size, length)


def _stand_ins(types: Mapping[Value, Type], trial: _Trial) -> dict[Value, Arg] | None:
    """What stands for each value in one trial; None where nothing does."""
    chosen: dict[Value, Arg] = {}
    left, size = list(trial.ranks), trial.size
    for value, type_ in types.items():
        tensor = _tensor_of(type_)
        if tensor is not None:
            shape = tuple(d if isinstance(d, int) else size for d in tensor.shape or ())
            if tensor.shape is None:
                shape = (size,) * left.pop(0)
            kind = trial.dtype if tensor.dtype == DType.UNKNOWN else tensor.dtype
            made: Type = TensorType(kind, shape, None, tensor.device)
            # A list may be of any length.
            made = TupleType((made, made)) if isinstance(type_, ListType) else made
            chosen[value] = Value(value.name, made, None)  # type: ignore[arg-type]
        else:
            known: dict[str, Arg] = {"int": 1, "float": 1.5, "bool": True}
            literal = known.get(str(type_))
            if type_ == _LIST:
                literal = (size,) * trial.length
            if literal is None:
                return None
            chosen[value] = literal
    return chosen


def _tensor_of(type_: Type) -> TensorType | None:
    """A tensor's type, or that of the tensors in a list."""
    inner = type_.element if isinstance(type_, ListType) else type_
    return inner if isinstance(inner, TensorType) else None


def _tells_nothing(found: Sequence[tuple[Type, ...]]) -> bool:
    """Whether answers differ in everything that could be learnt."""
    for column in zip(*found, strict=False):
        tensors = [t for t in column if isinstance(t, TensorType)]
        if len({t.dtype for t in tensors}) < 2 or len({t.rank for t in tensors}) < 2:
            return False
    return True


def _shared(
    found: Sequence[tuple[_Trial, tuple[Type, ...]]], knows_ranks: bool, types: Mapping[Value, Type]
) -> tuple[Type, ...] | None:
    if not found:
        return None
    has_list = _LIST in types.values()
    several = knows_ranks or len({trial.ranks for trial, _ in found}) >= _FEW_RANKS or not found[0][0].ranks
    # A rank may be that of the list of sizes: it is known where lists of several lengths gave the same.
    several = several and (not has_list or len({trial.length for trial, _ in found}) > 1)
    given = _given_dtype(found, types)
    return tuple(_common(column, several, given) for column in zip(*(got for _, got in found), strict=False))


def _given_dtype(found: Sequence[tuple[_Trial, tuple[Type, ...]]], types: Mapping[Value, Type]) -> DType | None:
    """The only element type that was taken, where a result that has it may have it from any operand.

    `x[i]` of nothing known takes i64 for both, and is of the type of `x`.
    """
    taken = {trial.dtype for trial, _ in found}
    dtypes = [t.dtype for t in map(_tensor_of, types.values()) if t is not None]
    count = dtypes.count(DType.UNKNOWN)
    if len(taken) > 1 or not count:
        return None
    only = taken.pop()
    return None if count == 1 and only in dtypes else only


def _common(types: Sequence[Type], knows_rank: bool, given: DType | None = None) -> Type:
    if all(isinstance(t, TensorType) for t in types):
        tensors = [t for t in types if isinstance(t, TensorType)]
        dtypes, ranks = {t.dtype for t in tensors}, {t.rank for t in tensors}
        dtype = dtypes.pop() if len(dtypes) == 1 and given not in dtypes else DType.UNKNOWN
        if not knows_rank or len(ranks) > 1:
            return TensorType(dtype, None)
        rank = ranks.pop() or 0
        return TensorType(dtype, (UNKNOWN_DIM,) * rank, (UNKNOWN_DIM,) * rank if rank else None)
    if all(isinstance(t, TupleType) for t in types):
        lists = [t for t in types if isinstance(t, TupleType)]
        inner = [e for t in lists for e in t.elements]
        element = _common(inner, False, given) if inner else TENSOR
        return ListType(element if isinstance(element, TensorType) else TENSOR)
    return types[0] if all(t == types[0] for t in types) else ANY


def _declared(op: str, found: tuple[Type, ...] | None) -> tuple[Type, ...]:
    """Types that the schema allows: a tensor where it gives one, whatever was (not) told."""
    schema = schema_of(op)
    assert schema is not None
    types: list[Type] = []
    for i, returned in enumerate(schema.returns):
        told = found[i] if found is not None and i < len(found) else ANY
        if returned.type == "Tensor" and not isinstance(told, TensorType) and told != NONE:
            told = TENSOR
        if returned.type == "List[Tensor]" and not isinstance(told, TupleType):
            is_told = isinstance(told, ListType) and isinstance(told.element, TensorType)
            told = told if is_told else ListType(TENSOR)
        types.append(told)
    return tuple(types)
