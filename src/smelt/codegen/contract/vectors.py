"""Vectors in LLVM text: masks of the first lanes, masked memory, floats of two bytes."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.llvm.text import FunctionText
from smelt.ir import DType

AHEAD_NBYTES = 1024
"""How far ahead of its use a stream of memory is asked for, where several are read in step."""


def splat(fn: FunctionText, type_: str, lanes: int, value: str) -> str:
    """A vector with `value` in all lanes."""
    vector = f"<{lanes} x {type_}>"
    one = fn.let(f"insertelement {vector} poison, {type_} {value}, i64 0")
    return fn.let(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")


def shuffled(fn: FunctionText, vector: str, a: str, b: str, lanes: Sequence[int]) -> str:
    """Lanes of two registers by number, those of the second after those of the first."""
    indices = ", ".join(f"i32 {i}" for i in lanes)
    return fn.let(f"shufflevector {vector} {a}, {vector} {b}, <{len(lanes)} x i32> <{indices}>")


def lane_mask(fn: FunctionText, lanes: int, count: str) -> str:
    """The mask of the first `count` (an i64, any sign) of `lanes` lanes."""
    type_ = f"<{lanes} x i32>"
    low = fn.let(f"icmp slt i64 {count}, {lanes}", "b")
    short = fn.let(f"trunc i64 {fn.let(f'select i1 {low}, i64 {count}, i64 {lanes}', 'i')} to i32", "i")
    one = fn.let(f"insertelement {type_} poison, i32 {short}, i64 0")
    all_ = fn.let(f"shufflevector {type_} {one}, {type_} poison, <{lanes} x i32> zeroinitializer")
    return fn.let(f"icmp slt {type_} <{', '.join(f'i32 {i}' for i in range(lanes))}>, {all_}", "m")


def prefetch(fn: FunctionText, at: str, *, near: bool = False) -> None:
    """Ask for the line of an address, for the second-level cache (near: the first-level one); any address will do,
    nothing is read.
    """
    fn.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    fn.do(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 {3 if near else 2}, i32 1)")


def masked_load(fn: FunctionText, vector: str, at: str, mask: str, align: int) -> str:
    """Lanes of memory where the mask is on, 0 elsewhere, which memory is not touched."""
    lanes = vector[1 : vector.index(" ")]
    name = f"llvm.masked.load.{_mangled(vector)}.p0"
    fn.declare(f"declare {vector} @{name}(ptr, i32, <{lanes} x i1>, {vector})")
    return fn.let(f"call {vector} @{name}(ptr {at}, i32 {align}, <{lanes} x i1> {mask}, {vector} zeroinitializer)")


def load_some(fn: FunctionText, vector: str, at: str, mask: str | None, align: int) -> str:
    """All lanes of memory, or those where the mask is on."""
    return fn.load(vector, at, align) if mask is None else masked_load(fn, vector, at, mask, align)


def masked_store(fn: FunctionText, vector: str, value: str, at: str, mask: str, align: int) -> None:
    """Write the lanes where the mask is on."""
    lanes = vector[1 : vector.index(" ")]
    name = f"llvm.masked.store.{_mangled(vector)}.p0"
    fn.declare(f"declare void @{name}({vector}, ptr, i32, <{lanes} x i1>)")
    fn.do(f"call void @{name}({vector} {value}, ptr {at}, i32 {align}, <{lanes} x i1> {mask})")


def _mangled(vector: str) -> str:
    lanes, kind = vector[1:-1].split(" x ")
    return f"v{lanes}" + {"float": "f32", "double": "f64", "bfloat": "bf16"}.get(kind, kind)


# --- elements as they are computed with: bf16 as float


def read(fn: FunctionText, lanes: int, dtype: DType, at: str, mask: str | None) -> str:
    """A register of consecutive elements; 0 where the mask is off. bf16 becomes float."""
    vector = f"<{lanes} x {MEMORY[dtype]}>"
    value = fn.load(vector, at, dtype.itemsize) if mask is None else masked_load(fn, vector, at, mask, dtype.itemsize)
    if dtype is not DType.BF16:
        return value
    wide = f"<{lanes} x i32>"
    shift = f"<{', '.join(['i32 16'] * lanes)}>"
    bits = fn.let(f"shl {wide} {fn.let(f'zext {vector} {value} to {wide}')}, {shift}")
    return fn.let(f"bitcast {wide} {bits} to <{lanes} x float>")


def read_one(fn: FunctionText, lanes: int, dtype: DType, at: str) -> str:
    """One element in all lanes. bf16 becomes float."""
    value = fn.load(MEMORY[dtype], at, dtype.itemsize)
    if dtype is DType.BF16:
        bits = fn.let(f"shl i32 {fn.let(f'zext i16 {value} to i32')}, 16")
        return splat(fn, "float", lanes, fn.let(f"bitcast i32 {bits} to float"))
    return splat(fn, MEMORY[dtype], lanes, value)


def write(fn: FunctionText, lanes: int, dtype: DType, value: str, at: str, mask: str | None) -> None:
    """Store a register; with a mask only its lanes. For bf16 `value` is float and already rounded."""
    vector = f"<{lanes} x {MEMORY[dtype]}>"
    if dtype is DType.BF16:
        wide = f"<{lanes} x i32>"
        bits = fn.let(f"bitcast <{lanes} x float> {value} to {wide}")
        shift = f"<{', '.join(['i32 16'] * lanes)}>"
        value = fn.let(f"trunc {wide} {fn.let(f'lshr {wide} {bits}, {shift}')} to {vector}")
    if mask is None:
        fn.store(vector, value, at, dtype.itemsize)
    else:
        masked_store(fn, vector, value, at, mask, dtype.itemsize)


MEMORY = {DType.F32: "float", DType.F64: "double", DType.BF16: "i16"}
"""What an element is in memory, of each dtype that can be read and written."""
