"""Watching attribute access on chosen classes, for one thread, for the time of one run.

Invariant: after `undo` every class is as it was; while on, instances behave as before for every thread, and only the
watching thread's accesses are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from smelt.capture.reads_values import HOOKED, MISSING, raw_lookup

OnRead = Callable[[Any, str, Any], None]
OnMissing = Callable[[Any, str], None]
OnWrite = Callable[[Any, str], None]
_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")


class ClassPatches:
    """The classes watched now.

    `rooted` is the live table of ids of objects worth reporting, `seen` that of (id, name) pairs reported already: both
    are looked at here, before any call, because almost every access is of an object or name that is not news.
    """

    def __init__(
        self,
        rooted: dict[int, Any],
        seen: dict[tuple[int, str], Any],
        on_read: OnRead,
        on_missing: OnMissing,
        on_write: OnWrite,
    ) -> None:
        self._rooted, self._seen = rooted, seen
        self._on_read, self._on_missing, self._on_write = on_read, on_missing, on_write
        self._thread = get_ident()
        self._saved: dict[type, dict[str, Any]] = {}

    def watch(self, cls: type) -> bool:
        """Watch instances of exactly this class; False if the class cannot be changed (it is built in)."""
        if cls in self._saved:
            return True
        makers = (self._make_getattribute, self._make_setattr, self._make_delattr)
        saved = {name: cls.__dict__.get(name, MISSING) for name in _HOOKED}
        hooks = {name: make(self._original(cls, name)) for name, make in zip(_HOOKED, makers, strict=True)}
        self._saved[cls] = saved
        try:
            for name, hook in hooks.items():
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

    def _original(self, cls: type, name: str) -> Any:
        found = raw_lookup(cls, name)
        return getattr(found, HOOKED, found) if callable(found) else getattr(cls, name)

    @staticmethod
    def _hook(hook: Any, original: Any) -> Any:
        setattr(hook, HOOKED, original)
        return hook

    def _make_getattribute(self, original: Any) -> Any:
        thread, rooted, seen, on_read, on_missing = (
            self._thread, self._rooted, self._seen, self._on_read, self._on_missing,
        )  # fmt: skip

        def __getattribute__(self: Any, name: str) -> Any:
            try:
                value = original(self, name)
            except AttributeError:
                if (id(self), name) not in seen and id(self) in rooted and get_ident() == thread:
                    on_missing(self, name)
                raise
            if (id(self), name) not in seen and id(self) in rooted and get_ident() == thread:
                on_read(self, name, value)
            return value

        return self._hook(__getattribute__, original)

    def _make_setattr(self, original: Any) -> Any:
        thread, rooted, on_write = self._thread, self._rooted, self._on_write

        def __setattr__(self: Any, name: str, value: Any) -> None:
            if id(self) in rooted and get_ident() == thread:
                on_write(self, name)
            original(self, name, value)

        return self._hook(__setattr__, original)

    def _make_delattr(self, original: Any) -> Any:
        thread, rooted, on_write = self._thread, self._rooted, self._on_write

        def __delattr__(self: Any, name: str) -> None:
            if id(self) in rooted and get_ident() == thread:
                on_write(self, name)
            original(self, name)

        return self._hook(__delattr__, original)
