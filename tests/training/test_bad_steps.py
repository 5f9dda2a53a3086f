"""Steps that go wrong, or are given what does not fit: eager's error, at the user's line, or eager's numbers.

Each is called eagerly and compiled, as often, once whole and once with its model alone compiled; after each call
parameters, gradients, the optimizer's state, and where the generator stands are compared.
"""

from __future__ import annotations

import copy
import gc
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Any]
Make = Callable[[Any, torch.optim.Optimizer], Step]
CASES: list[tuple[Make, type[Net]]] = []


def case(make: Make) -> Make:
    CASES.append((make, Net))
    return make


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(self.norm(torch.tanh(self.up(x)))))


def _ends(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@case
def no_path(m: Any, o: Any) -> Step:
    return lambda x, y: _ends(o, m(x).argmax(-1).float().sum())


@case
def no_path_at_the_third_call(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        return _ends(o, loss.detach() if x[0, 0] > 50 else loss)

    return step


@case
def a_write_to_what_backward_needs(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(m.up(x))
        out = m.down(hidden)
        hidden.mul_(2)
        return _ends(o, F.mse_loss(out, y))

    return step


@case
def a_write_to_a_parameter_that_backward_needs(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        with torch.no_grad():
            m.down.weight.mul_(2)
        return _ends(o, loss)

    return step


@case
def twice(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        return _ends(o, loss)

    return step


@case
def another_parameter_before_backward(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        m.up.weight = nn.Parameter(torch.full((16, 8), 0.1))
        gc.collect(0)
        return _ends(o, loss)

    return step


@case
def a_parameter_resized_before_backward(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        m.down.weight.data = torch.ones(2, 16)
        return _ends(o, loss)

    return step


@case
def other_data_before_backward(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        m.down.weight.data = torch.ones(4, 16)
        return _ends(o, loss)

    return step


@case
def the_generator_is_seeded_inside(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        torch.manual_seed(11)
        loss = F.mse_loss(m(x), y)
        torch.manual_seed(12)
        return _ends(o, loss)

    return step


@case
def the_generator_is_put_back_inside(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        state = torch.get_rng_state()
        loss = F.mse_loss(m(x), y) + F.mse_loss(m(x), y)
        torch.set_rng_state(state)
        return _ends(o, loss)

    return step


@case
def a_generator_of_its_own(m: Any, o: Any) -> Step:
    generator = torch.Generator().manual_seed(5)

    def step(x: Tensor, y: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=generator)
        return _ends(o, F.mse_loss(m(x + noise), y))

    return step


@case
def no_numbers(m: Any, o: Any) -> Step:
    return lambda x, y: _ends(o, F.mse_loss(m(x), y) * torch.nan)


@case
def clipping_that_refuses_what_is_no_number(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y) * (torch.inf if x[0, 0] > 50 else 1.0)
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@case
def complex_numbers(m: Any, o: Any) -> Step:
    m.turn = nn.Parameter(torch.tensor([1 + 0.5j, 0.2 - 1j], dtype=torch.complex64))
    o.add_param_group({"params": [m.turn]})

    def step(x: Tensor, y: Tensor) -> Tensor:
        turned = torch.view_as_complex(m(x).view(-1, 2, 2)) * m.turn
        return _ends(o, F.mse_loss(torch.view_as_real(turned).flatten(1), y))

    return step


@case
def sparse_gradients(m: Any, o: Any) -> Step:
    m.words = nn.Embedding(9, 8, sparse=True)
    other = torch.optim.SGD(m.words.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(m.words(x.abs().long() % 9).mean(1)), y)
        loss.backward()
        other.step()
        other.zero_grad()
        return _ends(o, F.mse_loss(m(x), y))

    return step


@case
def no_scalar(m: Any, o: Any) -> Step:
    return lambda x, y: _ends(o, m(x) - y)


@case
def a_gradient_of_another_shape(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        m(x).backward(torch.ones(3))

    return step


@case
def a_gradient_that_does_not_fit_its_parameter(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        F.mse_loss(m(x), y).backward()
        m.up.bias.grad = torch.ones(3)
        o.step()

    return step


@case
def an_error_after_backward(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        if x[0, 0] > 50:
            raise ValueError("too far")
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@case
def an_index_out_of_range(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(m(m.words(x.abs().long()[:, 0])), y)
        return _ends(o, loss)

    return step


@case
def a_batch_that_does_not_fit(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        return _ends(o, F.mse_loss(m(x[:, :7] if x[0, 0] > 50 else x), y))

    return step


@case
def a_layer_that_stops_to_require_gradients(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        m.up.requires_grad_(not m.up.weight.requires_grad)
        return _ends(o, F.mse_loss(m(x), y))

    return step


@case
def a_leaf_that_is_written(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        m.up.bias.mul_(2)
        return _ends(o, F.mse_loss(m(x), y))

    return step


class Seeding(Net):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(11)
        y = super().forward(x)
        torch.manual_seed(12)
        return y


class PuttingBack(Net):
    def forward(self, x: Tensor) -> Tensor:
        state = torch.get_rng_state()
        y = super().forward(x)
        torch.set_rng_state(state)
        return y + super().forward(x)


class OwnGenerator(Net):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(x.shape, generator=self.generator))

    def __deepcopy__(self, memo: Any) -> OwnGenerator:
        other = OwnGenerator()
        other.load_state_dict(self.state_dict())
        return other


class Complex(Net):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([1 + 0.5j, 0.2 - 1j], dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.view_as_complex(super().forward(x).view(-1, 2, 2)) * self.turn
        return torch.view_as_real(y).flatten(1)


class ComplexResult(Complex):
    """Its result is complex, and so is the gradient that comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(super().forward(x).view(-1, 2, 2)).abs().repeat(1, 2) + self.turn.real.sum()


class Sparse(Net):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.words(x.abs().long() % 9).mean(1))


class WritingToWhatItNeeds(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.up(x))
        y = self.down(hidden)
        hidden.mul_(2)
        return y


class Replacing(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.down.weight = nn.Parameter(torch.full((4, 16), 0.1))
        return y


class Resizing(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.down.weight.data = torch.ones(2 if x[0, 0] > 50 else 4, 16)
        return y


class NoNumbers(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.sqrt(self.down.bias.sum() * 0)


class Rounding(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(-1, keepdim=True).float().expand(-1, 4)


class StoppingOnce(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.detach() if x[0, 0] > 50 else y


def a_step(m: Any, o: Any) -> Step:
    return lambda x, y: _ends(o, F.mse_loss(m(x), y))


CASES += [
    (a_step, model)
    for model in (
        Seeding, PuttingBack, OwnGenerator, Complex, ComplexResult, Sparse, WritingToWhatItNeeds, Replacing, Resizing,
        NoNumbers, Rounding, StoppingOnce,
    )
]  # fmt: skip


def _outcome(step: Step, x: Tensor, y: Tensor, is_node: bool) -> Any:
    """What a call gives, or its error and the line of this file that it comes from.

    is_node: of what was written to, the node of a compiled model names another operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return step(x, y)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
            # How often a tensor has been written is counted on by a recorded call, too.
            text = re.sub(r"version \d+", "version n", str(error).splitlines()[0])
            return type(error), text.partition("[torch.")[0] if is_node else text, lines[-1]


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    grads = {n: None if p.grad is None else p.grad.to_dense() for n, p in model.named_parameters()}
    return {"grads": grads, "values": model.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.spread(5)
@pytest.mark.parametrize("form", ["whole step, SGD", "whole step, AdamW", "model, SGD"])
@pytest.mark.parametrize(("make", "kind"), CASES, ids=lambda one: one.__name__)
def test_eagers_errors_and_numbers(make: Make, kind: type[Net], form: str) -> None:
    what, optimizer = form.split(", ")
    torch.manual_seed(0)
    ours = kind()
    theirs = copy.deepcopy(ours)
    sides = []
    for model in (ours, theirs):
        torch.manual_seed(1)
        # Of sparse gradients an optimizer of its own is needed, if any.
        chosen = getattr(torch.optim, optimizer)([p for n, p in model.named_parameters() if "words" not in n], lr=0.01)
        run = smelt.compile(model, options={"adaptive": False}) if what == "model" and model is ours else model
        sides.append((make(run, chosen), model, chosen))
    compiled = smelt.compile(sides[0][0], options={"adaptive": False}) if what == "whole step" else sides[0][0]
    for call in range(5):
        x, y = (torch.randn(6, n, generator=torch.Generator().manual_seed(call)) for n in (8, 4))
        if call in (2, 4):
            x[0, 0] = 99.0
        found = []
        for step, model, chosen in ((compiled, ours, sides[0][2]), sides[1]):
            torch.manual_seed(call)
            outcome = _outcome(step, x.clone(), y, is_node=what == "model")
            found.append((outcome, copy.deepcopy(_state(model, chosen)), torch.rand(2)))
        (own, *after), (other, *expected) = found
        if isinstance(other, tuple):
            assert own == other
        else:
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(after, expected, rtol=1e-3, atol=2e-4, equal_nan=True)
