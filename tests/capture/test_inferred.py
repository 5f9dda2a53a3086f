"""Results that the program makes in an inference mode of its own: the caller can tell them from others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def inner(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        y = x * 3
    return y, y.view(-1), y + 1, x.view(-1)


@torch.inference_mode()
def until(x: torch.Tensor) -> dict[str, torch.Tensor]:
    h, n = x, torch.zeros(())
    while h.sum() < 20:
        h, n = h * 1.5 + 1, n + 1
    return {"h": h, "n": n, "w": torch.tensor([1.0, 2.0])}


def either(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        with torch.inference_mode():
            return x * 2
    return x * 3


def left(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        return x.clone() * 2


def _kinds(value: Any) -> list[tuple[Any, ...]]:
    found = torch.utils._pytree.tree_leaves(value)
    return [(t.is_inference(), t.requires_grad, t.tolist()) for t in found]


_INPUTS = [torch.ones(2, 3), torch.full((2, 3), 30.0), -torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 3)]
_MAKE = {
    "compile": lambda f: smelt.compile(f),
    "trace": lambda f: smelt.trace(f, (_INPUTS[0],)),
    "script": smelt.script,
}


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "f, make",
    [(f, make) for f in (inner, until, left) for make in _MAKE] + [(either, "compile")],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_results_are_of_the_kind_that_eager_makes(f: Callable[..., Any], make: str, mode: Callable[[], Any]) -> None:
    with mode():
        given = _MAKE[make](f)
    for x in _INPUTS:
        if make == "trace" and x.shape != _INPUTS[0].shape:
            continue
        with mode():
            assert _kinds(given(x)) == _kinds(f(x))


def test_a_program_is_refused_by_autograd_where_eager_is() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scale = x.exp()
        return (x * scale).sum()

    compiled, x = smelt.compile(loss), torch.ones(3, requires_grad=True)
    with torch.no_grad():
        traced = smelt.trace(loss, (torch.ones(3),))
    for _ in range(3):
        for f in (loss, compiled, traced):
            with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
                f(x)


def test_a_kind_that_follows_data_is_refused_where_there_is_one_graph() -> None:
    with pytest.raises(smelt.CaptureError, match="result number 0 is an inference tensor on some paths only") as error:
        smelt.script(either)
    assert "clone" in error.value.fix or "smelt.compile" in error.value.fix


def test_a_buffer_written_in_inference_mode_is_checked_and_written() -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        @torch.inference_mode()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x.mean(0))
            return self.last * 2

    for make in (lambda m: smelt.trace(m, (torch.ones(2, 3),)), smelt.compile):
        module, twin = Last(), Last()
        given = make(module)
        for x in _INPUTS[:3]:
            assert _kinds(given(x)) == _kinds(twin(x))
            assert torch.equal(module.last, twin.last)
