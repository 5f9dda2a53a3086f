"""An own kernel run at build time, on this process's threads: weights are packed by one."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from itertools import pairwise

import torch

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.diag import Options, SmeltError
from smelt.runtime.cache import code_cache
from smelt.runtime.kernels import kernels

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
# A thread is worth starting for this much memory.
_BYTES_PER_THREAD = 1 << 20


def run_kernel(
    source: KernelSource, isa: Isa, options: Options, tensors: Sequence[torch.Tensor], words: Sequence[int], items: int
) -> bool:
    """Run all items of a kernel that needs no scratch over the tensors; False if it cannot be built or loaded here."""
    try:
        code = compile_kernels([source], isa, code_cache(options.cache_dir, options.cache_limit_mb))
    except (ImportError, SmeltError):
        return False
    loaded = kernels().loaded(code[source.symbol])
    if loaded is None:
        return False
    function = _FUNCTION(loaded.address(source.symbol))
    args = (ctypes.c_int64 * (len(tensors) + len(words)))(*(t.data_ptr() for t in tensors), *words)
    nbytes = sum(t.numel() * t.element_size() for t in tensors)
    parts = max(1, min(torch.get_num_threads(), items, nbytes // _BYTES_PER_THREAD))
    bounds = [items * i // parts for i in range(parts + 1)]
    workers = [threading.Thread(target=function, args=(args, begin, end, None)) for begin, end in pairwise(bounds[1:])]
    for worker in workers:
        worker.start()
    function(args, bounds[0], bounds[1], None)
    for worker in workers:
        worker.join()
    return True
