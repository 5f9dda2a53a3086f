"""What a signal's handler raised while native code looked for signals in a loop.

Invariant: the references that native code took from the interpreter are given up here, once.
"""

from __future__ import annotations

import ctypes

from smelt.runtime.encoding.table import Cell

_restore = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyErr_Restore", ctypes.pythonapi)
)


def fetched_error(cells: memoryview) -> BaseException:
    """The exception whose type, value and traceback stand in a frame's cells."""
    found = [cells[Cell.ERROR + i] or None for i in range(3)]
    for i in range(3):
        cells[Cell.ERROR + i] = 0
    try:
        _restore(*found)
        return KeyboardInterrupt()
    except BaseException as error:
        return error
