"""Random numbers as kernels: those that torch's generator of a GPU would draw, by Philox 4x32-10.

    %1 = rand [1000]      ==>      four words for each (round, thread), of which an element takes one

The generator's seed is the key; a counter's low half is the round, from the generator's offset on, its high half the
thread. Torch starts T threads, so an element's thread, round and word follow from its number, T and what is drawn:

    rand, randn, bernoulli    element e: thread e mod T, step q = e div T, round q div 4, word q mod 4
    dropout                   the same of groups of V elements, which one thread draws side by side

Invariant: T, and how far a draw moves the generator, are those of the device that the kernel was made for.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011); torch's DistributionTemplates.h, Dropout.cu.
"""

from __future__ import annotations

from typing import Final, Literal

from smelt.codegen.triton.frame import Text
from smelt.codegen.triton.helpers import HEADER, functions
from smelt.codegen.triton.kernel import PLACEHOLDER, TritonKernel, TritonSource
from smelt.codegen.triton.vmath import memory_type, pointer_type
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import ceil_div

_THREADS: Final = 256
"""Threads of one of torch's blocks."""
_UNROLL: Final = 4
_BLOCK: Final = 1024
DRAWN: Final = (DType.F16, DType.BF16, DType.F32)
"""Dtypes whose numbers are drawn as f32."""


@record
class Processors:
    """What torch's numbers depend on: multiprocessors of a device, and threads that each runs at once."""

    count: int
    threads: int = 2048

    def started(self, elements: int) -> int:
        """Threads that torch starts for so many elements."""
        return _THREADS * min(self.count * (self.threads // _THREADS), ceil_div(elements, _THREADS))

    def consumed(self, elements: int) -> int:
        """How far the generator's offset moves."""
        return ceil_div(elements, self.started(elements) * _UNROLL) * _UNROLL


H200: Final = Processors(132)


@record
class Draw:
    """A draw of elements that lie one after another.

    kind: uniform in [0, 1), normal, 1 with a probability, or a tensor of which each element stays with a probability
    and is divided by it. offset: how far draws of the same program have moved the generator before.
    """

    kind: Literal["uniform", "normal", "bernoulli", "dropout"]
    elements: int
    dtype: DType
    offset: int
    probability: float = 1.0
    begin: int = 0


def draw_kernel(draw: Draw, processors: Processors, is_aligned: bool = True) -> TritonKernel:
    """The kernel of a draw; buffers: the result, the generator's seed and offset (i64 each), of dropout the operand."""
    text = Text()
    threads = processors.started(draw.elements)
    group = _group(draw) if draw.kind == "dropout" else 1
    lines = [
        f"e = tl.program_id(0){'.to(tl.int64)' if draw.elements >= 2**31 - _BLOCK else ''} * R + tl.arange(0, R)",
        f"inside = e < {text.word(draw.elements)}",
        f"number = e // {group}" if group > 1 else "number = e",
        f"thread = number % {text.word(threads)}",
        f"step = number // {text.word(threads)}",
    ]
    # A thread draws four words at once and uses up those that it has.
    each = _UNROLL // group
    lines += [f"round = step // {each}" if each > 1 else "round = step"]
    lines += [_word(group, each)]
    lines += [
        "seed = tl.load(b1)",
        f"counter = tl.load(b1 + 1) // 4 + {text.word(draw.offset // _UNROLL)} + round.to(tl.int64)",
        "low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)",
        "x, y, z, w = tl.philox(seed, low, high, thread.to(tl.uint32), tl.zeros_like(low))",
    ]
    lines += _normal() if draw.kind == "normal" else _uniform()
    lines += _value(draw, text)
    pointers = (pointer_type(draw.dtype), "*i64", *([pointer_type(draw.dtype)] if draw.kind == "dropout" else []))
    names = [f"b{k}" for k in range(len(pointers))] + [f"w{k}" for k in range(len(text.words))] + ["R: tl.constexpr"]
    body = "\n".join(f"    {line}" for line in lines)
    whole = f"{HEADER}{functions(lines)}\n\n@triton.jit\ndef {PLACEHOLDER}({', '.join(names)}):\n{body}\n"
    multiples = tuple(word.multiple for word in text.words)
    is_wide = draw.elements >= 2**31 - _BLOCK
    source = TritonSource("", whole, pointers, multiples, is_wide, (("R", _BLOCK),), 4, False, is_aligned)
    words = tuple(word.value for word in text.words)
    return TritonKernel(source.named("draw"), "flat", words, ceil_div(draw.elements, _BLOCK))


def _group(draw: Draw) -> int:
    """Elements side by side that one thread drops: as many as 16 bytes hold, four at most, in groups without a rest."""
    return next(n for n in (4, 2, 1) if draw.elements % n == 0 and draw.begin % n == 0)


def _word(group: int, each: int) -> str:
    if group == 1:
        return "word = step % 4"
    return f"word = e % {group}" if each == 1 else f"word = (step % {each}) * {group} + e % {group}"


def _uniform() -> list[str]:
    """In (0, 1]: a word's 32 bits, and a half."""
    return [
        "bits = tl.where(word == 0, x, tl.where(word == 1, y, tl.where(word == 2, z, w)))",
        "u = bits.to(tl.float32) * 2.3283064e-10 + 1.1641532e-10",
    ]


def _normal() -> list[str]:
    """Two of two words: the sine first. Source: Box and Muller (1958)."""
    return [
        "first, second = tl.where(word < 2, x, z), tl.where(word < 2, y, w)",
        "u = first.to(tl.float32) * 2.3283064e-10 + 1.1641532e-10",
        "v = second.to(tl.float32) * 1.4629181e-09 + 7.3145906e-10",
        "radius = root(-2.0 * libdevice.log(u))",
        "u = radius * tl.where(word % 2 == 0, tl.sin(v), tl.cos(v))",
    ]


def _value(draw: Draw, text: Text) -> list[str]:
    kind = f"tl.{memory_type(draw.dtype)}"
    if draw.kind == "bernoulli":
        return [f"tl.store(b0 + e, (u < {_single(draw.probability)}).to({kind}), mask=inside)"]
    if draw.kind == "dropout":
        begin = f"{text.word(draw.begin)} + " if draw.begin else ""
        stays = _single(draw.probability)
        return [
            f"operand = tl.load(b2 + ({begin}e), mask=inside, other=0.0).to(tl.float32)",
            f"stays = (u < {stays}).to(tl.float32)",
            f"tl.store(b0 + e, (operand * stays * {_single(1.0 / draw.probability)}).to({kind}), mask=inside)",
        ]
    if draw.kind == "normal":
        return [f"tl.store(b0 + e, u.to({kind}), mask=inside)"]
    # 1 itself, also where it comes of rounding to the narrow dtype, is 0.
    return [f"r = u.to({kind}).to(tl.float32)", f"tl.store(b0 + e, tl.where(r == 1.0, 0.0, r).to({kind}), mask=inside)"]


def _single(number: float) -> str:
    return f"tl.full((), {number!r}, tl.float32)"
