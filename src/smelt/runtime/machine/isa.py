"""The instruction set that own kernels are made for, found without any compiler package.

Invariant: an `Isa` never names a feature that this CPU and system lack: LLVM ends the process on an intrinsic that its
target does not have, and the CPU ends it on an instruction that it does not know.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from smelt.diag import SmeltError, isa_limit
from smelt.diag.records import record
from smelt.runtime.machine.cpu import cpu_flags
from smelt.runtime.machine.elf import MACHINE_X86_64
from smelt.runtime.machine.loader import host_machine

IsaName = Literal["avx512", "avx2", "neon", "baseline"]


@record
class Isa:
    """A target of own kernels: LLVM's `cpu` and `features`, f32 lanes of one vector register, how many there are.

    `has_bf16`: bf16 dot products (AVX512_BF16). LLVM then also lowers `fptrunc` to bfloat with an instruction that
    makes denormals zero, which eager does not: round with integer operations. `has_vnni`: dot products of four bytes
    (AVX512_VNNI).
    """

    name: IsaName
    cpu: str
    features: str
    f32_lanes: int
    vector_registers: int
    has_bf16: bool = False
    has_vnni: bool = False

    @property
    def triple(self) -> str:
        """The system whose objects hold code for this target, as LLVM calls it."""
        return f"{'aarch64' if self.name == 'neon' else 'x86_64'}-unknown-linux-gnu"

    @property
    def key(self) -> str:
        """What machine code for this target depends on, as text for cache keys."""
        return f"{self.name} {self.cpu} {self.features}"


# What Linux calls the features of the psABI's levels 3 and 4.
_AVX2_FLAGS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
_AVX512_FLAGS = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
_LIMITS = ("avx512", "avx2", "neon", "baseline", "none")

BASELINE_X86 = Isa("baseline", "x86-64", "", 4, 16)
AVX2 = Isa("avx2", "x86-64-v3", "", 8, 16)
AVX512 = Isa("avx512", "x86-64-v4", "-prefer-256-bit", 16, 32)
AVX512_VNNI = Isa("avx512", "x86-64-v4", "-prefer-256-bit,+avx512vnni", 16, 32, has_vnni=True)
AVX512_BF16 = Isa("avx512", "x86-64-v4", "-prefer-256-bit,+avx512bf16", 16, 32, has_bf16=True)
AVX512_BF16_VNNI = Isa(
    "avx512", "x86-64-v4", "-prefer-256-bit,+avx512bf16,+avx512vnni", 16, 32, has_bf16=True, has_vnni=True
)
NEON = Isa("neon", "generic", "+neon", 4, 32)


def host_isa() -> Isa | None:
    """The best target of this CPU within the limit of SMELT_ISA; None where there are no own kernels.

    Raises: SmeltError (S0301) if SMELT_ISA names no target.
    """
    return best_isa(host_machine(), cpu_flags(), isa_limit())


@lru_cache(maxsize=32)
def best_isa(machine: int | None, flags: frozenset[str], limit: str = "") -> Isa | None:
    """The best target of a CPU with these features (Linux's names), no better than `limit`; None for "none".

    machine: the ELF machine number, None for a system that the loader does not know. A limit of another CPU than this
    one leaves the plainest target. Raises: SmeltError (S0301).
    """
    if limit and limit not in _LIMITS:
        raise SmeltError(
            f"SMELT_ISA cannot be {limit!r}",
            why=f"it takes {', '.join(_LIMITS)}",
            fix="correct the environment variable, or unset it",
            code="S0301",
        )
    if machine is None or limit == "none":
        return None
    if machine != MACHINE_X86_64:
        return NEON
    if limit in ("baseline", "neon") or not flags >= _AVX2_FLAGS:
        return BASELINE_X86
    if limit == "avx2" or not flags >= _AVX512_FLAGS:
        return AVX2
    if "avx512_vnni" in flags:
        return AVX512_BF16_VNNI if "avx512_bf16" in flags else AVX512_VNNI
    return AVX512_BF16 if "avx512_bf16" in flags else AVX512
