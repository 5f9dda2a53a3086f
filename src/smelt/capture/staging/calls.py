"""Calls in converted code whose arguments depend on data: builtins, `math`, methods of staged containers, torch."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from smelt._torch.library.recurrent import pad_packed
from smelt._torch.library.schemas import find_overload
from smelt._torch.seen.dispatch import unseen
from smelt.capture.convert.runtime import Args, Kwargs, Runtime, Thunk, current
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import called, computed, is_sized, number_of
from smelt.capture.staging.draws import drawn
from smelt.capture.staging.fakes.symbols import (
    StagedBool,
    StagedFloat,
    StagedInt,
    StagedObject,
    is_real,
    is_staged,
    slot_of,
)
from smelt.capture.staging.flow import ordering
from smelt.capture.staging.flow.branches import condition
from smelt.capture.staging.flow.iterables import Count, Once, StagedRange, StagedSequence, Zipped, sequence_of
from smelt.capture.staging.objects.cached import is_cache_of_sizes, of_cache
from smelt.capture.staging.objects.classes import CLASSES, all_plain, class_of, dispatcher_of, is_stand_in, looks_inside
from smelt.capture.staging.objects.unconverted_code import check_c
from smelt.capture.staging.texts import (
    formatted,
    holds_sized,
    holds_staged,
    is_data,
    is_said,
    text,
    text_of,
)
from smelt.capture.staging.warned import record_warning
from smelt.diag import limits
from smelt.ir import BOOL, FLOAT, INT, DictType, ListType, TensorType, TupleType, Type
from smelt.ops.python.python_calls import is_callable_by_name
from smelt.ops.python.python_draws import draw_name

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

Handler = Callable[["Session", Runtime, Args, Kwargs], object]
"""What answers for a call of a builtin whose arguments may depend on data."""

_WARN = warnings.warn  # staged runs have another one there
# What can be gone over without a change to it that others would see, or that Python itself would go over just so.
_KNOWN: tuple[type, ...] = (list, tuple, range, zip, enumerate, type({}.keys()), type({}.values()), type({}.items()))


_SIZED = (
    list, tuple, range, dict, set, frozenset, str, bytes, torch.Tensor,
    *map(type, ({}.keys(), {}.values(), {}.items())),
)  # fmt: skip
_MOST_TAKEN = limits.LONG_ITERATORS  # items of an iterator that may have no end

# What an operator takes as it is, staged or not.
_NUMBERS = frozenset((int, float, bool, complex, type(None), torch.dtype, StagedInt, StagedFloat, StagedBool))
_ASKING = ("equal", "allclose", "is_nonzero")
# What makes a tensor of numbers.
_OF_ITEMS = frozenset(map(id, (torch.tensor, torch.as_tensor, torch.scalar_tensor)))


def call(session: Session, runtime: Runtime, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`fn(*args, **kwargs)`, where what depends on data becomes an operator of the graph."""
    if type(fn) is BuiltinMethodType and _is_operator(session, fn, args, kwargs):
        return fn(*args, **kwargs)
    try:
        handler = HANDLERS.get(fn)
    except TypeError:
        handler = None
    drawing = draw_name(fn)
    if drawing is not None or handler is _sorted or _makes_of_items(fn):
        # Of these, a range is its numbers; for all others it is itself.
        args = tuple(a.listed() if _is_open_range(a) else a for a in args)
    if handler is not None:
        return handler(session, runtime, args, kwargs)
    dispatch = dispatcher_of(fn)
    if dispatch is not None and args and is_stand_in(args[0]):
        return runtime.call(0, dispatch(class_of(session, args[0])), args, kwargs)
    if is_cache_of_sizes(fn, args, kwargs):
        return of_cache(session, runtime, fn, args)
    name = str(getattr(fn, "__name__", ""))
    is_math = getattr(fn, "__module__", None) == "math" and getattr(math, name, None) is fn
    if is_math and any(is_data(session, a) for a in args):
        return session.emit("py.call", f"math.{name}", *[_number(session, a) for a in args])
    if is_math and any(map(is_sized, args)):
        return called(f"math.{name}", *args)
    if drawing is not None:
        return drawn(session, drawing, args, kwargs)
    if (fn is operator.is_ or fn is operator.is_not) and len(args) == 2:
        return runtime.compare(0, args[0], ("is" if fn is operator.is_ else "is not", lambda: args[1]))
    if name == "format" and isinstance(getattr(fn, "__self__", None), str) and not kwargs:
        found = formatted(session, "str.format", fn.__self__, args)
        if found is not NotImplemented:
            return found
    if args and (holds_staged(args[0]) or holds_sized(args[0])):
        if _makes_of_items(fn):
            default = torch.get_default_dtype() if fn is torch.scalar_tensor else None  # whatever the number is
            return _tensor(session, args[0], **{"dtype": default, **kwargs})
        like = getattr(fn, "__self__", None)
        if name == "new_tensor" and isinstance(like, torch.Tensor) and len(args) == 1:
            return _tensor(session, args[0], **{"dtype": like.dtype, "device": like.device, **kwargs})
        if fn in (torch.LongTensor, torch.FloatTensor) and isinstance(args[0], (list, tuple)) and not kwargs:
            return _tensor(session, args[0], fn.dtype)
        if name == "join" and holds_staged(args[0]) and isinstance(getattr(fn, "__self__", None), str):
            return session.emit("py.call", "str.join", fn.__self__, args[0])
    of_numbers = getattr(fn, "__objclass__", None) in (int, float) and args and is_staged(args[0])
    if of_numbers and isinstance(args[0], fn.__objclass__) and hasattr(args[0], name):
        return runtime.call(0, getattr(args[0], name), args[1:], kwargs)  # `int.bit_count(n)`
    if getattr(fn, "__name__", "") in ("append", "extend", "insert") and isinstance(
        getattr(fn, "__self__", None), StagedObject
    ):
        return fn(*args, **kwargs)
    if session.copies.copied:
        ordering.check_call(session, fn)
    if ordering.is_sort(fn) and not args:
        return ordering.sort(session, runtime, fn.__self__, **kwargs)
    if session.heap.picked:
        ordering.check_call(session, fn)
    if looks_inside(fn):
        args, kwargs = all_plain(args), all_plain(kwargs)
    check_c(session, fn, args, kwargs)
    if any(arg is type for arg in args) and not isinstance(fn, (FunctionType, MethodType)):
        asked = functools.partial(class_of, session)
        args = tuple(asked if arg is type else arg for arg in args)
    args = tuple(_for_torch(session, a, fn) for a in args)
    kwargs = {k: _for_torch(session, v, fn) for k, v in kwargs.items()}
    if asks(fn):
        return session.asked(lambda: fn(*args, **kwargs))
    if session.copies.copied:
        return session.copies.calling(lambda: fn(*args, **kwargs), (*args, *kwargs.values()))
    return fn(*args, **kwargs)


def _is_operator(session: Session, fn: Any, args: Args, kwargs: Kwargs) -> bool:
    """Whether a tensor's method is given nothing but tensors and numbers, of which `call` changes nothing."""
    if not isinstance(fn.__self__, torch.Tensor) or session.copies.copied or session.heap.picked:
        return False
    if fn.__name__ in _ASKING or fn.__name__ == "new_tensor":
        return False
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) not in _NUMBERS and not isinstance(value, torch.Tensor):
            return False
    return True


def _makes_of_items(fn: object) -> bool:
    return id(fn) in _OF_ITEMS


def asks(fn: object) -> bool:
    """Whether a function is one of torch's that answers Python by one bool of data."""
    return getattr(fn, "__name__", "") in _ASKING and not isinstance(fn, (FunctionType, MethodType, type))


def called_here(session: Session, fn: object) -> object:
    """What is called in the place of a function that the converted program calls by itself."""
    return functools.partial(record_warning, session) if fn is _WARN else fn


def _is_open_range(value: object) -> TypeGuard[StagedRange]:
    return isinstance(value, StagedRange) and value.known_length() is None


def _number(session: Session, value: object) -> object:
    return session.item(value) if isinstance(value, torch.Tensor) and is_data(session, value) else value


def _for_torch(session: Session, value: object, fn: object) -> object:
    """A staged list of tensors as an argument of torch's: a list of one tensor that stands for all."""
    if not isinstance(value, StagedObject):
        return value
    module = getattr(fn, "__module__", None) or getattr(type(fn), "__module__", "") or ""
    if not (module.startswith("torch") or type(fn).__name__ in ("OpOverload", "OpOverloadPacket")):
        return value
    slot = slot_of(value)
    if isinstance(slot.type, ListType) and isinstance(slot.type.element, TensorType):
        marker, _ = session.tensor_of(slot.type.element)
        session.recorder.spread[id(marker)] = (slot, marker)
        return [marker]
    return value


def _tensor(
    session: Session, data: object, dtype: object = None, device: object = None, requires_grad: bool = False
) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        parts = [_tensor(session, item, dtype, device) for item in data]
        kinds = {part.dtype for part in parts}
        if len(kinds) > 1:
            common = torch.tensor([torch.zeros((), dtype=k).item() for k in kinds]).dtype
            parts = [part.to(common) for part in parts]
        return torch.stack(parts)
    if isinstance(data, torch.Tensor):
        return data.to(dtype) if dtype is not None else data
    if isinstance(data, StagedObject) and isinstance(slot_of(data).type, ListType) and not requires_grad:
        made = _tensor_of_numbers(session, data, dtype)
        return made if device is None else made.to(device)
    if isinstance(data, StagedObject):
        session.cannot(f"a tensor is made of a traced {slot_of(data).type}")
    plain: dict[type, Type] = {bool: BOOL, int: INT, float: FLOAT}
    kind = slot_of(data).type if is_staged(data) else plain.get(type(at_hand(number_of(data))))
    dtypes: dict[Type | None, torch.dtype] = {
        BOOL: torch.bool, INT: torch.int64, FLOAT: torch.get_default_dtype(),
    }  # fmt: skip
    found = dtypes.get(kind)
    if requires_grad or found is None:
        session.cannot("a tensor is made of a traced value")
    return torch.scalar_tensor(data, dtype=dtype or found, device=device)


_OF_NUMBERS: dict[Type | None, tuple[str, torch.dtype]] = {
    BOOL: ("torch.BoolTensor", torch.bool), INT: ("torch.LongTensor", torch.int64),
    FLOAT: ("torch.DoubleTensor", torch.float64),
}  # fmt: skip


def _tensor_of_numbers(session: Session, data: StagedObject, dtype: object) -> torch.Tensor:
    """`torch.tensor(numbers)` of a list that data made long. Of no numbers it is of the default element type: where
    that is another one, the graph raises for none, and the original runs. Raises: CannotStage.
    """
    element = slot_of(data).type.element
    if element not in _OF_NUMBERS:
        session.cannot(f"a tensor is made of a traced {slot_of(data).type}")
    name, wide = _OF_NUMBERS[element]
    if dtype is None:
        dtype = torch.get_default_dtype() if wide is torch.float64 else wide
        if dtype is wide:
            has_some = session.emit("py.gt", session.emit("py.len", data), 0)
            session.statement("py.assert", has_some, "a tensor of an empty list is one of floats, which no graph has")
    made: torch.Tensor = session.emit("py.call", name, data)
    return made if dtype is wide else made.to(dtype)


# --- builtins --------------------------------------------------------------------------------------------------------


def record_print(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> None:
    file = kwargs.pop("file", None)
    kwargs = {k: v for k, v in kwargs.items() if v is not None}
    if (sys.stdout, sys.stderr) != session.streams or (file is not None and file not in session.streams):
        session.cannot("something is printed into a file")
    if file is not None and file is sys.stderr:
        kwargs["stream"] = "stderr"
    printed = session.domain.printed
    shown = [text(session, a, printed, lambda said: said) if is_said(session, a) else printed(a) for a in args]
    session.statement("py.print", *shown, **kwargs)


def _warn(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> None:
    record_warning(session, *args, **kwargs)


def _len(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    (value,) = args
    if isinstance(value, StagedSequence):
        return value.length()
    if isinstance(value, StagedObject):
        length = slot_of(value).length
        return session.emit("py.len", value) if length is None else length
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        return session.size(value, 0)
    return len(value)


def _conversion(kind: type) -> Handler:
    def convert(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
        if not args or kwargs or not any(is_data(session, a) for a in args):
            if len(args) == 1 and not kwargs and is_sized(args[0]) and kind in (int, float):
                return computed(f"py.{kind.__name__}", args[0])
            return kind(*args, **kwargs)
        if kind is bool:
            return runtime.truth(0, args[0])
        values = [_number(session, a) for a in args]
        if not any(is_data(session, value) for value in values):
            return convert(session, runtime, tuple(values), {})  # the element is known
        if len(values) == 1 and is_staged(values[0]) and CLASSES.get(slot_of(values[0]).type) is kind:
            return values[0]
        return session.emit(f"py.{kind.__name__}", *values)

    return convert


def _texts(name: str) -> Handler:
    def make(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs:
            return (str if name == "str" else repr)(*args, **kwargs)
        return text_of(session, runtime, args[0], name)

    return make


def _range(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    if not any(is_data(session, a) or is_sized(a) for a in args):
        return range(*args, **kwargs)
    bounds = [_number(session, a) for a in args]
    if len(bounds) == 1:
        return StagedRange(session, 0, bounds[0], 1)
    return StagedRange(session, bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else 1)


def _extreme(fn: Callable[..., object], op: str) -> Handler:
    def extreme(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and isinstance(args[0], StagedRange):
            args = (HANDLERS[list](session, runtime, args, {}),)
        if len(args) == 1 and isinstance(args[0], StagedObject) and not kwargs:
            return session.emit(f"py.{fn.__name__}", args[0])
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            args = (list(runtime.iterate(0, args[0])),)
        values = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if kwargs or not any(is_data(session, v) for v in values):
            return fn(*args, **kwargs)
        if not any(isinstance(v, torch.Tensor) for v in values):
            found = session.emit(f"py.{fn.__name__}", *values) if len(values) > 1 else values[0]
            if is_staged(found) and all(map(is_real, values)):
                slot_of(found).picked = f"py.{fn.__name__}", values
            return found
        best = values[0]
        for value in values[1:]:
            chosen = _both(value, best)
            best = runtime.ifexp(0, runtime.compare(0, value, (op, chosen[1])), *chosen)
        return best

    return extreme


def _both(a: object, b: object) -> tuple[Thunk, Thunk]:
    return (lambda: a), (lambda: b)


def _sum(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    if args and isinstance(args[0], StagedObject):
        return session.emit("py.sum", *args, **kwargs)
    return sum(*args, **kwargs)


def _fold(fn: Callable[..., object], stops_at: bool) -> Handler:
    def fold(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
        (values,) = args
        if isinstance(values, StagedObject):
            return session.emit("py.call", f"builtins.{fn.__name__}", values)
        if not isinstance(values, (list, tuple)) or not any(is_data(session, v) for v in values):
            return fn(values)
        join = runtime.or_ if stops_at else runtime.and_
        return join(0, *[lambda v=v: runtime.truth(0, v) for v in values])

    return fold


def _isinstance(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    value, classes = args
    if not is_staged(value):
        return isinstance(value, classes)
    kind = CLASSES.get(slot_of(value).type)
    kinds = {ListType: list, TupleType: tuple, DictType: dict}
    kind = kind or kinds.get(type(slot_of(value).type))
    if kind is None:
        return session.cannot("the program reads the class of a traced value of unknown kind")
    return issubclass(kind, classes)


def _type(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs:
        return type(*args, **kwargs)
    return class_of(session, args[0])


def _listing(kind: type) -> Handler:
    def make(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
        value = args[0] if args else ()
        if isinstance(value, Once):
            whole = value.take()
            if whole is None:
                return kind(value)
            value.is_spent, value = True, whole
        if isinstance(value, StagedRange):
            return session.emit("py.call", f"builtins.{kind.__name__}", value.numbers())
        if isinstance(value, StagedObject):
            return session.emit("py.call", f"builtins.{kind.__name__}", value)
        if isinstance(value, StagedSequence) or sequence_of(session, value) is not None:
            session.cannot("a sequence whose length depends on data becomes a list")
        return kind(*args, **kwargs)

    return make


def _enumerate(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    sequence = sequence_of(session, args[0])
    if sequence is None:
        return enumerate(*args, **kwargs)
    start = args[1] if len(args) > 1 else kwargs.get("start", 0)
    return Zipped(session, [Count(start), sequence])


def _reversed(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    (items,) = args
    if not isinstance(items, StagedObject) or not isinstance(slot_of(items).type, ListType):
        return reversed(items)
    backward = session.emit("py.call", "builtins.reversed", items)
    return Once(session, sequence_of(session, backward), lambda: iter(backward))


def _are_as_long(session: Session, sequences: Sequence[StagedSequence | None], given: Args) -> bool:
    """Whether all that is gone over is of one length, whatever the data and sizes are."""
    if any(s is None and not isinstance(a, _SIZED) for s, a in zip(sequences, given, strict=True)):
        return False
    lengths = [len(a) if s is None else session.encode(s.length()) for s, a in zip(sequences, given, strict=True)]
    return all(type(n) is type(lengths[0]) and n == lengths[0] for n in lengths)


def _zip(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    sequences = [sequence_of(session, a) for a in args]
    if all(s is None for s in sequences):
        return zip(*args, **kwargs)  # noqa: B905
    if kwargs.get("strict") and not _are_as_long(session, sequences, args):
        session.cannot("zip(strict=True) over what depends on data", "they may differ in length")
    # To know the length of a sequence fixes it, so it is asked for only where an iterator might have no end.
    has_unsized = any(s is None and not isinstance(a, _SIZED) for s, a in zip(sequences, args, strict=True))
    lengths = [_length(s, a) if has_unsized else None for s, a in zip(sequences, args, strict=True)]
    shortest = min((length for length in lengths if length is not None), default=None)
    parts: list[StagedSequence | list[object]] = []
    for sequence, given in zip(sequences, args, strict=True):
        # The first that has no more items ends it: those before that one have been asked for theirs.
        is_asked = shortest is not None and shortest not in lengths[: len(parts)]
        parts.append(_taken(session, given, shortest, is_asked) if sequence is None else sequence)
    return Zipped(session, parts)


def _length(sequence: StagedSequence | None, given: object) -> int | None:
    if sequence is not None:
        return sequence.known_length()
    return len(given) if isinstance(given, _SIZED) else None


def _taken(session: Session, given: Iterable[object], shortest: int | None, is_asked: bool) -> list[object]:
    """What `zip` takes of something that Python goes over: all, or as much as the shortest of the others is long."""
    if isinstance(given, _SIZED):
        return list(given)
    return all_of(session, given) if shortest is None else list(islice(given, shortest + is_asked))


def all_of(session: Session, given: Iterable[object]) -> list[object]:
    """All that an iterator gives. Raises: CannotStage for one that may have no end."""
    found = list(islice(given, _MOST_TAKEN + 1))
    if len(found) > _MOST_TAKEN:
        what = f"an iterator of no known end ({type(given).__name__}) is gone over at once"
        session.cannot(what, f"it has more than {_MOST_TAKEN} items")
    return found


def _sorted(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    key, reverse = kwargs.get("key"), kwargs.get("reverse", False)
    items: Any = args[0] if args else None
    if len(args) == 1 and type(items) in _KNOWN and not kwargs.keys() - {"key", "reverse"}:
        items = list(items)
        if key is not None or not items or not all(is_staged(i) or type(i) in (int, float, str) for i in items):
            return ordering.ordered(session, runtime, items, key, reverse)
    elif not isinstance(items, StagedObject) or key is not None:
        return sorted(*args, **kwargs)
    if reverse is False:
        return session.emit("py.call", "builtins.sorted", items)
    items = items if isinstance(items, list) else session.emit("py.call", "builtins.list", items)
    return session.emit("py.call", "list.sorted_by", items, items, reverse)


def _next(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    if session.recorder.depth:
        session.cannot("an iterator is advanced on one path only")
    return next(*args, **kwargs)


def _divmod(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    if any(map(is_staged, args)):
        return tuple(unpacked(session, session.emit("py.call", "builtins.divmod", *args)))
    return divmod(args[0], args[1])


def _pad_packed(session: Session, runtime: Runtime, args: Args, kwargs: Kwargs) -> object:
    """To a number of steps that torch's own function takes as a plain number only."""
    if kwargs or not any(is_staged(arg) or is_sized(arg) for arg in args):
        return pad_packed(*args, **kwargs)
    with unseen():
        return session.recorder.record(find_overload("aten._pad_packed_sequence.default"), args, {})


HANDLERS: dict[object, Handler] = {
    pad_packed: _pad_packed,
    builtins.print: record_print, len: _len, int: _conversion(int), float: _conversion(float), bool: _conversion(bool),
    complex: _conversion(complex), str: _texts("str"), repr: _texts("repr"), range: _range, min: _extreme(min, "<"),
    max: _extreme(max, ">"), sum: _sum, any: _fold(any, True), all: _fold(all, False), isinstance: _isinstance,
    type: _type, list: _listing(list), tuple: _listing(tuple), enumerate: _enumerate, zip: _zip, sorted: _sorted,
    next: _next, reversed: _reversed, divmod: _divmod, _WARN: _warn,
}  # fmt: skip
"""What answers for builtins."""


# --- methods ---------------------------------------------------------------------------------------------------------


def unpacked(session: Session, value: StagedObject) -> Sequence[object]:
    """The items of a traced tuple."""
    type_ = slot_of(value).type
    if not isinstance(type_, TupleType):
        session.cannot(f"a traced {type_} is unpacked", "its length depends on data")
    return [session.emit("py.getitem", value, i) for i in range(len(type_.elements))]


def method(session: Session, value: StagedObject, name: str) -> Callable[..., object]:
    """A bound method of a traced value."""
    type_ = slot_of(value).type
    kind = "list" if isinstance(type_, ListType) else "dict" if isinstance(type_, DictType) else str(type_)
    changing = {"list": _LIST_CHANGES, "dict": _DICT_CHANGES}.get(kind, {})

    def bound(*args: object, **kwargs: object) -> object:
        if name in changing:
            session.domain.check_change(value)
            session.resized += name not in ("reverse", "sort")
            return changing[name](session, value, *args, **kwargs)
        if name == "copy" and kind == "list":
            return session.emit("py.slice", value)
        if name == "copy" and kind == "dict":
            return session.emit("py.call", "builtins.dict", value)
        function = f"{kind}.{name}"
        if not is_callable_by_name(function):
            session.cannot(f"`{name}` is called of a traced {type_}", "the graph has no such function of its class")
        return session.emit("py.call", function, value, *args, **kwargs)

    return bound


def _append(session: Session, items: StagedObject, value: object) -> None:
    items.slot = slot_of(session.emit("py.append", items, value))


def extend(session: Session, items: StagedObject, more: object) -> None:
    """`items.extend(more)`, and `items += more`, which takes whatever can be gone over, too."""
    if _is_open_range(more):
        more = more.listed()
    elif isinstance(more, (tuple, str, range, dict, set, frozenset)):
        more = list(more)
    elif not isinstance(more, list):
        more = session.domain.listed(more)
    session.resized += 1
    items.slot = slot_of(session.emit("py.concat", items, more))


def _pop(session: Session, items: StagedObject, index: object = -1) -> object:
    rest, value = session.emit("py.pop", items, index)
    items.slot = slot_of(rest)
    return value


def _insert(session: Session, items: StagedObject, index: object, value: object) -> None:
    items.slot = slot_of(session.emit("py.insert", items, index, value))


def _reverse(session: Session, items: StagedObject) -> None:
    items.slot = slot_of(session.emit("py.slice", items, None, None, -1))


def _sort(session: Session, items: StagedObject, *, key: object = None, reverse: bool = False) -> None:
    if key is not None:
        session.cannot("a list of dynamic length is sorted by a key")
    items.slot = slot_of(_sorted(session, current(), (items,), {"reverse": reverse}))


def _remove(session: Session, items: StagedObject, value: object) -> None:
    items.slot = slot_of(session.emit("py.call", "list.remove", items, value))


def _clear(session: Session, items: StagedObject) -> None:
    items.slot = slot_of(session.emit("py.slice", items, 0, 0))


def _pop_key(session: Session, items: StagedObject, key: object, *default: object) -> object:
    """`dict.pop`: with a default the key need not be there."""
    if default and not session.paths.fork(slot_of(session.emit("py.in_", key, items))):
        return default[0]
    value = session.emit("py.getitem", items, key)
    items.slot = slot_of(session.emit("py.delitem", items, key))
    return value


def _set_default(session: Session, items: StagedObject, key: object, value: object = None) -> object:
    if not session.paths.fork(slot_of(session.emit("py.in_", key, items))):
        items.slot = slot_of(session.emit("py.setitem", items, key, value))
    return session.emit("py.getitem", items, key)


def _update(session: Session, items: StagedObject, *more: object, **named: object) -> None:
    for given in (*more, named):
        if not isinstance(given, dict):
            session.cannot("a dict is updated with a dynamic value")
        for key, value in given.items():
            items.slot = slot_of(session.emit("py.setitem", items, key, value))


_LIST_CHANGES: dict[str, Callable[..., object]] = {
    "append": _append, "extend": extend, "pop": _pop, "insert": _insert, "reverse": _reverse, "sort": _sort,
    "remove": _remove, "clear": _clear,
}  # fmt: skip
_DICT_CHANGES: dict[str, Callable[..., object]] = {"pop": _pop_key, "setdefault": _set_default, "update": _update}

__all__ = ["call", "condition", "method", "unpacked"]

AS_PYTHON: tuple[Callable[..., object], ...] = (call, method, *_LIST_CHANGES.values(), *_DICT_CHANGES.values())
"""What else does for the program what Python does: what is raised there is the program's."""
