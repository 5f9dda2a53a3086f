"""Between dtypes: torch's casts, f16 and bf16 rounding, and how values lie in memory.

Invariant: rounding to bf16 and f16 is to nearest even, keeps denormals, and a NaN becomes eager's. Nothing here becomes
a library call: an instruction set without half conversion gets the bits moved by integer operations.
"""

from __future__ import annotations

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes_types import Arith, has_fma, register_type, vector_type
from smelt.codegen.llvm.text import FunctionText
from smelt.ir import DType

_NAN_BFLOAT = -65536  # 0xFFFF0000: what eager's vector code stores for any NaN


class LaneBits:
    """Casts and memory forms of vectors of `lanes` lanes."""

    def __init__(self, fn: FunctionText, isa: Isa, lanes: int) -> None:
        self.fn, self.isa, self.lanes = fn, isa, lanes
        self.m = Arith(fn, isa, lanes, 32)

    def _type(self, element: str) -> str:
        return vector_type(element, self.lanes)

    def _convert(self, instruction: str, a: str, source: str, target: str) -> str:
        return self.fn.let(f"{instruction} {self._type(source)} {a} to {self._type(target)}")

    # --- rounding to the narrow floats

    def round_to(self, a: str, dtype: DType) -> str:
        """A float rounded to f16 or bf16, still a float."""
        if dtype is DType.BF16:
            return self.m.from_bits(self._bfloat_bits(a))
        if has_fma(self.isa):
            return self._convert("fpext", self._convert("fptrunc", a, "float", "half"), "half", "float")
        return self._half_by_adding(a)

    def _bfloat_bits(self, a: str) -> str:
        """The bits of a float rounded to bf16, the lower half zero."""
        m = self.m
        bits = m.to_bits(a)
        odd = m.iand(self.fn.let(f"lshr {m.int_type} {bits}, {m.iconst(16)}"), 1)
        rounded = m.iand(m.iadd(m.iadd(bits, odd), 0x7FFF), -65536)
        return m.iselect(m.cmp("uno", a, a), _NAN_BFLOAT, rounded)

    def _half_by_adding(self, a: str) -> str:
        """Rounds at f16's last bit by adding and taking away a number 13 bits above it (2^-24 at least).

        The number is 1.5 * 2^13 times the power of two of `a`; below f16's normal range that of 2^-14.
        """
        m = self.m
        size = m.abs(a)
        power = m.iand(m.to_bits(m.at_least(size, 2.0**-14)), 0x7F800000)
        shift = m.mul(m.from_bits(power), 1.5 * 2.0**13)
        near = m.sub(m.add(size, shift), shift)
        near = m.select(m.cmp("ogt", near, 65504.0), float("inf"), near)
        near = m.select(m.cmp("ult", size, 65536.0), near, m.select(m.cmp("uno", a, a), a, float("inf")))
        return m.copysign(near, a)

    # --- memory

    def memory_element(self, dtype: DType) -> str:
        """The element type in memory: bool is a byte, f16 and bf16 are their bits or LLVM's half."""
        if dtype is DType.BOOL:
            return "i8"
        if dtype is DType.BF16:
            return "i16"
        if dtype is DType.F16:
            return "half" if has_fma(self.isa) else "i16"
        return register_type(dtype)

    def from_memory(self, a: str, dtype: DType) -> str:
        """A value as loaded, in its register form."""
        if dtype is DType.BOOL:
            return (
                self.fn.let(f"icmp ne {self._type('i8')} {a}, zeroinitializer")
                if self.lanes > 1
                else self.fn.let(f"icmp ne i8 {a}, 0")
            )
        if dtype is DType.BF16:
            wide = self._convert("zext", a, "i16", "i32")
            return self.m.from_bits(self.m.shl(wide, 16))
        if dtype is DType.F16:
            return self._convert("fpext", a, "half", "float") if has_fma(self.isa) else self._half_from_bits(a)
        return a

    def to_memory(self, a: str, dtype: DType) -> str:
        """A register value of a dtype (f16 and bf16 already rounded) as it is stored."""
        if dtype is DType.BOOL:
            return self._convert("zext", a, "i1", "i8")
        if dtype is DType.BF16:
            high = self.fn.let(f"lshr {self.m.int_type} {self.m.to_bits(a)}, {self.m.iconst(16)}")
            return self._convert("trunc", high, "i32", "i16")
        if dtype is DType.F16:
            return self._convert("fptrunc", a, "float", "half") if has_fma(self.isa) else self._half_to_bits(a)
        return a

    def _half_from_bits(self, a: str) -> str:
        """f16 bits as a float: the fields moved, the exponent rebased by a multiplication (denormals come right)."""
        m = self.m
        wide = self._convert("zext", a, "i16", "i32")
        fields = m.shl(m.iand(wide, 0x7FFF), 13)
        value = m.mul(m.from_bits(fields), 2.0**112)
        special = m.from_bits(self.fn.let(f"or {m.int_type} {fields}, {m.iconst(0x7F800000)}"))
        value = m.select(m.icmp("sge", fields, 0x7C00 << 13), special, value)
        sign = m.shl(m.iand(wide, 0x8000), 16)
        return m.from_bits(self.fn.let(f"or {m.int_type} {m.to_bits(value)}, {sign}"))

    def _half_to_bits(self, a: str) -> str:
        """The f16 bits of a float that is an f16 number already."""
        m = self.m
        size = m.abs(a)
        fields = self.fn.let(f"lshr {m.int_type} {m.to_bits(m.mul(size, 2.0**-112))}, {m.iconst(13)}")
        special = m.iselect(m.cmp("uno", a, a), 0x7E00, 0x7C00)
        fields = m.iselect(m.cmp("ult", size, 65536.0), fields, special)
        sign = m.iand(self.fn.let(f"lshr {m.int_type} {m.to_bits(a)}, {m.iconst(16)}"), 0x8000)
        return self._convert("trunc", self.fn.let(f"or {m.int_type} {fields}, {sign}"), "i32", "i16")

    # --- casts

    def cast(self, a: str, source: DType, target: DType) -> str:
        """torch's `to`: floats to integers truncate, anything to bool is `!= 0`."""
        if source is target:
            return a
        if target is DType.BOOL:
            return self._to_bool(a, source)
        if source.is_floating:
            return self._from_float(a, source, target)
        return self._from_integer(a, source, target)

    def _to_bool(self, a: str, source: DType) -> str:
        type_ = self._type(register_type(source))
        zero = "zeroinitializer" if self.lanes > 1 else ("0.0" if source.is_floating else "0")
        return self.fn.let(f"{'fcmp une' if source.is_floating else 'icmp ne'} {type_} {a}, {zero}")

    def _from_float(self, a: str, source: DType, target: DType) -> str:
        element, wanted = register_type(source), register_type(target)
        if target.is_floating:
            if element != wanted:
                a = self._convert("fptrunc" if element == "double" else "fpext", a, element, wanted)
            return self.round_to(a, target) if target.is_half else a
        # Through 32 or 64 bits: out of range a narrow integer keeps the low bits, as eager's code does.
        middle = "i64" if target is DType.I64 else "i32"
        whole = self._convert("fptosi", a, element, middle)
        return whole if wanted == middle else self._convert("trunc", whole, middle, wanted)

    def _from_integer(self, a: str, source: DType, target: DType) -> str:
        element, wanted = register_type(source), register_type(target)
        unsigned = source in (DType.BOOL, DType.U8)
        if not target.is_floating:
            if element == wanted:
                return a
            if source is not DType.BOOL and source.itemsize > target.itemsize:
                return self._convert("trunc", a, element, wanted)
            return self._convert("zext" if unsigned else "sext", a, element, wanted)
        result = self._convert("uitofp" if unsigned else "sitofp", a, element, wanted)
        return self.round_to(result, target) if target.is_half else result
