"""The path of the module whose forward is running, kept while a program is recorded.

Two places tell of it: `nn.Module.__call__`, through which nearly every call goes, and the `forward` of each class in
the program, for those who call it directly. Both are replaced for the time of a recording and look at the thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType

import torch

from smelt._torch.seen.record_patches import TRACKS, Method, Patches
from smelt.capture.recording.noting import CallNotes


class Scope:
    """The current path; `modules` maps a module's id to its path, modules made during the run have none.

    notes: who wants to know of calls.
    """

    def __init__(self, modules: Mapping[int, str], notes: CallNotes | None = None) -> None:
        self.modules = modules
        self.notes = notes
        self.path = ""
        self.module: torch.nn.Module | None = None


class _Thread(threading.local):
    scope: Scope | None = None


_thread = _Thread()
_patches = Patches()


def _tracked(original: Method) -> Method:
    @functools.wraps(original)
    def call(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        scope = _thread.scope
        if scope is None or scope.module is self:
            return original(self, *args, **kwargs)
        saved = scope.path, scope.module
        scope.path, scope.module = scope.modules.get(id(self), scope.path), self
        try:
            return original(self, *args, **kwargs)
        finally:
            scope.path, scope.module = saved

    call.__dict__[TRACKS] = original
    return call


def _tracked_forward(original: Method) -> Method:
    tracked = _tracked(original)

    @functools.wraps(original)
    def forward(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        scope = _thread.scope
        if scope is not None and scope.notes is not None:
            scope.notes.note(self, args, kwargs)
        if scope is None or scope.module is self:  # it comes through the module's call
            return original(self, *args, **kwargs)
        return tracked(self, *args, **kwargs)

    forward.__dict__[TRACKS] = original
    return forward


@contextlib.contextmanager
def tracking(scope: Scope, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Keep `scope` at the module whose forward this thread runs."""
    classes = {owner for module in modules if (owner := _defining_class(type(module))) is not None}
    with contextlib.ExitStack() as stack:
        # Where no module has a path there is none to follow, and each replacement goes through all classes of modules.
        if scope.modules:
            stack.enter_context(_patches.replaced(torch.nn.Module, "__call__", _tracked))
        for cls in classes:
            stack.enter_context(_patches.replaced(cls, "forward", _tracked_forward))
        _thread.scope = scope
        try:
            yield
        finally:
            _thread.scope = None


def _defining_class(cls: type) -> type | None:
    """The class that defines `forward` for a module class, None where it is no plain function."""
    if issubclass(cls, torch.jit.ScriptModule):
        return None
    for base in cls.__mro__:
        if "forward" in vars(base):
            return base if isinstance(vars(base)["forward"], FunctionType) and base is not torch.nn.Module else None
    return None
