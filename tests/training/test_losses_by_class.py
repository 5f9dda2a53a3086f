"""Cross-entropy by class is kernels of our own: values, gradients and refusals as in eager."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt

_NAN, _INF = float("nan"), float("inf")


def test_values_and_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    cases = [*product([(8, 5), (3, 7, 4)], ["none", "mean", "sum"], [-100, 2]), ((2, 5, 3, 2), "mean", -100)]
    for shape, reduction, ignored in cases:

        def f(x: Tensor, t: Tensor, reduction: str = reduction, ignored: int = ignored) -> Tensor:
            return F.cross_entropy(x, t, reduction=reduction, ignore_index=ignored)

        x = torch.randn(shape, generator=generator)
        t = torch.randint(5, (shape[0], *shape[2:]), generator=generator)
        t.view(-1)[0] = ignored
        assert "cross_entropy" not in str(smelt.trace(f, (x, t)).graph_for(x, t))
        compiled = smelt.compile(f)
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        for _ in range(2):
            torch.testing.assert_close(compiled(x, t), f(x, t))
            compiled(ours, t).sum().backward()
            f(eager, t).sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)


def test_large_scores_and_those_that_are_no_numbers() -> None:
    compiled = smelt.compile(F.cross_entropy)
    rows = [[1e4, -2e4, 3.0], [_INF, 0.0, 1.0], [-_INF, -_INF, -_INF], [_NAN, 0.0, 1.0], [-_INF, 2.0, 1.0]]
    for row, target in product(rows, [0, 2, -100]):
        x, t = torch.tensor([row, [0.5, 0.25, 2.0]]), torch.tensor([target, target])
        torch.testing.assert_close(compiled(x, t), F.cross_entropy(x, t), equal_nan=True)


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_class_that_there_is_not_is_eagers_error_and_updates_nothing(wrong: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(x: Tensor, t: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
        return loss

    compiled, x, t = smelt.compile(step), torch.randn(3, 6), torch.tensor([0, 1, 4])
    for _ in range(3):
        compiled(x, t)
    before = model.weight.detach().clone()
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        compiled(x, torch.tensor([0, 1, wrong]))
    assert torch.equal(model.weight, before)
    first, second = compiled(x, t), compiled(x, t)
    assert second < first


def test_probabilities_weights_and_smoothing_are_the_librarys() -> None:
    x, t = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    for more in ({"weight": torch.rand(3)}, {"label_smoothing": 0.1}):

        def f(x: Tensor, t: Tensor, more: dict[str, object] = more) -> Tensor:
            return F.cross_entropy(x, t, **more)  # type: ignore[arg-type]

        torch.testing.assert_close(smelt.compile(f)(x, t), f(x, t))
    probabilities = torch.softmax(torch.randn(4, 3), 1)
    torch.testing.assert_close(smelt.compile(F.cross_entropy)(x, probabilities), F.cross_entropy(x, probabilities))
