"""Masks that hide keys from whole tiles of queries: windows, blocks of documents, padding. What is left out of a
computation makes no difference, and where it might, the data are refused.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.llvm.isa import Isa
from tests.attention.harness import Case, check
from tests.attention.test_kernels import INF, NAN, every_isa, operands, spoil


def _places(queries: int, keys: int) -> tuple[Tensor, Tensor]:
    return torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None]


def _allowed(kind: str, queries: int, keys: int) -> Tensor:
    """bool[queries, keys]."""
    at, of = _places(queries, keys)
    match kind:
        case "window":
            return (of <= at) & (of > at - 24)
        case "band":
            return (of - at).abs() < 40
        case "documents":
            return at // 70 == of // 70
        case "padding":
            return (of < keys - 45) & (at >= 0)
        case "first and last":
            return (of < 3) | (of >= keys - 2) | (at < -queries)
        case "gap":
            return (of < 20) | (of > keys - 20) | (at % 7 == 3)
        case "some rows see nothing":
            return (of <= at) & (at // 16 % 2 == 0)
        case "one key":
            return of == at % keys
    raise AssertionError(kind)


_KINDS = ("window", "band", "documents", "padding", "first and last", "gap", "some rows see nothing", "one key")
_SIZES = ((128, 128), (256, 250), (90, 600), (300, 300), (40, 33), (65, 519))


def _added(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask as numbers to add, some of them not 0."""
    return torch.where(allowed, torch.linspace(-1, 1, allowed.shape[-1]), -INF).to(dtype)


@pytest.mark.spread(8)
@every_isa
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("is_added", [False, True])
def test_windows(kind: str, is_added: bool, isa: Isa) -> None:
    for (queries, keys), (group, size) in product(_SIZES, ((1, 16), (3, 24))):
        allowed = _allowed(kind, queries, keys)
        case = Case(*operands(1, 2 * group, 2, queries, keys, size), isa=isa)
        check(replace(case, mask=(_added(allowed) if is_added else allowed)[None, None]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["window", "padding"])
def test_other_dtypes(dtype: torch.dtype, kind: str) -> None:
    allowed = _allowed(kind, 100, 300)
    for mask in (allowed, _added(allowed, dtype)):
        check(Case(*operands(1, 2, 1, 100, 300, 32, dtype=dtype), mask=mask[None, None]))


def test_masks_of_heads_and_samples_differ() -> None:
    allowed = torch.stack([_allowed(kind, 80, 300) for kind in _KINDS])
    check(Case(*operands(2, 4, 2, 80, 300, 16), mask=allowed.view(2, 4, 80, 300)))
    check(Case(*operands(2, 4, 1, 80, 300, 16), mask=_added(allowed).view(2, 4, 80, 300)))
    padding = torch.stack([torch.arange(300) < 40, torch.arange(300) >= 200]).view(2, 1, 1, 300)
    check(Case(*operands(2, 4, 1, 80, 300, 16), mask=padding))


def test_masks_that_lie_otherwise() -> None:
    allowed = _allowed("band", 90, 300)
    for mask in (allowed.t().contiguous().t(), torch.stack([allowed, ~allowed], -1)[..., 0]):
        check(Case(*operands(1, 2, 2, 90, 300, 16), mask=mask[None, None]))
        check(Case(*operands(1, 2, 2, 90, 300, 16), mask=_added(mask)[None, None]))


@pytest.mark.parametrize("is_spelled", [False, True])
def test_the_same_bits_as_with_all_keys(is_spelled: bool) -> None:
    allowed = _allowed("window", 96, 300)[None, None]
    q, k, v = operands(1, 2, 2, 96, 300, 16)
    found = Case(q, k, v, allowed, is_spelled=is_spelled).run()
    # Lying otherwise, the mask is not looked at beforehand.
    other = Case(q, k, v, allowed.mT.contiguous().mT, is_spelled=is_spelled).run()
    assert found is not None and other is not None and torch.equal(found, other)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 2e19, -3e38])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("size", [16, 20])
def test_what_a_mask_hides_is_refused_where_it_may_matter(value: float, which: str, size: int) -> None:
    allowed = _allowed("window", 128, 128)[None, None]
    q, k, v = operands(1, 2, 2, 128, 128, size)
    for place in (0, size - 1):
        spoiled = {name: spoil(t, 0, 1, 60, place, value=value) if name == which else t
                   for name, t in (("q", q), ("k", k), ("v", v))}  # fmt: skip
        found = Case(**spoiled, mask=allowed).run()
        assert (found is None) == (which != "v" or not abs(value) < INF)
        everything = Case(**spoiled, mask=torch.ones(1, 1, 128, 128, dtype=torch.bool)).run()
        assert everything is not None


@torch.no_grad()
@pytest.mark.parametrize("value", [NAN, INF, 1e30])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_program_with_such_data_gives_what_eager_gives(which: int, value: float) -> None:
    allowed = _allowed("window", 128, 128)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, allowed)

    compiled = smelt.compile(attend, options={"measure": False})
    given = operands(1, 2, 2, 128, 128, 16)
    torch.testing.assert_close(compiled(*given), attend(*given))
    given[which] = spoil(given[which], 0, 1, 60, 3, value=value)
    torch.testing.assert_close(compiled(*given), attend(*given), equal_nan=True)
