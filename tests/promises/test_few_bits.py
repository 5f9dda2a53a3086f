"""`dtype="int8"` and `"int4"`: layers over few bits within the named bound, and what falls back to floats."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.contract.tiling import byte_tiling
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.result import Lowered
from smelt.compiler import unit
from smelt.diag import SmeltError, SmeltWarning
from smelt.ops.own import narrow_linear


class Net(nn.Module):
    """Layers that are merged, shared, fused with what follows, and one too small; the last amplifies."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.up = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 200)
        self.down, self.small = nn.Linear(200, 64, bias=False), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.nn.functional.gelu(self.up(self.q(x) * self.k(x))) + 1
        return self.down(h) + x, self.small(x)


def net() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(3, 7, 64)


def compiled(model: Any, **options: Any) -> Any:
    return smelt.compile(model, options={"adaptive": False, **options})


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt())


def layers(fn: Any) -> list[Any]:
    """What `explain` shows of them."""
    return [row for row in smelt.explain(fn).precision if "layer" in row]


@pytest.mark.parametrize(("dtype", "bound"), [("int8", 0.05), ("int4", 0.3)])
def test_outputs_keep_the_bound_at_all_sizes(dtype: str, bound: float) -> None:
    model, x = net()
    fn = compiled(model, dtype=dtype, max_error=bound)
    with torch.no_grad():
        for rows in (7, 1, 30, 2):
            x = torch.randn(3, rows, 64)
            for _ in range(2):
                found, expected = fn(x), model(x)
            assert 1e-4 < relative(found[0], expected[0]) < bound
            assert relative(found[1], expected[1]) < 1e-5, "a layer too small stays as it is"
    assert {layer["dtype"] for layer in layers(fn)} == {dtype, "f32"}
    notes = [row["note"] for row in smelt.explain(fn).precision if "output" in row]
    assert any(dtype in note for note in notes)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_plan_whose_error_was_measured_is_the_one_that_runs(
    dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans: list[Lowered] = []
    lower = unit.lower

    def noted(*args: Any, **kwargs: Any) -> Lowered:
        plans.append(lower(*args, **kwargs))
        return plans[-1]

    monkeypatch.setattr(unit, "lower", noted)
    model, x = net()
    fn = compiled(model, dtype=dtype, max_error=0.3, cache_dir=str(tmp_path))
    with torch.no_grad():
        fn(x)
        assert 1e-4 < relative(fn(x)[0], model(x)[0]) < 0.3
    (row,) = fn.stats().rows
    assert len(plans) == 1 and row.entry.lowered.plan is plans[0].plan
    assert 1e-4 < row.entry.narrowed.reached < 0.3


def test_layers_fall_back_until_the_bound_holds() -> None:
    model, x = net()
    with torch.no_grad():
        expected = model(x)[0]
        everything = compiled(model, dtype="int8")
        everything(x)
        whole = relative(everything(x)[0], expected)
        some = compiled(model, dtype="int8", max_error=0.8 * whole)
        some(x)
        assert relative(some(x)[0], expected) <= 0.8 * whole
        why = {layer["note"] for layer in layers(some) if layer["relative to rms"] is not None}
        assert why == {"", "falls back to f32: the outputs' error"}
        with pytest.warns(SmeltWarning, match="with one layer alone the error of an output is"):
            none = compiled(model, dtype="int8", max_error=1e-6)
            none(x)
        assert relative(none(x)[0], expected) < 1e-6


def test_int8_is_the_operator_to_the_bit_and_sees_new_weights() -> None:
    model = nn.Linear(128, 40).eval()
    x = torch.randn(5, 128)
    fn = compiled(model, dtype="int8")
    for _ in range(2):
        with torch.no_grad():
            fn(x)
            found = fn(x)
            from_torch = narrow_linear.int8(x, model.weight, model.bias)
            assert (found - from_torch).abs().max() <= 1e-6
            model.weight.mul_(-2)


def test_launches_are_of_bytes() -> None:
    """The rows in bytes are made once for layers that read the same; nothing goes through Python."""
    isa = host_isa()
    assert isa is not None
    model, x = net()
    fn = compiled(model, dtype="int8")
    with torch.no_grad():
        fn(x)
        fn(x)
    computed = [row.get("computes") for row in smelt.explain(fn).kernels]
    assert ("rows in bytes" in computed) == (byte_tiling(isa) is not None)


def test_what_has_nothing_to_narrow_says_so() -> None:
    with torch.no_grad(), pytest.warns(SmeltWarning, match="not int8: it has no linear layer"):
        fn = compiled(lambda x: x * 2 + 1, dtype="int8")
        assert torch.equal(fn(torch.arange(4)), torch.arange(4) * 2 + 1)


def test_gradients_are_those_of_floats() -> None:
    model, x = net()
    fn = compiled(model, dtype="int8")
    with torch.enable_grad():
        with pytest.warns(SmeltWarning, match="where gradients are needed"):
            out = fn(x)[0]
        torch.testing.assert_close(fn(x)[0], model(x)[0])
    assert out.requires_grad


def test_wrong_options_and_files_are_refused() -> None:
    for options in ({"dtype": "int5"}, {"dtype": "int8", "max_error": 0}, {"dtype": "int8", "max_error": "1"}):
        with pytest.raises(SmeltError, match="cannot be"):
            smelt.compile(torch.relu, options=options)
    model, x = net()
    with torch.no_grad():
        program = smelt.trace(model, (x,), options={"dtype": "int8"})
        assert 1e-4 < relative(program(x)[0], model(x)[0]) < 0.05
    with pytest.raises(SmeltError, match="compiled with dtype 'int8'"):
        program.save(io.BytesIO())


def test_state_that_is_written_is_not_touched_by_the_trials() -> None:
    """Errors are measured by running the program, which here counts its calls."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(64, 64), nn.Buffer(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.linear(x) * self.calls

    model = Counting().eval()
    fn = compiled(model, dtype="int8")
    with torch.no_grad(), warnings.catch_warnings():
        for i in range(1, 4):
            fn(torch.randn(3, 64))
            assert model.calls.item() == i
