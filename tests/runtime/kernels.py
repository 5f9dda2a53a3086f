"""Handwritten kernels for the runtime's tests."""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch

from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.objects import KernelSource, compile_kernels
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import KernelCode, Launch

# out[i] = x[i] * scale + 1 for one row of words[0] elements an item; `scale` is a double's bits; -1 first: refused.
ROWS = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
entry:
  %xa = getelementptr i64, ptr %args, i64 1
  %na = getelementptr i64, ptr %args, i64 2
  %sa = getelementptr i64, ptr %args, i64 3
  %out = load ptr, ptr %args
  %x = load ptr, ptr %xa
  %n = load i64, ptr %na
  %wide = load double, ptr %sa
  %scale = fptrunc double %wide to float
  %from = mul i64 %begin, %n
  %to = mul i64 %end, %n
  %any = icmp slt i64 %from, %to
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %from, %entry ], [ %in, %step ]
  %xi = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xi
  %bad = fcmp oeq float %v, -1.0
  br i1 %bad, label %refuse, label %step
step:
  %m = fmul float %v, %scale
  %y = fadd float %m, 1.0
  %oi = getelementptr float, ptr %out, i64 %i
  store float %y, ptr %oi
  %in = add i64 %i, 1
  %more = icmp slt i64 %in, %to
  br i1 %more, label %loop, label %done
done:
  ret i32 0
refuse:
  ret i32 3
}
"""


def isa() -> Isa:
    found = host_isa()
    assert found is not None
    return found


def built(text: str) -> KernelCode:
    source = KernelSource.of(text)
    return compile_kernels([source], isa(), code_cache(""))[source.symbol]


def bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def rows_eager(scale: float) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def eager(out: torch.Tensor, x: torch.Tensor) -> None:
        if (x == -1.0).any():
            raise IndexError("minus one is out of range")
        out.copy_((x * scale + 1)[: len(out)])

    return eager


def rows(out: int, x: int, n: int, items: int, *, scale: float = 2.0, item_ns: float = 0.0) -> Launch:
    words = (n, bits(scale))
    return Launch(built(ROWS), (out, x), words, items, rows_eager(scale), (0,), item_ns, label=f"rows x{scale}")
