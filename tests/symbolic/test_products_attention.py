"""Attention planned once for sizes known at run time only: within eager's own error at every size, NaN where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from smelt.codegen.attention import Attention, Operand, Work, kernel_of
from smelt.codegen.llvm.isa import Isa
from smelt.ir import DType
from smelt.ir.sizes import Range
from smelt.ops.convert import dtype_from_torch
from tests.attention.harness import Case, check, host, isas
from tests.symbolic.products_harness import Made, again, made


@dataclass
class At(Case):
    """A case whose launch is that of a plan for other sizes, too."""

    planned: Work | None = None

    def work(self, out: torch.Tensor) -> Work:
        assert self.planned is not None
        return self.planned


@dataclass(frozen=True)
class Heads:
    """q [b, s, h, d], k and v [b, t, h', d], transposed as in models; a mask [b, 1, s, t], shared: [1, 1, 1, t]."""

    heads: int = 2
    kv_heads: int = 2
    size: int = 32
    value_size: int = 32
    dtype: torch.dtype = torch.float32
    mask: torch.dtype | None = None
    shared_mask: bool = False
    is_causal: bool = False
    is_spelled: bool = False
    is_transposed: bool = True

    def attention(self, b: int, s: int, t: int) -> Attention:
        """The problem at sizes that may be symbols."""
        dtype = dtype_from_torch(self.dtype)

        def operand(heads: int, rows: int, columns: int) -> Operand:
            strides = (rows * heads * columns, columns, heads * columns, 1)
            if not self.is_transposed:
                strides = (heads * rows * columns, rows * columns, columns, 1)
            return Operand(dtype, (b, heads, rows, columns), strides)

        mask = None
        if self.mask is not None:
            strides = (0, 0, 0, 1) if self.shared_mask else (s * t, 0, t, 1)
            mask = Operand(dtype_from_torch(self.mask), (b, self.heads, s, t), strides)
        out = Operand(
            dtype, (b, self.heads, s, self.value_size),
            (s * self.heads * self.value_size, self.value_size, self.heads * self.value_size, 1),
        )  # fmt: skip
        return Attention(
            operand(self.heads, s, self.size), operand(self.kv_heads, t, self.size),
            operand(self.kv_heads, t, self.value_size), out, mask,
            scale_after=self.size**-0.5, is_causal=self.is_causal, is_spelled=self.is_spelled,
        )  # fmt: skip

    def planned(self, isa: Isa, b: Any, s: Any, t: Any) -> Made:
        """The plan; each size is a number, or a symbol's value and range, t also "S"."""

        def plan(symbols: dict[str, Any]) -> Work | None:
            sizes = [symbols.get(name, size) for name, size in zip("BST", (b, s, t), strict=True)]
            return kernel_of(self.attention(*(symbols["S"] if n == "S" else n for n in sizes)), isa)

        return made(plan, **{n: x for n, x in zip("BST", (b, s, t), strict=True) if isinstance(x, tuple)})

    def case(self, isa: Isa, planned: Work, b: int, s: int, t: int) -> At:
        """Tensors of these sizes."""
        generator = torch.Generator().manual_seed(b * 1000003 + s * 1009 + t)

        def tensor(heads: int, rows: int, columns: int) -> torch.Tensor:
            shape = (b, rows, heads, columns) if self.is_transposed else (b, heads, rows, columns)
            found = torch.randn(shape, generator=generator).to(self.dtype)
            return found.transpose(1, 2) if self.is_transposed else found

        q, k = tensor(self.heads, s, self.size), tensor(self.kv_heads, t, self.size)
        v = tensor(self.kv_heads, t, self.value_size)
        mask = None
        if self.mask is not None:
            mask = torch.randn((1, 1, 1, t) if self.shared_mask else (b, 1, s, t), generator=generator)
            mask = mask > -0.8 if self.mask is torch.bool else mask.to(self.mask)
        return At(q, k, v, mask, self.is_causal, self.is_spelled, isa=isa, planned=planned)


ANY = Range(1)
SIZES = ((2, 64), (3, 77), (1, 1), (2, 2), (1, 4), (1, 5), (1, 130), (2, 257), (1, 600))


@pytest.mark.spread(28)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_one_plan_serves_batches_and_sequences(isa: Isa, dtype: torch.dtype, is_causal: bool) -> None:
    if dtype is torch.float16 and isa.name == "baseline":
        return
    heads = Heads(dtype=dtype, is_causal=is_causal)
    found = heads.planned(isa, (2, ANY), (64, ANY), "S")
    assert found.guards == []
    for b, s in SIZES:
        check(heads.case(isa, found.at(B=b, S=s), b, s, s))


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "heads",
    [
        Heads(mask=torch.bool),
        Heads(mask=torch.float32),
        Heads(mask=torch.bool, shared_mask=True),
        Heads(mask=torch.bool, is_spelled=True),
        Heads(is_spelled=True),
        Heads(is_spelled=True, dtype=torch.float64),
        Heads(heads=6, kv_heads=2, size=40, value_size=24),
        Heads(heads=6, kv_heads=2, is_causal=True),
        Heads(size=7, value_size=300, is_transposed=False),
        Heads(heads=1, kv_heads=1, size=260, mask=torch.float32),
        Heads(mask=torch.float32, dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_one_plan_with_masks_and_groups(heads: Heads) -> None:
    found = heads.planned(host(), (2, ANY), (30, ANY), (40, ANY))
    assert found.guards == []
    for b, s, t in ((2, 30, 40), (1, 1, 1), (2, 1, 300), (1, 3, 17), (1, 200, 15), (3, 65, 513)):
        check(heads.case(host(), found.at(B=b, S=s, T=t), b, s, t))


@pytest.mark.parametrize("is_spelled", [False, True])
def test_words_are_those_of_a_plan_for_these_sizes(is_spelled: bool) -> None:
    heads = Heads(heads=4, is_spelled=is_spelled)
    found = heads.planned(host(), (2, ANY), (64, ANY), (40, ANY))
    for b, s, t in ((1, 5, 5), (4, 64, 64), (1, 1000, 33), (1, 2000, 2000), (7, 300, 700)):
        assert found.at(B=b, S=s, T=t) == kernel_of(heads.attention(b, s, t), host())


# --- a query against a cache that grows


LENGTHS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000)
"""Below, at and beyond the lanes of all vectors, blocks of keys."""


@pytest.mark.spread(10)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
def test_one_query_against_any_number_of_keys(isa: Isa, dtype: torch.dtype, mask: torch.dtype | None) -> None:
    if dtype is torch.float16 and isa.name == "baseline":
        return
    heads = Heads(heads=6, kv_heads=2, dtype=dtype, mask=mask, is_transposed=False)
    found = heads.planned(isa, (1, ANY), 1, (40, ANY))
    # Vectors of two numbers are no faster than tiles.
    assert found.guards == [] and found.of.is_few is not (isa.name == "baseline" and dtype is torch.float64)
    for b, t in ((1, 40), *((2, t) for t in LENGTHS)):
        check(heads.case(isa, found.at(B=b, T=t), b, 1, t))


@pytest.mark.spread(2)
@pytest.mark.parametrize("hint", [5, 40, 20000])
@pytest.mark.parametrize("is_spelled", [False, True])
def test_few_queries_whatever_the_length_at_hand(hint: int, is_spelled: bool) -> None:
    heads = Heads(heads=2, size=64, value_size=64, is_transposed=False, is_spelled=is_spelled, mask=torch.bool)
    found = heads.planned(host(), 1, 3, (hint, ANY))
    assert found.guards == [] and found.of.is_few
    for t in (1, 5, 16, 40, 300, 16384, 16400):
        check(heads.case(host(), found.at(T=t), 1, 3, t))


def test_a_very_long_cache_is_summed_as_exactly_as_by_tiles() -> None:
    heads = Heads(heads=1, kv_heads=1, size=16, value_size=16, is_transposed=False)
    found = heads.planned(host(), 1, 1, (1000, ANY))
    for t in (20_000, 150_001):
        check(heads.case(host(), found.at(T=t), 1, 1, t))


def test_words_for_a_growing_cache_are_those_of_its_lengths() -> None:
    heads = Heads(heads=4, kv_heads=4, is_transposed=False)
    found = heads.planned(host(), (1, ANY), 1, (40, ANY))
    for b, t in ((1, 16), (2, 300), (1, 16384)):
        here, alone = found.at(B=b, T=t), kernel_of(heads.attention(b, 1, t), host())
        assert alone is not None and alone.is_few
        assert (here.words, here.items, here.item_ns) == (alone.words, alone.items, alone.item_ns)
        assert here.scratch_nbytes == alone.scratch_nbytes


def test_a_cache_that_is_never_short_or_very_long_has_the_text_of_a_known_length() -> None:
    heads = Heads(heads=4, kv_heads=4, is_transposed=False)
    alone = kernel_of(heads.attention(1, 1, 100), host())
    assert alone is not None
    assert heads.planned(host(), 1, 1, (100, Range(16, 16384))).of.source == alone.source
    assert heads.planned(host(), 1, 1, (100, Range(2, 16384))).of.source != alone.source
    assert heads.planned(host(), 1, 1, (100, Range(16))).of.source != alone.source


def test_keys_of_a_head_that_ends_its_memory_are_not_read_past() -> None:
    """Fewer keys than lanes at the end of a page after which nothing may be read."""
    import ctypes
    import mmap

    heads = Heads(heads=1, kv_heads=1, is_transposed=False)
    found = heads.planned(host(), 1, 1, (40, ANY))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    for t in (1, 3, 15):
        case = heads.case(host(), found.at(T=t), 1, 1, t)
        ends = []
        for source in (case.k, case.v):
            memory = mmap.mmap(-1, 2 * page)
            whole = torch.frombuffer(memory, dtype=torch.float32)
            end = whole[page // 4 - source.numel() : page // 4].view(source.shape)
            end.copy_(source)
            assert libc.mprotect(whole.data_ptr() + page, page, 0) == 0
            ends.append((end, whole, memory))
        case.k, case.v = ends[0][0], ends[1][0]
        check(case)
        for _, whole, _ in ends:
            assert libc.mprotect(whole.data_ptr() + page, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


# --- what is decided


def test_sizes_in_the_text_are_refused() -> None:
    heads = Heads()

    def plan(symbols: dict[str, Any]) -> Any:
        d = symbols["D"]
        sizes, strides = (1, 2, 30, d), (60 * d, 30 * d, d, 1)
        operand = Operand(DType.F32, sizes, strides)
        return kernel_of(Attention(operand, operand, operand, operand), host())

    found = made(plan, D=(32, Range(2)))
    assert found.guards == [] and found.of is None
    assert heads.planned(host(), (2, Range(2)), (30, Range(2)), "S").of is not None


def test_a_plan_made_again_elsewhere_is_the_same() -> None:
    heads = Heads(heads=4, kv_heads=4)

    def plan(symbols: dict[str, Any]) -> Any:
        return kernel_of(heads.attention(symbols["B"], symbols["S"], symbols["S"]), host())

    first = made(plan, B=(4, Range(2)), S=(64, Range(2)))
    other = again(first, plan, B=(2, Range(2)), S=(3, Range(2)))
    assert first.at(B=2, S=3) == other.at(B=2, S=3)
