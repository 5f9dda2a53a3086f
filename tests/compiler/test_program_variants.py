"""A program answers as eager for other dtypes, strides and weights of the captured sizes, and says what it bakes."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler.program import CAPTURE_LIMIT


def by_dtype(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.dtype == torch.float32 else x * 3


def by_layout(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.is_contiguous() else x * 3


@pytest.mark.parametrize("f", [by_dtype, by_layout])
def test_what_python_asked_of_a_tensor_is_not_baked(f) -> None:  # type: ignore[no-untyped-def]
    x = torch.arange(4.0).view(2, 2)
    program = smelt.trace(f, (x,))
    for other in (x, x.double(), x.t(), x.to(torch.int32), x, x.bfloat16().t()):
        for _ in range(2):
            found, expected = program(other), f(other)
            assert found.dtype == expected.dtype and found.stride() == expected.stride()
            assert torch.equal(found, expected)
    assert len(program.units) == 5


def test_captures_are_bounded() -> None:
    program = smelt.trace(by_dtype, (torch.ones(2),))
    dtypes = (torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.float16,
              torch.bfloat16, torch.float32)  # fmt: skip
    for dtype in dtypes:
        x = torch.ones(2, dtype=dtype)
        assert torch.equal(program(x), by_dtype(x))
    assert len(program.units) == CAPTURE_LIMIT


def test_changed_weights_reach_a_program_that_packed_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).eval()
    x = torch.randn(256, 256)
    with torch.no_grad():
        program = smelt.trace(model, (x,), options={"deterministic": True})
        for change in (
            lambda: None,
            lambda: model[0].weight.mul_(2),
            lambda: model[2].weight.data.neg_(),
            lambda: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
            lambda: setattr(model[0], "weight", nn.Parameter(torch.randn(1024, 256))),
        ):
            change()
            for _ in range(2):
                torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-3)
    assert program.native_failure is None


def test_a_trace_says_what_it_bakes() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * random.randbytes(1)[0]

    with pytest.warns(smelt.SmeltWarning, match="draws random numbers") as caught:
        smelt.trace(noisy, (torch.ones(2),))
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smelt.trace(by_dtype, (torch.ones(2),))


def test_a_trace_says_what_it_leaves_out() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * 2

    with pytest.warns(smelt.SmeltWarning, match="calls"):
        smelt.trace(Counting(), (torch.ones(2),))


def test_what_cannot_be_called_cannot_be_traced() -> None:
    with pytest.raises(smelt.SmeltError, match="not callable") as error:
        smelt.trace(5, (torch.ones(2),))  # type: ignore[arg-type]
    assert error.value.code == "S0106"


def test_an_unknown_pass_is_refused_before_anything_runs() -> None:
    with pytest.raises(smelt.SmeltError, match="no pass 'nope'"):
        smelt.compile(by_dtype, options={"skip": ["nope"]})
    with pytest.raises(smelt.SmeltError, match="no pass 'nope'"):
        smelt.trace(by_dtype, (torch.ones(2),), options={"skip": ["nope"]})
