"""A program answers as eager for other dtypes, strides and weights of the captured sizes, and says what it bakes."""

from __future__ import annotations

import contextlib
import copy
import random
import warnings

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler.programs.program import CAPTURE_LIMIT


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


def by_identity(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    first = x * 2 if x is y else x + y * 0.5
    return first * 3 if any(z is other for other in (x, y)) else first - z


@pytest.mark.parametrize("free", [False, True])
def test_which_arguments_are_one_tensor_is_not_baked(free: bool) -> None:
    x, y, z = (torch.randn(4) for _ in range(3))
    shapes = {name: {0: "B"} for name in "xyz"} if free else None
    program = smelt.trace(by_identity, (x, y, z), dynamic_shapes=shapes)
    for called in (program, copy.deepcopy(program)):
        for args in ((x, x, z), (x, y, z), (x, y, y), (x, y, x), (x, x, x), (z, x, y), (y, x, y)):
            for _ in range(2):
                torch.testing.assert_close(called(*args), by_identity(*args))
        assert len(called.units) == 5
    program = smelt.trace(by_identity, (x, y, x))
    with pytest.raises(smelt.SmeltError, match="another tensor than one it was identical with"):
        program(x, y, z)


def test_writes_to_arguments_that_are_one_tensor() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x * y

    program = smelt.trace(f, (torch.ones(3), torch.ones(3)))
    ours, eagers = torch.ones(3), torch.ones(3)
    for _ in range(3):
        assert torch.equal(program(ours, ours), f(eagers, eagers)) and torch.equal(ours, eagers)
    assert len(program.units) == 2


def by_autocast(x: torch.Tensor) -> torch.Tensor:
    found = nn.functional.linear(x, x) + x @ x
    return found * 2 if torch.is_autocast_enabled("cpu") else found


def by_default_dtype(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + torch.ones(2) if torch.get_default_dtype() is torch.float64 else x + torch.ones(2)


@contextlib.contextmanager
def doubles():  # type: ignore[no-untyped-def]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("f", "mode"), [(by_autocast, lambda: torch.autocast("cpu", torch.bfloat16)), (by_default_dtype, doubles)]
)
@pytest.mark.parametrize("made_inside", [False, True])
def test_autocast_and_default_dtype_are_not_baked(f, mode, made_inside: bool) -> None:  # type: ignore[no-untyped-def]
    x = torch.arange(4.0).view(2, 2)
    with mode() if made_inside else contextlib.nullcontext():
        program = smelt.trace(f, (x,))
    for called in (program, copy.deepcopy(program)):
        for _ in range(2):
            for around in (mode, contextlib.nullcontext):
                with around():
                    found, expected = called(x), f(x)
                assert found.dtype == expected.dtype and torch.equal(found, expected)
        assert len(called.units) == 2


@pytest.mark.parametrize(
    "asked",
    ["is_grad_enabled", "is_inference_mode_enabled", "are_deterministic_algorithms_enabled", "get_num_threads",
     "get_float32_matmul_precision"],
)  # fmt: skip
def test_settings_of_torch_that_a_program_asks_for_are_told_at_its_line(asked: str) -> None:
    ask = getattr(torch, asked)

    def f(x: torch.Tensor) -> torch.Tensor:
        if ask():
            return x * 2
        return x * 3

    with pytest.warns(smelt.SmeltWarning, match=rf"holds for one path: torch.{asked}\(\) was {ask()}") as told:
        smelt.trace(f, (torch.ones(2),))
    assert [w.lineno for w in told] == [f.__code__.co_firstlineno + 1] and told[0].filename == __file__


def test_settings_that_torch_asks_for_are_not_told() -> None:
    @torch.no_grad()
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return nn.functional.multi_head_attention_forward(x, x, x, 4, 2, *projections)[0]

    projections = (torch.ones(12, 4), torch.ones(12), None, None, False, 0.0, torch.ones(4, 4), torch.ones(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smelt.trace(f, (torch.ones(2, 3, 4),))


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


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x + 1 if self.training else x


def test_modules_that_take_the_place_of_others_are_seen() -> None:
    model, x = Blocks(), torch.randn(2, 3)
    with torch.no_grad():
        program = smelt.trace(model, (x,))
        for change in (
            lambda: model.blocks.__setitem__(0, nn.Linear(3, 3)),
            lambda: model.eval(),
            lambda: model.blocks.__setitem__(1, nn.Tanh()),
            lambda: model.train(),
            lambda: model.blocks.append(nn.Linear(3, 5)),
            lambda: model.blocks.pop(0),
        ):
            change()
            for _ in range(2):
                torch.testing.assert_close(program(x), model(x))
            torch.testing.assert_close(copy.deepcopy(program)(x), model(x))
    assert len(program.units) == 1


def test_a_copy_has_each_capture_under_its_own_flags() -> None:
    model, x = Blocks(), torch.randn(2, 3)
    with torch.no_grad():
        program = smelt.trace(model, (x,))
        program.eval()
        program(x)
        for mode in (True, False):
            program.train(mode)
            copied = copy.deepcopy(program)
            assert len(copied.units) == 2
            for training in (mode, not mode):
                copied.train(training)
                torch.testing.assert_close(copied(x), model.train(training)(x))


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
