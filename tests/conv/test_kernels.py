"""Own convolution kernels by themselves, on every instruction set: shapes, windows, layouts, splits, errors."""

from __future__ import annotations

import random

import pytest
import torch

from smelt.codegen.conv.epilogue import BIAS, Epilogue, plus
from smelt.codegen.conv.kernels import plan_kernel
from smelt.codegen.conv.shape import ConvShape, Window
from smelt.codegen.kernels.nest import Const, Expr, Op
from smelt.codegen.llvm.isa import AVX512
from smelt.ir import DType
from tests.codegen.harness import rms_ratio
from tests.conv.machine import Case, Refused, isas, run

ISAS = isas()
isa_names = pytest.mark.parametrize("name", list(ISAS))


def make(shape: ConvShape, seed: int, *, planes: bool = False, bias: bool = True) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    x = normal(shape.n, shape.cin, shape.h, shape.w) if planes else normal(shape.n, shape.h, shape.w, shape.cin)
    x = x if planes else x.permute(0, 3, 1, 2)
    weight = normal(shape.cout, shape.group_in, shape.kh, shape.kw)
    return Case(shape, x, weight, normal(shape.cout) if bias else None)


def check(case: Case, name: str) -> str:
    """The kernel's result is within rounding of float64's, however its items are split; the kind of kernel."""
    found, plan = run(case, ISAS[name])
    error = (found.double() - case.reference()).abs()
    assert bool((error <= case.bound()).all()), (case.shape, plan.kind, error.max())
    again, _ = run(case, ISAS[name], chunk=1 + plan.items // 3)
    assert torch.equal(found, again)
    return plan.kind


def shape(
    n: int, cin: int, h: int, w: int, cout: int, kernel: tuple[int, int], groups: int = 1, **window: tuple[int, int]
) -> ConvShape:
    return ConvShape(n, cin, h, w, cout, *kernel, Window(**window), groups)


SHAPES = {
    "1x1": shape(1, 24, 7, 9, 40, (1, 1)),
    "1x1 of one pixel": shape(1, 70, 1, 1, 33, (1, 1)),
    "1x1 of two images": shape(2, 16, 5, 4, 16, (1, 1)),
    "1x1 deep": shape(1, 400, 3, 5, 24, (1, 1)),
    "1x1 deep and odd": shape(1, 395, 3, 5, 7, (1, 1)),
    "1x1 strided": shape(2, 12, 7, 6, 20, (1, 1), stride=(2, 3)),
    "1x1 in a border": shape(1, 12, 3, 4, 8, (1, 1), before=(1, 2), after=(2, 1)),
    "3x3": shape(2, 16, 6, 7, 24, (3, 3), before=(1, 1), after=(1, 1)),
    "3x3 deep": shape(1, 200, 4, 9, 33, (3, 3), before=(1, 1), after=(1, 1)),
    "3x3 strided, uneven border": shape(1, 9, 8, 8, 17, (3, 3), stride=(2, 2), after=(1, 1)),
    "kernel larger than input": shape(1, 8, 2, 1, 12, (5, 4), before=(2, 3), after=(3, 2)),
    "mostly border": shape(1, 10, 1, 1, 5, (3, 3), before=(4, 4), after=(4, 4)),
    "dilated": shape(1, 11, 9, 10, 13, (3, 2), dilation=(2, 3), before=(2, 1), after=(2, 1)),
    "grouped": shape(2, 24, 5, 6, 36, (3, 3), 3, before=(1, 1), after=(1, 1)),
    "grouped, few outputs": shape(1, 8, 5, 6, 4, (3, 3), 4, before=(1, 1), after=(1, 1)),
    "first": shape(1, 3, 17, 19, 32, (3, 3), stride=(2, 2), after=(1, 1)),
    "first, 7x7": shape(2, 3, 20, 21, 20, (7, 7), stride=(2, 2), before=(3, 3), after=(3, 3)),
    "first, patches": shape(1, 3, 32, 48, 24, (16, 16), stride=(16, 16)),
    "first, one channel": shape(1, 1, 9, 8, 6, (3, 3), before=(1, 1), after=(1, 1)),
    "first, dilated": shape(1, 5, 9, 12, 6, (2, 3), dilation=(2, 2), before=(0, 3), after=(2, 0)),
    "first, all border": shape(1, 2, 1, 1, 6, (3, 3), before=(5, 4), after=(4, 5)),
    "depthwise": shape(1, 32, 7, 9, 32, (3, 3), 32, before=(1, 1), after=(1, 1)),
    "depthwise strided": shape(2, 40, 9, 8, 40, (3, 3), 40, stride=(2, 2), after=(1, 1)),
    "depthwise 5x5": shape(1, 19, 6, 11, 19, (5, 5), 19, before=(2, 2), after=(2, 2)),
    "depthwise dilated": shape(1, 6, 9, 9, 6, (3, 3), 6, dilation=(2, 3), before=(2, 3), after=(2, 3)),
    "depthwise, kernel larger": shape(1, 3, 2, 2, 3, (7, 6), 3, before=(3, 3), after=(3, 2)),
    "depthwise, mostly border": shape(1, 5, 1, 1, 5, (3, 3), 5, before=(6, 5), after=(6, 5)),
    "depthwise of one pixel": shape(1, 70, 1, 1, 70, (1, 1), 70),
    "winograd": shape(1, 32, 6, 6, 32, (3, 3), before=(1, 1), after=(1, 1)),
    "winograd of odd sizes": shape(2, 64, 7, 9, 96, (3, 3), before=(1, 1), after=(1, 1)),
    "winograd, one row of tiles": shape(1, 32, 2, 30, 32, (3, 3), before=(1, 0), after=(1, 0)),
    "winograd, wide border": shape(1, 32, 4, 4, 64, (3, 3), before=(2, 0), after=(0, 2)),
    "winograd, split": shape(1, 96, 40, 38, 256, (3, 3)),
    "winograd along a row": shape(2, 64, 1, 51, 64, (1, 3), before=(0, 1), after=(0, 1)),
    "winograd along a row, gaps": shape(1, 96, 1, 96, 64, (1, 3), dilation=(1, 8), before=(0, 16)),
    "winograd along rows": shape(2, 64, 5, 31, 96, (1, 3), dilation=(2, 3), before=(1, 0), after=(2, 5)),
    "row": shape(2, 20, 1, 30, 24, (1, 5), before=(0, 2), after=(0, 2)),
}  # fmt: skip


@pytest.mark.spread(6)
@isa_names
@pytest.mark.parametrize("kind", SHAPES)
def test_shapes(kind: str, name: str) -> None:
    case = make(SHAPES[kind], 0)
    used = check(case, name)
    if kind.startswith(("first", "depthwise")) or (kind.startswith("winograd") and name != "baseline"):
        assert used == kind.split()[0].rstrip(",")
    if used == "first":
        assert check(make(SHAPES[kind], 1, planes=True), name) == "first"


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("seed", "name"),
    [
        pytest.param(seed, name, marks=() if seed % len(ISAS) == i else pytest.mark.nightly)
        for seed in range(36)
        for i, name in enumerate(ISAS)
    ],
)
def test_random_shapes(seed: int, name: str) -> None:
    rng = random.Random(seed)
    groups = rng.choice([1, 1, 1, 2, 3])
    form = rng.choice(["dense", "dense", "first", "depthwise"])
    if form == "depthwise":
        groups = cin = cout = rng.randint(2, 70)
    elif form == "first":
        groups, cin, cout = 1, rng.randint(1, 7), rng.randint(1, 70)
    else:
        cin, cout = groups * rng.randint(1, 70 // groups), groups * rng.randint(1, 70 // groups)
    kernel = rng.choice([1, 1, 2, 3, 3, 5]), rng.choice([1, 1, 2, 3, 3, 5])
    dilation = rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    before, after = ((rng.randint(0, 3), rng.randint(0, 3)) for _ in range(2))
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    h, w = (max(rng.randint(1, 14), r - b - a) for r, b, a in zip(reach, before, after, strict=True))
    stride = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    window = Window(stride, dilation, before, after)
    sizes = ConvShape(rng.randint(1, 3), cin, h, w, cout, *kernel, window, groups)
    check(make(sizes, seed, planes=cin == 1, bias=rng.random() < 0.7), name)


def test_strided_inputs() -> None:
    sizes = SHAPES["3x3"]
    case = make(sizes, 0)
    wide = torch.randn(2, 6, 9, 40, generator=torch.Generator().manual_seed(1))
    x = wide[:, :, 1:8, 3:19].permute(0, 3, 1, 2)
    check(Case(sizes, x, case.weight, case.bias), next(iter(ISAS)))
    flat = SHAPES["1x1 of two images"]
    x = torch.randn(2, 5, 4, 24, generator=torch.Generator().manual_seed(1))[..., 8:].permute(0, 3, 1, 2)
    assert check(Case(flat, x, make(flat, 2).weight, None), next(iter(ISAS))) == "flat"
    image = torch.randn(1, 1, 1, 12, generator=torch.Generator().manual_seed(1)).expand(2, 5, 4, 12)
    sizes = shape(2, 12, 5, 4, 9, (1, 1))
    check(Case(sizes, image.permute(0, 3, 1, 2), torch.ones(9, 12, 1, 1), None), next(iter(ISAS)))


def test_what_no_kernel_reads() -> None:
    sizes = SHAPES["3x3"]
    assert plan_kernel(AVX512, sizes, (672, 42, 7, 1), Epilogue()) is None
    first = SHAPES["first"]
    assert plan_kernel(AVX512, first, (3 * 17 * 38, 17 * 38, 38, 2), Epilogue()) is None


def test_text_holds_no_sizes() -> None:
    def text(h: int, w: int, cin: int) -> str:
        strides = (h * w * cin, 1, w * cin, cin)
        plan = plan_kernel(AVX512, shape(1, cin, h, w, 64, (1, 1)), strides, BIAS)
        assert plan is not None
        return plan.text

    assert text(56, 56, 64) == text(28, 28, 128) == text(14, 28, 96)


@pytest.mark.parametrize(
    "sizes",
    [
        shape(1, 960, 7, 7, 64, (1, 1)),
        shape(1, 192, 1, 1, 256, (1, 1)),
        shape(1, 128, 14, 14, 32, (3, 3), stride=(2, 2), before=(1, 1), after=(1, 1)),
        shape(1, 64, 28, 28, 64, (3, 3), before=(1, 1), after=(1, 1)),
        shape(1, 256, 14, 14, 32, (3, 3), before=(1, 1), after=(1, 1)),
        shape(1, 64, 1, 200, 64, (1, 3), dilation=(1, 4), before=(0, 8)),
        shape(1, 512, 1, 60, 64, (1, 3), before=(0, 1), after=(0, 1)),
        shape(1, 96, 14, 14, 96, (3, 3), 96, before=(1, 1), after=(1, 1)),
        shape(1, 3, 56, 56, 32, (7, 7), stride=(2, 2), before=(3, 3), after=(3, 3)),
        shape(1, 3, 64, 64, 48, (16, 16), stride=(16, 16)),
    ],
    ids=[
        "1x1",
        "1x1 of one pixel",
        "3x3",
        "winograd",
        "winograd deep",
        "along a row",
        "along a row, deep",
        "depthwise",
        "first",
        "patches",
    ],
)
def test_error_is_eagers(sizes: ConvShape) -> None:
    case = make(sizes, 0)
    found, _ = run(case, ISAS[next(iter(ISAS))])
    assert rms_ratio(found, case.reference(torch.float32), case.reference()) <= 1.5
    # Behind a relu no two terms of a sum cancel.
    case = Case(sizes, case.x.relu(), case.weight, case.bias)
    found, _ = run(case, ISAS[next(iter(ISAS))])
    assert rms_ratio(found, case.reference(torch.float32), case.reference()) <= 1.5


def relu(value: Expr) -> Expr:
    zero = Const(0.0, DType.F32)
    return Op("select", (Op("lt", (value, zero), DType.BOOL), zero, value), DType.F32)


@isa_names
@pytest.mark.parametrize(
    "kind",
    ["1x1", "3x3 deep", "depthwise strided", "first", "grouped", "winograd of odd sizes", "winograd along a row"],
)
def test_epilogue(kind: str, name: str) -> None:
    case = make(SHAPES[kind], 3)
    residual = torch.randn(case.reference().permute(0, 2, 3, 1).shape, generator=torch.Generator().manual_seed(4))
    factor = torch.tensor([0.5])
    epilogue = BIAS.with_operand("element", plus).then(relu)
    epilogue = epilogue.with_operand("scalar", lambda a, b: Op("mul", (a, b), DType.F32))
    assert case.bias is not None
    found, _ = run(case, ISAS[name], epilogue, (case.bias, residual, factor))
    expected = (case.reference() + residual.permute(0, 3, 1, 2)).relu() * 0.5
    assert bool(((found - expected).abs() <= case.bound() + 1e-6).all())


@isa_names
@pytest.mark.parametrize("kind", ["1x1", "3x3", "depthwise", "first"])
def test_nan_and_inf(kind: str, name: str) -> None:
    case = make(SHAPES[kind], 5)
    case.x[0, 0, 1, 1], case.x[0, 1, 3, 3], case.x[0, 2, 0, 0] = torch.nan, torch.inf, -torch.inf
    found, _ = run(case, ISAS[name])
    expected = case.reference()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert bool(((found - expected).abs() <= case.bound())[expected.isfinite()].all())


@pytest.mark.parametrize("kind", ["winograd", "winograd along a row"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_winograd_refuses_what_it_cannot_tell(number: float, kind: str) -> None:
    case = make(SHAPES[kind], 6)
    case.x[0, 5, -1, 2] = number
    with pytest.raises(Refused):
        run(case, next(iter(ISAS.values())))


def test_winograd_keeps_windows_of_a_row_apart() -> None:
    case = make(SHAPES["winograd along a row, gaps"], 7)
    plain, _ = run(case, next(iter(ISAS.values())))
    case.x[0, :, 0, 20] = 1e20
    found, _ = run(case, next(iter(ISAS.values())))
    reached = [20, 28, 36]
    others = [at for at in range(96) if at not in reached]
    assert torch.equal(found[..., others], plain[..., others])
    assert not torch.equal(found[..., reached], plain[..., reached])


def test_winograd_keeps_windows_apart() -> None:
    """A result does not depend on what lies beside its window, however large."""
    case = make(SHAPES["winograd"], 7)
    plain, _ = run(case, next(iter(ISAS.values())))
    case.x[0, :, 0, 0] = 1e20
    found, _ = run(case, next(iter(ISAS.values())))
    assert torch.equal(found[..., 2:, :], plain[..., 2:, :]) and torch.equal(found[..., 2:], plain[..., 2:])
