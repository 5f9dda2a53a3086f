"""The native profile hook of recordings, loaded once per process and proved by a run before it is trusted.

    profiler = load_profiler(machine_code)      None where something is not where it is thought to be
    resume = profiler.start(hook)               from now on each code object and builtin is shown to `hook` until it
    resume()                                    answers True; installs the hook again after `sys.setprofile(None)`

Invariant: one recording at a time uses it. What the table names is alive until the next `start`: the hook keeps the
code objects that it answers True for, and a builtin's method definition is as old as the builtin's module.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from enum import IntEnum
from types import FrameType
from typing import Any

from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.runtime.machine.loader import LoadedCode, host_machine, load_object
from smelt.runtime.machine.native import MethodDef

HOOK_SYMBOL, RESUME_SYMBOL, BLOCK_SYMBOL = "smelt_profile", "smelt_resume", "smelt_profiled"
EXTERNALS = {
    "PyEval_SetProfile": "void (ptr, ptr)",
    "PyFrame_GetCode": "ptr (ptr)",
    "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)",
    "Py_DecRef": "void (ptr)",
    "Py_IncRef": "void (ptr)",
}
CAPACITY = 1 << 13  # of the table, in words; half of them are used at most
# Offsets in a builtin function, checked before use: its type, its method definition.
TYPE_AT, DEFINITION_AT = 8, 16
_METH_NOARGS = 4

Hook = Callable[[FrameType, str, Any], bool]


class Word(IntEnum):
    """Words of the block that native code and Python share."""

    FUNCTION_TYPE = 0
    CALL_NAME = 1
    BUILTIN_NAME = 2
    NONE = 3
    TRUE = 4
    COUNT = 5
    TABLE = 6  # open addressing, linear probing; 0 is free


@record
class Profiler:
    """The loaded hook. `code` keeps the memory mapped, `names` the texts of the events."""

    code: LoadedCode
    block: ctypes.Array[ctypes.c_int64]
    method: MethodDef
    names: tuple[str, str]

    def start(self, hook: Hook) -> Callable[[], None]:
        """Forget what other recordings have seen, and install the hook for this thread; what installs it again."""
        table = ctypes.addressof(self.block) + 8 * Word.COUNT
        ctypes.memset(table, 0, ctypes.sizeof(self.block) - 8 * Word.COUNT)
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        resume: Callable[[], None] = make(("PyCFunction_NewEx", ctypes.pythonapi))(
            ctypes.addressof(self.method), hook, None
        )
        resume()
        return resume


def load_profiler(machine_code: bytes) -> Profiler | None:
    """The hook, or None where this machine or this Python cannot run it."""
    if host_machine() is None or not _layout_is_known():
        return None
    names = ("call", "c_call")
    block = (ctypes.c_int64 * (Word.TABLE + CAPACITY))(id(type(len)), *map(id, names), id(None), id(True))
    try:
        externals = {
            name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in EXTERNALS
        }
        loaded = load_object(machine_code, {**externals, BLOCK_SYMBOL: ctypes.addressof(block)})
        method = MethodDef(b"resume", loaded.address(RESUME_SYMBOL), _METH_NOARGS, None)
    except (SmeltError, OSError, AttributeError):
        return None
    made = Profiler(loaded, block, method, names)
    return made if _works(made) else None


def _layout_is_known() -> bool:
    """Whether a builtin's definition is where the emitted code reads it: it begins with the address of its name."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    some: tuple[Any, ...] = (len, [].append, sys.getprofile)
    for builtin in some:
        if ctypes.c_int64.from_address(id(builtin) + TYPE_AT).value != id(type(len)):
            return False
        definition = ctypes.c_int64.from_address(id(builtin) + DEFINITION_AT).value
        name = builtin.__name__.encode() + b"\0"
        if ctypes.string_at(ctypes.c_int64.from_address(definition).value, len(name)) != name:
            return False
    return True


def _works(profiler: Profiler) -> bool:
    """Whether the hook sees what Python's own does, and is still after the answer True."""

    def once() -> None:
        len(())

    def again() -> None:
        pass

    seen: list[tuple[str, Any]] = []

    def hook(frame: FrameType, event: str, arg: Any) -> bool:
        seen.append((event, frame.f_code if event == "call" else arg))
        return not (event == "call" and frame.f_code is again.__code__)

    before: Any = sys.getprofile()
    try:
        resume = profiler.start(hook)
        for program in (once, again, once, again):
            program()
        is_shown = sys.getprofile() is hook
        sys.setprofile(None)
        again()
        resume()
        again()
    finally:
        sys.setprofile(None)
        if callable(before):
            sys.setprofile(before)
        elif hasattr(before, "enable"):  # cProfile installs itself below Python
            before.enable()
    wanted = [("call", once.__code__), ("c_call", len), ("call", again.__code__), ("call", again.__code__)]
    wanted += [("c_call", sys.getprofile), ("c_call", sys.setprofile), ("call", again.__code__)]
    return is_shown and seen == wanted
