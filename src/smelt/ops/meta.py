"""Runs of an operator on data-free tensors: what it would return, and which operands its results share memory with.

Invariant: nothing here computes with data or changes any tensor; the last resort of `dummy_run` runs on zeros of its
own. Results are kept by operator, operand types, literals and autocast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

from smelt._torch.seen.fake import fake_tensors, meta_kernels_are_loaded
from smelt._torch.seen.light_fake import unmarked
from smelt._torch.state import autocast
from smelt._torch.storage import same_storage
from smelt.diag.records import record
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    Arg,
    Device,
    Layout,
    MemoryFormat,
    TensorType,
    TupleType,
    Type,
    Value,
    join_all,
    values_in,
)
from smelt.ir.dtypes import DType
from smelt.ops import sets
from smelt.ops.convert import dummy_of, to_torch, type_of
from smelt.ops.record import Trait
from smelt.ops.registry import overload, schema_of, tags_of
from smelt.ops.shapes import views as view_layouts
from smelt.ops.shapes.calls import infer_open, open_call
from smelt.ops.shapes.indexing import INDEXING, index_strides
from smelt.ops.shapes.symbolic import Ask, CannotTell, Found

# Elements up to which the last resort may allocate real data for one operand.
MOST_TRIED = 1 << 24
# Elements up to which a run on real zeros is sooner done than the import behind torch's meta kernels.
_QUICK_NUMEL = 1 << 22
# Operators besides the pointwise ones whose results are no larger than their operands together.
_SHRINKING = sets.where(Trait.SHRINKS)
# Those of them whose result lies otherwise on the CPU than without data: row by row, however the operand lies.
_LAID_BY_CPU = frozenset(
    f"aten.{name}" for name in (
        "batch_norm.default", "native_batch_norm.default", "_native_batch_norm_legit.default",
        "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_no_training.default",
        "_native_batch_norm_legit_functional.default", "_batch_norm_no_update.default",
    )
)  # fmt: skip
# Those whose results grow at most by the numbers that they are given.
_GROWING = frozenset(f"aten.{name}.default" for name in ("adaptive_avg_pool2d", "pad", "constant_pad_nd"))
# Those that torch does not call pointwise, with results as large as their operands.
_FILLING = sets.where(Trait.FILLS) | {"aten.where.Scalar"}

_QUICK_PRODUCTS = 1 << 24


Fill = Callable[[torch.Tensor], torch.Tensor]


@record
class Operand:
    """A place that a value's type stands in; equal types at different values stay apart by their number."""

    number: int
    type: Type


@record
class Outcome:
    """Types of the results, and for each result the numbers of the operands it shares memory with."""

    types: tuple[Type, ...]
    shares: tuple[frozenset[int], ...]


class CannotRun(Exception):
    """The operator has no way to run without data on these operands."""


def _own_type(value: Value) -> Type:
    return value.type


def call_key(
    args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of_value: Callable[[Value], Type] = _own_type
) -> tuple[Hashable, list[Value]]:
    """A call with its values replaced by their types, as a key that tells 1, 1.0 and True apart; and the values."""
    call = _Call(type_of_value)
    key = tuple(map(call.key, args)), tuple((k, call.key(a)) for k, a in kwargs.items())
    return key, list(call.numbers)


class _Call:
    """The values of one call by their numbers. (A function that calls itself would be garbage that only a collection
    frees, with all that it has seen.)
    """

    __slots__ = ("numbers", "type_of_value")

    def __init__(self, type_of_value: Callable[[Value], Type]) -> None:
        self.numbers: dict[Value, int] = {}
        self.type_of_value = type_of_value

    def key(self, arg: Arg) -> Hashable:
        """An argument of the call, with its values replaced."""
        if isinstance(arg, Value):
            return Operand(self.numbers.setdefault(arg, len(self.numbers)), self.type_of_value(arg))
        if isinstance(arg, tuple):
            return tuple(map(self.key, arg))
        return (type(arg), repr(arg)) if isinstance(arg, (float, complex)) else (type(arg), arg)


def meta_outcome(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of_value: Callable[[Value], Type] = _own_type
) -> tuple[Outcome, list[Value]]:
    """The outcome on meta tensors, and the values that its numbers stand for.

    type_of_value: the type to suppose for an operand, where it lies otherwise than its own type says.
    Raises: CannotRun where a type is not static or the meta kernel is missing or needs data.
    """
    if open_call(args, kwargs, type_of_value):
        return symbolic_outcome(op, args, kwargs, type_of_value, static_outcome)
    key, values = call_key(args, kwargs, type_of_value)
    found = _meta_outcome(op, key, autocast())
    if isinstance(found, str):
        raise CannotRun(found)
    return found, values


def static_outcome(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of_value: Callable[[Value], Type]
) -> Found:
    """As `meta_outcome`, in the form that `shapes` takes, for a call whose sizes are integers."""
    key, values = call_key(args, kwargs, type_of_value)
    found = _meta_outcome(op, key, autocast())
    if isinstance(found, str):
        raise CannotRun(found)
    return found.types, tuple(frozenset(values[n] for n in shared) for shared in found.shares)


def symbolic_outcome(
    op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of_value: Callable[[Value], Type], ask: Ask
) -> tuple[Outcome, list[Value]]:
    """The outcome of a call whose sizes are known at run time only. Raises: CannotRun where they do not tell."""
    try:
        types, shares = infer_open(op, args, kwargs, type_of_value, ask)
    except CannotTell as failure:
        raise CannotRun(str(failure)) from None
    values = operand_values(args, kwargs)
    return Outcome(types, tuple(frozenset(i for i, v in enumerate(values) if v in shared) for shared in shares)), values


def fake_outcome(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Outcome, list[Value]]:
    """The outcome on fake tensors of the operands' own devices. Raises: CannotRun where torch refuses them."""
    key, values = call_key(args, kwargs)
    with fake_tensors() as available:
        found = _run(op, key, "fake") if available else "this torch has no fake tensors"
    if isinstance(found, str):
        raise CannotRun(found)
    return found, values


def data_outcome(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Outcome, list[Value]]:
    """What the outcomes on several sets of real data share: `_` where a size follows the data.

    Raises: CannotRun where torch refuses all of them.
    """
    key, values = call_key(args, kwargs)
    found = [_run(op, key, None, fill) for fill in _FILLS]
    joined = _joined(found)
    if joined is None:
        raise CannotRun(str(found[0]))
    return joined, values


def _joined(found: Sequence[Outcome | str]) -> Outcome | None:
    """What outcomes share, those left aside that were refused."""
    outcomes = [one for one in found if isinstance(one, Outcome)]
    if not outcomes:
        return None
    types = tuple(join_all(column) for column in zip(*(o.types for o in outcomes), strict=True))
    shares = tuple(frozenset().union(*column) for column in zip(*(o.shares for o in outcomes), strict=True))
    return Outcome(types, shares)


def cpu_outcome(
    op: str,
    args: Sequence[Arg],
    kwargs: Mapping[str, Arg],
    type_of_value: Callable[[Value], Type] = _own_type,
    *,
    is_for_all_data: bool = False,
) -> Found:
    """Types of the results on data of the CPU's own, and for each the operands whose memory it shares; for integers.

    is_for_all_data: what the results on several sets of data share, `_` where a size follows from them.
    Raises: CannotRun where torch refuses all data that are tried.
    """
    key, values = call_key(args, kwargs, type_of_value)
    runs = (_run(op, key, None, fill) for fill in _FILLS)
    found = _joined(list(runs)) if is_for_all_data else next((one for one in runs if isinstance(one, Outcome)), None)
    if found is None:
        raise CannotRun(f"the CPU refuses {op} on all data that were tried")
    return found.types, tuple(frozenset(values[n] for n in shared) for shared in found.shares)


# Where nothing is moved they give a view of their operand without data, and a copy on the CPU.
COPYING = frozenset(f"aten.{name}.default" for name in ("channel_shuffle", "native_channel_shuffle"))


# Their results lie row-major on the CPU, and as their operands do without data.
ROW_MAJOR = frozenset(("isin", "one_hot"))


def _counting(period: int) -> Fill:
    """Fills a tensor with 0, 1, ... again and again."""

    def fill(t: torch.Tensor) -> torch.Tensor:
        once = torch.arange(period, device=t.device).to(t.dtype)
        return once.repeat(t.numel() // period + 1)[: t.numel()].reshape(t.shape)

    return fill


# Ways to fill tensors with data of which operators make results of different sizes.
_FILLS: tuple[Fill, ...] = (torch.zeros_like, torch.ones_like, _counting(2), _counting(5))


@lru_cache(maxsize=8192)
def _meta_outcome(op: str, key: Any, around: tuple[tuple[str, torch.dtype], ...] = ()) -> Outcome | str:
    """around: autocast of the thread, by which the same call may return other types."""
    is_better = not meta_kernels_are_loaded() or op in _LAID_BY_CPU or _is_open_by_ones(key)
    if is_better and _is_quick(op, key):
        found = _run(op, key, None)
        if isinstance(found, Outcome):
            return found
    return _run(op, key, "meta")


def _is_open_by_ones(key: Any) -> bool:
    """Whether a dimension of one element has a stride of its own: meta kernels choose by it otherwise than the CPU's.

    `x + 1` of f32[4, 1]{1, 4} is {1, 4} on the CPU, and {1, 1} on the device meta.
    """
    types = [t for o in _operands(key) for t in _tensor_types(o.type)]
    return any(t.strides is not None and t.shape is not None and 1 in t.shape for t in types)


def _is_quick(op: str, key: Any) -> bool:
    """Whether a run on zeros does nothing but compute, and little of that: then it tells the same as a meta kernel."""
    tags, schema = tags_of(op), schema_of(op)
    is_bounded = (
        op in _SHRINKING
        or op in _LAID_BY_CPU
        or op in _GROWING
        or op in _FILLING
        or ("pointwise" in tags and "nondeterministic_seeded" not in tags)
    )
    product = sets.PRODUCTS.get(op)  # whose result may be larger than both factors
    if (product is None and not is_bounded) or schema is None or schema.is_mutable:
        return False
    types = [t for o in _operands(key) for t in _tensor_types(o.type)]
    if not types or any(t.device != "cpu" or not t.is_static for t in types):
        return False
    if product is not None:
        # A size of the second is that of a sum or of the result.
        at = product.first
        left, right = types[at : at + 2] if at + 1 < len(types) else (types[0], types[0])
        return left.numel * max((*right.sizes, 1)) <= _QUICK_PRODUCTS and right.numel <= _QUICK_NUMEL
    return _result_numel(op, key, types) + sum(t.numel for t in types) <= _QUICK_NUMEL


def _result_numel(op: str, key: Any, types: Sequence[TensorType]) -> int:
    """The most elements that the result can have; 0 for no more than the operands have."""
    if op in _SHRINKING or op in _LAID_BY_CPU:
        return 0
    if op in _GROWING:
        numbers = [lit[1] for lit in _literals(key) if isinstance(lit[1], int) and lit[1] > 1]
        return types[0].numel * math.prod(1 + n for n in numbers)
    # What the operands broadcast to: the largest size of each dimension, counted from the last.
    rank = max(len(t.sizes) for t in types)
    return math.prod(max(t.sizes[-d] for t in types if len(t.sizes) >= d) for d in range(1, rank + 1))


def _tensor_types(type_: Type) -> list[TensorType]:
    if isinstance(type_, TupleType):
        return [t for e in type_.elements for t in _tensor_types(e)]
    return [type_] if isinstance(type_, TensorType) else []


def _run(op: str, key: Any, device: str | None, fill: Fill | None = None) -> Outcome | str:
    found = overload(op)
    schema = schema_of(op)
    if found is None or schema is None:
        return f"torch has no operator {op}"
    home = _one_device(key)
    if home is None:
        return "the operands are on several devices"
    tensors: dict[int, torch.Tensor] = {}
    try:
        args = [_build(item, device, home, tensors, fill) for item in key[0]]
        kwargs = {name: _build(item, device, home, tensors, fill) for name, item in key[1]}
        if device == "meta" and not tensors and any(a.name == "device" for a in schema.arguments):
            kwargs.setdefault("device", device)
            kwargs["device"] = device
        with (
            torch.no_grad(),
            unmarked() if device == "meta" else _random_state_kept() if device is None else nullcontext(),
        ):
            result = found(*args, **kwargs)
            if op in COPYING and device is not None:
                result = result.clone()
            if op.split(".")[1] in ROW_MAJOR and device is not None:
                result = result.contiguous()
            if op in INDEXING and device is not None:
                result = _indexed(args, result)
        results = [] if not schema.returns else [result] if len(schema.returns) == 1 else list(result)
        types = tuple(_type(r, home) for r in results)
        return Outcome(types, tuple(_shares(r, tensors) for r in results))
    except Exception as error:
        # Any failure means that this way of running does not work here: torch raises every kind of error.
        return f"{type(error).__name__}: {error}"


def _indexed(args: list[Any], result: torch.Tensor) -> torch.Tensor:
    """The result of an index as the CPU lays it out, which meta kernels do without a look at the indices."""
    at, *indices = [None if t is None else view_layouts.Layout(tuple(t.shape), t.stride()) for t in (args[0], *args[1])]
    steps = None if at is None else index_strides(at, indices)
    return result if steps is None else result.new_empty_strided(result.shape, steps)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Random numbers that a trial draws are drawn again by the program."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)


def _one_device(key: Any) -> str | None:
    devices = {o.type.device for o in _operands(key) if isinstance(o.type, TensorType)}
    if not devices:
        named = {str(lit[1].name) for lit in _literals(key) if isinstance(lit[1], Device)}
        devices = named or {"cpu"}
    return devices.pop() if len(devices) == 1 else None


def _operands(key: Any) -> list[Operand]:
    if isinstance(key, Operand):
        return [key]
    return [o for item in key for o in _operands(item)] if isinstance(key, tuple) else []


def _literals(key: Any) -> list[Any]:
    if isinstance(key, tuple):
        if len(key) == 2 and isinstance(key[0], type):
            return [key]
        return [lit for item in key for lit in _literals(item)]
    return []


def _build(item: Any, device: str | None, home: str, tensors: dict[int, torch.Tensor], fill: Fill | None = None) -> Any:
    if isinstance(item, Operand):
        if item.number not in tensors:
            tensors[item.number] = _tensor(item.type, device, fill)
        return tensors[item.number]
    if len(item) == 2 and isinstance(item[0], type):
        return _literal(item, device, home)
    return [_build(inner, device, home, tensors, fill) for inner in item]


def _literal(item: Any, device: str | None, home: str) -> Any:
    kind, value = item
    if kind is float or kind is complex:
        return kind(value)
    if kind is Device and device == "meta" and value.name == home:
        return torch.device(device)
    if kind in (DType, Device, Layout, MemoryFormat):
        return to_torch(value)
    return value


def _tensor(type_: Type, device: str | None, fill: Fill | None = None) -> torch.Tensor:
    if isinstance(type_, TupleType):
        return [_tensor(t, device, fill) for t in type_.elements]
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        raise CannotRun(f"{type_} is not the type of a static, strided tensor")
    if device is None and type_.numel > MOST_TRIED:
        raise CannotRun(f"{type_} is too large to try")
    made = dummy_of(type_, "meta" if device == "meta" else None)
    if device is not None:
        return made
    if fill is None:
        return made.zero_()
    # Elements of an expanded tensor share their memory, so none of them can be written by itself.
    memory = made[tuple(slice(1) if step == 0 else slice(None) for step in made.stride())]
    memory.copy_(fill(memory))
    return made


def _type(result: Any, home: str) -> Type:
    if isinstance(result, torch.Tensor):
        found = type_of(result)
        return TensorType(found.dtype, found.shape, found.strides, home, found.layout)
    if result is None:
        return NONE
    if isinstance(result, (list, tuple)):
        return TupleType(tuple(_type(r, home) for r in result))
    for kind, type_ in ((bool, BOOL), (int, INT), (float, FLOAT), (complex, COMPLEX), (str, STR)):
        if isinstance(result, kind):
            return type_
    raise CannotRun(f"a result is a {type(result).__qualname__}")


def _shares(result: Any, tensors: dict[int, Any]) -> frozenset[int]:
    if isinstance(result, (list, tuple)):
        return frozenset(n for r in result for n in _shares(r, tensors))
    if not isinstance(result, torch.Tensor):
        return frozenset()
    return frozenset(n for n, t in tensors.items() if _any_shares(result, t))


def _any_shares(result: torch.Tensor, operand: Any) -> bool:
    if isinstance(operand, list):
        return any(_any_shares(result, o) for o in operand)
    return result is operand or same_storage(result, operand)


def operand_values(args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> list[Value]:
    """All values in a call, each once, in order."""
    found: dict[Value, None] = {}
    for arg in (*args, *kwargs.values()):
        for value in values_in(arg):
            found[value] = None
    return list(found)
