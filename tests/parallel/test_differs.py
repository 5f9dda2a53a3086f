"""Where ranks first differ from the model: the value, its line, and the step that the user wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import VerifyError
from smelt.ir import Value
from smelt.ops.ranks.placements import Partial, Placement, Replicate, Shard
from smelt.parallel.dividing.partition import _Partitioner
from smelt.parallel.mesh import Mesh
from smelt.parallel.pipelines.stages import Pipe
from smelt.parallel.proving.differs import together


class Deep(nn.Module):
    """Three products with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        return (self.down(self.up(h).tanh()) + h).square().mean()


class Counted(nn.Module):
    """A loss that counts its targets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.second(self.first(x).relu()), y)


def _scheduled() -> smelt.Schedule:
    torch.manual_seed(0)
    s = smelt.schedule(Deep(), (torch.randn(4, 8),))
    s["up"].shard("weight", 0, "tp")
    s["up"].shard("bias", 0, "tp")
    s["down"].shard("weight", 1, "tp")  # the step about the last product
    return s


def _refused(s: smelt.Schedule, **more: Any) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        s.verify(mesh="tp=2", **more)
    assert caught.value.code == "S0621"
    return caught.value


def test_values_are_put_together_by_their_placements() -> None:
    mesh, x = Mesh.of("dp=2,tp=2"), torch.arange(24.0).view(4, 6)
    lies: dict[str, Placement] = {"tp": Partial(), "dp": Shard(0, (3, 1))}
    pieces = {rank: (x[:3], x[3:])[rank // 2] * (0.25, 0.75)[rank % 2] for rank in range(4)}
    found = together(pieces, lies, mesh)
    assert list(found) == [0] and torch.equal(found[0], x)
    assert list(together(pieces, {"tp": Partial()}, mesh)) == [0, 2]


def test_the_first_value_of_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    move: Callable[..., Value] = _Partitioner._move

    def forgets(self: _Partitioner, had: Value, base: Placement, at: Placement, value: Value) -> Value:
        is_sum = isinstance(base, Partial) and isinstance(at, Replicate)
        return had if is_sum else move(self, had, base, at, value)

    s = _scheduled()
    with monkeypatch.context() as patched:
        patched.setattr(_Partitioner, "_move", forgets)
        error = _refused(s)
    # The sum of two halves is what the product gives; what adds to it has one half.
    assert "the first value that differs is %" in error.what and "aten.add" in error.what
    assert error.where is not None and error.where.file == __file__
    assert "the step about the last product" in _line(error)
    assert "test_differs.py" in error.why and "output 0 in step 1" in error.why
    assert any("down.weight along dimension 1 and 'tp'" in note for note in error.notes)
    assert s.verify(mesh="tp=2").error < 1e-5


def _line(error: VerifyError) -> str:
    assert error.where is not None
    with open(error.where.file, encoding="utf-8") as file:
        return file.read().splitlines()[error.where.line - 1]


def test_the_first_gradient_on_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    get: Callable[..., Value] = _Partitioner.get

    def never_enters(self: _Partitioner, value: Value, at: Placement, *, entered: bool = False) -> Value:
        return get(self, value, at)

    with monkeypatch.context() as patched:
        patched.setattr(_Partitioner, "get", never_enters)
        error = _refused(_scheduled())
    # Shares of the gradient of h are not added up: of both parameters of `first`, backward comes to these together.
    assert error.what in (f"the first gradient that differs is that of first.{name}" for name in ("weight", "bias"))
    assert any("all values of forward agree" in note and "in first" in note for note in error.notes)


def test_the_first_value_in_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    begin: Callable[..., Any] = Pipe.begin

    def counts_wrong(self: Pipe, inputs: Any, state: Any) -> Any:
        call = begin(self, inputs, state)
        call.given = [[2 * value for value in one] for one in call.given]
        return call

    torch.manual_seed(0)
    s = smelt.schedule(Counted(), (torch.randn(4, 8), torch.tensor([1, 2, -100, 3])))
    s.pipeline(2, "pp", microbatches=2)  # the step about stages
    assert s.verify(mesh="pp=2", steps=1).error < 1e-5
    with monkeypatch.context() as patched:
        patched.setattr(Pipe, "begin", counts_wrong)
        with pytest.raises(VerifyError) as caught:
            s.verify(mesh="pp=2")
    # How many targets there are is counted before the stages; the loss divides by it.
    assert "cross_entropy" in caught.value.what and "in stage 1" in caught.value.what
    assert "the step about stages" in _line(caught.value)


class _ByNorm(torch.optim.Optimizer):
    """Looks at all of a tensor, of which a rank has a part."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.1 * p.grad / (p.grad.norm() + 1e-3)


def test_an_optimizer_that_looks_at_whole_tensors() -> None:
    error = _refused(_scheduled(), optimizer=_ByNorm)
    assert "parameter up.weight in step 1" in error.what
    assert any("an optimizer that looks at a whole tensor" in note for note in error.notes)
