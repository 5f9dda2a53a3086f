"""Functions that kernels call, as Triton text: what takes more than one expression, each written once.

A kernel's text holds those it needs and no others. Invariant: everything here means what torch means, for all operands
of its dtypes: extremes give NaN if either operand is NaN, integers divide without a trap, and f32 divides exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_TEXTS: Final = (
    '''
def quotient(a, b):
    """Rounded once: what `/` is on f64, and is not on f32."""
    if a.dtype == tl.float64:
        q = a / b
    else:
        q = tl.div_rn(a, b)
    return q
''',
    """
def root(x):
    if x.dtype == tl.float64:
        r = tl.sqrt(x)
    else:
        r = tl.sqrt_rn(x)
    return r
""",
    '''
def negated(x):
    """Of a zero the other zero, which `-x` is not."""
    return x * -1.0
''',
    """
def sign(x):
    return tl.where(x > 0, 1, 0).to(x.dtype) - tl.where(x < 0, 1, 0).to(x.dtype)
""",
    """
def max_(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    """
def min_(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    """
def mul_(a, b):
    return a * b
""",
    """
def add_(a, b):
    return a + b
""",
    """
def or_(a, b):
    return a | b
""",
    """
def and_(a, b):
    return a & b
""",
    '''
def first_largest(v, i, w, j):
    """Of two elements with their positions the larger; NaN is larger than all, of equals the first counts."""
    better = (v > w) | ((v != v) & (w == w))
    equal = (v == w) | ((v != v) & (w != w))
    first = better | (equal & (i < j))
    return tl.where(first, v, w), tl.where(first, i, j)
''',
    '''
def first_least(v, i, w, j):
    """Of two elements with their positions the smaller; NaN is smaller than all, of equals the first counts."""
    better = (v < w) | ((v != v) & (w == w))
    equal = (v == w) | ((v != v) & (w != w))
    first = better | (equal & (i < j))
    return tl.where(first, v, w), tl.where(first, i, j)
''',
    """
def sign_bits(x):
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True)
    return bits
""",
    """
def with_sign(x, y):
    magnitude = tl.abs(x)
    return tl.where(sign_bits(y) < 0, negated(magnitude), magnitude)
""",
    """
def sigmoid(x):
    return quotient(1.0 + tl.zeros_like(x), 1.0 + libdevice.exp(negated(x)))
""",
    """
def silu(x):
    return quotient(x, 1.0 + libdevice.exp(negated(x)))
""",
    """
def gelu(x):
    return x * 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))
""",
    """
def gelu_tanh(x):
    inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + libdevice.tanh(inner))
""",
    """
def softplus(x):
    return tl.where(x > 20.0, x, libdevice.log1p(libdevice.exp(x)))
""",
    """
def mish(x):
    return x * libdevice.tanh(libdevice.log1p(libdevice.exp(x)))
""",
    """
def float_remainder(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0.0) & ((b < 0.0) != (r < 0.0)), r + b, r)
""",
    '''
def float_floor_division(a, b):
    """By the remainder, so that a quotient that rounds up does not count one too many."""
    r = libdevice.fmod(a, b)
    q = quotient(a - r, b)
    q = tl.where((r != 0.0) & ((b < 0.0) != (r < 0.0)), q - 1.0, q)
    down = libdevice.floor(q)
    down = tl.where(q - down > 0.5, down + 1.0, down)
    plain = quotient(a, b)
    return tl.where(b == 0.0, plain, tl.where(q != 0.0, down, with_sign(tl.zeros_like(q), plain)))
''',
    '''
def truncated(a, b):
    """Towards zero, of integers; the least integer by -1 wraps."""
    minus = b == -1
    return tl.where(minus, 0 - a, a // tl.where(minus, 1, b))
''',
    """
def rounds_down(r, b):
    return (r != 0) & ((r ^ b) < 0)
""",
    """
def integer_fmod(a, b):
    return a - truncated(a, b) * b
""",
    """
def integer_remainder(a, b):
    r = integer_fmod(a, b)
    return tl.where(rounds_down(r, b), r + b, r)
""",
    """
def integer_floor_division(a, b):
    q = truncated(a, b)
    return tl.where(rounds_down(a - q * b, b), q - 1, q)
""",
    """
def shifted_left(a, b, WIDTH: tl.constexpr):
    inside = (b >= 0) & (b < WIDTH)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)
""",
    """
def shifted_right(a, b, WIDTH: tl.constexpr):
    inside = (b >= 0) & (b < WIDTH)
    return a >> tl.where(inside, b, WIDTH - 1)
""",
    """
def shifted_right_unsigned(a, b, WIDTH: tl.constexpr):
    inside = b < WIDTH
    return tl.where(inside, a >> tl.where(inside, b, 0), 0)
""",
    '''
def within(at, size, mask, error):
    """A position clamped to [0, size); the error word tells of one that was outside."""
    bad = ((at < 0) | (at >= size)) & mask
    tl.store(error + bad.to(tl.int32) * 0, 1, mask=bad)
    return tl.minimum(tl.maximum(at, 0), size - 1)
''',
    '''
def divisor(b, mask, error):
    """A divisor that is not 0; the error word tells of one that was."""
    bad = (b == 0) & mask
    tl.store(error + bad.to(tl.int32) * 0, 1, mask=bad)
    return tl.where(b == 0, 1, b)
''',
)

_NAME = re.compile(r"(?<![.\w])[a-z_]+\b")


def _name(text: str) -> str:
    return text.split("def ", 1)[1].split("(", 1)[0]


HELPERS: Final[dict[str, str]] = {_name(text): text.strip() for text in _TEXTS}
"""Functions by name; one calls only those before it."""


def used(lines: Iterable[str]) -> tuple[str, ...]:
    """The names of the functions that lines of text name, those that these use included, in order."""
    found: set[str] = set()
    pending = list(lines)
    while pending:
        names = {name for name in _NAME.findall(pending.pop()) if name in HELPERS} - found
        found |= names
        pending += [line for name in names for line in HELPERS[name].split("\n")[1:] if '"""' not in line]
    return tuple(name for name in HELPERS if name in found)


HEADER: Final = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
"""The first lines of every kernel's text."""


def functions(lines: Iterable[str]) -> str:
    """The text of the functions that lines of a kernel call."""
    return "".join(f"\n\n@triton.jit\n{HELPERS[name]}\n" for name in used(lines))
