"""Linear layers over few bits on a GPU: weights of 8 and 4 bits, widened where a product reads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda
from smelt.inspect.kernels import compiled_units
from smelt.ops.own.narrow_linear import as_int4, byte_weight, nibble_weight, wide_bytes, wide_nibbles
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as driver:
        yield driver


class Layer(nn.Module):
    """A layer with its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 96)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x))


def test_widened_weights() -> None:
    weight = torch.randn(6, 64)
    steps, scale = byte_weight(weight)
    torch.testing.assert_close(wide_bytes(steps, scale[:, None]), weight.bfloat16(), rtol=0, atol=0.05)
    of_four, step = nibble_weight(weight, 32)
    bits = (of_four + 8).to(torch.uint8)
    packed = bits[:, ::2] | (bits[:, 1::2] << 4)
    assert torch.equal(wide_nibbles(packed, step, 32), as_int4(weight, 32).bfloat16())


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 96 * 64), ("int4", 96 * 32)])
def test_a_layer_reads_few_bits(gpu: FakeDriver, dtype: str, nbytes: int, rows: int) -> None:
    torch.manual_seed(0)
    model = Layer().cuda().eval().requires_grad_(False)
    program = smelt.compile(model, fullgraph=True, options={"dtype": dtype})
    x = torch.randn(rows, 64).cuda()
    program(x)
    found = program(x)
    weight = model.fc.weight.cpu()
    if dtype == "int8":
        steps, scale = byte_weight(weight)
        wide = wide_bytes(steps, scale[:, None])
    else:
        wide = as_int4(weight, 32).bfloat16()
    want = torch.relu(torch.nn.functional.linear(x.cpu().bfloat16(), wide, model.fc.bias.cpu().bfloat16()).float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), want, rtol=2e-2, atol=2e-2)
    (unit,) = compiled_units(program)
    assert unit.lowered is not None
    report = unit.lowered.report
    (kernel,) = report.kernels
    assert "linear" in str(kernel.nodes) and "relu" in str(kernel.nodes) and "narrow." in str(kernel.nodes)
    # What a call reads of the weight: bytes, or half bytes, and its scales.
    others = rows * 64 * 4 + rows * 96 * 4 + 96 * 2
    assert nbytes < kernel.nbytes - others <= nbytes + 96 * 4
    before = gpu.calls.count("launch")
    program(x)
    assert gpu.calls.count("launch") == before + 1


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_they_compile(gpu: FakeDriver, dtype: str, arch: int) -> None:
    model = Layer().cuda().eval().requires_grad_(False)
    program = smelt.compile(model, fullgraph=True, options={"dtype": dtype})
    x = torch.randn(32, 64).cuda()
    program(x)
    program(x)
    (source,) = [s for s in gpu.sources.values() if "tl.dot" in s.text]
    assert source.name in compile_cuda([source], arch)
    assert "*i8" in source.pointers or "*u8" in source.pointers


def test_products_in_bf16(gpu: FakeDriver) -> None:
    """The casts are computed where the product reads and stores."""
    model = Layer().cuda().eval().requires_grad_(False)
    program = smelt.compile(model, fullgraph=True, options={"dtype": "bf16"})
    x = torch.randn(20, 64).cuda()
    program(x)
    found = program(x)
    torch.testing.assert_close(found.cpu(), model(x).cpu(), rtol=2e-2, atol=2e-2)
    (unit,) = compiled_units(program)
    assert unit.lowered is not None
    (kernel,) = unit.lowered.report.kernels
    assert kernel.label == "dot"
    (source,) = [s for s in gpu.sources.values() if s.name == kernel.symbol]
    assert "*bf16" in source.pointers


def test_products_of_eight_bit_floats_are_torchs(gpu: FakeDriver) -> None:
    """torch._scaled_mm is one of the operators that stand between launches; what follows it is a kernel."""

    def function(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        x8 = x.to(torch.float8_e4m3fn)
        return torch.relu(torch._scaled_mm(x8, w.t(), s, s, out_dtype=torch.bfloat16)) * 2.0

    x, w, s = torch.randn(32, 64).cuda(), torch.randn(48, 64).to(torch.float8_e4m3fn).cuda(), torch.ones(()).cuda()
    program = smelt.compile(function, fullgraph=True)
    program(x, w, s)
    before = gpu.calls.count("launch")
    found = program(x, w, s)
    assert torch.equal(found.cpu(), function(x, w, s).cpu())
    assert gpu.calls.count("launch") == before + 1
