"""Kernels read nothing outside their operands: each ends where memory that may not be touched begins."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest
import torch

from smelt.codegen.llvm.isa import Isa
from tests.attention.harness import Case, isas

ISAS = isas()
_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0


def before_the_edge(t: torch.Tensor) -> torch.Tensor:
    """A row-major copy whose last element is the last one of accessible memory."""
    nbytes = t.numel() * t.element_size()
    pages = -(-nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert _LIBC.mprotect(start + pages * mmap.PAGESIZE, mmap.PAGESIZE, _NO_ACCESS) == 0
    offset = pages * mmap.PAGESIZE - nbytes
    found = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=offset).view(t.shape)
    return found.copy_(t)


@pytest.mark.parametrize("isa", ISAS, ids=[isa.name for isa in ISAS])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 9, 37, 16), (1, 1, 3, 37, 32), (2, 1, 1, 19, 64), (1, 1, 17, 5, 21), (1, 1, 1, 300, 7)], ids=str
)
def test_nothing_outside_is_touched(sizes: tuple[int, int, int, int, int], isa: Isa) -> None:
    b, h, s, t, d = sizes
    q, k, v = (before_the_edge(torch.randn(b, h, n, d)) for n in (s, t, t))
    mask = before_the_edge(torch.randn(1, 1, s, t))
    out = before_the_edge(torch.empty(b, h, s, d))
    runs = [Case(q, k, v, isa=isa), Case(q, k, v, mask, isa=isa), Case(q, k, v, mask > 0, isa=isa)]
    for case in runs:
        # Built before the child process begins, which only runs it.
        case.load()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if all(case.run(out) is not None for case in runs) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the kernel ended with status {status}"
