"""Attention kernels by themselves, on any instruction set of this CPU, beside eager and float64."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from smelt.codegen.attention import Attention, Operand, Work, kernel_of
from smelt.codegen.llvm.isa import BASELINE_X86, Isa, host_isa
from smelt.codegen.llvm.isa import best_isa as best
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.ops.convert import dtype_from_torch
from smelt.runtime.machine.cpu import cpu_flags
from smelt.runtime.machine.loader import LoadedCode, host_machine, load_object
from tests import emulated
from tests.emulated import emulated_isas, is_emulated

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def isas() -> list[Isa]:
    """All targets of this CPU that kernels are made for, the best first, or what is emulated."""
    if emulated_isas():
        return emulated_isas()
    found = [best(host_machine(), cpu_flags(), limit) for limit in ("", "avx2", "baseline")]
    return list(dict.fromkeys(isa for isa in found if isa is not None))


def host() -> Isa:
    """The best target of this CPU, or what is emulated."""
    return next(iter(emulated_isas()), None) or host_isa() or BASELINE_X86


@lru_cache(maxsize=64)
def _loaded(source: KernelSource, isa: Isa) -> LoadedCode:
    return load_object(compile_kernels([source], isa)[source.symbol].object)


@dataclass
class Case:
    """An attention over live tensors."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None = None
    is_causal: bool = False
    is_spelled: bool = False
    scale: float | None = None
    isa: Isa = field(default_factory=host)

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def eager(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Eager's answer, with operands of another dtype if one is given."""
        q, k, v = (t if dtype is None else t.to(dtype) for t in (self.q, self.k, self.v))
        mask = self.mask
        if mask is not None and mask.dtype != torch.bool and dtype is not None:
            mask = mask.to(dtype)
        if not self.is_spelled:
            return F.scaled_dot_product_attention(
                q, k, v, mask, is_causal=self.is_causal, scale=self.scale, enable_gqa=True
            )
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.factor
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        return torch.matmul(torch.softmax(scores, -1), v)

    def exact(self) -> np.ndarray[Any, Any]:
        """The answer of wider floats: float64, for float64 itself the C library's long double."""
        if self.q.dtype == torch.float64:
            return _spelled_in_long_doubles(self)
        return self.eager(torch.float64).numpy()

    def work(self, out: torch.Tensor) -> Work:
        """The launch that writes into `out`."""
        mask = None if self.mask is None else operand(self._spread())
        found = kernel_of(
            Attention(
                operand(self.q), operand(self.k), operand(self.v), operand(out), mask,
                scale_after=self.factor, is_causal=self.is_causal, is_spelled=self.is_spelled,
            ),
            self.isa,
        )  # fmt: skip
        assert found is not None
        return found

    def load(self) -> None:
        """Build the kernel, which is kept."""
        if not is_emulated(self.isa):
            _loaded(self.work(torch.empty_like(self.q)).source, self.isa)

    def _spread(self) -> torch.Tensor:
        assert self.mask is not None
        return self.mask.expand(*self.q.shape[:3], self.k.shape[2])

    def run(self, out: torch.Tensor | None = None, cuts: Sequence[int] = ()) -> torch.Tensor | None:
        """The kernel's answer, its items run in ranges between `cuts`; None if it refuses the data."""
        if out is None:
            batch, heads, queries, _ = self.q.shape
            out = torch.empty(batch, queries, heads, self.v.shape[-1], dtype=self.q.dtype).transpose(1, 2)
        out.fill_(float("nan"))
        work = self.work(out)
        buffers = [self.q, self.k, self.v, out, *([] if self.mask is None else [self._spread()])]
        return None if launch(work, buffers, self.isa, cuts) else out


def launch(work: Work, buffers: Sequence[torch.Tensor], isa: Isa, cuts: Sequence[int] = ()) -> bool:
    """Run the items in ranges between `cuts`; whether any refused the data."""
    bounds = [0, *cuts, work.items]
    ranges = list(pairwise(bounds))
    random.Random(7).shuffle(ranges)
    if is_emulated(isa):
        return bool(emulated.run(work.source, buffers, work.words, ranges, work.scratch_nbytes))
    args = (ctypes.c_int64 * (len(buffers) + len(work.words)))(*(t.data_ptr() for t in buffers), *work.words)
    function = _FUNCTION(_loaded(work.source, isa).address(work.source.symbol))
    codes = [_run_range(function, args, begin, end, work.scratch_nbytes) for begin, end in ranges]
    return any(codes)


def _run_range(function: Any, args: Any, begin: int, end: int, scratch_nbytes: int) -> int:
    """One range of items with scratch memory full of NaN, between words that must stay."""
    edge, word = 64, 0x7FF8BEEF7FF8BEEF
    count = -(-scratch_nbytes // 8)
    memory = torch.full((count + 2 * edge,), word, dtype=torch.int64)
    start = -(-(memory.data_ptr() + 8 * 8) // 64) * 64
    code = int(function(args, begin, end, start))
    first = (start - memory.data_ptr()) // 8
    assert bool((memory[:first] == word).all()) and bool((memory[first + count :] == word).all())
    return code


def operand(tensor: torch.Tensor) -> Operand:
    """A tensor of four dimensions."""
    a, b, c, d = tensor.shape
    s, t, u, w = tensor.stride()
    return Operand(dtype_from_torch(tensor.dtype), (a, b, c, d), (s, t, u, w))


def check(case: Case) -> torch.Tensor:
    """The kernel's error against float64 keeps to the bound that eager's sets, and NaN stands where eager has it."""
    found = case.run()
    assert found is not None
    eager, exact = case.eager(), case.exact()
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.equal(found.isinf(), eager.isinf())
    finite = torch.from_numpy(np.isfinite(exact)) & eager.isfinite()
    reference = exact[finite.numpy()]
    ours, theirs = (t[finite].double().numpy() - reference for t in (found, eager))
    if reference.size == 0:
        return found
    ulp = float(np.abs(reference).max()) * torch.finfo(found.dtype).eps
    errors = [float(np.sqrt(np.mean(t * t))) for t in (ours, theirs)]
    assert errors[0] <= 1.5 * errors[1] + ulp, errors
    largest = [float(np.abs(t).max()) for t in (ours, theirs)]
    assert largest[0] <= 3 * largest[1] + ulp, largest
    return found


def _spelled_in_long_doubles(case: Case) -> np.ndarray[Any, Any]:
    """The formula in 80-bit floats: float64 cannot be its own reference."""
    q, k, v = (t.numpy().astype(np.longdouble) for t in (case.q, case.k, case.v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = (q[..., :, None, :] * k[..., None, :, :]).sum(-1) * np.longdouble(case.factor)
    allowed = np.ones(scores.shape, bool)
    if case.is_causal:
        allowed &= np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    if case.mask is not None and case.mask.dtype == torch.bool:
        allowed &= case.mask.expand(*scores.shape).numpy()
    elif case.mask is not None:
        scores = scores + case.mask.expand(*scores.shape).numpy()
    scores = np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
    if not case.is_spelled:
        weights = np.where(allowed.any(-1, keepdims=True), weights, 0)
    return (weights[..., :, :, None] * v[..., None, :, :]).sum(-2)
