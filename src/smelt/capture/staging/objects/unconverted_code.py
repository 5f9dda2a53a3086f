"""Keeps staged numbers out of code that is not converted: there `type(n) is int` and `flag is True` would be False.

A function that is given a staged number, or gets one back (also in a container, an attribute, a closure), is converted;
where it cannot be, the run ends. Frames tell it, so that no way into such code is left out: methods, properties,
operators, callbacks of C functions, defaults. Functions of C get staged numbers only where they are known to ask them
nothing but what a staged number answers.

Sizes that are symbols, and tensors without data, go everywhere; but a function that asks for the class of things is
converted from the start, and one that cannot be ends the run when it holds any of these.

Invariant: where a run ends with a graph, no code but the listed has held a staged number without being converted, and
none has been told the class of a stand-in.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch

from smelt.capture.reads.reads_values import home_of, owner_kind
from smelt.capture.recording.spans import is_smelts, is_users
from smelt.capture.staging.fakes.symbols import is_staged
from smelt.capture.staging.flow.assumptions import converted
from smelt.capture.staging.flow.iterables import StagedSequence
from smelt.capture.staging.flow.stops import Again, CannotStage
from smelt.capture.staging.objects.classes import asks_classes, asks_types, is_other_object, is_stand_in
from smelt.diag.events import watched

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

P = ParamSpec("P")
R = TypeVar("R")
_INNER, _CONVERTED, _FOREIGN = range(3)
_DEPTH, _MOST_ITEMS = 3, 256
_TORCH = os.path.dirname(torch.__file__) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
# These hand numbers on to operators, compare them, or ask `isinstance`, which is answered as for plain ones.
_SAFE_TORCH = (
    "__init__.py", "functional.py", "_tensor.py", "_ops.py", "_jit_internal.py", "overrides.py", "_VF.py",
    "_compile.py", "nn/functional.py", "nn/init.py", "nn/modules/", "nn/parameter.py", "autograd/grad_mode.py",
    "utils/_contextlib.py", "utils/_stats.py", "utils/_python_dispatch.py", "_dynamo/eval_frame.py",
    "_prims_common/", "_refs/", "_decomp/", "_subclasses/", "_library/", "_higher_order_ops/", "fx/experimental/",
    "amp/", "_opaque_base.py",
)  # fmt: skip
_SAFE_STDLIB = ("abc.py", "_collections_abc.py", "contextlib.py", "functools.py", "typing.py", "numbers.py",
                "_weakrefset.py", "enum.py", "collections/__init__.py", "dataclasses.py")  # fmt: skip
_SAFE_C = frozenset((
    "builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "collections",
    "_collections", "torch", "pybind11_builtins", "types",
))  # fmt: skip
_PLAIN = (str, bytes, int, float, complex, type(None), torch.Tensor, type, types.ModuleType, types.FunctionType)
_C_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)


def _is_staged(value: object) -> bool:
    return is_staged(value) or isinstance(value, StagedSequence)


def holds_staged(value: Any, depth: int = _DEPTH, is_one: Callable[[object], bool] = _is_staged) -> bool:
    """Whether a value is a staged one, or one that holds one a few steps away. is_one: what is looked for instead."""
    if is_one(value):
        return True
    kind = type(value)
    if kind in _PLAIN or depth <= 0 or isinstance(value, (torch.Tensor, type)):
        return False
    if isinstance(value, (tuple, list)):
        return any(holds_staged(item, depth - 1, is_one) for item in value[:_MOST_ITEMS])
    if isinstance(value, functools.partial):
        return holds_staged((value.func, value.args, value.keywords), depth, is_one)
    if kind is types.MethodType:
        return holds_staged(value.__self__, depth - 1, is_one)
    if kind is types.CellType:
        return _is_filled(value) and holds_staged(value.cell_contents, depth, is_one)
    if isinstance(value, dict):
        return any(holds_staged(item, depth - 1, is_one) for item in list(dict.values(value))[:_MOST_ITEMS])
    if is_smelts(_file_of(kind)):
        return False
    return any(holds_staged(item, depth - 2, is_one) for item in _attributes(value))


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _attributes(value: object) -> Iterator[object]:
    try:
        state = object.__getattribute__(value, "__dict__")
    except AttributeError:
        state = None
    if isinstance(state, dict):
        yield from list(dict.values(state))
    cls: type = type(value)
    for name in _slots(cls):
        try:
            yield object.__getattribute__(value, name)
        except AttributeError:
            continue


@functools.lru_cache(maxsize=1024)
def _slots(cls: Any) -> tuple[str, ...]:
    found: list[str] = []
    for base in cls.__mro__:
        names = base.__dict__.get("__slots__", ())
        found.extend((names,) if isinstance(names, str) else names)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


class Watch:
    """Looks at the frames of one staged run: once at each code, and at all from the first staged number on.

    convertible: whether a code object can still be converted. converted: the code objects that are.
    """

    def __init__(self, session: Session, convertible: Callable[[types.CodeType], bool], converted: Any) -> None:
        self.session, self.convertible, self.converted = session, convertible, converted
        self.is_on = False
        # By identity, since the hash of a code object goes through all of it; held, so that it stays.
        self._kinds: dict[int, tuple[int, types.CodeType]] = {}
        self._met: dict[int, types.CodeType] = {}
        self._calm: set[int] = set()  # those met that are not foreign, and what calls them
        self._asking: dict[int, Callable[[object], bool]] = {}  # by code, what it would see otherwise than eager does

    @contextmanager
    def ready(self, looks_for_classes: bool) -> Iterator[None]:
        """The block may call `start`; who else traced the thread goes on afterwards. looks_for_classes: functions that
        ask for classes may come up that are not converted.
        """
        before = sys.gettrace()
        try:
            if looks_for_classes:
                sys.settrace(self._meet)  # under which all of Python is slower
            yield
        finally:
            self.is_on = False
            sys.settrace(before)

    def start(self) -> None:
        """Look at all frames from now on, those that run already included."""
        self.is_on = True
        frame: Any = sys._getframe(1)
        while frame is not None and frame is not self.session.base_frame:
            if self._kind(frame.f_back) == _FOREIGN:
                frame.f_trace, frame.f_trace_lines = self._leave, False
            frame = frame.f_back
        sys.settrace(self._enter)

    def _meet(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A function that asks for classes is converted, or watched at each line. Raises: Again, CannotStage."""
        code = frame.f_code
        if id(code) not in self._met:
            self._met[id(code)] = code
            if is_users(code.co_filename) and self._kind(frame) == _FOREIGN and asks_classes(frame):
                if self.convertible(code):
                    raise Again(converted(code))
                self._asking[id(code)] = is_stand_in if asks_types(frame) else is_other_object
        return self._step(frame, event, arg) if id(code) in self._asking else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        held = list(frame.f_locals.values())
        if any(holds_staged(value, is_one=self._asking[id(frame.f_code)]) for value in held):
            raise CannotStage(
                f"{frame.f_code.co_qualname} reads the classes of its arguments",
                "it is not converted, and would see the proxies of sizes and tensors",
                self.session.site(),
            )
        return self._step

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        # Called for each function that runs: what is known of most is looked up here.
        number, back = id(frame.f_code), frame.f_back
        assert back is not None, "what is watched was called"
        if number in self._calm and not self._asking and id(back.f_code) in self._calm:
            return None
        kinds = self._kinds
        known = kinds.get(number)
        kind = self._kind(frame) if known is None else known[0]
        if kind != _FOREIGN and number in self._met and not self._asking:
            above = kinds.get(id(back.f_code))
            if above is not None and above[0] != _FOREIGN:
                self._calm.update((number, id(back.f_code)))
                return None
        if kind == _FOREIGN and any(map(holds_staged, list(frame.f_locals.values()))):
            self._refuse(frame)
        if number not in self._met or self._asking:
            found = self._meet(frame, event, arg)
            if found is not None:
                return found
        if self._kind(back) != _FOREIGN:
            return None
        frame.f_trace_lines = False
        return self._leave

    def _leave(self, frame: FrameType, event: str, arg: Any) -> object:
        back = frame.f_back
        assert back is not None, "what is watched was called"
        if event == "return" and self._kind(back) == _FOREIGN:
            code, held = frame.f_code, frame.f_locals
            given = [held.get(name) for name in code.co_varnames[: code.co_argcount]]
            is_ours = self._kind(frame) == _CONVERTED
            if holds_staged(arg) or (is_ours and any(map(holds_staged, given))):
                self._refuse(back)
        return self._leave

    def _kind(self, frame: FrameType) -> int:
        if frame is None:
            return _INNER
        code = frame.f_code
        found = self._kinds.get(id(code))
        if found is None:
            found = self._kinds[id(code)] = self._kind_of(code, frame), code
        return found[0]

    def _kind_of(self, code: types.CodeType, frame: FrameType) -> int:
        if code in self.converted:
            return _CONVERTED
        file = code.co_filename
        if is_users(file):
            return _INNER if file == "<string>" and _is_generated(code, frame) else _FOREIGN
        if is_smelts(file) or file.startswith("<frozen"):
            return _INNER
        if file.startswith(_TORCH):
            return _INNER if file[len(_TORCH) :].startswith(_SAFE_TORCH) else _FOREIGN
        return _INNER if file.startswith(_STDLIB) and file[len(_STDLIB) :] in _SAFE_STDLIB else _FOREIGN

    def _refuse(self, frame: FrameType) -> NoReturn:
        """Have a function converted that meets a staged number. Raises: Again, CannotStage."""
        code = frame.f_code
        if self.convertible(code):
            raise Again(converted(code))
        raise CannotStage(
            f"{code.co_qualname} receives a number that depends on data",
            "it is not converted, and might take it for something else than a number",
            self.session.site(),
        )


def _is_generated(code: types.CodeType, frame: FrameType) -> bool:
    """Whether a function was made by `dataclasses` or `namedtuple`: these keep and compare what they are given."""
    if "_tuple_new" in code.co_names and code.co_name == "<lambda>":
        return True
    if code.co_name not in ("__init__", "__eq__") or not code.co_varnames:
        return False
    owner = type(frame.f_locals.get(code.co_varnames[0]))
    return any(
        "__dataclass_params__" in vars(base) and getattr(vars(base).get(code.co_name), "__code__", None) is code
        for base in owner.__mro__
    )


def check_c(session: Session, fn: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a function of C that might look at what a staged number is made of. Raises: CannotStage."""
    if not (isinstance(fn, _C_TYPES) or (isinstance(fn, type) and not _is_pythons(fn))):
        return
    if not any(map(holds_staged, (*args, *kwargs.values()))):
        return
    asks_identity = any(asked is type or asked is id for asked in (fn, *args))
    if _home(fn).partition(".")[0] not in _SAFE_C or asks_identity:
        session.cannot(f"{getattr(fn, '__qualname__', fn)} receives a number that depends on data",
                       "it is written in C, and might take it for something else than a number")  # fmt: skip


def _is_pythons(cls: type) -> bool:
    """Whether a class was made by a class statement."""
    is_heap = bool(cls.__flags__ & 1 << 9)
    home = home_of(cls)
    if home in ("", "builtins"):  # of a namespace without a name
        return owner_kind(cls) == "user"
    return is_heap and (home == "__main__" or _file_of(cls).endswith((".py", ".pyc")))


def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(home_of(cls)), "__file__", None) or ""


def _home(fn: object) -> str:
    """The module that a function of C belongs to."""
    owner = getattr(fn, "__objclass__", None)
    if owner is None:
        module = getattr(fn, "__module__", None)
        if isinstance(module, str):
            return module
        owner = type(getattr(fn, "__self__", None))
    # A class of Python's is at home where the class of C is that it is made of.
    return next((home_of(base) for base in owner.__mro__ if not _is_pythons(base)), "")


def unwatched(function: Callable[P, R]) -> Callable[P, R]:
    """A function of ours that calls nothing of the program's, and much of its own: no frame of it is looked at.

    That goes for who profiles the thread, too: what the program reads is found by its calls.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        trace, profile = sys.gettrace(), sys.getprofile()
        if trace is not None and getattr(trace, "__func__", None) not in (Watch._enter, Watch._meet):
            trace = None
        if not isinstance(profile, (types.FunctionType, types.MethodType)):
            profile = None
        if trace is None and profile is None:
            return function(*args, **kwargs)
        if trace is not None:
            sys.settrace(None)
        if profile is not None:
            sys.setprofile(None)
        try:
            return function(*args, **kwargs)
        finally:
            if trace is not None and sys.gettrace() is None:  # else the first staged number was made: it is watched
                sys.settrace(trace)
            if profile is not None:
                watched.put_back(profile)

    return quiet
