"""Interception of every operator that a thread calls: at the dispatcher's entry where torch lets us, else lower.

Three levels, from best to always there; each hands `(overload, args, kwargs)` to one recorder function, which runs the
operator and returns its result, and during which nothing is intercepted:

"entry"           the `PreDispatch` key with an own handler in each overload's dispatch cache: whole operators with the
                  dispatcher's normalised arguments, autograd and autocast untouched below it.
"below_autograd"  a dispatch mode while the autograd keys are excluded, so that composite operators arrive whole;
                  autograd is let back in around the operator's own run.
"dispatch_mode"   a plain dispatch mode, which torch documents: composite operators arrive decomposed; the same numbers.

Invariant: only the calling thread is recorded; other threads pass by at full speed. All patches are undone when the
last recording ends, however it ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt._torch.seen.busy import busy

Level = Literal["entry", "below_autograd", "dispatch_mode"]
Record = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Takes the overload, its arguments and keyword arguments; runs it and returns its result."""


def _find(owner: Any, path: str) -> Any:
    """The named attribute, or None where this torch has none."""
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner


_Overload = _find(torch, "_ops.OpOverload")
_PRE_DISPATCH = _find(torch._C, "DispatchKey.PreDispatch")
_PYTHON_DISPATCHER = _find(torch._C, "DispatchKey.PythonDispatcher")
_set_included = _find(torch._C, "_dispatch_tls_set_dispatch_key_included")
_set_excluded = _find(torch._C, "_dispatch_tls_set_dispatch_key_excluded")
_is_included = _find(torch._C, "_dispatch_tls_is_dispatch_key_included")
_is_excluded = _find(torch._C, "_dispatch_tls_is_dispatch_key_excluded")
_EnablePythonDispatcher = _find(torch._C, "_EnablePythonDispatcher")
_BelowAutograd = _find(torch._C, "_AutoDispatchBelowAutograd")
_functorch_stack = _find(torch._C, "_functorch.peek_interpreter_stack")
_AUTOGRAD_KEYS = tuple(
    key
    for name in (
        "AutogradCPU",
        "AutogradCUDA",
        "AutogradOther",
        "AutogradNestedTensor",
        "AutogradFunctionality",
        "ADInplaceOrView",
    )
    if (key := _find(torch._C, f"DispatchKey.{name}")) is not None
)

_HAS_ENTRY = all(
    found is not None
    for found in (
        _find(_Overload, "_get_dispatch"),
        _PRE_DISPATCH,
        _PYTHON_DISPATCHER,
        _set_included,
        _is_included,
        _EnablePythonDispatcher,
    )
) and hasattr(torch.ops.aten.add.Tensor, "_dispatch_cache")
_HAS_BELOW_AUTOGRAD = _BelowAutograd is not None and _set_excluded is not None and len(_AUTOGRAD_KEYS) > 0


def levels() -> tuple[Level, ...]:
    """The levels that this torch offers, best first."""
    found: list[Level] = []
    if _HAS_ENTRY:
        found.append("entry")
    if _HAS_BELOW_AUTOGRAD:
        found.append("below_autograd")
    return (*found, "dispatch_mode")


class _Thread(threading.local):
    record: Record | None = None
    is_live: bool = False
    at_entry: bool = False
    is_paused: bool = False
    suspend: Callable[[], contextlib.AbstractContextManager[None]] | None = None


_thread = _Thread()


def is_recording() -> bool:
    """Whether the calling thread is being recorded, also while the recording is suspended."""
    return _thread.record is not None


def is_live() -> bool:
    """Whether an operator called now would be recorded: not inside an operator's own run, not suspended."""
    return _thread.is_live and (not _thread.at_entry or bool(_is_included(_PYTHON_DISPATCHER)))


@contextlib.contextmanager
def recording(record: Record, level: Level | None = None) -> Iterator[Level]:
    """Hand every operator that this thread calls to `record`; the level in use is what the block gets.

    Raises: RuntimeError where the thread is recorded already, ValueError for a level that this torch lacks.
    """
    if is_recording():
        raise RuntimeError("this thread is being recorded already")
    chosen = levels()[0] if level is None else level
    if chosen not in levels():
        raise ValueError(f"this torch has no recording level {chosen!r}")
    context = {"entry": _at_entry, "below_autograd": _below_autograd, "dispatch_mode": _in_dispatch_mode}[chosen]
    _thread.record = record
    try:
        with busy(), context(record):
            _thread.is_live, _thread.at_entry = True, chosen == "entry"
            yield chosen
    finally:
        _thread.record = None
        _thread.suspend = None
        _thread.is_live = _thread.at_entry = False


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Let this thread's operators run unseen for a while; does nothing where none would be recorded now."""
    if not is_live() or _thread.suspend is None:
        yield
        return
    _thread.is_live = False
    try:
        with _thread.suspend():
            yield
    finally:
        _thread.is_live = True


class unseen:
    """Let operators run unseen at the entry level, also inside an operator's own run, where torch's Python code for
    tensors without data would switch the interception on again.

    Entered for each operator, where a generator would take longer.
    """

    __slots__ = ("_had_dispatcher", "_had_key", "_was_live")

    def __enter__(self) -> None:
        self._was_live, _thread.is_live = _thread.is_live, False
        self._had_dispatcher, self._had_key = _is_included(_PYTHON_DISPATCHER), _is_included(_PRE_DISPATCH)
        _set_included(_PYTHON_DISPATCHER, False)
        _set_included(_PRE_DISPATCH, False)

    def __exit__(self, *error: object) -> None:
        _set_included(_PRE_DISPATCH, self._had_key)
        _set_included(_PYTHON_DISPATCHER, self._had_dispatcher)
        _thread.is_live = self._was_live


def is_transformed() -> bool:
    """Whether one of torch.func's transforms is running here."""
    return _functorch_stack is not None and _functorch_stack() is not None


@contextlib.contextmanager
def below_transforms() -> Iterator[None]:
    """See the plain operators below torch.func's transforms, as for any operator, while torch's own Python code runs
    that takes an operator apart.
    """
    record = _thread.record
    if record is None or not _thread.at_entry or not is_live() or _thread.suspend is None:
        yield
        return
    with _thread.suspend(), _Intercepting(record):
        yield


# --- at the dispatcher's entry ---------------------------------------------------------------------------------------


class _EntryPatch:
    """`OpOverload._get_dispatch` replaced while any thread records, and the handlers put into dispatch caches."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.users = 0
        self.original: Any = None
        self.handlers: dict[Any, Any] = {}
        self.installed: list[Any] = []

    def acquire(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.original = _Overload._get_dispatch
                _Overload._get_dispatch = self._replacement()

    def release(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                _Overload._get_dispatch = self.original
                # Left in the caches, the handlers would answer for torch.export's own use of the key.
                for overload in self.installed:
                    overload._dispatch_cache.pop(_PRE_DISPATCH, None)
                self.installed.clear()

    def _replacement(self) -> Any:
        original = self.original

        def get_dispatch(overload: Any, key: Any) -> Any:
            if key != _PRE_DISPATCH:
                return original(overload, key)
            with self.lock:
                handler = self.handlers.get(overload)
                if handler is None:
                    handler = self.handlers[overload] = _entry_handler(overload)
                overload._dispatch_cache[key] = handler
                self.installed.append(overload)
            return handler

        return get_dispatch

    def torchs_own(self, overload: Any) -> Any:
        """What torch itself runs at the key, for a thread that is not recorded; it caches nothing of that."""
        with self.lock:
            # It asserts that nothing is cached; whoever records asks, and gets the handler back.
            overload._dispatch_cache.pop(_PRE_DISPATCH, None)
            return (self.original or _Overload._get_dispatch)(overload, _PRE_DISPATCH)


_entry = _EntryPatch()


def _entry_handler(overload: Any) -> Any:
    def intercept(*args: Any, **kwargs: Any) -> Any:
        record = _thread.record
        if record is None or not _thread.is_live:
            # Someone else (torch.export, while nobody looks) uses the key: what torch itself would have done.
            target = _entry.torchs_own(overload)
            return target(*args, **kwargs) if callable(target) else overload._op_dk(target, *args, **kwargs)
        # Off for the run, or Python decompositions would replace kernels; half the price of _DisablePythonDispatcher.
        _set_included(_PYTHON_DISPATCHER, False)
        try:
            if is_transformed():
                # Its wrapped tensors mean nothing outside the transform: see the plain operators below it instead.
                with _Intercepting(record):
                    return overload(*args, **kwargs)
            return record(overload, args, kwargs)
        finally:
            _set_included(_PYTHON_DISPATCHER, True)

    return intercept


@contextlib.contextmanager
def _at_entry(record: Record) -> Iterator[None]:
    @contextlib.contextmanager
    def suspend() -> Iterator[None]:
        _set_included(_PYTHON_DISPATCHER, False)
        _set_included(_PRE_DISPATCH, had_key)
        try:
            yield
        finally:
            _set_included(_PRE_DISPATCH, True)
            _set_included(_PYTHON_DISPATCHER, True)

    del record
    had_key = _is_included(_PRE_DISPATCH)
    _entry.acquire()
    try:
        with _EnablePythonDispatcher():
            _set_included(_PRE_DISPATCH, True)
            _thread.suspend = suspend
            try:
                yield
            finally:
                _set_included(_PRE_DISPATCH, had_key)
    finally:
        _entry.release()


# --- with dispatch modes ---------------------------------------------------------------------------------------------


class _Intercepting(TorchDispatchMode):
    """A dispatch mode that hands each operator to the recorder."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _thread.is_paused:
            return func(*args, **(kwargs or {}))
        was_live, _thread.is_live = _thread.is_live, False
        try:
            return self.record(func, args, kwargs or {})
        finally:
            _thread.is_live = was_live


@contextlib.contextmanager
def _in_dispatch_mode(record: Record) -> Iterator[None]:
    with _Intercepting(record):
        _thread.suspend = _paused
        yield


@contextlib.contextmanager
def _paused() -> Iterator[None]:
    _thread.is_paused = True
    try:
        yield
    finally:
        _thread.is_paused = False


@contextlib.contextmanager
def _below_autograd(record: Record) -> Iterator[None]:
    before = tuple(_is_excluded(key) for key in _AUTOGRAD_KEYS)

    def exclude(on: bool) -> None:
        for key, was in zip(_AUTOGRAD_KEYS, before, strict=True):
            _set_excluded(key, on or was)

    def run(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        exclude(False)
        try:
            return record(overload, args, kwargs)
        finally:
            exclude(True)

    @contextlib.contextmanager
    def suspend() -> Iterator[None]:
        exclude(False)
        try:
            with _paused():
                yield
        finally:
            exclude(True)

    _thread.suspend = suspend
    with _BelowAutograd(), _Intercepting(run):
        # In-place and view tracking too: it would wrap the views that the run below already tracked.
        exclude(True)
        try:
            yield
        finally:
            for key, was in zip(_AUTOGRAD_KEYS, before, strict=True):
                _set_excluded(key, was)
