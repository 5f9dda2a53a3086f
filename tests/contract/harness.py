"""Runs a product's kernel over tensors, in any split of its items."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from smelt.codegen.contract.epilogue import Bound, plain
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.packing import Packing, TilePacking
from smelt.codegen.contract.planning import ProductPlan, plan_product
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import tiling_for
from smelt.codegen.llvm.isa import AVX2, BASELINE_X86, Isa, host_isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.codegen.lower.products.packed_weight import packed_by_torch, tiles_by_torch
from smelt.ir import DType
from smelt.runtime.machine.loaded_kernels import kernels
from tests import emulated
from tests.emulated import emulated_isas, is_emulated

DTYPES = {torch.float32: DType.F32, torch.float64: DType.F64, torch.bfloat16: DType.BF16}
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def isas() -> list[Isa]:
    """The instruction sets that this machine runs, best first, or what is emulated."""
    if emulated_isas():
        return emulated_isas()
    host = host_isa()
    order = ("baseline", "avx2", "avx512")
    if host is None or host.name not in order:
        return []
    return [host, *(isa for isa in (AVX2, BASELINE_X86) if order.index(isa.name) < order.index(host.name))]


@lru_cache(maxsize=256)
def function_of(source: KernelSource, isa: Isa) -> Any:
    """The kernel as a function of (args, begin, end, scratch)."""
    loaded = kernels().loaded(compile_kernels([source], isa)[source.symbol])
    assert loaded is not None
    function = _FUNCTION(loaded.address(source.symbol))
    function.loaded = loaded  # type: ignore[attr-defined]
    return function


def run_items(
    source: KernelSource, isa: Isa, tensors: Sequence[torch.Tensor], words: Sequence[int], scratch_nbytes: int,
    ranges: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    """Run ranges of items, each with scratch full of NaN."""
    if is_emulated(isa):
        assert emulated.run(source, tensors, words, ranges, scratch_nbytes + 64) == 0
        return
    args = (ctypes.c_int64 * (len(tensors) + len(words)))(*(t.data_ptr() for t in tensors), *words)
    scratch = torch.empty(scratch_nbytes // 4 + 32)
    at = -(-scratch.data_ptr() // 64) * 64
    for begin, end in ranges:
        scratch.fill_(torch.nan)
        assert function_of(source, isa)(args, begin, end, at) == 0


def product(
    isa: Isa, right: Right, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, *,
    bound: Bound | None = None, operands: Sequence[torch.Tensor] = (), parts: int = 1, tiled: bool = False,
) -> ProductPlan:  # fmt: skip
    """out = x @ w^T through a kernel: x [.., m, k], w [.., n, k] (the layout says how it lies), out [.., m, n].

    A batch of one or two dimensions may lead. The items run in `parts` ranges, last first. tiled: x is packed before.
    """
    dtype = DTYPES[x.dtype]
    m, k = x.shape[-2:]
    n = w.shape[-2]
    batch: dict[str, int] = {}
    count = 1
    for name, tensor in (("left", x), ("right", w), ("out", out)):
        strides = (0, *tensor.stride()[:-2])[-2:] if tensor.dim() > 2 else (0, 0)
        batch[f"{name}_outer"], batch[f"{name}_inner"] = strides
    if x.dim() > 2:
        batch["inner"] = x.shape[-3]
        count = x.shape[:-2].numel()
    panel = step = 0
    matrix = w
    if right == "packed":
        tiling = tiling_for(isa, dtype)
        assert tiling is not None
        packing = Packing(tiling, n, k)
        matrix, panel, step = packed_by_torch(w, packing), packing.panel_nelements, tiling.panel * tiling.group
    else:
        step = w.stride(-1) if right == "rows" else w.stride(-2)
    row, along_k = x.stride()[-2:]
    if tiled:
        tiles = TilePacking(tiling_for(isa, dtype), m, k)
        x, row, along_k = tiles_by_torch(x, tiles), k, tiles.tiling.rows
    problem = Problem(m, n, k, row, along_k, panel, step, out.stride(-2), 0, **batch)
    plan = plan_product(isa, dtype, right, problem, count, bound or plain(DTYPES[out.dtype]), tiled=tiled)
    bounds = [plan.items * i // parts for i in range(parts + 1)]
    ranges = list(pairwise(bounds))[::-1]
    run_items(plan.source, isa, (x, matrix, *operands, out), plan.words, plan.scratch_nbytes, ranges)
    return plan


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Seeded normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def lying(w: torch.Tensor, right: Right) -> torch.Tensor:
    """w [.., n, k] with the memory layout that a kernel expects."""
    return w.mT.contiguous().mT if right == "rows" else w.contiguous()


def rms(a: torch.Tensor, b: torch.Tensor) -> float:
    """Root of the mean square of a difference, in f64."""
    return float((a.double() - b.double()).pow(2).mean().sqrt())
