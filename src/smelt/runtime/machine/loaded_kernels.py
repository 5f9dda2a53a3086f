"""Own kernels in memory: each loaded once per process, for as long as a plan needs it.

Invariant: a kernel that cannot be loaded here is no failure of the plan: its launch runs `eager` in Python, and one
warning says so.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from functools import lru_cache

from smelt._torch.library import shim
from smelt.diag import SmeltError, SmeltWarning, user_level
from smelt.runtime.machine.elf import external_names, parse_object
from smelt.runtime.machine.loader import LoadedCode, host_machine, load_parsed
from smelt.runtime.machine.threads import c_function
from smelt.runtime.plan import KernelCode

# What LLVM itself makes of loops and of operations that the CPU does not have; everything else must be Sleef's.
_LIBC = frozenset({"memcpy", "memmove", "memset", "memcmp"})
_LIBM = frozenset(
    name + kind
    for name in ("fmod", "pow", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "fma", "ldexp", "tanh", "erf")
    for kind in ("", "f")
)
_SLEEF = "Sleef_"


class Kernels:
    """Loaded kernels by symbol and object; `loaded` keeps a kernel's code for as long as its caller does."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[KernelKey, LoadedCode] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._refused: set[str] = set()

    def loaded(self, kernel: KernelCode) -> LoadedCode | None:
        """The kernel's code in memory, or None where it was not built or cannot be loaded."""
        if not kernel.object or host_machine() is None:
            return None
        key = (kernel.symbol, kernel.object)
        with self._lock:
            found = self._known.get(key)
            if found is None and kernel.symbol not in self._refused:
                try:
                    found = _load(kernel)
                except (SmeltError, OSError) as error:
                    self._refused.add(kernel.symbol)
                    text = f"the kernel {kernel.symbol} cannot be loaded, eager computes instead: {error}"
                    warnings.warn(text, SmeltWarning, stacklevel=user_level())
                else:
                    self._known[key] = found
            return found


KernelKey = tuple[str, bytes]


@lru_cache(maxsize=1)
def kernels() -> Kernels:
    """The process's loaded kernels."""
    return Kernels()


def _load(kernel: KernelCode) -> LoadedCode:
    parsed = parse_object(kernel.object)
    externals = {name: _outside(name) or 0 for name in external_names(parsed)}
    code = load_parsed(parsed, externals)
    code.address(kernel.symbol)
    return code


def _outside(name: str) -> int | None:
    if name.startswith(_SLEEF):
        return shim.address(name)
    if name in _LIBC or name in _LIBM:
        return c_function(name)
    return None
