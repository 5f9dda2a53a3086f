"""Small integer arithmetic in LLVM text, on i64 values."""

from __future__ import annotations

from smelt.codegen.llvm.text import FunctionText


def minimum(fn: FunctionText, a: str, b: str) -> str:
    """The lesser of two signed values."""
    less = fn.let(f"icmp slt i64 {a}, {b}", "b")
    return fn.let(f"select i1 {less}, i64 {a}, i64 {b}", "i")


def ceil_div(fn: FunctionText, a: str, b: str) -> str:
    """a / b rounded up; both positive."""
    top = fn.let(f"add nsw i64 {a}, {fn.let(f'sub nsw i64 {b}, 1', 'i')}", "i")
    return fn.let(f"udiv i64 {top}, {b}", "i")


def div_rem(fn: FunctionText, a: str, b: str) -> tuple[str, str]:
    """Quotient and remainder; a not negative, b positive."""
    quotient = fn.let(f"udiv i64 {a}, {b}", "i")
    return quotient, fn.let(f"sub nsw i64 {a}, {fn.mul(quotient, b)}", "i")


def maximum(fn: FunctionText, a: str, b: str) -> str:
    """The greater of two signed values."""
    less = fn.let(f"icmp slt i64 {a}, {b}", "b")
    return fn.let(f"select i1 {less}, i64 {b}, i64 {a}", "i")
