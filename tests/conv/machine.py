"""Own convolution kernels run by themselves: compiled for an instruction set, called over ranges of items."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

from smelt.codegen.conv.epilogue import BIAS, Epilogue
from smelt.codegen.conv.kernels import ConvPlan, plan_kernel
from smelt.codegen.conv.shape import ConvShape
from smelt.codegen.llvm.isa import Isa, best_isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.runtime.machine.cpu import cpu_flags
from smelt.runtime.machine.loader import LoadedCode, host_machine, load_object
from tests import emulated
from tests.emulated import emulated_isas, is_emulated

Tensor = torch.Tensor
_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def isas() -> dict[str, Isa]:
    """The instruction sets that this machine can run, by the value of SMELT_ISA, or what is emulated."""
    if emulated_isas():
        return {isa.name: isa for isa in emulated_isas()}
    found = {name: best_isa(host_machine(), cpu_flags(), name) for name in ("avx512", "avx2", "baseline")}
    return {isa.name: isa for isa in found.values() if isa is not None}


@lru_cache(maxsize=256)
def _loaded(text: str, isa: Isa) -> tuple[LoadedCode, str]:
    source = KernelSource.of(text)
    return load_object(compile_kernels([source], isa)[source.symbol].object), source.symbol


class Refused(Exception):
    """The kernel leaves the data to eager."""


@dataclass(frozen=True)
class Case:
    """A convolution with its tensors; `x` may lie in any way that the kernels read."""

    shape: ConvShape
    x: Tensor
    weight: Tensor
    bias: Tensor | None

    def reference(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """What torch computes in a dtype."""
        at = self.shape.window
        pads = [at.before[1], at.after[1], at.before[0], at.after[0]]
        bias = None if self.bias is None else self.bias.to(dtype)
        x = F.pad(self.x.to(dtype), pads)
        return F.conv2d(x, self.weight.to(dtype), bias, at.stride, 0, at.dilation, self.shape.groups)

    def bound(self) -> Tensor:
        """What f32 may be off: a few ulp of the sum of all magnitudes."""
        bias = None if self.bias is None else self.bias.abs()
        whole = Case(self.shape, self.x.abs(), self.weight.abs(), bias).reference()
        return whole * 8 * torch.finfo(torch.float32).eps + 1e-30


def run(
    case: Case, isa: Isa, epilogue: Epilogue | None = None, operands: Sequence[Tensor] = (), chunk: int = 1 << 40
) -> tuple[Tensor, ConvPlan]:
    """The result by the own kernel, called for `chunk` items at a time, the last ones first."""
    if epilogue is None:
        epilogue = Epilogue() if case.bias is None else BIAS
        operands = () if case.bias is None else (case.bias,)
    shape = case.shape
    n, c, h, w = case.x.stride()
    plan = plan_kernel(isa, shape, (n, c, h, w), epilogue)
    assert plan is not None
    sizes = (shape.n, shape.oh, shape.ow, shape.cout)
    # Around the result lies what no kernel may touch.
    memory = torch.full((sizes[0] * sizes[1] * sizes[2] * sizes[3] + 128,), -7.0)
    out = memory[64:-64].view(sizes).permute(0, 3, 1, 2)
    held = plan.filters.packed(case.weight), *plan.tables()
    buffers = [case.x, out, *held, *operands]
    starts = reversed(range(0, plan.items, min(chunk, plan.items)))
    ranges = [(begin, min(begin + chunk, plan.items)) for begin in starts]
    if _refuses(plan, isa, buffers, ranges):
        raise Refused
    assert bool((memory[:64] == -7).all()) and bool((memory[-64:] == -7).all())
    return out, plan


def _refuses(plan: ConvPlan, isa: Isa, buffers: Sequence[Tensor], ranges: Sequence[tuple[int, int]]) -> bool:
    return run_text(plan.text, isa, buffers, plan.words, ranges, plan.scratch_nbytes)


def run_text(
    text: str, isa: Isa, buffers: Sequence[Tensor], words: Sequence[int], ranges: Sequence[tuple[int, int]] | int,
    scratch_nbytes: int = 0,
) -> bool:  # fmt: skip
    """Whether a kernel refuses; ranges: of its items, or how many there are."""
    ranges = [(0, ranges)] if isinstance(ranges, int) else ranges
    if is_emulated(isa):
        return emulated.run(KernelSource.of(text), buffers, words, ranges, scratch_nbytes + 64) != 0
    code, symbol = _loaded(text, isa)
    args = (ctypes.c_int64 * (len(buffers) + len(words)))(*[b.data_ptr() for b in buffers], *words)
    scratch = torch.full((scratch_nbytes // 4 + 32,), torch.nan)
    aligned = (scratch.data_ptr() + 63) // 64 * 64
    kernel = _KERNEL(code.address(symbol))
    return any(kernel(ctypes.addressof(args), begin, end, aligned) for begin, end in ranges)
