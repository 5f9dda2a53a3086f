"""Random nests against the evaluator: broadcasts, strides, offsets, masks, gathers, reductions, several passes."""

from __future__ import annotations

import random

import pytest
import torch

from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import (
    POSITIONS,
    Const,
    Expr,
    Gather,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Reduce,
    Ref,
    Statement,
    Store,
)
from smelt.codegen.llvm.nests.nest_ir import emit_nest
from smelt.ir import DType
from tests.kernels.machine import TORCH_DTYPE, machine_isas
from tests.kernels.nests import contiguous, nest, run

_SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 70)
_DTYPES = (
    DType.F32,
    DType.F32,
    DType.F32,
    DType.F64,
    DType.BF16,
    DType.F16,
    DType.I32,
    DType.I64,
    DType.U8,
    DType.BOOL,
)
_PLACES = 9


class Fuzz:
    """One random nest with its tensors: the last buffers are outputs, contiguous over their loops."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: list[torch.Tensor] = []
        self.dtypes: list[DType] = []
        self.names: list[tuple[str, DType, bool]] = []  # name, dtype, whether it is inner
        self.outer = tuple(self.random.choice(_SIZES) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3))))
        while _product(self.outer) > 6000:
            self.outer = self.outer[1:]
        self.inner: tuple[int, ...] = ()
        if self.random.random() < 0.6:
            self.inner = tuple(self.random.choice(_SIZES) for _ in range(self.random.choice((1, 1, 2))))
        self.sizes = self.outer + self.inner
        self.body: list[Statement] = []

    def nest(self) -> Nest:
        """Make it."""
        for k in range(self.random.choice((0, 1, 2)) if self.inner else 0):
            kinds = ("sum", "max", "min", "argmax", "argmin", "argmax_element", "argmin_element", "any", "all")
            kind = self.random.choice(kinds)
            dtype = DType.BOOL if kind in ("any", "all") else self.random.choice((DType.F32, DType.F64, DType.I64))
            if kind != "sum" and dtype is not DType.BOOL and self.random.random() < 0.3:
                dtype = self.random.choice((DType.I32, DType.U8))
            self.body.append(Reduce(f"r{k}", kind, self.expr(dtype, 2, True), dtype))
            result = DType.I64 if kind in POSITIONS else dtype
            self.names.append((f"r{k}", result, False))
            if self.random.random() < 0.5:
                dtype = self.random.choice(_DTYPES[:4])
                self.body.append(Let(f"t{k}", self.expr(dtype, 2, True)))
                self.names.append((f"t{k}", dtype, True))
        stores: list[tuple[Expr, DType, bool]] = []
        for _ in range(self.random.choice((1, 1, 2))):
            inner = bool(self.inner) and self.random.random() < 0.6
            dtype = self.random.choice(_DTYPES)
            stores.append((self.expr(dtype, 3, inner), dtype, inner))
        for expr, dtype, inner in stores:
            shape = self.sizes if inner else self.outer
            order = list(range(len(shape)))
            self.random.shuffle(order)
            strides = [0] * len(self.sizes)
            for loop, stride in zip(order, contiguous([shape[k] for k in order]), strict=True):
                strides[loop] = stride
            buffer = self.buffer(torch.zeros(_product(shape), dtype=TORCH_DTYPE[dtype]), dtype)
            where = self.expr(DType.BOOL, 1, inner) if self.random.random() < 0.15 else None
            self.body.append(Store(buffer, Index(0, tuple(strides)), expr, where))
        self.outputs = len(stores)
        return nest(self.dtypes, self.outer, self.inner, self.body)

    def buffer(self, tensor: torch.Tensor, dtype: DType) -> int:
        self.tensors.append(tensor)
        self.dtypes.append(dtype)
        return len(self.tensors) - 1

    def data(self, count: int, dtype: DType) -> torch.Tensor:
        # Few different numbers, exact in every dtype: comparisons tie, and rounding turns no comparison over.
        drawn = torch.randint(-8, 9, (count,), generator=self.generator)
        if dtype is DType.BOOL:
            return drawn > 0
        whole = (drawn.abs() if dtype is DType.U8 else drawn).to(TORCH_DTYPE[dtype])
        return whole / 4 if dtype.is_floating else whole

    def expr(self, dtype: DType, depth: int, inner: bool) -> Expr:
        """A random expression; `inner`: whether it may change along the inner loops."""
        usable = [Ref(n, d) for n, d, i in self.names if d is dtype and (inner or not i)]
        if usable and self.random.random() < 0.4:
            return self.random.choice(usable)
        roll = self.random.random()
        if depth == 0 or roll < 0.25:
            return self.leaf(dtype, inner)
        if dtype is DType.BOOL:
            if roll < 0.5:
                return Op(self.random.choice(("and", "or", "xor")), (self.expr(dtype, depth - 1, inner),) * 2, dtype)
            source = self.random.choice((DType.F32, DType.I64, DType.F64, DType.I32))
            pair = (self.expr(source, depth - 1, inner), self.expr(source, depth - 1, inner))
            return Op(self.random.choice(("eq", "ne", "lt", "le", "gt", "ge")), pair, dtype)
        if roll < 0.35:
            return Op(
                "cast", (self.expr(self.random.choice((DType.F32, DType.I32, DType.BOOL)), depth - 1, inner),), dtype
            )
        if roll < 0.5:
            parts = (self.expr(DType.BOOL, 1, inner), self.expr(dtype, depth - 1, inner), self.leaf(dtype, inner))
            return Op("select", parts, dtype)
        if roll < 0.6 and dtype is not DType.U8:
            return Op(self.random.choice(("neg", "abs", "sign")), (self.expr(dtype, depth - 1, inner),), dtype)
        name = self.random.choice(("add", "sub", "mul", "max", "min"))
        return Op(name, (self.expr(dtype, depth - 1, inner), self.leaf(dtype, inner)), dtype)

    def leaf(self, dtype: DType, inner: bool) -> Expr:
        roll = self.random.random()
        loops = len(self.sizes) if inner else len(self.outer)
        if roll < 0.15:
            value = self.random.choice((0, 1, 2, 3))
            return Const(bool(value) if dtype is DType.BOOL else value, dtype)
        if roll < 0.25 and loops and dtype is DType.I64:
            return Position(self.random.randrange(loops))
        return self.load(dtype, inner)

    def load(self, dtype: DType, inner: bool) -> Load:
        used = [k for k in range(len(self.sizes)) if (inner or k < len(self.outer)) and self.random.random() < 0.8]
        self.random.shuffle(used)
        if self.random.random() < 0.6:
            used.sort()
        strides = [0] * len(self.sizes)
        step = self.random.choice((1, 1, 1, 2, 3, 4, 5))
        for loop in reversed(used):
            strides[loop] = step
            step = step * self.sizes[loop] + self.random.choice((0, 0, 0, 3))
        offset = self.random.choice((0, 0, 4))
        gathers: tuple[Gather, ...] = ()
        if self.random.random() < 0.15:
            place = self.position(inner)
            gathers = (Gather(place, step, _PLACES, wraps=True),)
            step *= _PLACES
        where, other = None, None
        if self.random.random() < 0.15:
            where, other = self.expr(DType.BOOL, 1, inner), Const(1, dtype)
        buffer = self.buffer(self.data(step + offset + 1, dtype), dtype)
        return Load(buffer, Index(offset, tuple(strides), gathers), dtype, where, other)

    def position(self, inner: bool) -> Expr:
        loops = len(self.sizes) if inner else len(self.outer)
        strides = [0] * len(self.sizes)
        step = 1
        for loop in reversed(range(loops)):
            if self.random.random() < 0.5:
                strides[loop] = step
                step *= self.sizes[loop]
        places = torch.randint(-_PLACES, _PLACES, (step,), generator=self.generator)
        return Load(self.buffer(places, DType.I64), Index(0, tuple(strides)), DType.I64)


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def compare(seed: int) -> None:
    """One random nest on every instruction set, whole and in single items."""
    fuzz = Fuzz(seed)
    made = fuzz.nest()
    inputs, outputs = fuzz.tensors, sorted(made.writes)
    want = [t.clone() for t in inputs]
    code = evaluate_nest(made, want)
    for isa in machine_isas():
        kernel = emit_nest(made, isa)
        got, cut = [t.clone() for t in inputs], [t.clone() for t in inputs]
        assert run(kernel, isa, got) == code
        assert run(kernel, isa, cut, [(k, k + 1) for k in reversed(range(kernel.items))]) == code
        for k in outputs:
            note = f"seed {seed} {isa.name} buffer {k}\n{made}"
            assert torch.equal(got[k].view(torch.uint8), cut[k].view(torch.uint8)), note
            assert torch.allclose(got[k].double(), want[k].double(), rtol=1e-5, atol=1e-5, equal_nan=True), note


@pytest.mark.spread(6)
@pytest.mark.parametrize("block", range(6))
def test_random_nests(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        compare(seed)


@pytest.mark.nightly
def test_many_random_nests() -> None:
    for seed in range(1000, 1500):
        compare(seed)
