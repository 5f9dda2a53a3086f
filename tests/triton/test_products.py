"""Products, their prologues and epilogues, and convolutions as kernels for a GPU: interpreted, compiled, planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.gpu import GpuProgram, Tf32, gpu_program
from smelt.codegen.triton.compile import ARCHITECTURES, compile_cuda, stage_texts
from smelt.codegen.triton.contraction import TILES, Tile, tiles_for
from smelt.codegen.triton.emit import emit_triton
from smelt.ir import DType
from tests.triton.test_catalogue import interpreted

HALVES = (torch.bfloat16, torch.float16)


def drawn(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def made(function: Callable[..., Any], *args: Tensor, tf32: bool = False) -> GpuProgram:
    """A function's kernels, all of it in some."""
    program = gpu_program(smelt.trace(function, args, check=False).graph_for(*args), tf32=Tf32(tf32, tf32))
    assert not program.refused, program.refused
    return program


def same(function: Callable[..., Any], *args: Tensor, forms: tuple[str, ...] = ("dot",)) -> GpuProgram:
    """A function's kernels give eager's numbers; they have these forms."""
    program = made(function, *args)
    assert tuple(one.kernel.form for one in program.kernels) == forms
    want = function(*args)
    for ours, eager in zip(interpreted(program, args), want if isinstance(want, tuple) else (want,), strict=True):
        tolerance = 4 * torch.finfo(eager.dtype).eps
        scale = float(eager.abs().max())
        torch.testing.assert_close(ours, eager, rtol=tolerance, atol=max(tolerance, 1e-6) * max(scale, 1.0))
    return program


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_a_product_with_what_surrounds_it(dtype: torch.dtype) -> None:
    """Bias, activation and residual are computed on the tile; edges are masked."""
    x, w, b, r = (drawn(*s, dtype=dtype, seed=k) for k, s in enumerate([(70, 50), (40, 50), (40,), (70, 40)]))
    program = same(lambda x, w, b, r: F.gelu(F.linear(x, w, b)) * 0.5 + r, x, w, b, r)
    assert {node.op.split(".")[1] for node in program.kernels[0].nodes} == {"linear", "gelu", "mul", "add"}


def test_a_bias_is_added_before_rounding() -> None:
    """As cuBLASLt adds it: one rounding. 256 * 1 + 1 is no bf16, 257 - 256 is."""
    x, w, b = torch.ones(16, 257), torch.ones(16, 257), torch.full((16,), -256.0)
    (ours,) = interpreted(made(F.linear, *(t.bfloat16() for t in (x, w, b))), [t.bfloat16() for t in (x, w, b)])
    assert bool((ours == 1.0).all())


def test_operands_are_computed_where_they_are_read() -> None:
    """relu and the norm's scale of a row and a column stand before the product; masked beyond the last k."""
    x, scale, w = drawn(20, 50), drawn(20, 1, seed=1), drawn(50, 33, seed=2)
    program = same(lambda x, s, w: torch.relu(x * s + 1.0) @ w, x, scale, w, forms=("dot",))
    assert "tl.where(depth_a" in program.kernels[0].kernel.source.text


def test_a_gated_layer_is_one_kernel() -> None:
    x, a, b = drawn(18, 32), drawn(40, 32, seed=1), drawn(40, 32, seed=2)
    program = same(lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b), x, a, b)
    assert program.kernels[0].kernel.source.text.count("tl.dot(") == 2


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (drawn(3, 20, 24), drawn(3, 24, 17)),
        (drawn(3, 24, 20).transpose(1, 2), drawn(3, 17, 24).transpose(1, 2)),
        (drawn(2, 3, 18, 24), drawn(3, 24, 17)),
        (drawn(40, 64)[::2, ::2], drawn(32, 34)[:, ::2]),
        (drawn(2, 1, 18, 24), drawn(1, 3, 24, 17)),
    ],
    ids=["batched", "turned", "broadcast", "strided", "both broadcast"],
)
def test_strides_and_batches(left: Tensor, right: Tensor) -> None:
    same(torch.matmul, left, right)


def test_addmm_with_its_factors() -> None:
    c, x, w = drawn(17, 20), drawn(17, 48, seed=1), drawn(48, 20, seed=2)
    same(lambda c, x, w: torch.addmm(c, x, w, beta=0.5, alpha=2.0), c, x, w)


def test_a_row_times_a_matrix_is_a_reduction() -> None:
    """No tile of sixteen rows for one: each element of the matrix is read once."""
    x, w, b = drawn(1, 64), drawn(48, 64, seed=1), drawn(48, seed=2)
    same(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b, forms=("rows",))


def test_few_tiles_share_a_long_sum() -> None:
    x, w, b = drawn(16, 2048), drawn(32, 2048, seed=1), drawn(32, seed=2)
    program = same(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b, forms=("dot", "serial"))
    # Four ranges of the sum, each by programs of its own.
    assert program.kernels[0].nest.inner == (512,) and 4 in program.kernels[0].nest.outer


@pytest.mark.parametrize(
    ("image", "weight", "arguments"),
    [
        ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": 1}),
        ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": 2, "padding": (1, 0), "dilation": (2, 1)}),
        ((2, 8, 6, 6), (12, 4, 3, 3), {"groups": 2, "padding": 1}),
        ((2, 6, 30), (5, 6, 5), {"stride": 2, "padding": 3}),
    ],
    ids=["padded", "strided", "grouped", "of one dimension"],
)
def test_convolutions(image: tuple[int, ...], weight: tuple[int, ...], arguments: dict[str, Any]) -> None:
    x, w, b = drawn(*image), drawn(*weight, seed=1), drawn(weight[0], seed=2)
    conv = getattr(F, f"conv{len(image) - 2}d")
    same(lambda x, w, b: torch.relu(conv(x, w, b, **arguments)), x, w, b)


def test_a_convolution_of_channels_last() -> None:
    x, w = (drawn(*s).to(memory_format=torch.channels_last) for s in [(2, 8, 6, 6), (16, 8, 3, 3)])
    program = same(lambda x, w: F.conv2d(x, w, padding=1), x, w)
    assert program.kernels[0].kernel.source.text.count("%") < 12


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_a_convolution(stride: int) -> None:
    x, w, b = drawn(2, 4, 7, 6), drawn(6, 4, 3, 3, seed=1), drawn(6, seed=2)
    y = F.conv2d(x, w, b, stride, 1)

    def gradients(g: Tensor, x: Tensor, w: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            g, x, w, [6], [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
        )

    program = made(gradients, torch.randn_like(y), x, w)
    assert [one.kernel.form for one in program.kernels][:2] == ["dot", "dot"]
    same(gradients, drawn(*y.shape, seed=3), x, w, forms=tuple(one.kernel.form for one in program.kernels))


@pytest.mark.parametrize(
    ("image", "weight", "arguments"),
    [
        ((2, 4, 5, 6), (4, 3, 3, 3), {"padding": 1}),
        (
            (1, 6, 4, 5),
            (6, 4, 4, 2),
            {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "dilation": (1, 2)},
        ),
        ((2, 8, 4, 4), (8, 3, 3, 3), {"groups": 2, "stride": 2}),
        ((2, 6, 10), (6, 5, 4), {"stride": 2, "padding": 1}),
    ],
    ids=["padded", "strided", "grouped", "of one dimension"],
)
def test_transposed_convolutions(image: tuple[int, ...], weight: tuple[int, ...], arguments: dict[str, Any]) -> None:
    x, w = drawn(*image), drawn(*weight, seed=1)
    b = drawn(weight[1] * arguments.get("groups", 1), seed=2)
    rank = len(image) - 2
    conv = getattr(torch.ops.aten, f"conv_transpose{rank}d")
    names = (("stride", 1), ("padding", 0), ("output_padding", 0))
    numbers = [[n] * rank if isinstance(n := arguments.get(name, d), int) else list(n) for name, d in names]
    dilation = arguments.get("dilation", 1)
    rest = (arguments.get("groups", 1), [dilation] * rank if isinstance(dilation, int) else list(dilation))

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(conv(x, w, b, *numbers, *rest))

    found = gpu_program(graph_of(function, x, w, b))
    assert not found.refused and [one.kernel.form for one in found.kernels] == ["dot"]
    for ours, eager in zip(interpreted(found, (x, w, b)), (function(x, w, b),), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def graph_of(function: Callable[..., Any], *args: Tensor) -> Any:
    """A function's graph without the passes that make ordinary convolutions of transposed ones."""
    return smelt.trace(function, args, check=False, options={"skip": ("woven-convolutions",)}).graph_for(*args)


@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_a_transposed_convolution(groups: int) -> None:
    x, w = drawn(2, 4, 4, 3), drawn(4, 3, 3, 2, seed=1)
    y = F.conv_transpose2d(x, w, stride=2, padding=1, groups=groups)

    def gradients(g: Tensor, x: Tensor, w: Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            g, x, w, [3 * groups], [2, 2], [1, 1], [1, 1], True, [0, 0], groups, [True, True, True]
        )

    program = made(gradients, torch.randn_like(y), x, w)
    same(gradients, drawn(*y.shape, seed=3), x, w, forms=tuple(one.kernel.form for one in program.kernels))


# --- gradients that are scattered elsewhere


def pooled(x: Tensor, *numbers: Any) -> Any:
    out, at = torch.ops.aten.max_pool2d_with_indices(x, *numbers)
    return out, at, torch.ops.aten.max_pool2d_with_indices_backward(out * 2.0, x, *numbers, False, at)


@pytest.mark.parametrize(
    "numbers",
    [((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 3), (1, 2), (0, 1), (2, 1)), ((2, 2), (2, 2), (0, 0), (1, 1))],
    ids=str,
)
def test_maxima_of_windows_with_their_positions(numbers: Any) -> None:
    x = drawn(2, 3, 9, 8).round()
    x[0, 0, 2:4, 3], x[0, 1, :4] = float("nan"), -float("inf")
    program = made(lambda x: pooled(x, *numbers), x)
    for ours, eager in zip(interpreted(program, [x]), pooled(x, *numbers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0.0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradient_of_a_table(dtype: torch.dtype, padding: int) -> None:
    g, index = drawn(2, 9, 12, dtype=dtype), torch.tensor([[3, 1, 1, 0, 6, 3, 3, 1, 2], [0] * 8 + [3]])
    g[0, 0] = float("inf")

    def f(g: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g, index, 7, padding, False)

    (ours,) = interpreted(made(f, g, index), [g, index])
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, f(g.float(), index).to(dtype), rtol=tolerance, atol=tolerance)


# --- compiled


@pytest.mark.spread(2)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_compile_to_tensor_cores(dtype: torch.dtype, arch: int) -> None:
    x, w, b = drawn(512, 256, dtype=dtype), drawn(2048, 256, dtype=dtype), drawn(2048, dtype=dtype)
    (one,) = made(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, tf32=True).kernels
    text = stage_texts(one.kernel.source, arch)["ptx"]
    assert {80: "mma.sync", 90: "wgmma", 100: "tcgen05"}[arch] in text
    assert ("tf32" in text) is (dtype == torch.float32)
    # Loads of whole lines, several blocks ahead.
    assert "cp.async" in text


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_of_f64(arch: int) -> None:
    """Tensor cores multiply them where they do at all; 10.0 has none of them."""
    x, w, b = (
        drawn(130, 48, dtype=torch.float64),
        drawn(70, 48, dtype=torch.float64, seed=1),
        drawn(70, seed=2).double(),
    )
    (one,) = made(lambda x, w, b: F.linear(x, w, b) * 2.0, x, w, b).kernels
    assert one.kernel.form == "dot"
    text = stage_texts(one.kernel.source, arch)["ptx"]
    assert ("f64.f64.f64.f64" in text) is (arch < 100)
    (largest,) = [emit_triton(one.nest, tile=t) for t in tiles_for(4096, 4096, 4096, DType.F64)[:1]]
    assert dict(largest.source.constants) == {"R": 64, "B": 64, "K": 16}
    assert compile_cuda([largest.source], arch)[largest.source.name].shared_nbytes <= 96 * 1024
    if arch == 90:
        (ours,) = interpreted(made(lambda x, w, b: F.linear(x, w, b) * 2.0, x, w, b), [x, w, b])
        torch.testing.assert_close(ours, F.linear(x, w, b) * 2.0, rtol=1e-13, atol=1e-13)


def test_without_the_flag_f32_is_exact() -> None:
    x, w = drawn(128, 64), drawn(64, 64)
    (one,) = made(torch.mm, x, w).kernels
    assert "tf32" not in stage_texts(one.kernel.source, 90)["ptx"]


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_all_tiles_compile(arch: int) -> None:
    x, w = drawn(512, 256, dtype=torch.bfloat16), drawn(256, 512, dtype=torch.bfloat16)
    (one,) = made(torch.mm, x, w).kernels
    sources = [emit_triton(one.nest, tile=tile).source for tile in TILES]
    assert len(compile_cuda(sources, arch)) == len(TILES)


def test_tiles_change_no_number_but_the_order_of_sums() -> None:
    x, w = drawn(40, 48, dtype=torch.bfloat16), drawn(48, 40, dtype=torch.bfloat16)
    program = made(torch.mm, x, w)
    (one,) = program.kernels
    tile = Tile(32, 16, 16, 4, 2)
    kernel = emit_triton(one.nest, tile=tile)
    assert kernel.source.constants == (("R", 32), ("B", 16), ("K", 16)) and kernel.programs == 6
    assert kernel.source.stages == 2 and kernel.source.name != one.kernel.source.name
