"""Attention and its gradients as Triton kernels that never write a matrix of scores.

    out = softmax(scale * q @ k^T + mask) @ v       a program: R queries of a head, over blocks of B keys
    dq                                              the same, with the logarithms that the forward kept
    dk, dv                                          a program: B keys of a head, over the queries that see them

Scores are f32, powers are of 2 (the scale has the factor), sums are rescaled where a larger score comes. Heads of keys
may be fewer than those of queries; dk and dv then add over the queries' heads in order, so results repeat. A query that
sees no key gives 0. Invariant: beyond the last key and column everything that is loaded is 0, and powers are 0.

Source: Dao et al., FlashAttention (arXiv:2205.14135), and FlashAttention-2 (arXiv:2307.08691).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, log2
from typing import Final

from smelt.codegen.attention.problem import Attention, Backward, Operand
from smelt.codegen.triton.frame import Text
from smelt.codegen.triton.helpers import HEADER, functions
from smelt.codegen.triton.kernel import PLACEHOLDER, TritonKernel, TritonSource
from smelt.codegen.triton.layout import power_of_two
from smelt.codegen.triton.vmath import memory_type, pointer_type
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import ceil_div

_WIDEST: Final = 256
_LEAST: Final = 16
_LIMIT: Final = 2**31 - 2**20
_DTYPES: Final = (DType.F16, DType.BF16, DType.F32)
# Blocks of queries and keys, warps and stages by the width of a head, for f16 and bf16, then f32.
_FORWARD: Final = {64: (128, 64, 4, 3), 128: (128, 64, 8, 2), 256: (64, 32, 8, 2)}
_BACKWARD: Final = {64: (64, 64, 4, 2), 128: (64, 32, 8, 2), 256: (32, 16, 8, 1)}
BLOCKS: Final = (
    (128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 32, 4, 3), (64, 128, 4, 2), (64, 64, 4, 3),
    (64, 32, 4, 4), (32, 64, 4, 2), (16, 64, 4, 3), (16, 128, 4, 2),
)  # fmt: skip
"""Blocks of queries and keys, warps and stages that are worth measuring."""


def unsupported(problem: Attention | Backward) -> str | None:
    """Why an attention has no kernel here; None if it has one."""
    if {problem.q.dtype, problem.k.dtype, problem.v.dtype} - {problem.q.dtype} or problem.q.dtype not in _DTYPES:
        return f"attention of {problem.q.dtype}, {problem.k.dtype} and {problem.v.dtype}"
    if max(problem.q.sizes[3], problem.v.sizes[3]) > _WIDEST:
        return f"its heads are wider than {_WIDEST}"
    if isinstance(problem, Attention) and problem.scale_after != 1.0 and problem.scale_before != 1.0:
        return "its scores are scaled twice"
    return None


def attention_kernel(
    problem: Attention,
    begins: Sequence[int],
    is_aligned: bool = True,
    has_tf32: bool = False,
    blocks: tuple[int, int, int, int] | None = None,
) -> TritonKernel:
    """The forward kernel; buffers: q, k, v, out, then logarithms [b, h, s, 1] and the mask where there are some.

    begins: the first element of each buffer's operand. blocks: one of `BLOCKS` in the place of what the sizes say.
    """
    lines = _Lines(problem, problem.scale_before * problem.scale_after, _FORWARD, has_tf32, blocks)
    buffers = [problem.q, problem.k, problem.v, problem.out]
    names = ["q", "k", "v", "out"]
    if problem.logarithms is not None:
        buffers.append(problem.logarithms)
        names.append("logarithms")
    lines.begin((*names, *(["mask"] if problem.mask is not None else [])), begins)
    lines.forward(problem)
    return lines.finished("attention", buffers, lines.blocks_of_queries, is_aligned)


def gradient_kernels(
    problem: Backward,
    begins: Sequence[int],
    is_aligned: bool = True,
    has_tf32: bool = False,
    blocks: tuple[int, int, int, int] | None = None,
) -> tuple[TritonKernel, ...]:
    """The kernel of dq, then that of dk and dv; buffers: q, k, v, out, logarithms, grad, results, and the mask.

    begins: the first element of each buffer's operand, results left out. blocks: as of `attention_kernel`, of both.
    """
    made = []
    inputs = [problem.q, problem.k, problem.v, problem.out, problem.logarithms, problem.grad]
    for results in (("of_q",), ("of_k", "of_v")):
        lines = _Lines(problem, problem.scale, _BACKWARD, has_tf32, blocks)
        names = ("q", "k", "v", "out", "logarithms", "grad", *results)
        own = [*begins[: len(inputs)], *(0 for _ in results), *begins[len(inputs) :]]
        lines.begin((*names, *(["mask"] if problem.mask is not None else [])), own)
        outputs = [problem.of_q] if results == ("of_q",) else [problem.of_k, problem.of_v]
        (lines.gradient_of_queries if len(outputs) == 1 else lines.gradient_of_keys)(problem)
        programs = lines.blocks_of_queries if len(outputs) == 1 else lines.blocks_of_keys
        made.append(lines.finished("attention_gradient", [*inputs, *outputs], programs, is_aligned))
    return tuple(made)


@record
class _Blocks:
    """Sizes of blocks: R queries, B keys, D columns of queries and keys, E of values."""

    r: int
    b: int
    d: int
    e: int
    warps: int
    stages: int


class _Lines:
    """The text in the making."""

    def __init__(
        self,
        problem: Attention | Backward,
        scale: float,
        table: dict[int, tuple[int, int, int, int]],
        has_tf32: bool,
        blocks: tuple[int, int, int, int] | None,
    ) -> None:
        self.problem, self.scale = problem, scale
        self.text = Text()
        self.dtype = problem.q.dtype
        self.batch, self.heads, self.queries, self.width = problem.q.sizes
        self.kv_heads, self.keys, self.columns = problem.k.sizes[1], problem.k.sizes[2], problem.v.sizes[3]
        d, wide = (max(_LEAST, power_of_two(n)) for n in (self.width, self.columns))
        r, b, warps, stages = blocks or table[next(w for w in table if w >= max(d, wide))]
        if self.dtype is DType.F32 and blocks is None:
            # Twice the bytes.
            r, b, stages = max(_LEAST, r // 2), max(_LEAST, b // 2), min(stages, 2)
        r, b = (max(_LEAST, min(most, power_of_two(n))) for most, n in ((r, self.queries), (b, self.keys)))
        self.blocks = _Blocks(r, b, d, wide, warps, stages)
        operands = [problem.q, problem.k, problem.v, problem.out, *([problem.mask] if problem.mask else [])]
        self.is_wide = max(map(_reach, operands)) >= _LIMIT
        self.precision = f'input_precision="{"tf32" if has_tf32 else "ieee"}"'
        self.names: tuple[str, ...] = ()
        self.begins: dict[str, int] = {}

    # --- programs

    @property
    def blocks_of_queries(self) -> int:
        """Programs of which each has a block of queries."""
        return self.batch * self.heads * ceil_div(self.queries, self.blocks.r)

    @property
    def blocks_of_keys(self) -> int:
        """Programs of which each has a block of keys."""
        return self.batch * self.kv_heads * ceil_div(self.keys, self.blocks.b)

    def begin(self, names: Sequence[str], begins: Sequence[int]) -> None:
        """Name the buffers, and say where their operands begin in them."""
        self.names, self.begins = tuple(names), dict(zip(names, begins, strict=True))

    def emit(self, *lines: str) -> None:
        """Append lines, to the open loop if there is one."""
        (self.text.lines if self.text.loop is None else self.text.loop).extend(lines)

    def word(self, value: int) -> str:
        """A number as text."""
        return self.text.word(value)

    def at(self, name: str, operand: Operand, head: str, row: str, column: str) -> str:
        """The address of elements."""
        terms = [self.word(self.begins[name])] if self.begins[name] else []
        for counter, stride, size in zip(("batch", head, row, column), operand.strides, operand.sizes, strict=True):
            if stride and size != 1:
                terms.append(counter if stride == 1 else f"{counter} * {self.word(stride)}")
        if any(not stride or size == 1 for stride, size in zip(operand.strides[2:], operand.sizes[2:], strict=True)):
            # An address has all axes of the block, also those that it does not change along.
            terms.append(f"tl.zeros_like({row} + {column})")
        return f"b{self.names.index(name)} + ({' + '.join(terms) or '0'})"

    def load(self, name: str, operand: Operand, head: str, row: str, column: str, mask: str) -> str:
        """Elements, 0 outside."""
        return f"tl.load({self.at(name, operand, head, row, column)}, mask={mask}, other=0)"

    def axes(self, heads: int, block: str) -> None:
        """The counters of a program: which block of which head of which tensor of the batch."""
        number = "tl.program_id(0)" + (".to(tl.int64)" if self.is_wide else "")
        self.emit(
            f"program = {number}",
            f"block = program % {self.word(block_count(block, self))}",
            f"pair = program // {self.word(block_count(block, self))}",
            f"batch = pair // {self.word(heads)}",
            f"head = pair % {self.word(heads)}",
        )

    @property
    def share(self) -> int:
        """Heads of queries that one head of keys serves."""
        return self.heads // self.kv_heads

    def columns_of_heads(self) -> None:
        """Counters of a head's columns, along the second axis of a block and along the first."""
        self.emit(
            "d = tl.arange(0, D)",
            f"in_d = d < {self.word(self.width)}",
            "c = tl.arange(0, E)",
            f"in_c = c < {self.word(self.columns)}",
        )

    # --- what stands in all of them

    def scores(self, mask: Operand | None, is_causal: bool) -> None:
        """`s` [R, B]: scores of a block times the scale, as powers of 2, -inf where a query sees no key."""
        factor = self.scale * log2(e)
        self.emit(f"s = tl.dot(q, tl.trans(k), {self.precision}) * {factor!r}")
        seen = "in_i[:, None] & in_j[None, :]"
        if mask is not None:
            loaded = self.load("mask", mask, "head", "i[:, None]", "j[None, :]", seen)
            if mask.dtype is DType.BOOL:
                seen = f"{seen} & ({loaded} != 0)"
            else:
                self.emit(f"s = s + {loaded}.to(tl.float32) * {log2(e)!r}")
        if is_causal:
            seen = f"{seen} & (j[None, :] <= i[:, None])"
        self.emit(f's = tl.where({seen}, s, float("-inf"))')

    def keys_and_values(self) -> None:
        """`k` [B, D] and `v` [B, E] of the keys `j`."""
        problem = self.problem
        self.emit(
            f"k = {self.load('k', problem.k, 'group', 'j[:, None]', 'd[None, :]', 'in_j[:, None] & in_d[None, :]')}",
            f"v = {self.load('v', problem.v, 'group', 'j[:, None]', 'c[None, :]', 'in_j[:, None] & in_c[None, :]')}",
        )

    def query_block(self, problem: Attention | Backward) -> None:
        """`q` [R, D] of the queries `i`."""
        self.emit(
            f"q = {self.load('q', problem.q, 'head', 'i[:, None]', 'd[None, :]', 'in_i[:, None] & in_d[None, :]')}"
        )

    def narrow(self, text: str) -> str:
        """A block of f32 as an operand of a product."""
        return f"{text}.to(tl.{memory_type(self.dtype)})" if self.dtype.is_half else text

    def rows(self, block: str) -> None:
        """The queries of a block."""
        self.emit(f"i = {block} * R + tl.arange(0, R)", f"in_i = i < {self.word(self.queries)}")

    def store(self, name: str, operand: Operand, value: str, head: str, row: str, column: str, mask: str) -> None:
        """Store a block of f32."""
        self.emit(f"tl.store({self.at(name, operand, head, row, column)}, {self.narrow(value)}, mask={mask})")

    def end_of_keys(self, is_causal: bool) -> str:
        """The first key that no query of a block sees."""
        if not is_causal:
            return self.word(self.keys)
        self.emit(f"end = tl.minimum({self.word(self.keys)}, block * R + R)")
        return "end"

    # --- kernels

    def forward(self, problem: Attention) -> None:
        """The result, and the logarithms where they are wanted."""
        self.axes(self.heads, "queries")
        self.emit(f"group = head // {self.word(self.share)}")
        self.rows("block")
        self.columns_of_heads()
        self.query_block(problem)
        self.emit(
            'm = tl.full((R,), float("-inf"), tl.float32)',
            "total = tl.full((R,), 0.0, tl.float32)",
            "sum = tl.full((R, E), 0.0, tl.float32)",
        )
        end = self.end_of_keys(problem.is_causal)
        self.text.loop = []
        self.emit("j = start + tl.arange(0, B)", f"in_j = j < {self.word(self.keys)}")
        self.keys_and_values()
        self.scores(problem.mask, problem.is_causal)
        self.emit(
            "higher = tl.maximum(m, tl.max(s, 1))",
            "# Where nothing is seen yet, all is -inf.",
            'base = tl.where(higher == float("-inf"), 0.0, higher)',
            "p = tl.exp2(s - base[:, None])",
            "fade = tl.exp2(m - base)",
            "total = total * fade + tl.sum(p, 1)",
            f"sum = tl.dot({self.narrow('p')}, v, sum * fade[:, None], {self.precision})",
            "m = higher",
        )
        self.close(f"for start in range(0, {end}, B):")
        self.emit(
            "whole = tl.where(total == 0.0, 1.0, total)", "sum = quotient(sum, whole[:, None] + tl.zeros_like(sum))"
        )
        self.store("out", problem.out, "sum", "head", "i[:, None]", "c[None, :]", "in_i[:, None] & in_c[None, :]")
        if problem.logarithms is not None:
            self.emit('low = tl.where(m == float("-inf"), 0.0, m)')
            where = self.at("logarithms", problem.logarithms, "head", "i", "0")
            self.emit(f"tl.store({where}, (low + tl.log2(whole)) * {1 / log2(e)!r}, mask=in_i)")

    def gradient_of_queries(self, problem: Backward) -> None:
        """dq = scale * (p * (grad @ v^T - delta)) @ k."""
        self.axes(self.heads, "queries")
        self.emit(f"group = head // {self.word(self.share)}")
        self.rows("block")
        self.columns_of_heads()
        self.query_block(problem)
        self.of_rows(problem)
        self.emit("sum = tl.full((R, D), 0.0, tl.float32)")
        end = self.end_of_keys(problem.is_causal)
        self.text.loop = []
        self.emit("j = start + tl.arange(0, B)", f"in_j = j < {self.word(self.keys)}")
        self.keys_and_values()
        self.scores(problem.mask, problem.is_causal)
        self.weights()
        self.emit(f"sum = tl.dot({self.narrow('change')}, k, sum, {self.precision})")
        self.close(f"for start in range(0, {end}, B):")
        inside = "in_i[:, None] & in_d[None, :]"
        self.store("of_q", problem.of_q, f"(sum * {self.scale!r})", "head", "i[:, None]", "d[None, :]", inside)

    def gradient_of_keys(self, problem: Backward) -> None:
        """dv = p^T @ grad; dk = scale * (p * (grad @ v^T - delta))^T @ q."""
        self.axes(self.kv_heads, "keys")
        self.emit("group = head", "j = block * B + tl.arange(0, B)", f"in_j = j < {self.word(self.keys)}")
        self.columns_of_heads()
        self.keys_and_values()
        self.emit("of_k = tl.full((B, D), 0.0, tl.float32)", "of_v = tl.full((B, E), 0.0, tl.float32)")
        blocks = self.word(ceil_div(self.queries, self.blocks.r))
        self.text.loop = []
        self.emit(f"head = group * {self.word(self.share)} + step // {blocks}")
        self.rows(f"(step % {blocks})")
        self.query_block(problem)
        self.of_rows(problem)
        self.scores(problem.mask, problem.is_causal)
        self.weights()
        self.emit(
            f"of_v = tl.dot(tl.trans({self.narrow('p')}), grad, of_v, {self.precision})",
            f"of_k = tl.dot(tl.trans({self.narrow('change')}), q, of_k, {self.precision})",
        )
        self.close(f"for step in range(0, {self.word(self.share)} * {blocks}):")
        inside = "in_j[:, None] & in_d[None, :]"
        self.store("of_k", problem.of_k, f"(of_k * {self.scale!r})", "group", "j[:, None]", "d[None, :]", inside)
        inside = "in_j[:, None] & in_c[None, :]"
        self.store("of_v", problem.of_v, "of_v", "group", "j[:, None]", "c[None, :]", inside)

    def of_rows(self, problem: Backward) -> None:
        """`grad` [R, E], the logarithms as powers of 2, and `delta`: the sum of grad * out, of the queries `i`."""
        inside = "in_i[:, None] & in_c[None, :]"
        where = self.at("logarithms", problem.logarithms, "head", "i", "0")
        self.emit(
            f"grad = {self.load('grad', problem.grad, 'head', 'i[:, None]', 'c[None, :]', inside)}",
            f"out = {self.load('out', problem.out, 'head', 'i[:, None]', 'c[None, :]', inside)}",
            "delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)",
            f"power = tl.load({where}, mask=in_i, other=0.0) * {log2(e)!r}",
            'power = tl.where(power == float("-inf"), 0.0, power)',
        )

    def weights(self) -> None:
        """`p` [R, B], the weights, and `change`, the gradient of scores without the scale."""
        self.emit(
            "p = tl.exp2(s - power[:, None])",
            f"change = p * (tl.dot(grad, tl.trans(v), {self.precision}) - delta[:, None])",
        )

    # --- the end

    def close(self, head: str) -> None:
        """Put the open loop behind the lines so far."""
        assert self.text.loop is not None
        self.text.lines += [head, *(f"    {line}" for line in self.text.loop)]
        self.text.loop = None

    def finished(self, form: str, buffers: Sequence[Operand], programs: int, is_aligned: bool) -> TritonKernel:
        """The kernel of all lines."""
        mask = self.problem.mask
        pointers = tuple(pointer_type(o.dtype) for o in (*buffers, *([] if mask is None else [mask])))
        blocks = self.blocks
        constants = (("R", blocks.r), ("B", blocks.b), ("D", blocks.d), ("E", blocks.e))
        arguments = [f"b{k}" for k in range(len(pointers))] + [f"w{k}" for k in range(len(self.text.words))]
        arguments += [f"{name}: tl.constexpr" for name, _ in constants]
        body = "\n".join(f"    {line}" for line in self.text.lines)
        text = (
            f"{HEADER}{functions(self.text.lines)}\n\n@triton.jit\ndef {PLACEHOLDER}({', '.join(arguments)}):\n{body}\n"
        )
        multiples = tuple(word.multiple for word in self.text.words)
        source = TritonSource(
            "", text, pointers, multiples, self.is_wide, constants, blocks.warps, False, is_aligned, blocks.stages
        )
        source = source.named(form)
        return TritonKernel(source, "attention", tuple(word.value for word in self.text.words), programs)


def block_count(axis: str, lines: _Lines) -> int:
    """Blocks of queries or keys of one head."""
    return ceil_div(lines.queries, lines.blocks.r) if axis == "queries" else ceil_div(lines.keys, lines.blocks.b)


def _reach(operand: Operand) -> int:
    return sum(abs(stride) * size for stride, size in zip(operand.strides, operand.sizes, strict=True))
