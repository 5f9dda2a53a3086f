"""In which dtype nests meet operands and where they round, beside eager to the bit."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.ir import parse
from smelt.ops.convert import type_of
from smelt.ops.evaluate import evaluate
from tests.fusion.harness import run_nest

_HALF = (torch.bfloat16, torch.float16)
# (of four elements, 0-d): their values are told apart in the wider dtype and not in the other, or the other way round.
_MIXED = {
    "f32 and f64": (torch.tensor([0.1, 0.2, -0.1, 0.3]), torch.tensor(0.1, dtype=torch.float64)),
    "bf16 and f32": (torch.tensor([0.1, 0.2, -0.1, 0.3]).bfloat16(), torch.tensor(0.1)),
    "i8 and i64": (torch.tensor([44, 45, -1, 0], dtype=torch.int8), torch.tensor(300)),
    "i32 and f32": (torch.tensor([1, 2, 3, 4], dtype=torch.int32), torch.tensor(2.5)),
    "u8 and bool": (torch.tensor([1, 0, 2, 255], dtype=torch.uint8), torch.tensor(True)),
    "f32 and i64": (torch.tensor([16777216.0, 1.0, 0.0, -1.0]), torch.tensor(16777217)),
}


@pytest.mark.parametrize("op", ["eq", "lt", "ge"])
@pytest.mark.parametrize("name", _MIXED)
@pytest.mark.parametrize("turned", [False, True])
def test_comparisons_meet_in_torchs_dtype(name: str, op: str, turned: bool) -> None:
    x, y = _MIXED[name]
    operands = "%y, %x" if turned else "%x, %y"
    graph = parse(f"""\
graph f(%x: {type_of(x)}, %y: {type_of(y)}) -> bool[4] {{
  %0: bool[4] = aten.{op}.Tensor({operands})
  return %0
}}""")
    (expected,) = evaluate(graph, [x, y])
    assert torch.equal(run_nest(graph, [x, y]).results[0], expected)


@pytest.mark.parametrize("dtype", _HALF, ids=str)
@pytest.mark.parametrize("op", ["add", "sub"])
def test_an_alpha_beside_half_types_is_one_of_them(op: str, dtype: torch.dtype) -> None:
    """Eager's vectors, which 64 elements fill, round 0.3 before they multiply."""
    x, y = torch.randn(64).to(dtype), torch.randn(64).to(dtype)
    kind = type_of(x)
    graph = parse(f"""\
graph f(%x: {kind}, %y: {kind}) -> {kind} {{
  %0: {kind} = aten.{op}.Tensor(%x, %y, alpha=0.3)
  return %0
}}""")
    (expected,) = evaluate(graph, [x, y])
    assert torch.equal(run_nest(graph, [x, y]).results[0], expected)


@pytest.mark.parametrize("dtype", _HALF, ids=str)
@pytest.mark.parametrize("op", ["mean.dim(%x, [1])", "sum.dim_IntList(%x, [1])", "amax.default(%x, [1])"])
def test_reductions_of_half_types_round_once(op: str, dtype: torch.dtype) -> None:
    """Of whole numbers, whose sum is exact in f32 and none of the half type's."""
    x = ((torch.arange(3 * 301) * 7) % 13).view(3, 301).to(dtype)
    kind = str(type_of(x)).partition("[")[0]
    graph = parse(f"""\
graph f(%x: {type_of(x)}) -> {kind}[3] {{
  %0: {kind}[3] = aten.{op}
  return %0
}}""")
    (expected,) = evaluate(graph, [x])
    assert torch.equal(run_nest(graph, [x]).results[0], expected)


def test_packed_nibbles_are_taken_apart_in_a_nest() -> None:
    def unpacked(q: torch.Tensor) -> torch.Tensor:
        return torch.stack([(q & 0xF).to(torch.int8) - 8, (q >> 4).to(torch.int8) - 8], -1).flatten() * 0.5

    q = torch.arange(256, dtype=torch.uint8).view(4, 64)
    compiled = smelt.compile(unpacked)
    for _ in range(2):
        assert torch.equal(compiled(q), unpacked(q))
    assert not smelt.explain(compiled).to_dict()["fallbacks"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_shifts_by_any_count(dtype: torch.dtype) -> None:
    x, by = torch.arange(-40, 40).to(dtype), torch.arange(80).sub(8).to(dtype)
    compiled = smelt.compile(lambda x, y: (x << y, x >> y, x << 7, torch.bitwise_right_shift(x, 3) | 1))
    for _ in range(2):
        expected = (x << by, x >> by, x << 7, torch.bitwise_right_shift(x, 3) | 1)
        assert all(map(torch.equal, compiled(x, by), expected))
    assert not smelt.explain(compiled).to_dict()["fallbacks"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *_HALF])
def test_of_zeros_of_two_signs_fmax_and_fmin_take_torchs(dtype: torch.dtype) -> None:
    x, y = torch.zeros(70, dtype=dtype), -torch.zeros(70, dtype=dtype)
    x[::7], y[1::7] = float("nan"), float("nan")
    compiled = smelt.compile(lambda a, b: (torch.fmax(a, b), torch.fmin(a, b), torch.fmax(b, a), torch.fmin(b, a)))
    expected = (torch.fmax(x, y), torch.fmin(x, y), torch.fmax(y, x), torch.fmin(y, x))
    for _ in range(2):
        for found, wanted in zip(compiled(x, y), expected, strict=True):
            assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())


@pytest.mark.parametrize("dtype", [*_HALF, torch.float32])
def test_squared_errors_round_where_torchs_do(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(37, 5, generator=generator).to(dtype) for _ in range(2))
    for reduction in ("none", "mean", "sum"):

        def program(x: torch.Tensor, y: torch.Tensor, how: str = reduction) -> torch.Tensor:
            return torch.nn.functional.mse_loss(x, y, reduction=how)

        compiled = smelt.compile(program, options={"adaptive": False})
        for _ in range(2):
            got = compiled(x, y)
        torch.testing.assert_close(got, program(x, y), rtol=0 if dtype in _HALF else 1e-6, atol=0)
        kernels = [row for row in smelt.explain(compiled).to_dict()["kernels"] if "computes" in row]
        assert [row["launches"] for row in kernels] == [1]
