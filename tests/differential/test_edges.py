# ruff: noqa: E501 (a table of programs)
"""Tensors at the edges, through each kind of call that a plan is made of: empty, 0-d, strided, shared, huge, odd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.differential.compare import difference, observe
from tests.differential.judge import FAST
from tests.differential.tensors import FLOATS, LAYOUTS, tensor

F = torch.nn.functional
F32 = torch.float32
ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 1.0])
WEIGHT, BIAS = tensor(90, (5, 4), F32), tensor(91, (5,), F32)
KERNEL, DEPTHWISE = tensor(92, (6, 4, 3, 3), F32) * 0.3, tensor(93, (4, 1, 3, 3), F32)

# One of each kind of call that the lowering makes: library products with and without epilogue, attention, convolution,
# views, copies, shim calls with numbers, dispatched operators, reductions, writes.
KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: F.linear(x, WEIGHT, BIAS),
    "linear-gelu": lambda x: F.gelu(F.linear(x, WEIGHT, BIAS)),
    "linear-relu-add": lambda x: F.relu(F.linear(x, WEIGHT)) + 1,
    "matmul": lambda x: x @ x.mT,
    "softmax": lambda x: torch.softmax(x, -1),
    "attention": lambda x: torch.softmax(x @ x.mT * 0.5, -1) @ x,
    "flash": lambda x: F.scaled_dot_product_attention(x, x, x),
    "masked attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT > 0),
    "layer norm": lambda x: F.layer_norm(x, (4,), WEIGHT[0], WEIGHT[1]),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "pointwise": lambda x: F.gelu(x * 2 + 1) / (x - 3),
    "promotion": lambda x: (x + 1, x * 2.5, x > 0.5, 2 - x, x**2, x // 2, -x),
    "extremes": lambda x: (torch.maximum(x, -x), x.clamp(-1, 1), x.relu(), x.abs(), F.hardtanh(x), x.sign(), x.round()),
    "logic": lambda x: (x.isnan(), x == x, x != x, torch.where(x > 0, x, -x), x.bool(), x.masked_fill(x > 0, 2)),
    "sums": lambda x: (x.sum(), x.sum(-1), x.mean(-1, keepdim=True), x.amax(-1) if x.shape[-1] else 0, x.cumsum(0)),
    "views": lambda x: (x.mT, x[..., None], x.flatten(), x[..., 1:], x.unflatten(-1, (2, -1)), x.expand(2, *x.shape)),
    "copies": lambda x: (x.contiguous(), x.clone(), torch.cat((x, x)), torch.stack((x, x), -1), x.repeat(2, *(1,) * (x.dim() - 1))),
    "casts": lambda x: (x.double(), x.half(), x.bfloat16(), x.to(torch.float32)),
    "writes": lambda x: (x.mul_(2), x[..., :1].add_(1), x + 1),
    "write to a part": lambda x: (x[..., 1].zero_(), x.mT.add_(1)),
    "index": lambda x: (x[..., torch.tensor([0, 0, 1])], x.index_select(-1, torch.tensor([1]))),
}  # fmt: skip
IMAGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "conv": lambda x: F.conv2d(x, KERNEL, padding=1),
    "conv-relu": lambda x: F.relu(F.conv2d(x, KERNEL, BIAS.new_ones(6), padding=1)),
    "depthwise": lambda x: F.conv2d(x, DEPTHWISE, groups=4, padding=1),
    "conv-norm": lambda x: F.batch_norm(
        F.conv2d(x, KERNEL, padding=1), KERNEL[:, 0, 0, 0], KERNEL[:, 0, 0, 1] ** 2 + 1
    ),
    "pools": lambda x: (F.max_pool2d(x, 2, padding=1), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)),
    "pad": lambda x: (F.pad(x, (1, 1)), F.pad(x, (-1, 2), value=float("inf"))),
}
SHAPES = ((3, 4), (2, 3, 4), (2, 2, 3, 4), (0, 4), (2, 0, 4), (1, 4), (1, 1, 1, 4), (4,))
_PRODUCTS = ("linear", "matmul", "attention", "flash", "conv", "rms")


def check(fn: Callable[..., Any], make: Callable[[], torch.Tensor], is_exact: bool) -> None:
    with torch.no_grad():
        expected = observe(fn, (make(),))
        compiled = smelt.compile(fn, options=FAST)
        for call in range(3):
            found = difference(expected, observe(compiled, (make(),)), is_exact=is_exact)
            assert found is None, f"compile, call {call}: {found}"
        if expected.error is None:
            traced = smelt.trace(fn, (make(),), options=FAST)
            found = difference(expected, observe(traced, (make(),)), is_exact=is_exact)
            assert found is None, f"trace: {found}"


def is_exact(name: str) -> bool:
    return not any(part in name for part in _PRODUCTS)


# Each shape in two layouts, and each layout with several shapes; one shape in all.
SOME = [
    (shape, layout)
    for i, shape in enumerate(SHAPES)
    for j, layout in enumerate(LAYOUTS)
    if shape == (2, 3, 4) or (i + j) % 3 == 0
]


@pytest.mark.spread(14)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_shapes_and_layouts(name: str) -> None:
    _check_layouts(name, SOME)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_all_shapes_in_all_layouts(name: str) -> None:
    _check_layouts(name, list(itertools.product(SHAPES, LAYOUTS)))


def _check_layouts(name: str, cases: list[tuple[tuple[int, ...], str]]) -> None:
    for shape, layout in cases:
        if layout == "overlapping" and name in ("flash", "masked attention"):
            continue  # torch's own kernel gives something else each time
        check(KINDS[name], lambda shape=shape, layout=layout: tensor(1, shape, F32, layout), is_exact(name))


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_dtypes(name: str) -> None:
    for dtype in (*FLOATS[1:], torch.int64, torch.uint8, torch.bool):
        check(KINDS[name], lambda dtype=dtype: tensor(1, (2, 3, 4), dtype), is_exact(name))
    check(KINDS[name], lambda: tensor(1, (), F32), is_exact(name))


@pytest.mark.spread(14)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*KINDS, *IMAGES])
def test_odd_values(name: str) -> None:
    fn = KINDS.get(name) or IMAGES[name]
    size = 4 * 4 * 4 if name in IMAGES else 16
    for value in (*ODD[:-1].tolist(), None):

        def make(value: float | None = value) -> torch.Tensor:
            flat = tensor(3, (size,), F32)
            flat[size // 2] = flat[0] = 1.0 if value is None else value
            if value is None:
                flat[: len(ODD)] = ODD
            return flat.reshape(1, 4, 4, 4) if name in IMAGES else flat.reshape(1, 1, 4, 4)

        if name == "attention" and value is not None and 1e38 < abs(value) < float("inf"):
            continue  # the kernel divides last, and its sum overflows: see docs/decisions on numerics
        check(fn, make, is_exact(name))


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    for shape in ((2, 4, 5, 5), (1, 4, 1, 1), (0, 4, 3, 3), (4, 5, 5)):
        for layout in (*LAYOUTS, "channels last"):
            if layout == "channels last" and len(shape) != 4:
                continue

            def make(shape: tuple[int, ...] = shape, layout: str = layout) -> torch.Tensor:
                if layout != "channels last":
                    return tensor(1, shape, F32, layout)
                return tensor(1, shape, F32).contiguous(memory_format=torch.channels_last)

            check(IMAGES[name], make, is_exact(name))


HUGE = 2**31 + 8


def _expanded() -> torch.Tensor:
    return torch.full((1,), 3.0).expand(HUGE)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[2**31 : 2**31 + 4] + 1,
        lambda x: x[-3:].sum(),
        lambda x: (x.select(0, 2**31 + 5) * 2, x.narrow(0, 2**31 - 2, 5).exp()),
        lambda x: x.unflatten(0, (2, -1))[1, -4:] - 1,
        lambda x: x.as_strided((3,), (0,)) * 2,
        lambda x: (x.view(2, -1), x[::2], x[2**31 :]),
    ],
)
def test_more_than_2_to_31_elements_through_stride_0(fn: Callable[..., Any]) -> None:
    check_huge(fn, _expanded)


def check_huge(fn: Callable[..., Any], make: Callable[[], torch.Tensor]) -> None:
    """As `check`, without copies of whole tensors."""
    with torch.no_grad():
        expected = fn(make())
        compiled = smelt.compile(fn, options=FAST)
        traced = smelt.trace(fn, (make(),), options=FAST, check=False)
        for program in (compiled, compiled, traced):
            found = program(make())
            pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
            for a, b in pairs:
                assert (a.shape, a.stride(), a.dtype, a.storage_offset()) == (
                    (b.shape, b.stride(), b.dtype, b.storage_offset())
                )
                assert (
                    torch.equal(a.flatten()[-5:], b.flatten()[-5:]) if a.numel() < 100 else a[..., -1].equal(b[..., -1])
                )


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[-5:] + 1,
        lambda x: x.view(2, -1)[1, -3:].to(torch.int64) * 300,
        lambda x: x.view(-1, 8)[-2:].sum(0),
        lambda x: x[2**31 - 2 : 2**31 + 3].float(),
    ],
)
@pytest.mark.nightly
def test_more_than_2_to_31_bytes(fn: Callable[..., Any]) -> None:
    x = torch.zeros(HUGE, dtype=torch.uint8)
    x[-8:] = torch.arange(8, dtype=torch.uint8) + 250
    check_huge(fn, lambda: x)
