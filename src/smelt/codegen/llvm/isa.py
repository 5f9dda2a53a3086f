"""The instruction set that own kernels are made for: this machine's, unless the compilation is for another one.

Invariant: what is compiled inside `compiling_for` never runs in this process, so that it may be for any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from smelt.runtime.machine import isa as machine
from smelt.runtime.machine.cpu import data_cache_nbytes
from smelt.runtime.machine.isa import AVX2, AVX512, AVX512_BF16, BASELINE_X86, NEON, Isa, IsaName, best_isa

__all__ = [
    "AVX2",
    "AVX512",
    "AVX512_BF16",
    "BASELINE_X86",
    "NEON",
    "Isa",
    "IsaName",
    "best_isa",
    "compiling_for",
    "has_wide_multipliers",
    "host_isa",
    "is_for_elsewhere",
]

_LARGE_L1_NBYTES = 48 << 10
_target: ContextVar[Isa | None] = ContextVar("the target of what is compiled", default=None)


def host_isa() -> Isa | None:
    """The target of own kernels; None where there are none. Raises: SmeltError (S0301) if SMELT_ISA names none."""
    target = _target.get()
    return machine.host_isa() if target is None else target


def has_wide_multipliers(isa: Isa) -> bool:
    """Whether a core has two multipliers of 512 bits: those with a first-level cache of 48 KB have.

    They are bound by loads, broadcasts and memory where others are still bound by the products.
    """
    return isa.f32_lanes == 16 and data_cache_nbytes()[0] >= _LARGE_L1_NBYTES


def is_for_elsewhere() -> bool:
    """Whether what is compiled now is to be saved, and runs in another process."""
    return _target.get() is not None


@contextmanager
def compiling_for(target: Isa) -> Iterator[None]:
    """What is lowered inside is for this target, whatever this machine is; none of its kernels is run."""
    token = _target.set(target)
    try:
        yield
    finally:
        _target.reset(token)
