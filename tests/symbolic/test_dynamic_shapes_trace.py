"""`trace` with `dynamic_shapes`: one program at many sizes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.export import Dim as ExportDim

import smelt


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        for parameter in self.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Any, n: int = 2) -> Any:
        if x.shape[0] > 64:
            return self.up(x)
        return torch.softmax(self.up(x) * n, -1)


@pytest.fixture(scope="module")
def traced() -> tuple[Any, Any]:
    torch.manual_seed(0)
    head = Head()
    return smelt.trace(head, (torch.randn(4, 8),), dynamic_shapes={"x": {0: smelt.Dim("B", min=2)}}), head


def test_it_prints_its_sizes(traced: Any) -> None:
    program, _ = traced
    assert "f32[B, 8]" in str(program.graph) and "f32[B, 16]" in str(program.graph)
    assert smelt.parse(str(program.graph)) == program.graph


def test_it_runs_at_other_sizes(traced: Any) -> None:
    program, head = traced
    for rows in (4, 2, 9, 64, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program(x), head(x))
    assert len(program.units) == 1


def test_its_code_runs_at_other_sizes(traced: Any) -> None:
    program, head = traced
    for rows in (4, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program.code.run(x)[0], head(x))


def test_its_code_is_refused_what_the_graph_does_not_hold_for(traced: Any) -> None:
    program, _ = traced
    with pytest.raises(smelt.CaptureError, match=r"test_dynamic_shapes_trace\.py:\d+.*and here B = 65") as refused:
        program.code.run(torch.randn(65, 8))
    assert refused.value.code == "S0107"
    for x in (torch.randn(4, 9), torch.randn(4, 8, dtype=torch.float64), torch.randn(1, 4, 8)):
        with pytest.raises(smelt.CaptureError, match=r"\[S0107\]"):
            program.code.run(x)


def test_the_code_of_one_size_is_for_that_size() -> None:
    program = smelt.trace(lambda x: x.sum() / len(x), (torch.ones(4),))
    assert program.code.run(torch.ones(4))[0] == 1
    with pytest.raises(smelt.CaptureError, match=r"has sizes \[5\], the program was captured for \[4\]"):
        program.code.run(torch.ones(5))
    with pytest.raises(smelt.CaptureError, match=r"has dtype torch\.float64"):
        program.code.run(torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("free", [None, {"x": {0: "B"}}])
def test_the_code_of_one_layout_is_for_that_layout(free: Any) -> None:
    """`contiguous` of what lies row by row is the argument itself, which is written; of other tensors it is a copy."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().add_(1)

    program = smelt.trace(fn, (torch.ones(3, 2),), dynamic_shapes=free)
    for rows in (3, 3 if free is None else 5):
        x = torch.zeros(rows, 2)
        assert torch.equal(program.code.run(x)[0], torch.ones(rows, 2)) and torch.equal(x, torch.ones(rows, 2))
    other = torch.ones(2, 3).t()
    with pytest.raises(smelt.CaptureError, match=r"args\[0\] has strides \[1, 3\]"):
        program.code.run(other)
    assert torch.equal(other, torch.ones(3, 2))
    columns = smelt.trace(fn, (other,), dynamic_shapes=None if free is None else {"x": {1: "C"}})
    assert torch.equal(columns.code.run(other)[0], torch.full((3, 2), 2.0)) and torch.equal(other, torch.ones(3, 2))
    with pytest.raises(smelt.CaptureError, match=r"has strides \[2, 1\]"):
        columns.code.run(torch.ones(3, 2))
    row = smelt.trace(fn, (torch.ones(1, 2),))
    assert torch.equal(row.code.run(torch.ones(2, 1).t())[0], torch.full((1, 2), 2.0))


def test_the_code_of_tensors_apart_is_for_tensors_apart() -> None:
    program = smelt.trace(lambda x, y: x.add_(1) * y, (torch.ones(3), torch.ones(3)))
    x = torch.ones(4)
    assert torch.equal(program.code.run(torch.ones(3), x[1:])[0], torch.full((3,), 2.0))
    with pytest.raises(smelt.CaptureError, match="share memory") as refused:
        program.code.run(x[:3], x[1:])
    assert refused.value.code == "S0107" and torch.equal(x, torch.ones(4))


def test_the_graph_for_a_call(traced: Any) -> None:
    program, _ = traced
    assert "aten.softmax" in str(program.graph_for(torch.randn(5, 8)))


def test_saved_and_copied(traced: Any) -> None:
    program, head = traced
    for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        x = torch.randn(11, 8)
        torch.testing.assert_close(other(x), head(x))
        assert len(other.units) == 1
        with pytest.raises(smelt.CaptureError, match=r"captured for B >= 2, and here B = 1"):
            other(torch.randn(1, 8))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 8), "captured for B >= 2, and here B = 1"),
        ((4, 9), r"has sizes \[4, 9\], the program was captured for f32\[B, 8\]"),
        ((4, 8, 1), r"has sizes \[4, 8, 1\]"),
    ],
)
def test_calls_outside(traced: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(smelt.CaptureError, match=message) as caught:
        traced[0](torch.randn(shape))
    assert caught.value.code == "S0107"


def test_beyond_a_guard_it_is_captured_anew() -> None:
    head = Head()
    program = smelt.trace(head, (torch.randn(4, 8),), dynamic_shapes={"x": {0: smelt.Dim("B", min=2)}})
    for rows in (70, 5, 99, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program(x), head(x))
    assert len(program.units) == 2


def test_gradients_at_other_sizes() -> None:
    layer = torch.nn.Linear(4, 3)
    program = smelt.trace(layer, (torch.randn(4, 4),), dynamic_shapes=({0: "B"},))
    x = torch.randn(7, 4, requires_grad=True)
    program(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(7, 4))


def test_a_number() -> None:
    head = Head()
    x = torch.randn(4, 8)
    program = smelt.trace(head, (x,), {"n": 5}, dynamic_shapes={"n": "n"})
    for n in (5, 7, -1):
        torch.testing.assert_close(program(x, n=n), head(x, n=n))
    assert "%n: int" in str(program.graph)


def test_as_torch_export_spells_it() -> None:
    rows = ExportDim("rows", min=2, max=32)
    program = smelt.trace(Head(), (torch.randn(4, 8),), dynamic_shapes={"x": {0: rows}})
    assert "f32[rows, 8]" in str(program.graph)
    program = smelt.trace(Head(), (torch.randn(4, 8),), dynamic_shapes={"x": (ExportDim.AUTO, ExportDim.STATIC)})
    assert "f32[B, 8]" in str(program.graph)


def test_what_cannot_be_free() -> None:
    def f(x: Any) -> Any:
        return x + torch.ones(8, 3)

    with pytest.raises(smelt.CaptureError, match="B was to stay free, and the program holds only where it is 8") as e:
        smelt.trace(f, (torch.randn(8, 3),), dynamic_shapes={"x": {0: "B"}})
    assert e.value.code == "S0111"


@pytest.mark.parametrize(
    "shapes", [{"z": {0: "B"}}, {"x": {2: "B"}}, {"x": {0: smelt.Dim("B", max=3)}}, {"x": {0: 5}}, {"x": "B"}]
)
def test_wishes_that_do_not_fit_run_nothing(shapes: Any) -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(1)
        return x * 2

    with pytest.raises(smelt.SmeltError) as caught:
        smelt.trace(f, (torch.randn(4, 8),), dynamic_shapes=shapes)
    assert caught.value.code == "S0304" and seen == []


@pytest.mark.parametrize("args", [(3, 3), (3.0, 3.0), (1, 1)])
def test_equal_names_of_numbers_are_equal_numbers(args: Any) -> None:
    """Each number is read where it stands; that they are one is a guard."""

    def fn(x: torch.Tensor, n: Any, m: Any) -> torch.Tensor:
        return x * n + m

    x, free, kind = torch.rand(3, 2), {"n": "a", "m": "a"}, type(args[0])
    program, compiled = smelt.trace(fn, (x, *args), dynamic_shapes=free), smelt.compile(fn, dynamic_shapes=free)
    module = program.to_fx()
    for call in (args, (kind(4), kind(4))):
        expected = fn(x, *call)
        for found in (program(x, *call), program.code.run(x, *call)[0], module(x, *call), compiled(x, *call)):
            assert torch.equal(found, expected)
    assert compiled.stats().builds == 1
    for one, error in ((program, smelt.CaptureError), (program.code.run, smelt.CaptureError), (module, AssertionError)):
        with pytest.raises(error):
            one(x, kind(4), kind(5))


def test_a_number_may_have_the_name_of_a_size() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(-1)[: n * 2] * n

    free = {"x": {0: "B"}, "n": "B"}
    program, compiled = (
        smelt.trace(fn, (torch.rand(3, 2), 3), dynamic_shapes=free),
        smelt.compile(fn, dynamic_shapes=free),
    )
    for n in (3, 5):
        x = torch.rand(n, 2)
        assert torch.equal(program(x, n), fn(x, n)) and torch.equal(compiled(x, n), fn(x, n))
    with pytest.raises(smelt.CaptureError):
        program(torch.rand(5, 2), 4)
