"""Convolutions of whole graphs by own kernels: what is fused, which layouts are read, what stays with the library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.codegen.llvm.isa import has_wide_multipliers, host_isa
from smelt.codegen.lower import Lowered
from smelt.diag import Options
from smelt.inspect.kernels import compiled_units
from smelt.runtime.plan import Launch
from tests.codegen import harness

# Products alone: what is left beside them stays an operator, so that counts tell what was fused.
PRODUCTS = Options(deterministic=True, own_kernels=False)


def check(text: str, inputs: list[torch.Tensor], state: dict[str, torch.Tensor], *, exact: bool) -> Lowered:
    return harness.check(text, inputs, state, PRODUCTS, exact=exact)


def lowered(text: str, state: dict[str, torch.Tensor]) -> Lowered:
    return harness.lowered(text, state, PRODUCTS)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kernels(plan: Lowered) -> int:
    return plan.report.counts.get("kernel", 0)


ACTIVATIONS = {
    "relu": "aten.relu.default(%0)",
    "relu6": "aten.relu6.default(%0)",
    "hardtanh": "aten.hardtanh.default(%0, -0.5, 0.75)",
    "clamp": "aten.clamp.default(%0, -0.5, 0.75)",
    "hardswish": "aten.hardswish.default(%0)",
    "hardsigmoid": "aten.hardsigmoid.default(%0)",
    "silu": "aten.silu.default(%0)",
    "sigmoid": "aten.sigmoid.default(%0)",
    "tanh": "aten.tanh.default(%0)",
    "gelu": "aten.gelu.default(%0)",
    "leaky_relu": "aten.leaky_relu.default(%0, 0.1)",
    "scaled": "aten.mul.Tensor(%0, 0.5)",
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", isa)
    text = f"""\
graph f(%x: f32[2, 9, 5, 4]) -> f32[2, 19, 5, 4] {{
  %w: f32[19, 9, 3, 3] = param("w")
  %b: f32[19] = param("b")
  %0: f32[2, 19, 5, 4] = aten.conv2d.default(%x, %w, %b, [1, 1], [1, 1])
  %1: f32[2, 19, 5, 4] = {ACTIVATIONS[name]}
  return %1
}}"""
    x = normal(2, 9, 5, 4)
    x[0, 3, 1, 1] = torch.nan
    if name != "gelu":
        # Eager's gelu of infinity depends on whether the element falls into a vector: a number, or NaN.
        x[1, 2, 3, 3], x[1, 4, 0, 0] = torch.inf, -torch.inf
    plan = check(text, [x], {"w": normal(19, 9, 3, 3, seed=1) / 9, "b": normal(19, seed=2)}, exact=False)
    assert plan.report.counts == {"state": 2, "kernel": 1, "fused": 1}


OPERANDS = {
    "residual": ("%y", (2, 6, 4, 5), 1),
    "residual on the left": ("%y", (2, 6, 4, 5), 1),
    "channel": ("%y", (6, 1, 1), 1),
    "channel of images": ("%y", (1, 6, 1, 1), 1),
    "number": ("%y", (1,), 1),
    "number without dimensions": ("%y", (), 1),
    "row": ("%y", (5,), 0),
    "channel of each image": ("%y", (2, 6, 1, 1), 0),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("kind", OPERANDS)
def test_operands(kind: str, op: str) -> None:
    _, sizes, fused = OPERANDS[kind]
    args = "%y, %0" if "left" in kind else "%0, %y"
    text = f"""\
graph f(%x: f32[2, 8, 4, 5], %y: f32[{", ".join(map(str, sizes))}]) -> f32[2, 6, 4, 5] {{
  %w: f32[6, 8, 1, 1] = param("w")
  %0: f32[2, 6, 4, 5] = aten.conv2d.default(%x, %w)
  %1: f32[2, 6, 4, 5] = aten.{op}.Tensor({args})
  %2: f32[2, 6, 4, 5] = aten.relu.default(%1)
  return %2
}}"""
    y = normal(*sizes, seed=2).abs() + 0.5
    # All positive: a divisor that cancels to nearly nothing would magnify roundings beyond any bound.
    x, w = normal(2, 8, 4, 5).abs() + 0.5, normal(6, 8, 1, 1, seed=1).abs() + 0.1
    plan = check(text, [x, y], {"w": w}, exact=False)
    assert kernels(plan) >= 1
    if fused:
        assert plan.report.counts.get("fused", 0) == 2


def test_residual_sum_then_activation_and_a_second_user() -> None:
    text = """\
graph f(%x: f32[1, 8, 4, 5]) -> f32[1, 8, 4, 5], f32[1, 8, 4, 5] {
  %w: f32[8, 8, 3, 3] = param("w")
  %0: f32[1, 8, 4, 5] = aten.conv2d.default(%x, %w, None, [1, 1], [1, 1])
  %1: f32[1, 8, 4, 5] = aten.relu.default(%0)
  %2: f32[1, 8, 4, 5] = aten.conv2d.default(%1, %w, None, [1, 1], [1, 1])
  %3: f32[1, 8, 4, 5] = aten.add.Tensor(%2, %1)
  %4: f32[1, 8, 4, 5] = aten.relu.default(%3)
  %5: f32[1, 8, 4, 5] = aten.neg.default(%3)
  return %4, %5
}"""
    plan = check(text, [normal(1, 8, 4, 5)], {"w": normal(8, 8, 3, 3, seed=1) / 9}, exact=False)
    fused = {n.value for n in plan.report.nodes if n.how == "fused"}
    assert {"1", "3"} <= fused


@pytest.mark.parametrize("layout", ["planes", "channels_last", "sliced", "expanded"])
@pytest.mark.parametrize("channels", [3, 16])
def test_layouts_of_the_input(layout: str, channels: int) -> None:
    sizes = (2, channels, 9, 7)
    x = {
        "planes": lambda: normal(*sizes),
        "channels_last": lambda: normal(*sizes).contiguous(memory_format=torch.channels_last),
        "sliced": lambda: normal(2, channels, 11, 20)[:, :, 1:10, 2:16:2],
        "expanded": lambda: normal(1, channels, 9, 1).expand(*sizes),
    }[layout]()
    strides = ", ".join(map(str, x.stride()))
    out = torch.nn.functional.conv2d(x, torch.ones(8, channels, 3, 3), stride=2)
    type_ = f"f32[2, 8, 4, 3]{{{', '.join(map(str, out.stride()))}}}"
    text = f"""\
graph f(%x: f32[2, {channels}, 9, 7]{{{strides}}}) -> {type_} {{
  %w: f32[8, {channels}, 3, 3] = param("w")
  %0: {type_} = aten.conv2d.default(%x, %w, None, [2, 2])
  return %0
}}"""
    text = text.replace(f"{{{9 * 7 * channels}, 63, 7, 1}}", "").replace("{96, 12, 3, 1}", "")
    plan = check(text, [x], {"w": normal(8, channels, 3, 3, seed=1)}, exact=False)
    assert kernels(plan) == 1


@pytest.mark.parametrize("padding", ["[1]", '"same"', '"valid"'])
def test_one_axis(padding: str) -> None:
    size = {"[1]": 11, '"same"': 12, '"valid"': 9}[padding]
    op = "conv1d.default" if padding == "[1]" else "conv1d.padding"
    text = f"""\
graph f(%x: f32[2, 8, 12], %r: f32[2, 5, {size}]) -> f32[2, 5, {size}] {{
  %w: f32[5, 8, 4] = param("w")
  %b: f32[5] = param("b")
  %0: f32[2, 5, {size}] = aten.{op}(%x, %w, %b, [1], {padding})
  %1: f32[2, 5, {size}] = aten.add.Tensor(%0, %r)
  return %1
}}"""
    state = {"w": normal(5, 8, 4, seed=1), "b": normal(5, seed=2)}
    plan = check(text, [normal(2, 8, 12), normal(2, 5, size, seed=3)], state, exact=False)
    assert kernels(plan) == 1 and plan.report.counts["fused"] == 1


def test_even_kernel_of_the_same_size() -> None:
    text = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 8, 6, 5] {
  %w: f32[8, 4, 4, 2] = param("w")
  %0: f32[1, 8, 6, 5] = aten.conv2d.padding(%x, %w, None, [1, 1], "same")
  return %0
}"""
    assert kernels(check(text, [normal(1, 4, 6, 5)], {"w": normal(8, 4, 4, 2)}, exact=False)) == 1


PADDED = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 8, 6, 5] {
  %w: f32[8, 4, 3, 3] = param("w")
  %0: f32[1, 4, 8, 7] = aten.pad.default(%x, [0, 2, 1, 1])
  %1: f32[1, 8, 6, 5] = aten.conv2d.default(%0, %w)
  return %1
}"""


@pytest.mark.parametrize("isa", ["avx2", "none"])
def test_uneven_border(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", isa)
    plan = check(PADDED, [normal(1, 4, 6, 5)], {"w": normal(8, 4, 3, 3)}, exact=False)
    how = {n.value: n.how for n in plan.report.nodes}
    assert (how["0"], how["1"]) == (("library", "library") if isa == "none" else ("fused", "kernel"))


@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_weight_that_is_not_finite_stays_with_the_library(number: float) -> None:
    weight = normal(8, 4, 3, 3)
    weight[1, 2, 0, 0] = number
    plan = lowered(PADDED, {"w": weight})
    assert kernels(plan) == 0


def test_grouped_and_transposed_stay_with_the_library() -> None:
    text = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 6, 4, 3], f32[1, 5, 8, 7] {
  %w: f32[6, 2, 3, 3] = param("w")
  %v: f32[4, 5, 3, 3] = param("v")
  %0: f32[1, 6, 4, 3] = aten.conv2d.default(%x, %w, None, [1, 1], [0, 0], [1, 1], 2)
  %1: f32[1, 5, 8, 7] = aten.convolution.default(%x, %v, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)
  return %0, %1
}"""
    plan = check(text, [normal(1, 4, 6, 5)], {"w": normal(6, 2, 3, 3), "v": normal(4, 5, 3, 3)}, exact=False)
    assert kernels(plan) == 0


def test_wide_groups() -> None:
    text = """\
graph f(%x: f32[1, 32, 6, 5]) -> f32[1, 48, 6, 5] {
  %w: f32[48, 16, 3, 3] = param("w")
  %0: f32[1, 48, 6, 5] = aten.conv2d.default(%x, %w, None, [1, 1], [1, 1], [1, 1], 2)
  return %0
}"""
    assert kernels(check(text, [normal(1, 32, 6, 5)], {"w": normal(48, 16, 3, 3) / 9}, exact=False)) == 1


def test_a_chain_copies_nothing_between() -> None:
    text = """\
graph f(%x: f32[1, 3, 16, 16]) -> f32[1, 24, 1, 1] {
  %w0: f32[16, 3, 3, 3] = param("w0")
  %w1: f32[16, 1, 3, 3] = param("w1")
  %w2: f32[24, 16, 1, 1] = param("w2")
  %0: f32[1, 16, 8, 8] = aten.conv2d.default(%x, %w0, None, [2, 2], [1, 1])
  %1: f32[1, 16, 8, 8] = aten.relu6.default(%0)
  %2: f32[1, 16, 8, 8] = aten.conv2d.default(%1, %w1, None, [1, 1], [1, 1], [1, 1], 16)
  %3: f32[1, 16, 8, 8] = aten.relu6.default(%2)
  %4: f32[1, 24, 8, 8] = aten.conv2d.default(%3, %w2)
  %5: f32[1, 24, 1, 1] = aten.adaptive_avg_pool2d.default(%4, [1, 1])
  return %5
}"""
    state = {"w0": normal(16, 3, 3, 3), "w1": normal(16, 1, 3, 3), "w2": normal(24, 16, 1, 1)}
    plan = check(text, [normal(1, 3, 16, 16)], state, exact=False)
    names = [type(i).__name__ for i in plan.plan.instructions if type(i).__name__ not in ("Release", "CheckLayout")]
    assert names[:3] == ["Launch", "Launch", "Launch"] and "Copy" not in names[3:-1]


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_data_that_the_kernel_refuses_goes_to_eager(number: float) -> None:
    text = """\
graph f(%x: f32[1, 32, 8, 8], %r: f32[1, 64, 8, 8]) -> f32[1, 64, 8, 8] {
  %w: f32[64, 32, 3, 3] = param("w")
  %b: f32[64] = param("b")
  %0: f32[1, 64, 8, 8] = aten.conv2d.default(%x, %w, %b, [1, 1], [1, 1])
  %1: f32[1, 64, 8, 8] = aten.add.Tensor(%r, %0)
  %2: f32[1, 64, 8, 8] = aten.relu.default(%1)
  return %2
}"""
    x = normal(1, 32, 8, 8)
    x[0, 3, 4, 4] = x[0, 3, 4, 5] = number
    state = {"w": normal(64, 32, 3, 3, seed=1) / 17, "b": normal(64, seed=2)}
    plan = check(text, [x, normal(1, 64, 8, 8, seed=3)], state, exact=False)
    assert kernels(plan) == 1


@torch.no_grad()
@pytest.mark.parametrize("dilation", [1, 3, 16])
def test_convolutions_along_a_row_with_fewer_products(dilation: int, tmp_path: Path) -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(64, 64, 3, dilation=dilation)

        def forward(self, x: Tensor) -> Tensor:
            return x + F.relu(self.conv(F.pad(x, (2 * dilation, 0))))

    torch.manual_seed(0)
    model, x = Causal().eval(), torch.randn(3, 64, 203)
    compiled = smelt.compile(model, options={"measure": False})
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    isa = host_isa()
    if isa is not None and isa.name != "baseline" and not has_wide_multipliers(isa):
        (unit,) = compiled_units(compiled)
        assert unit.lowered is not None
        labels = [i.label for i in unit.lowered.plan.instructions if isinstance(i, Launch)]
        assert any("winograd" in label for label in labels), labels
    smelt.trace(model, (x,)).save(tmp_path / "causal.ingot")
    loaded = smelt.load(tmp_path / "causal.ingot")
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)
    for special in (torch.inf, torch.nan):
        y = x.clone()
        y[1, 3, 50] = special
        torch.testing.assert_close(compiled(y), model(y), equal_nan=True, rtol=1e-5, atol=1e-5)
