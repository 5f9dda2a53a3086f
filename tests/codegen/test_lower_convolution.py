"""Convolutions: packed weights, channels-last chains, eager's layout at the end, nothing lost on the way."""

from __future__ import annotations

import pytest
import torch

from smelt._torch.library import shim
from smelt.diag import Options
from tests.codegen.harness import RULE, check

FAST = Options(deterministic=True, numerics="fast")
LIBRARY = Options(deterministic=True, numerics="eager-library")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "3x3": ("[1, 1], [1, 1]", (8, 4, 3, 3), (8, 6, 5)),
    "strided": ("[2, 2], [1, 1]", (8, 4, 3, 3), (8, 3, 3)),
    "dilated": ("[1, 1], [2, 2], [2, 2]", (8, 4, 3, 3), (8, 6, 5)),
    "1x1": ("[1, 1]", (8, 4, 1, 1), (8, 6, 5)),
    "depthwise": ("[1, 1], [1, 1], [1, 1], 4", (4, 1, 3, 3), (4, 6, 5)),
    "grouped": ("[1, 1], [1, 1], [1, 1], 2", (6, 2, 3, 3), (6, 6, 5)),
    "whole image": ("[1, 1]", (8, 4, 6, 5), (8, 1, 1)),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("options", [RULE, FAST, LIBRARY], ids=["default", "fast", "eager-library"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_kinds(case: str, batch: int, options: Options) -> None:
    window, weight, (c, h, w) = CASES[case]
    sizes = f"{batch}, {c}, {h}, {w}"
    text = f"""\
graph f(%x: f32[{batch}, 4, 6, 5]) -> f32[{sizes}] {{
  %w: f32[{", ".join(map(str, weight))}] = param("w")
  %b: f32[{c}] = param("b")
  %0: f32[{sizes}] = aten.conv2d.default(%x, %w, %b, {window})
  %1: f32[{sizes}] = aten.relu.default(%0)
  return %1
}}"""
    state = {"w": normal(*weight), "b": normal(c, seed=1)}
    plan = check(text, [normal(batch, 4, 6, 5)], state, options, exact=options is LIBRARY)
    # Groups of three channels are the library's, which turns NaN into a number and so takes relu in FAST only.
    is_fused = options is FAST or (options is RULE and case != "grouped")
    assert plan.report.counts.get("fused", 0) == is_fused


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name(padding: str) -> None:
    h, w = (6, 5) if padding == "same" else (4, 3)
    text = f"""\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 8, {h}, {w}] {{
  %w: f32[8, 4, 3, 3] = param("w")
  %0: f32[1, 8, {h}, {w}] = aten.conv2d.padding(%x, %w, None, [1, 1], "{padding}")
  return %0
}}"""
    check(text, [normal(1, 4, 6, 5)], {"w": normal(8, 4, 3, 3)}, exact=False)


RESIDUAL = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 4, 6, 5], f32[1, 4], f32[1, 30, 4]{120, 1, 30} {
  %w: f32[4, 4, 3, 3] = param("w")
  %0: f32[1, 4, 6, 5] = aten.conv2d.default(%x, %w, None, [1, 1], [1, 1])
  %1: f32[1, 4, 6, 5] = aten.relu.default(%0)
  %2: f32[1, 4, 6, 5] = aten.conv2d.default(%1, %w, None, [1, 1], [1, 1])
  %3: f32[1, 4, 6, 5] = aten.add.Tensor(%2, %x)
  %4: f32[1, 4, 6, 5] = aten.relu.default(%3)
  %5: f32[1, 4, 1, 1] = aten.adaptive_avg_pool2d.default(%4, [1, 1])
  %6: f32[1, 4] = aten.flatten.using_ints(%5, 1)
  %7: f32[1, 4, 30] = aten.view.default(%4, [1, 4, 30])
  %8: f32[1, 30, 4]{120, 1, 30} = aten.transpose.int(%7, 1, 2)
  return %4, %6, %8
}"""


@pytest.mark.parametrize("options", [RULE, FAST, LIBRARY], ids=["default", "fast", "eager-library"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_residual_block(options: Options, layout: torch.memory_format) -> None:
    text = RESIDUAL
    if layout is torch.channels_last:
        text = text.replace("%x: f32[1, 4, 6, 5]", "%x: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("%0: f32[1, 4, 6, 5]", "%0: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("%1: f32[1, 4, 6, 5]", "%1: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("%2: f32[1, 4, 6, 5]", "%2: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("%3: f32[1, 4, 6, 5]", "%3: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("%4: f32[1, 4, 6, 5]", "%4: f32[1, 4, 6, 5]{120, 1, 20, 4}")
        text = text.replace("-> f32[1, 4, 6, 5]", "-> f32[1, 4, 6, 5]{120, 1, 20, 4}")
        # In this layout flattening the image is a view with its own strides.
        text = text.replace("f32[1, 4, 30]", "f32[1, 4, 30]{4, 1, 4}").replace("{120, 1, 30}", "{4, 4, 1}")
        text = text.replace("%5: f32[1, 4, 1, 1]", "%5: f32[1, 4, 1, 1]{4, 1, 4, 4}")
    x = normal(1, 4, 6, 5).contiguous(memory_format=layout)
    check(text, [x], {"w": normal(4, 4, 3, 3) / 6}, options, exact=False)


def test_no_reorder_inside_a_chain() -> None:
    text = RESIDUAL.partition("  %5:")[0].replace(", f32[1, 4], f32[1, 30, 4]{120, 1, 30}", "") + "  return %4\n}"
    plan = check(text, [normal(1, 4, 6, 5)], {"w": normal(4, 4, 3, 3) / 6}, exact=False)
    names = [type(i).__name__ for i in plan.plan.instructions if type(i).__name__ != "Release"]
    # x is read as it lies; the sum and both activations are part of the launches; one copy of x as a summand, one out.
    assert names == ["Launch", "Empty", "Copy", "Empty", "Launch", "Empty", "Copy"]


def test_no_reorder_inside_a_chain_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_ISA", "none")
    text = RESIDUAL.partition("  %5:")[0].replace(", f32[1, 4], f32[1, 30, 4]{120, 1, 30}", "") + "  return %4\n}"
    plan = check(text, [normal(1, 4, 6, 5)], {"w": normal(4, 4, 3, 3) / 6}, exact=False)
    names = [type(i).__name__ for i in plan.plan.instructions if type(i).__name__ != "Release"]
    # One copy in, one out; the sum is part of the second convolution, both activations overwrite.
    assert names == ["Empty", "Copy", "Call", "Dispatch", "Call", "Dispatch", "CheckLayout", "Empty", "Copy"]


def test_border_of_zeros_joins_the_convolution() -> None:
    text = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 8, 6, 5], f32[1, 8, 5, 4] {
  %w: f32[8, 4, 3, 3] = param("w")
  %0: f32[1, 4, 8, 7] = aten.pad.default(%x, [1, 1, 1, 1])
  %1: f32[1, 8, 6, 5] = aten.conv2d.default(%0, %w)
  %2: f32[1, 4, 7, 6] = aten.constant_pad_nd.default(%x, [0, 1, 0, 1], 0.0)
  %3: f32[1, 8, 5, 4] = aten.conv2d.default(%2, %w)
  return %1, %3
}"""
    plan = check(text, [normal(1, 4, 6, 5)], {"w": normal(8, 4, 3, 3)}, exact=False)
    assert plan.report.counts == {"state": 1, "fused": 2, "kernel": 2}


@pytest.mark.parametrize("act", ["relu.default", "relu6.default", "hardtanh.default", "hardswish.default"])
def test_nan_survives(act: str) -> None:
    text = f"""\
graph f(%x: f32[1, 2, 3, 3]) -> f32[1, 4, 3, 3] {{
  %w: f32[4, 2, 1, 1] = param("w")
  %0: f32[1, 4, 3, 3] = aten.conv2d.default(%x, %w)
  %1: f32[1, 4, 3, 3] = aten.{act}(%0)
  return %1
}}"""
    x = normal(1, 2, 3, 3)
    x[0, 0, 1, 1], x[0, 1, 2, 2] = torch.nan, torch.inf
    check(text, [x], {"w": torch.ones(4, 2, 1, 1)}, exact=False)


def test_weight_of_the_run_and_other_shapes() -> None:
    text = """\
graph f(%x: f32[2, 4, 6], %w: f32[8, 4, 3], %y: f32[1, 4, 6, 5], %v: f32[8, 4, 3, 3]) -> f32[2, 8, 4], f32[1, 8, 4, 3] {
  %0: f32[2, 8, 4] = aten.conv1d.default(%x, %w)
  %1: f32[1, 8, 4, 3] = aten.conv2d.default(%y, %v)
  return %0, %1
}"""
    plan = check(text, [normal(2, 4, 6), normal(8, 4, 3), normal(1, 4, 6, 5), normal(8, 4, 3, 3)])
    assert plan.report.python_nodes == ()


HIDDEN = (
    "aoti_torch_cpu_mkldnn__convolution_pointwise", "aoti_torch_cpu_mkldnn__convolution_pointwise_binary",
    "torch.ops.mkldnn._reorder_convolution_weight", "aoti_torch_aten_pad", "torch_call_dispatcher",
)  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_symbols_change_no_answer(name: str) -> None:
    text = """\
graph f(%x: f32[1, 4, 6, 5]) -> f32[1, 4, 6, 5] {
  %w: f32[4, 4, 3, 3] = param("w")
  %0: f32[1, 4, 8, 7] = aten.pad.default(%x, [1, 1, 1, 1])
  %1: f32[1, 4, 6, 5] = aten.conv2d.default(%0, %w)
  %2: f32[1, 4, 6, 5] = aten.add.Tensor(%1, %x)
  %3: f32[1, 4, 6, 5] = aten.relu.default(%2)
  return %3
}"""
    with shim.hidden(name):
        check(text, [normal(1, 4, 6, 5)], {"w": normal(4, 4, 3, 3) / 6}, exact=False)
