"""Python's builtins, and torch's that ask about values, where what they are given is known at run time only.

A handler gives `NotImplemented` where it leaves the call to what would happen without it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.convert.runtime import Args, Kwargs
from smelt.capture.scripting import checks, quiet
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.functions import run_builtin, run_converted
from smelt.capture.scripting.values import conversions, tensors
from smelt.capture.scripting.values.casts import is_legacy
from smelt.capture.scripting.values.sequences import OpenTuple, PlainShape, ShapeObject
from smelt.capture.staging import calls as staged
from smelt.capture.staging.fakes.symbols import StagedObject, class_of, is_staged, slot_of
from smelt.capture.staging.flow.iterables import StagedRange, StagedSequence, sequence_of
from smelt.capture.staging.flow.stops import MEMBERS
from smelt.capture.staging.objects.classes import CLASSES
from smelt.capture.staging.texts import holds_staged
from smelt.capture.staging.texts import own_text as staged_own_text
from smelt.ir import ANY, INT, DictType, DType, ListType, TupleType
from smelt.ops.python import in_python

if TYPE_CHECKING:
    from smelt.capture.scripting.runtime import OpenRuntime

Handler = Callable[[Open, "OpenRuntime", Args, Kwargs], object]
"""What answers for a call of a builtin; `NotImplemented` where the call is as any other."""


def handler_of(fn: object) -> Handler | None:
    """What answers for a builtin, None for what has no such thing."""
    try:
        return HANDLERS.get(fn)
    except TypeError:
        return None


def _len(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    (value,) = args
    if isinstance(value, ShapeObject):
        return domain.rank(value.of) if value.of is not None else domain.emit("py.len", value)
    if isinstance(value, torch.Tensor) and tensors.is_symbolic(domain, value):
        if domain.type_of(value).rank == 0:
            raise TypeError("len() of a 0-d tensor")
        return domain.session.size(value, 0)
    is_ours = is_staged(value) or isinstance(value, StagedSequence)
    own = None if is_ours else getattr(type(value), "__len__", None)
    return run_converted(domain, own, (value,), {}) if isinstance(own, FunctionType) else NotImplemented


def _getattr(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    try:
        return runtime.getattr_(0, args[0], args[1])
    except AttributeError:
        if len(args) < 3:
            raise
        return args[2]


def _setattr(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    runtime.setattr_(0, *args)
    return None


def _isinstance(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    value, classes = args
    of_class = class_of(value)
    if of_class is not None:
        return isinstance(of_class(), classes)
    if is_staged(value) and slot_of(value).type == ANY:
        return domain.cannot("the program reads the class of a value of unknown kind", "annotate the parameter")
    if isinstance(value, torch.Tensor):
        kinds = classes if isinstance(classes, tuple) else (classes,)
        if domain.type_of(value).dtype == DType.UNKNOWN and any(map(is_legacy, kinds)):
            return _is_of_kinds(domain, runtime, value, kinds)
        takes_tensors = any(isinstance(k, type) and issubclass(torch.Tensor, k) for k in kinds)
        if domain.recorder.slot_of(value) in domain.assumable and not takes_tensors:
            return False
        if tensors.is_symbolic(domain, value):
            return isinstance(torch.empty(0), classes)
    return NotImplemented


def _is_of_kinds(domain: Open, runtime: OpenRuntime, value: torch.Tensor, kinds: tuple[object, ...]) -> object:
    """Whether a tensor whose element type a run knows is an instance of one of several classes."""
    tests = [
        (lambda k=k: domain.emit("py.eq", domain.attribute(value, "dtype"), k.dtype)) if is_legacy(k)
        else (lambda k=k: _isinstance(domain, runtime, (value, k), {}))
        for k in kinds
    ]  # fmt: skip
    return runtime.or_(0, *tests)


def _is_open(domain: Open, items: object) -> bool:
    """Whether only a run knows how many items there are."""
    return not isinstance(items, (list, tuple, dict, str)) and sequence_of(domain.session, items) is not None


def list_of(domain: Open, items: object) -> Any:
    """The items as a list of the graph."""
    if isinstance(items, StagedObject) and isinstance(slot_of(items).type, ListType):
        return items
    return run_builtin(domain, in_python.listed, items)


def _map(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    fn, *rest = args
    if any(_is_open(domain, r) for r in rest):
        if len(rest) == 1:
            return run_builtin(domain, in_python.mapped, fn, rest[0])
        return run_builtin(domain, in_python.mapped_together, fn, runtime.call(0, zip, tuple(rest), {}))
    # Taken as it is asked, as Python's: its lists may change until then.
    return map(lambda *items: runtime.call(0, fn, items, {}), *rest)


def _filter(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    fn, items = args
    if _is_open(domain, items):
        return run_builtin(domain, in_python.filtered, fn, items)
    keeps = bool if fn is None else lambda item: bool(runtime.call(0, fn, (item,), {}))
    return filter(keeps, items)


def _hasattr(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    value, name = args
    if is_staged(value):
        kind = slot_of(value).type
        plain = {ListType: list, DictType: dict, TupleType: tuple}.get(type(kind)) or CLASSES.get(kind)
        if plain is None and not hasattr(object, name):
            domain.cannot(f"the program tests for {name} on a value that may be of any kind", "nothing says what it is")
        return hasattr(class_of(value) or plain or object, name)
    if isinstance(value, torch.Tensor) and name not in _OF_SOME and hasattr(torch.Tensor, name):
        return True  # to read it would leave its sizes in the graph, of a tensor that may have another rank
    if isinstance(value, torch.Tensor) and name in _OF_SOME:
        with quiet.unwarned():
            return hasattr(value, name)
    return hasattr(value, name)


# Attributes that some tensors refuse.
_OF_SOME = ("imag", "H", "mH", "mT")


def _range(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    for value in args:
        if isinstance(value, torch.Tensor):
            domain.assume(value, INT)
    return staged.call(domain.session, runtime, range, tuple(map(domain.index_of, args)), kwargs)


def _tuple_or_list(kind: type) -> Handler:
    def make(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and isinstance(args[0], ShapeObject):
            return domain.emit("py.slice", args[0]) if kind is list else PlainShape(slot_of(args[0]), args[0].of)
        if len(args) == 1 and isinstance(args[0], StagedSequence) and not isinstance(args[0], StagedRange):
            found = list_of(domain, args[0])
            return found if kind is list or type(found) is not StagedObject else OpenTuple(slot_of(found))
        if len(args) == 1 and kind is tuple and is_staged(args[0]) and isinstance(slot_of(args[0]).type, ListType):
            return OpenTuple(slot_of(domain.emit("py.slice", StagedObject(slot_of(args[0])))))
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and not domain.type_of(args[0]).is_static:
            return domain.cannot("a tensor of open sizes becomes a list")
        return NotImplemented

    return make


def _sorted(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if not args or kwargs.get("key") is None or not _is_open(domain, args[0]):
        return NotImplemented
    items = list_of(domain, args[0])
    keys = run_builtin(domain, in_python.mapped, kwargs["key"], items)
    return domain.emit("py.call", "list.sorted_by", items, keys, kwargs.get("reverse", False))


def _best(fn: Callable[..., object]) -> Handler:
    """`min` and `max` of a list with a key, or with a default."""

    def best(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or not _is_open(domain, args[0]):
            return NotImplemented
        items = list_of(domain, args[0])
        if "default" in kwargs and not domain.fork(slot_of(domain.emit("py.gt", domain.emit("py.len", items), 0))):
            return kwargs["default"]
        if kwargs.get("key") is None:
            return domain.emit(f"py.{fn.__name__}", items)
        keys = run_builtin(domain, in_python.mapped, kwargs["key"], items)
        found = domain.emit(f"py.{fn.__name__}", keys)
        return domain.getitem(items, domain.emit("py.call", "list.index", keys, found))

    return best


def _over(function: Callable[[Any], object]) -> Handler:
    """A builtin of one iterable."""

    def run(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs or isinstance(args[0], StagedObject) or not _is_open(domain, args[0]):
            return NotImplemented
        return run_builtin(domain, function, args[0])

    return run


def _dict_of(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 1 or kwargs or not _is_open(domain, args[0]):
        return NotImplemented
    if isinstance(args[0], StagedObject) and isinstance(slot_of(args[0]).type, DictType):
        return NotImplemented
    return run_builtin(domain, in_python.as_dict, args[0])


def _dict_from_keys(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not args or not _is_open(domain, args[0]):
        return NotImplemented
    return run_builtin(domain, in_python.from_keys, *args)


def _set(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 1 and _is_open(domain, args[0]):
        domain.cannot("a set is made of dynamic values", MEMBERS)
    return NotImplemented


def _sum(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if not args or isinstance(args[0], StagedObject) or not _is_open(domain, args[0]):
        return NotImplemented
    return runtime.call(0, sum, (list_of(domain, args[0]), *args[1:]), kwargs)


def _reversed(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    (items,) = args
    if not _is_open(domain, items):
        return NotImplemented
    if isinstance(items, StagedRange):
        items = runtime.call(0, list, (items,), {})
    return domain.emit("py.call", "builtins.reversed", list_of(domain, items))


def _reduce(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    fn, items, *start = args
    if not _is_open(domain, items):
        return NotImplemented
    items = list_of(domain, items)
    if not start:
        runtime.raise_if(
            domain.emit("py.eq", domain.emit("py.len", items), 0),
            lambda: TypeError("reduce() of empty iterable with no initial value"),
        )
        start, items = [domain.getitem(items, 0)], domain.emit("py.slice", items, 1)
    return run_builtin(domain, in_python.reduced, fn, items, start[0])


def _accumulate(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not _is_open(domain, args[0]):
        return NotImplemented
    return run_builtin(domain, in_python.running, list_of(domain, args[0]), *(args[1:] or (operator.add,)))


def _chain(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if not any(_is_open(domain, a) for a in args):
        return NotImplemented
    whole = domain.listed(args[0])
    for more in args[1:]:
        whole = domain.emit("py.concat", whole, domain.listed(more))
    return whole


def _product(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if len(args) != 2 or kwargs or not any(_is_open(domain, a) for a in args):
        return NotImplemented
    return run_builtin(domain, in_python.pairs_of, args[0], list_of(domain, args[1]))


def _zip(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if not kwargs or not any(_is_open(domain, a) for a in args):
        return NotImplemented
    if not kwargs.get("strict"):
        return runtime.call(0, zip, args, {})
    lengths = [runtime.call(0, len, (a,), {}) for a in args]
    for number, length in enumerate(lengths[1:], 2):
        before = "argument 1" if number == 2 else f"arguments 1-{number - 1}"
        for op, word in (("<", "shorter"), (">", "longer")):
            test = runtime.compare(0, length, (op, lambda: lengths[0]))
            if is_staged(test):
                runtime.raise_if(
                    test, lambda n=number, w=word, b=before: ValueError(f"zip() argument {n} is {w} than {b}")
                )
            elif test:
                raise domain.session.raising(ValueError(f"zip() argument {number} is {word} than {before}"))
    return runtime.call(0, zip, args, {})


def _is_scripting(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    return False


def _annotate(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    return args[1]


class _Limits:
    """`torch.finfo(x.dtype)` of an element type that a run knows."""

    def __init__(self, domain: Open, dtype: object, kind: object) -> None:
        self._session, self._dtype, self._kind = domain, dtype, kind

    def __getattr__(self, name: str) -> object:
        found = self._session.emit("py.call", f"dtype.{name}", self._dtype)
        return self._session.emit("py.float" if self._kind is torch.finfo else "py.int", found)


def _limits(kind: object) -> Handler:
    def make(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        given = args[0] if args else kwargs.get("type")
        return _Limits(domain, given, kind) if is_staged(given) else NotImplemented

    return make


def _pow(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 3 and any(map(is_staged, args)):
        return domain.emit("py.call", "builtins.pow", *args)
    return NotImplemented


def _has_torch_function(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    return False


def _size(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
    """`torch.Size(sizes)`, of sizes that only a run knows."""
    if len(args) == 1 and isinstance(args[0], ShapeObject) and type(args[0]) is not PlainShape:
        return args[0]
    if len(args) == 1 and isinstance(args[0], StagedObject) and slot_of(args[0]).type == ListType(INT):
        return ShapeObject(slot_of(args[0]))
    return NotImplemented


def own_text(value: object, name: str) -> FunctionType | None:
    """The same for errors, too, whose texts hold what their arguments do."""
    if isinstance(value, BaseException) and any(map(holds_staged, value.args)):
        written = getattr(type(value), f"__{name}__")
        if written in _TEXTS_OF_ERRORS:
            return _TEXTS_OF_ERRORS[written]
    return staged_own_text(value, name)


# What writes the text of an exception, as functions that are converted.
_TEXTS_OF_ERRORS: dict[object, Any] = {
    BaseException.__str__: in_python.error_text,
    BaseException.__repr__: in_python.error_repr,
    KeyError.__str__: in_python.key_error_text,
}


def text_of(domain: Open, value: object) -> object:
    """`str(value)`, where what makes the text may be the program's own."""
    own = own_text(value, "str")
    return str(value) if own is None else run_converted(domain, own, (value,), {})


def shape_text(domain: Open, value: object) -> object:
    """The text of sizes of an unknown rank, made of texts alone; None for anything else."""
    if not isinstance(value, ShapeObject) or isinstance(value, PlainShape):
        return None
    return domain.emit("py.join", "torch.Size(", domain.emit("py.str", value), ")")


def _str_of(kind: Callable[[object], str]) -> Handler:
    def make(domain: Open, runtime: OpenRuntime, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and isinstance(args[0], ShapeObject):
            text = shape_text(domain, args[0])
            return domain.emit("py.str", domain.as_in_program(args[0])) if text is None else text
        own = own_text(args[0], kind.__name__) if len(args) == 1 and not kwargs else None
        return NotImplemented if own is None else run_converted(domain, own, args, {})

    return make


HANDLERS: dict[object, Handler] = {
    sorted: _sorted, min: _best(min), max: _best(max), any: _over(in_python.any_of), all: _over(in_python.all_of),
    dict: _dict_of, dict.fromkeys: _dict_from_keys, set: _set, frozenset: _set,
    sum: _sum, reversed: _reversed, functools.reduce: _reduce, zip: _zip,
    itertools.accumulate: _accumulate, itertools.chain: _chain, itertools.product: _product,
    len: _len, getattr: _getattr, setattr: _setattr, hasattr: _hasattr, isinstance: _isinstance, map: _map,
    filter: _filter, range: _range, list: _tuple_or_list(list), tuple: _tuple_or_list(tuple),
    torch.Size: _size, str: _str_of(str), repr: _str_of(repr),
    pow: _pow, torch.finfo: _limits(torch.finfo), torch.iinfo: _limits(torch.iinfo),
    **checks.HANDLERS, **conversions.HANDLERS,
    torch.jit.is_scripting: _is_scripting,
    torch.jit.is_tracing: _is_scripting, torch.jit.annotate: _annotate,
    torch.overrides.has_torch_function: _has_torch_function,
    torch.overrides.has_torch_function_unary: _has_torch_function,
    torch.overrides.has_torch_function_variadic: _has_torch_function,
}  # fmt: skip
"""What answers for builtins, and for what of torch's asks about values."""

AS_PYTHON = (_is_of_kinds, list_of, text_of)
"""What else does for the program what Python does: what is raised there is the program's."""
