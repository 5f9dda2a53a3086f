"""Runs a kernel's text on torch tensors without a plan: compile, load, call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch

from smelt.codegen.llvm.emit import emit_object
from smelt.codegen.llvm.isa import Isa, best_isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.lanes.lanes_bits import LaneBits
from smelt.codegen.llvm.lanes.lanes_types import vector_type
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.ir import DType
from smelt.runtime.machine.cpu import cpu_flags
from smelt.runtime.machine.loader import LoadedCode, host_machine, load_object
from tests import emulated
from tests.emulated import emulated_isas, is_emulated

TORCH_DTYPE = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}
SMELT_DTYPE = {t: d for d, t in TORCH_DTYPE.items()}
# Bytes behind the scratch memory that are looked at.
_BEYOND = 1 << 16


def machine_isas() -> list[Isa]:
    """Every instruction set that this machine runs, best first, or what is emulated."""
    if emulated_isas():
        return emulated_isas()
    found = (best_isa(host_machine(), cpu_flags(), limit) for limit in ("", "avx2", "baseline"))
    return list(dict.fromkeys(isa for isa in found if isa is not None))


@lru_cache(maxsize=512)
def load(text: str, isa: Isa) -> LoadedCode:
    """The loaded code of a module's text."""
    return load_object(emit_object(text, isa.cpu, isa.features))


def call(
    source: KernelSource,
    isa: Isa,
    tensors: Sequence[torch.Tensor],
    words: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    scratch_nbytes: int = 0,
) -> int:
    """Run a kernel over ranges of its items, which must keep to its scratch memory; the first code that is not 0."""
    if is_emulated(isa):
        return emulated.run(source, tensors, words, ranges, scratch_nbytes)
    address = load(source.text, isa).address(source.symbol)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        address
    )
    args = (ctypes.c_int64 * (len(tensors) + len(words)))(*(t.data_ptr() for t in tensors), *words)
    memory = torch.full((scratch_nbytes + 64 + _BEYOND,), 0xA5, dtype=torch.uint8)
    scratch = (memory.data_ptr() + 63) // 64 * 64 if scratch_nbytes else 0
    beyond = memory[scratch - memory.data_ptr() + scratch_nbytes :] if scratch else memory
    for begin, end in ranges:
        code = function(ctypes.addressof(args), begin, end, scratch or None)
        assert bool((beyond == 0xA5).all()), "the kernel wrote past its scratch memory"
        if code:
            return int(code)
    return 0


def run_op(
    op: str, dtype: DType, args: Sequence[torch.Tensor], isa: Isa, lanes: int, *, calls: bool = False
) -> torch.Tensor:
    """One operation of the loop-nest language on whole tensors, padded to a multiple of the lanes.

    calls: see `ExprEmitter`.
    """
    count = args[0].numel()
    padded = -(-count // lanes) * lanes
    inputs = [torch.cat([a.flatten(), a.flatten()[-1:].expand(padded - count)]).contiguous() for a in args]
    out = torch.zeros(padded, dtype=TORCH_DTYPE[dtype])
    operand = SMELT_DTYPE[args[-1].dtype]
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    emitter, bits = ExprEmitter(fn, isa, lanes, calls=calls), LaneBits(fn, isa, lanes)
    bases = [fn.address(k) for k in range(len(inputs) + 1)]
    with fn.loop("%begin", "%end", lanes) as loop:
        values = []
        for base, tensor in zip(bases, inputs, strict=False):
            kind = SMELT_DTYPE[tensor.dtype]
            element = bits.memory_element(kind)
            loaded = fn.load(vector_type(element, lanes), fn.gep(element, base, loop.index), 1)
            values.append(bits.from_memory(loaded, kind))
        result = bits.to_memory(emitter.emit(op, dtype, values, operand), dtype)
        element = bits.memory_element(dtype)
        fn.store(vector_type(element, lanes), result, fn.gep(element, bases[-1], loop.index), 1)
    source = KernelSource.of(fn.finish())
    assert call(source, isa, [*inputs, out], [], [(0, padded)]) == 0
    return out[:count]
