"""Attention as one library call, with the bits of eager's own kernel, for every kind of mask and layout.

Own kernels are left out here: see tests/attention.
"""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt._torch.library import shim
from smelt.codegen.lower import Lowered
from smelt.diag import Options
from tests.codegen import harness

LIBRARY = Options(deterministic=True, numerics="eager-library")


def check(text: str, inputs: list[torch.Tensor], state: harness.State | None = None) -> Lowered:
    return harness.check(text, inputs, state, LIBRARY)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(kind: str, rest: str = "", extra: str = "", before: str = "") -> str:
    heads = f"f32[2, 4, 6, 8]{kind}"
    return f"""\
graph f(%q: {heads}, %k: {heads}, %v: {heads}{extra}) -> {heads} {{
{before}  %0: {heads} = aten.scaled_dot_product_attention.default(%q, %k, %v{rest})
  return %0
}}"""


def operands(is_strided: bool = False) -> list[torch.Tensor]:
    if is_strided:
        return [normal(2, 6, 4, 8, seed=i).transpose(1, 2) for i in range(3)]
    return [normal(2, 4, 6, 8, seed=i) for i in range(3)]


@pytest.mark.parametrize("rest", ["", ", None, 0.0, True", ", scale=0.3"])
@pytest.mark.parametrize("kind", ["", "{192, 8, 32, 1}"])
def test_without_mask(kind: str, rest: str) -> None:
    plan = check(attention(kind, rest), operands(bool(kind)))
    assert plan.report.counts == {"library": 1}


@pytest.mark.parametrize("sizes", [(6, 6), (2, 1, 6, 6), (2, 4, 6, 6), (1, 1, 1, 6)])
@pytest.mark.parametrize("is_bool", [True, False])
def test_masks(sizes: tuple[int, ...], is_bool: bool) -> None:
    mask = normal(*sizes, seed=9)
    kind = "bool" if is_bool else "f32"
    given = mask > -1.0 if is_bool else mask
    shape = ", ".join(map(str, sizes))
    plan = check(attention("", ", %m", f", %m: {kind}[{shape}]"), [*operands(), given])
    assert plan.report.python_nodes == ()
    fixed = attention("", ", %m", "", f'  %m: {kind}[{shape}] = buffer("m")\n')
    assert check(fixed, operands(), {"m": given}).report.counts == {"state": 1, "library": 1}


def test_fewer_key_heads() -> None:
    text = """\
graph f(%q: f32[1, 4, 6, 8], %k: f32[1, 2, 6, 8], %v: f32[1, 2, 6, 8]) -> f32[1, 4, 6, 8] {
  %0: f32[1, 4, 6, 8] = aten.scaled_dot_product_attention.default(%q, %k, %v, None, 0.0, True, enable_gqa=True)
  return %0
}"""
    check(text, [normal(1, 4, 6, 8), normal(1, 2, 6, 8, seed=1), normal(1, 2, 6, 8, seed=2)])


def test_what_the_kernel_does_not_take_goes_through_the_operator() -> None:
    text = """\
graph f(%q: f32[4, 6, 8], %k: f32[4, 6, 8], %v: f32[4, 6, 5]) -> f32[4, 6, 5] {
  %0: f32[4, 6, 5] = aten.scaled_dot_product_attention.default(%q, %k, %v)
  return %0
}"""
    plan = check(text, [normal(4, 6, 8), normal(4, 6, 8), normal(4, 6, 5)])
    assert plan.report.counts == {"dispatcher": 1}


@pytest.mark.parametrize(
    "name",
    ["torch.ops.aten._fused_sdp_choice", "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"],
)
def test_missing_symbols(name: str) -> None:
    with shim.hidden(name):
        assert check(attention(""), operands()).report.counts == {"dispatcher": 1}


@pytest.mark.parametrize("sizes", [(2, 0, 6, 4), (0, 2, 6, 4), (2, 2, 0, 4), (2, 2, 6, 0), (0, 6, 4)])
@pytest.mark.parametrize("trains", [False, True])
def test_of_nothing(sizes: tuple[int, ...], trains: bool) -> None:
    """The library's kernel divides by the number of heads; eager returns before it comes there."""

    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True) * 2 + 1

    compiled = smelt.compile(f)
    inputs = [[normal(*sizes, seed=i).requires_grad_(trains) for i in range(2)] for _ in range(2)]
    for _ in range(2):
        want, got = f(*inputs[0]), compiled(*inputs[1])
        torch.testing.assert_close(got, want)
        if trains:
            want.sum().backward()
            got.sum().backward()
    for x, y in zip(*inputs, strict=True):
        torch.testing.assert_close(y.grad, x.grad)
