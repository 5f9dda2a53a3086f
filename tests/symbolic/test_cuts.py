"""Tensors cut at numbers that data decide: one build for all numbers and sizes, and eager's answer on each side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.runtime.plan import PyCall


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def head(x: Tensor, n: Tensor) -> Tensor:
    return x[:, : int(n.max())] * 2


def handed_on(x: Tensor, n: Tensor) -> Tensor:
    return x[:, : int(n.max())]


def tail(x: Tensor, n: Tensor) -> Tensor:
    return x[:, int(n.max()) :] + 1


def last(x: Tensor, n: Tensor) -> Tensor:
    return x[:, -int(n.max()) :] + 1


def middle(x: Tensor, n: Tensor) -> Tensor:
    return x[:, int(n[0]) : int(n[1])].tanh()


def twice(x: Tensor, n: Tensor) -> Tensor:
    return x[:, : int(n[0])][:, : int(n[1])] * 2


def every_other(x: Tensor, n: Tensor) -> Tensor:
    return x[:, int(n[0]) : int(n[1]) : 2] * 2


def attended(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, : int(n.max())]
    return torch.softmax(part.transpose(1, 2), -1) @ part


def joined(x: Tensor, n: Tensor) -> Tensor:
    k = int(n.max())
    return torch.cat([x[:, k:], x[:, :k]], 1)


def counted(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, : int(n.max())]
    return part.sum(1) / (part.shape[1] + 1)


CUTS = [head, handed_on, tail, last, middle, twice, every_other, attended, joined, counted]


def written(x: Tensor, n: Tensor) -> Tensor:
    y = x.clone()
    k = int(n.max())
    y[:, :k] = 0.5
    y[:, k:] += x[:, k:] * 3
    return y


def in_place(x: Tensor, n: Tensor) -> Tensor:
    x[:, int(n[0]) : int(n[1])].mul_(2)
    return x


def through_two_views(x: Tensor, n: Tensor) -> Tensor:
    part = x[:, int(n.max()) :]
    part.transpose(0, 1)[:, 0].add_(1)
    return part * 2


WRITES = [written, in_place, through_two_views]


def _same(got: Tensor, wanted: Tensor) -> None:
    assert got.shape == wanted.shape and got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted, equal_nan=True)


def _pairs(size: int) -> list[tuple[int, int]]:
    """Ends inside, at, and beyond both ends, told from both ends."""
    ends = [0, 1, 2, size - 1, size, size + 3, -1, -size, -size - 2]
    return [*zip(ends, ends[::-1], strict=True), (2, 2), (0, 0), (1, 0), (-1, 1)]


def _calls(sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    for size in sizes:
        for pair in _pairs(size):
            yield torch.randn(2, size, 5), torch.tensor(pair)


@pytest.mark.spread(10)
@pytest.mark.parametrize(("dynamic", "builds"), [(True, 1), (None, 2)])
@pytest.mark.parametrize("program", CUTS)
def test_one_build_for_all_numbers_and_sizes(program: Callable[..., Any], dynamic: bool | None, builds: int) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for x, n in _calls((6, 3, 11)):
        _same(compiled(x, n), program(x, n))
    stats = compiled.stats()
    assert stats.builds == builds and not stats.fallbacks
    assert all(row.entry is not None and row.entry.is_staged for row in stats.rows)


@pytest.mark.spread(6)
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("program", WRITES)
def test_views_are_written_through(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for x, n in _calls((6, 7, 11)):
        mine, theirs = x.clone(), x.clone()
        _same(compiled(mine, n), program(theirs, n))
        assert torch.equal(mine, theirs)
    stats = compiled.stats()
    assert stats.builds <= 4 and not stats.fallbacks
    assert all(row.entry is not None and row.entry.is_staged for row in stats.rows)


@pytest.mark.parametrize("program", [head, tail, last, middle, twice, counted, written, in_place])
def test_python_is_not_entered(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    compiled(torch.randn(2, 6, 5), torch.tensor([1, 4]))
    (row,) = compiled.stats().rows
    assert row.entry is not None
    assert not [step for step in row.entry.lowered.plan.instructions if isinstance(step, PyCall)]


@pytest.mark.parametrize("first", [(1, 1), (4, 2), (2, 5)])
def test_numbers_that_are_equal_in_the_first_call_need_not_be_later(first: tuple[int, int]) -> None:
    compiled, x = smelt.compile(middle), torch.randn(2, 6, 5)
    for pair in (first, (1, 4), (3, 3), (-3, 6), (5, 1)):
        _same(compiled(x, torch.tensor(pair)), middle(x, torch.tensor(pair)))
    assert compiled.stats().builds == 1


def test_one_row_may_be_left_or_none() -> None:
    compiled, x = smelt.compile(last), torch.randn(2, 1, 5)
    for n in (1, -1, 0, 3, -4):
        _same(compiled(x, torch.tensor([n])), last(x, torch.tensor([n])))


def windows(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(int(n)):
        total = total + x[i : i + 3].mean()
    return total


def pairs(x: Tensor, n: Tensor) -> Tensor:
    total = torch.zeros(2) + n.float()
    for i in range(12):
        total = total * x[i : i + 2] if n > i else total + x[i : i + 2]
    return total


def test_windows_grow_short_at_the_end() -> None:
    compiled, x = smelt.compile(windows), torch.randn(9)
    for n in (2, 9, 7, 0, 8):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), windows(x, torch.tensor(n)))
    assert compiled.stats().builds == 1


def test_windows_that_lie_inside_have_a_known_length() -> None:
    compiled, x = smelt.compile(pairs), torch.randn(13)
    for n in (3, 0, 20):
        torch.testing.assert_close(compiled(x, torch.tensor(n)), pairs(x, torch.tensor(n)))
    (row,) = compiled.stats().rows
    assert row.entry is not None
    lengths = {str(node.result.type) for node in row.entry.graph.walk() if node.op == "aten.slice.Tensor"}
    assert lengths == {"f32[2]"} and any(node.op == "for" for node in row.entry.graph.walk())


def errs(x: Tensor, n: Tensor) -> Tensor:
    return x.narrow(1, int(n[0]), 2) * 2


@pytest.mark.parametrize("dynamic", [True, None])
def test_what_does_not_fit_raises_as_in_eager(dynamic: bool | None) -> None:
    compiled = smelt.compile(errs, dynamic=dynamic)
    for size, start in itertools.product((6, 4, 9), (0, 1, 3, -2, 7, -12, 2)):
        x, n = torch.randn(2, size, 5), torch.tensor([start, 0])
        try:
            wanted = errs(x, n)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error), match=r"narrow|range|length"):
                compiled(x, n)
            continue
        _same(compiled(x, n), wanted)
