"""Programs whose products run in own kernels, against float64 and eager, and what they are not taken for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from smelt._torch.library import mkldnn
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower import Lowered, lower
from smelt.diag import Options
from smelt.ir import TensorType, parse
from smelt.ops.evaluate import evaluate
from smelt.runtime.machine.cpu import cpu_flags
from smelt.runtime.plan import Launch
from tests.codegen.harness import RULE, State, check, executables, lookup_in, lowered, rms_ratio
from tests.codegen.harness import call as run
from tests.contract.harness import isas, normal

pytestmark = pytest.mark.skipif(
    not [isa for isa in isas() if isa.name != "baseline"], reason="own products need wide vectors"
)


@pytest.fixture(params=["", "avx2"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best instruction set, and a plainer one."""
    if request.param:
        monkeypatch.setenv("SMELT_ISA", request.param)
    assert host_isa() is not None


def check_near(
    text: str, inputs: Sequence[torch.Tensor], state: State | None = None, exact: torch.Tensor | None = None
) -> Lowered:
    """Lower a graph of one result, run it everywhere, compare at the scale of the result: with `exact`, or else with
    the evaluator.
    """
    known = state or {}
    plan = lowered(text, known)
    (expected,) = [exact] if exact is not None else evaluate(parse(text), list(inputs), lookup_in(known))
    atol = 4 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    for executable in executables(plan.plan):
        for _ in range(2):
            (found,) = run(plan, executable, inputs, known)
            assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
            torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    return plan


FEED_FORWARD = """\
graph f(%x: f32[{rows}, 64]) -> f32[{rows}, 64] {{
  %w: f32[200, 64] = param("w")
  %b: f32[200] = param("b")
  %v: f32[200, 64] = param("v")
  %0: f32[{rows}, 200] = aten.linear.default(%x, %w, %b)
  %1: f32[{rows}, 200] = aten.gelu.default(%0)
  %2: f32[{rows}, 64] = aten.mm.default(%1, %v)
  %3: f32[{rows}, 64] = aten.add.Tensor(%x, %2)
  return %3
}}"""
STATE = {"w": normal(200, 64) / 8, "b": normal(200, seed=1), "v": normal(200, 64, seed=2) / 14}


@pytest.mark.spread(6)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 50])
def test_feed_forward(isa: None, rows: int) -> None:
    plan = check_near(FEED_FORWARD.format(rows=rows), [normal(rows, 64, seed=3)], STATE)
    assert plan.report.counts == {"state": 3, "kernel": 2, "fused": 2}
    packed = 0 if rows <= 8 else (200 * 64 * 4) * 2
    assert plan.report.memory.packed_nbytes >= packed and (packed or plan.report.memory.packed_nbytes == 0)


@pytest.mark.spread(2)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [5, 64, 160])
def test_a_weight_that_is_read_again_and_again_is_packed(isa: None, rows: int, size: int) -> None:
    kind, steps = f"f32[{rows}, {size}]", 5
    lines = [f"%{i + 1}: {kind} = aten.linear.default(%{i if i else 'x'}, %w)" for i in range(steps)]
    body = "\n".join([f'%w: f32[{size}, {size}] = param("w")', *lines, f"return %{steps}"])
    x, w = normal(rows, size), normal(size, size, seed=1) / size**0.5
    plan = lowered(f"graph f(%x: {kind}) -> {kind} {{\n{body}\n}}", {"w": w})
    assert plan.report.memory.packed_nbytes >= w.nbytes
    eager, exact = x, x.double()
    for _ in range(steps):
        eager, exact = eager @ w.t(), exact @ w.double().t()
    for executable in executables(plan.plan):
        (found,) = run(plan, executable, [x], {"w": w})
        assert rms_ratio(found, eager, exact) <= 1.5


@pytest.mark.parametrize("rows", [4, 40])
def test_error(isa: None, rows: int) -> None:
    text = """\
graph f(%x: f32[ROWS, 1536]) -> f32[ROWS, 96] {
  %w: f32[96, 1536] = param("w")
  %0: f32[ROWS, 96] = aten.linear.default(%x, %w)
  return %0
}""".replace("ROWS", str(rows))
    x, w = normal(rows, 1536), normal(96, 1536, seed=1)
    # Eager's own error may be more than the difference that is allowed.
    plan = check_near(text, [x], {"w": w}, (x.double() @ w.double().t()).float())
    for executable in executables(plan.plan):
        (found,) = run(plan, executable, [x], {"w": w})
        assert rms_ratio(found, x @ w.t(), x.double() @ w.double().t()) <= 1.5


@pytest.mark.spread(10)
@pytest.mark.parametrize(
    ("left", "right", "result", "op"),
    [
        ("[20, 30]", "[30, 40]", "[20, 40]", "mm.default(%a, %b)"),
        ("[1, 30]", "[30, 400]", "[1, 400]", "mm.default(%a, %b)"),
        ("[20, 30]{1, 20}", "[30, 40]", "[20, 40]", "mm.default(%a, %b)"),
        ("[3, 30]", "[30, 40]{1, 30}", "[3, 40]", "mm.default(%a, %b)"),
        ("[12, 30]", "[30, 40]{80, 2}", "[12, 40]", "mm.default(%a, %b)"),
        ("[5, 20, 30]", "[5, 30, 40]", "[5, 20, 40]", "bmm.default(%a, %b)"),
        ("[5, 20, 30]", "[5, 30, 40]{1200, 1, 30}", "[5, 20, 40]", "bmm.default(%a, %b)"),
        ("[2, 3, 20, 30]{1800, 30, 90, 1}", "[2, 3, 30, 40]", "[2, 3, 20, 40]", "matmul.default(%a, %b)"),
        ("[2, 3, 20, 30]", "[3, 30, 40]", "[2, 3, 20, 40]", "matmul.default(%a, %b)"),
        ("[2, 3, 20, 30]", "[30, 40]", "[2, 3, 20, 40]", "matmul.default(%a, %b)"),
        ("[2, 3, 4, 20, 30]", "[4, 30, 40]", "[2, 3, 4, 20, 40]", "matmul.default(%a, %b)"),
        ("[2, 20, 30]", "[40, 30]", "[2, 20, 40]", "linear.default(%a, %b)"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_products_of_activations(isa: None, left: str, right: str, result: str, op: str, dtype: str) -> None:
    text = f"""\
graph f(%a: {dtype}{left}, %b: {dtype}{right}) -> {dtype}{result} {{
  %0: {dtype}{result} = aten.{op}
  %1: {dtype}{result} = aten.mul.Tensor(%0, 0.5)
  return %1
}}"""
    kinds = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
    plan = check_near(text, [_laid(left, kinds[dtype], 0), _laid(right, kinds[dtype], 1)])
    found = host_isa()
    if dtype != "bf16" or (found is not None and found.has_bf16):
        assert plan.report.counts == {"kernel": 1, "fused": 1}


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("[5, 20, 30]", "[5, 30, 40]", "[5, 20, 40]"),
        ("[2, 3, 20, 30]", "[3, 30, 40]", "[2, 3, 20, 40]"),
        ("[2, 3, 4, 30]{360, 30, 90, 1}", "[2, 3, 30, 40]", "[2, 3, 4, 40]"),
    ],
)
def test_every_batch_has_its_own_residual(isa: None, left: str, right: str, result: str) -> None:
    text = f"""\
graph f(%a: f32{left}, %b: f32{right}, %r: f32{result}) -> f32{result} {{
  %0: f32{result} = aten.matmul.default(%a, %b)
  %1: f32{result} = aten.add.Tensor(%0, %r)
  return %1
}}"""
    inputs = [_laid(kind, torch.float32, seed) for seed, kind in enumerate((left, right, result))]
    assert check_near(text, inputs).report.counts == {"kernel": 1, "fused": 1}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("left", "right", "result", "op", "packed"),
    [
        ("[300, 30]{1, 300}", "[30, 150]", "[300, 150]", "mm.default(%a, %b)", {"tiles", "panels"}),
        ("[40, 31]{1, 40}", "[31, 170]{1, 31}", "[40, 170]", "mm.default(%a, %b)", {"tiles"}),
        ("[300, 31]", "[31, 50]", "[300, 50]", "mm.default(%a, %b)", {"panels"}),
        ("[300, 31]", "[50, 31]", "[300, 50]", "linear.default(%a, %b)", {"panels"}),
        ("[2, 150, 31]", "[50, 31]", "[2, 150, 50]", "linear.default(%a, %b)", {"panels"}),
        ("[2, 3, 50, 31]", "[31, 50]", "[2, 3, 50, 50]", "matmul.default(%a, %b)", {"panels"}),
        ("[2, 150, 31]{31, 62, 1}", "[31, 50]", "[2, 150, 50]", "matmul.default(%a, %b)", set()),
        ("[2, 300, 31]", "[2, 31, 50]", "[2, 300, 50]", "bmm.default(%a, %b)", set()),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_matrices_read_by_many_blocks_are_packed_in_the_run(
    isa: None, left: str, right: str, result: str, op: str, packed: set[str], dtype: str
) -> None:
    """Batches of one right matrix are rows of one product; each keeps its own part of what is added behind."""
    text = f"""\
graph f(%a: {dtype}{left}, %b: {dtype}{right}, %r: {dtype}{result}) -> {dtype}{result} {{
  %0: {dtype}{result} = aten.{op}
  %1: {dtype}{result} = aten.add.Tensor(%0, %r)
  return %1
}}"""
    kinds = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
    found = host_isa()
    if dtype == "bf16" and not (found is not None and found.has_bf16):
        return
    plan = check_near(text, [_laid(kind, kinds[dtype], seed) for seed, kind in enumerate((left, right, result))])
    labels = {i.label.removesuffix(" of a product") for i in plan.plan.instructions if isinstance(i, Launch)}
    assert labels & {"tiles", "panels"} == (packed - {"tiles"} if dtype == "bf16" else packed)


def _laid(text: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    sizes, _, strides = text.removesuffix("}").partition("{")
    shape = [int(n) for n in sizes.strip("[]").split(",")]
    dense = normal(*shape, seed=seed, dtype=dtype)
    if not strides:
        return dense
    steps = [int(n) for n in strides.split(",")]
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    return torch.zeros(extent, dtype=dtype).as_strided(shape, steps).copy_(dense)


@pytest.mark.spread(10)
@pytest.mark.parametrize("scalars", ["", ", beta=0.5", ", alpha=3", ", beta=2, alpha=0.25"])
@pytest.mark.parametrize("added", ["[40]", "[1, 40]", "[20, 1]", "[20, 40]", "[20, 40]{1, 20}"])
def test_added_tensors(isa: None, added: str, scalars: str) -> None:
    text = f"""\
graph f(%c: f32{added}, %a: f32[20, 30], %b: f32[30, 40]) -> f32[20, 40] {{
  %0: f32[20, 40] = aten.addmm.default(%c, %a, %b{scalars})
  %1: f32[20, 40] = aten.relu.default(%0)
  return %1
}}"""
    plan = check_near(text, [_laid(added, torch.float32, 2), normal(20, 30), normal(30, 40, seed=1)])
    assert plan.report.counts == {"kernel": 1, "fused": 1}


def test_nothing_added_is_not_read(isa: None) -> None:
    text = """\
graph f(%c: f32[40], %a: f32[20, 30], %b: f32[30, 40]) -> f32[20, 40] {
  %0: f32[20, 40] = aten.addmm.default(%c, %a, %b, beta=0)
  return %0
}"""
    check_near(text, [torch.full((40,), torch.nan), normal(20, 30), normal(30, 40, seed=1)])


def test_a_product_with_itself(isa: None) -> None:
    text = """\
graph f(%a: f32[30, 30]) -> f32[30, 30] {
  %0: f32[30, 30] = aten.mm.default(%a, %a)
  %1: f32[30, 30] = aten.add.Tensor(%0, %a)
  return %1
}"""
    check_near(text, [normal(30, 30)])


def test_eagers_library_is_kept_where_asked() -> None:
    options = Options(deterministic=True, numerics="eager-library")
    plan = check(FEED_FORWARD.format(rows=12), [normal(12, 64)], STATE, options, exact=False)
    assert "own" not in {choice.chosen for choice in plan.report.choices}
    assert RULE.numerics != options.numerics


@pytest.mark.parametrize("rows", [8, 64])
def test_the_library_has_bf16_where_it_has_tiles(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the CPU has tile registers, only few rows, which wait for memory, are ours."""
    if not mkldnn.has_linear() or "avx512_bf16" not in cpu_flags():
        pytest.skip("no oneDNN, or no own bf16 products")
    monkeypatch.setattr("smelt.codegen.lower.products.linear.cpu_flags", lambda: frozenset(("amx_bf16",)))
    text = f"""\
graph f(%x: bf16[{rows}, 96]) -> bf16[{rows}, 64] {{
  %w: bf16[64, 96] = param("w")
  %0: bf16[{rows}, 64] = aten.linear.default(%x, %w)
  return %0
}}"""
    weight = torch.randn(64, 96).bfloat16()
    made = lower(parse(text), lambda kind, path: weight)
    assert made.report.counts == ({"kernel": 1} if rows == 8 else {"library": 1}) | {"state": 1}


@pytest.mark.parametrize(
    ("left", "right", "product"),
    [
        ("f32[33, 17]", "f32[1, 17]", "aten.linear.default(%l, %r, %b)"),
        ("f32[33, 17]", "f32[17, 1]", "aten.mm.default(%l, %r)"),
        ("f32[33, 17]{1, 33}", "f32[17, 1]", "aten.mm.default(%l, %r)"),
        ("f32[33, 17]{51, 3}", "f32[1, 17]{34, 2}", "aten.linear.default(%l, %r)"),
        ("f32[33, 17]", "f32[17, 1]", "aten.addmm.default(%c, %l, %r, beta=0.5, alpha=2.0)"),
        ("f64[40, 700]", "f64[700, 1]", "aten.mm.default(%l, %r)"),
    ],
)
def test_a_single_column_of_activations(isa: None, left: str, right: str, product: str) -> None:
    """It is a row of dot products, what stands behind it included."""
    rows, kind = (33, "f32") if "33" in left else (40, "f64")
    text = (
        f"graph f(%l: {left}, %r: {right}, %b: {kind}[1], %c: {kind}[{rows}, 1]) -> {kind}[{rows}, 1] {{\n"
        f"  %0: {kind}[{rows}, 1] = {product}\n"
        f"  %1: {kind}[{rows}, 1] = aten.relu.default(%0)\n"
        f"  %2: {kind}[{rows}, 1] = aten.mul.Tensor(%1, %c)\n"
        "  return %2\n}"
    )
    inputs = []
    for seed, value in enumerate(parse(text).inputs):
        type_ = value.type
        assert isinstance(type_, TensorType)
        made = torch.empty_strided(type_.sizes, type_.steps, dtype=torch.float64 if kind == "f64" else torch.float32)
        inputs.append(made.copy_(normal(*type_.sizes, seed=seed)))
    plan = check_near(text, inputs)
    assert plan.report.counts["kernel"] == 1
    assert plan.report.counts["fused"] == 2
