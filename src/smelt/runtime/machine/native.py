"""The executor's machine code, loaded once per process and proved by a call before it is trusted."""

from __future__ import annotations

import ctypes
import struct
import warnings
from collections.abc import Callable
from functools import cache

from smelt.diag import SmeltError, SmeltWarning
from smelt.diag.records import record
from smelt.runtime.encoding.table import ENTER_SYMBOL, ENTRY_SYMBOL, GIVE_SYMBOL, HEADER_WORDS, Cell, Op, Status
from smelt.runtime.machine import drafts
from smelt.runtime.machine.loader import LoadedCode, host_machine
from smelt.runtime.machine.threads import never_freed

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
_GIVE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_METH_FASTCALL = 0x80
_WORDS = 20
_DOUBLES = (0.5, -0.0, float("inf"), 3e300)
_PROBE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * _WORDS, *[ctypes.c_double] * len(_DOUBLES))


@record
class NativeEntry:
    """`run(code, frame)` of the loaded executor, which releases the GIL; `give(context, frame)`, which holds it.

    `method` describes the builtin `smelt_enter` to Python. `code` keeps the memory mapped.
    """

    run: Callable[[int, int], int]
    give: Callable[[int, int], None]
    method: ctypes.Structure
    code: LoadedCode


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Never evicted: builtins point into the code and at the method's description for as long as they live.
@cache
def native_entry(machine_code: bytes) -> NativeEntry | None:
    """The executor, or None (with one warning) where this machine cannot load or run it."""
    if host_machine() is None:
        return None
    try:
        loaded = drafts.load(machine_code)
        never_freed(loaded)  # threads of the pool run it until the process ends
        give = _GIVE(loaded.address(GIVE_SYMBOL))
        method = MethodDef(b"run", loaded.address(ENTER_SYMBOL), _METH_FASTCALL, None)
        entry = NativeEntry(_PROTOTYPE(loaded.address(ENTRY_SYMBOL)), give, method, loaded)
    except (SmeltError, OSError) as error:
        warnings.warn(f"native execution is not possible, plans run in Python: {error}", SmeltWarning, stacklevel=3)
        return None
    if not _passes_arguments(entry):
        warnings.warn(
            "native execution is not possible, plans run in Python: arguments arrive garbled on this system",
            SmeltWarning,
            stacklevel=3,
        )
        return None
    return entry


def _passes_arguments(entry: NativeEntry) -> bool:
    """Call a probe through the table: 20 words and 4 doubles (registers and stack) must arrive, status must come
    back.
    """
    seen: list[tuple[float, ...]] = []

    def probe(*args: float) -> int:
        seen.append(args)
        return 0 if len(seen) == 1 else 7

    callback = _PROBE(probe)
    values = [(i + 1) * 0x0123456789ABC for i in range(_WORDS)]
    bits = [struct.unpack("<q", struct.pack("<d", d))[0] for d in _DOUBLES]
    base = int(Cell.FIRST)
    cells = [0] * base + [ctypes.cast(callback, ctypes.c_void_p).value or 0, *values, *bits]
    indices = [base, *range(base + 1, base + 1 + _WORDS), *[int(Cell.ZERO)] * (28 - _WORDS)]
    indices += range(base + 1 + _WORDS, base + 1 + _WORDS + len(bits))
    record = [int(Op.CALL_28D), 2 + len(indices), *indices]
    end = HEADER_WORDS + 2 * len(record)
    words = [HEADER_WORDS, end + 2, 0, end + 2, 0, *record, *record, int(Op.END), 2]
    code = (ctypes.c_int32 * len(words))(*words)
    frame = (ctypes.c_int64 * len(cells))(*cells)
    status = entry.run(ctypes.addressof(code), ctypes.addressof(frame))
    wanted = (*values, *_DOUBLES)
    second = HEADER_WORDS + len(record)
    return status == Status.LIBRARY and frame[Cell.FAILED_AT] == second and seen == [wanted, wanted]
