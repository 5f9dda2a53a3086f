"""Gradients of attention by own kernels: by themselves on any instruction set, and in whole training steps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.codegen.attention import Attention, Backward, Operand, Work, backward_of, kernel_of
from smelt.codegen.attention.backward import backward_kernel
from smelt.codegen.attention.variant import Variant
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.parted import parted
from smelt.ir import DType
from tests.attention.harness import host, isas, launch, operand
from tests.training.harness import same_as_eager

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
INF = float("inf")


@dataclass
class Trained:
    """An attention whose gradients are wanted, over live tensors."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    isa: Isa = field(default_factory=host)

    @property
    def factor(self) -> float:
        return self.q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def library(self, grad: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Result, logarithms and gradients of torch's kernels."""
        q, k, v, grad = (t.to(dtype) for t in (self.q, self.k, self.v, grad))
        how = {"attn_mask": None if self.mask is None else self.mask.to(dtype), "scale": self.scale}
        out, sums = FORWARD(q, k, v, 0.0, self.is_causal, **how)
        return out, sums, *BACKWARD(grad, q, k, v, out, sums, 0.0, self.is_causal, **how)

    def own(self, grad: Tensor, cuts: tuple[int, ...] = ()) -> list[Tensor] | None:
        """The same of own kernels; None where they refuse the data."""
        like = self.library(grad, self.q.dtype)
        made = [torch.full_like(t, float("nan")) for t in like]
        mask = [] if self.mask is None else [self.mask.expand(*self.q.shape[:3], self.k.shape[2])]
        operands = [self.q, self.k, self.v]
        if launch(self.forward(made), [*operands, *made[:2], *mask], self.isa):
            return None
        work = self.backward(grad, made)
        return None if launch(work, [grad, *operands, *made, *mask], self.isa, cuts) else made

    def forward(self, made: list[Tensor]) -> Work:
        q, k, v, out = (operand(t) for t in (self.q, self.k, self.v, made[0]))
        sums = operand(made[1][..., None])
        given = Attention(
            q, k, v, out, self._mask(), scale_after=self.factor, is_causal=self.is_causal, logarithms=sums
        )
        found = kernel_of(given, self.isa)
        assert found is not None
        return found

    def backward(self, grad: Tensor, made: list[Tensor]) -> Work:
        g, q, k, v, out, dq, dk, dv = (operand(t) for t in (grad, self.q, self.k, self.v, made[0], *made[2:]))
        sums = operand(made[1][..., None])
        given = Backward(g, q, k, v, out, sums, dq, dk, dv, self._mask(), self.factor, self.is_causal)
        found = backward_of(given, self.isa)
        assert found is not None
        return found

    def _mask(self) -> Operand | None:
        return None if self.mask is None else operand(self.mask.expand(*self.q.shape[:3], self.k.shape[2]))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(
    batch: int, heads: int, queries: int, keys: int, size: int, groups: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Trained, Tensor]:
    """Operands that lie as projections do, and the result's gradient."""
    q, k, v, grad = (
        normal(batch, rows, count, size, seed=seed).to(dtype).transpose(1, 2)
        for seed, (rows, count) in enumerate(
            [(queries, heads * groups), (keys, heads), (keys, heads), (queries, heads * groups)]
        )
    )
    return Trained(q, k, v), grad


def check(case: Trained, grad: Tensor, cuts: tuple[int, ...] = ()) -> list[Tensor]:
    """Errors against wider floats within the bound that the library's set."""
    found = case.own(grad, cuts)
    assert found is not None
    library = case.library(grad, case.q.dtype)
    exact = case.library(grad, torch.float64)
    for own, theirs, right in zip(found, library, exact, strict=True):
        assert own.stride() == theirs.stride() and own.dtype == theirs.dtype
        least = right.abs().max() * torch.finfo(own.dtype).eps
        errors = [(t.double() - right).square().mean().sqrt() for t in (own, theirs)]
        assert errors[0] <= 1.5 * errors[1] + least, errors
    return found


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
def test_gradients_are_within_the_librarys_error(isa: Isa) -> None:
    for sizes in ((2, 4, 6, 7, 8), (1, 1, 1, 1, 1), (1, 2, 100, 130, 16), (1, 2, 70, 40, 33), (2, 2, 33, 300, 64)):
        for is_causal in (False, True):
            case, grad = trained(*sizes)
            case.isa, case.is_causal = isa, is_causal
            check(case, grad)


def test_all_head_sizes_and_dtypes() -> None:
    for size in (16, 40, 80, 128, 192, 256):
        check(*trained(1, 2, 20, 24, size))
    for dtype, groups in itertools.product((torch.float64, torch.bfloat16, torch.float16), (1, 2)):
        case, grad = trained(2, 2, 37, 37, 24, groups, dtype)
        case.is_causal = True
        check(case, grad)


def test_heads_that_share_keys_sum_their_gradients() -> None:
    case, grad = trained(2, 2, 50, 40, 32, groups=3)
    check(case, grad)
    case.is_causal, case.scale = True, 0.3
    check(case, grad)


def test_masks_of_any_broadcast() -> None:
    for sizes in ((50, 40), (1, 1, 1, 40), (2, 1, 1, 40), (1, 4, 50, 1), (2, 4, 50, 40), (2, 1, 50, 40)):
        case, grad = trained(2, 4, 50, 40, 16)
        case.mask = normal(*sizes, seed=9)
        check(case, grad)
        case.mask = torch.where(case.mask > 0.5, -INF, 0.0)
        check(case, grad)


def test_queries_without_keys_have_no_gradient_and_give_none() -> None:
    case, grad = trained(1, 2, 6, 7, 8)
    case.mask = torch.zeros(6, 7)
    case.mask[2] = -INF
    out, sums, of_q, *_ = check(case, grad)
    for found in (out, sums, of_q):
        assert not found[:, :, 2].any()
    case.mask[2] = torch.finfo(torch.float32).min  # the library takes each power for 1 then, and so gradients are
    check(case, grad)


def test_items_are_independent_and_repeat_to_the_bit() -> None:
    case, grad = trained(2, 3, 40, 150, 20)
    whole, cut = case.own(grad), case.own(grad, (1, 4))
    assert whole is not None and cut is not None
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_what_causality_hides_is_refused_where_it_is_not_finite() -> None:
    for which in range(4):
        case, grad = trained(1, 2, 5, 5, 8)
        case.is_causal = True
        (case.q, case.k, case.v, grad)[which][0, 1, 4, 2] = INF
        assert case.own(grad) is None


def test_what_is_done_again_and_again_is_one_function_for_all_kernels_of_a_dtype() -> None:
    """Rows, panels, scores, two products and results: whatever the mask is, in one text each."""
    kernels = [backward_kernel(Variant(DType.F32, mask, is_backward=True), host()) for mask in (None, DType.BOOL)]
    plain, masked = (parted(kernel.symbol, kernel.text) for kernel in kernels)
    assert plain.functions.keys() == masked.functions.keys() and len(plain.functions) == 6
    assert plain.kernel.symbol != masked.kernel.symbol
    wide = backward_kernel(Variant(DType.F64, None, is_backward=True), host())
    assert plain.functions.keys().isdisjoint(parted(wide.symbol, wide.text).functions)


# --- in programs


class Layer(nn.Module):
    """Attention with projections; two heads share their keys where `shared`."""

    def __init__(self, width: int = 16, heads: int = 4, shared: bool = False) -> None:
        super().__init__()
        self.size, self.shared = width // heads, shared
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, width if shared else 2 * width)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q = self.q(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        k, v = (t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in self.kv(x).chunk(2, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=self.shared)
        return mixed.transpose(1, 2).flatten(2)


def test_training_runs_own_kernels_with_eagers_answers() -> None:
    x, mask = normal(2, 9, 16), normal(2, 1, 9, 9, seed=1)
    for shared in (False, True):
        torch.manual_seed(0)
        layer = Layer(shared=shared)
        programs = (
            lambda x, layer=layer: layer(x).square().sum(),
            lambda x, layer=layer: layer(x, is_causal=True).square().sum(),
            lambda x, layer=layer: layer(x, mask > 0).square().sum(),
        )
        for program in programs:
            text = smelt.explain(same_as_eager(program, [(x,), (x + 1,)])).to_text()
            assert "own kernels do 100%" in text and "gradients of attention" in text, text


def test_refused_data_is_computed_as_in_eager() -> None:
    layer, x = Layer(), normal(1, 5, 16)
    x[0, 4, 3] = INF

    def program(x: Tensor) -> Tensor:
        return layer(x, is_causal=True)[:, :3].sum()

    found = []
    for run in (program, smelt.compile(program, options={"train": True})):
        for _ in range(2):
            given = x.clone().requires_grad_()
            loss = run(given)
            found.append((loss.detach(), *torch.autograd.grad(loss, (given, *layer.parameters()))))
    for own, eager in zip(found[3], found[0], strict=True):
        torch.testing.assert_close(own, eager, equal_nan=True)
