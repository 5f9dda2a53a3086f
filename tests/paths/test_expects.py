"""What the graph compares is what Python read: exact in both directions where it can be told."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from smelt.capture import capture
from smelt.diag import Miss
from smelt.ops.evaluate import evaluate


def holds(f: object, first: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> bool:
    captured = capture(f, first, specialize=True)  # type: ignore[arg-type]
    assert captured.error is None and captured.graph is not None
    try:
        evaluate(captured.graph, list(now))
    except Miss:
        return False
    return True


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [(1.0, 1.0, True), (NAN, NAN, True), (0.0, -0.0, False), (NAN, 1.0, False), (INF, -INF, False)],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numbers(before: float, now: float, same: bool, dtype: torch.dtype) -> None:
    a, b = torch.tensor([before], dtype=dtype), torch.tensor([now], dtype=dtype)
    assert holds(lambda x: x + x.item(), (a,), (b,)) is same
    assert holds(lambda x: x + len(x.tolist()), (a,), (b,)) is same
    assert holds(lambda x: x + 1 if x else x, (a,), (b,)) is (bool(a) == bool(b))


def test_equal_of_one_memory() -> None:
    """Elements that are no numbers differ from themselves; one memory may be told equal all the same."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + 1 if torch.equal(x, y) else x - 1

    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    nan = torch.tensor([NAN, 2.0])
    assert not torch.equal(one, other) and holds(f, (one, other), (other, one))
    assert not holds(f, (one, other), (one, one.clone()))
    # Whatever torch says of one memory, the graph does not say that it differs.
    assert not holds(f, (one, other), (nan, nan))


def test_other_dtypes() -> None:
    for dtype in (torch.bool, torch.int8, torch.int64, torch.uint8, torch.complex64):
        a, b = torch.tensor([1, 0], dtype=dtype), torch.tensor([1, 1], dtype=dtype)
        assert holds(lambda x: x.tolist() and x.logical_not(), (a,), (a.clone(),))
        assert not holds(lambda x: x.tolist() and x.logical_not(), (a,), (b,))
        assert not holds(lambda x: x.logical_not() if x[1] else x, (a,), (b,))
        assert not holds(lambda x: x.logical_not() if x[1].item() == 3 else x, (a,), (b,))
