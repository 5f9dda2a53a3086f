"""Watching attribute access on chosen classes, for the time of one run.

Invariant: after `undo` every class is as it was; while on, instances behave as before, for every thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_values import HOOKED, REGISTRIES, raw_lookup

OnRead = Callable[[Any, str, Any, tuple[Any, str]], None]  # (object, name, value or MISSING, key for `seen`)
OnWrite = Callable[[Any, str], None]
Elsewhere = Callable[[Any, str], Any]  # (object, name): what an object has under a name that is no attribute of it
_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")
_GETATTR = torch.nn.Module.__dict__["__getattr__"]


class ClassPatches:
    """The classes watched now.

    `seen` is the live set of keys already noted. Almost every access is no news, and a builtin call costs two events of
    the profile hook that runs beside: so the test for news is made here, without one. The receivers are called from any
    thread, and decide themselves what concerns them.
    """

    def __init__(
        self,
        seen: set[tuple[object, str]],
        on_read: OnRead,
        on_write: OnWrite,
    ) -> None:
        self._seen, self._on_read, self._on_write = seen, on_read, on_write
        self._saved: dict[type, dict[str, object]] = {}

    def watch(self, cls: type, ignore: frozenset[str] = frozenset()) -> bool:
        """Watch instances of exactly this class, but not their names in `ignore`.

        False if the class cannot be changed (it is built in).
        """
        if cls in self._saved:
            return True
        by_object = (raw_lookup(cls, "__hash__"), raw_lookup(cls, "__eq__")) == (object.__hash__, object.__eq__)
        original = _original(cls, "__getattribute__")
        in_registries = original is object.__getattribute__ and raw_lookup(cls, "__getattr__") is _GETATTR
        hooks = (
            self._getattribute_hook(
                cls if by_object else None, original, ignore, _registered if in_registries else _nothing
            ),
            self._setattr_hook(_original(cls, "__setattr__")),
            self._delattr_hook(_original(cls, "__delattr__")),
        )
        self._saved[cls] = {name: cls.__dict__.get(name, MISSING) for name in _HOOKED}
        try:
            for name, hook in zip(_HOOKED, hooks, strict=True):
                type.__setattr__(cls, name, hook)
        except TypeError:
            del self._saved[cls]
            return False
        return True

    def undo(self) -> None:
        """Give every class back what it had."""
        while self._saved:
            cls, saved = self._saved.popitem()
            for name, value in saved.items():
                if value is MISSING:
                    type.__delattr__(cls, name)
                else:
                    type.__setattr__(cls, name, value)

    def _getattribute_hook(
        self, cls: type | None, original: Any, ignore: frozenset[str], elsewhere: Elsewhere
    ) -> object:
        """cls: the class whose instances are in `seen` by themselves, since they are hashed by identity. Those of a
        class that inherits the hook may not be: their own code would run, and equal ones would be taken for one.
        """
        seen, on_read = self._seen, self._on_read

        def read(self: Any, name: str) -> Any:
            value = MISSING
            try:
                value = original(self, name)
            except AttributeError:
                value = elsewhere(self, name)
                if value is MISSING:
                    raise
            finally:
                if name not in ignore:
                    key = (self if type(self) is cls else id(self), name)
                    if key not in seen:
                        on_read(self, name, value, key)
            return value

        def read_by_id(self: Any, name: str) -> object:
            value = MISSING
            try:
                value = original(self, name)
            except AttributeError:
                value = elsewhere(self, name)
                if value is MISSING:
                    raise
            finally:
                if name not in ignore and (id(self), name) not in seen:
                    on_read(self, name, value, (id(self), name))
            return value

        return _hook(read_by_id if cls is None else read, original)

    def _setattr_hook(self, original: Any) -> object:
        on_write = self._on_write

        def write(self: Any, name: str, value: Any) -> None:
            on_write(self, name)
            original(self, name, value)

        return _hook(write, original)

    def _delattr_hook(self, original: Any) -> object:
        on_write = self._on_write

        def delete(self: Any, name: str) -> None:
            on_write(self, name)
            original(self, name)

        return _hook(delete, original)


def _nothing(owner: object, name: str) -> object:
    return MISSING


def _registered(module: torch.nn.Module, name: str) -> object:
    """What torch's own `__getattr__` of a module gives, MISSING where it raises, or is replaced as torch.fx does.

    It asks for the module's `__dict__` up to six times, and each of these would be an attribute access that is watched.
    """
    if torch.nn.Module.__dict__["__getattr__"] is not _GETATTR:
        return MISSING
    own = object.__getattribute__(module, "__dict__")
    for registry in REGISTRIES:
        if registry in own:
            entries = own[registry]
            if name in entries:
                return entries[name]
    return MISSING


def _original(cls: type, name: str) -> object:
    """The method that the class has under this name, seen through a hook on a base."""
    found = raw_lookup(cls, name)
    return getattr(found, HOOKED, found) if callable(found) else getattr(cls, name)


def _hook(hook: object, original: object) -> object:
    setattr(hook, HOOKED, original)
    return hook
