"""Writes through views of free sizes: one graph for all, and memory that a caller sees is as eager leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler import SizedUnit
from smelt.ir.sizes import Range, is_less, size_max, size_min, tracing


def part_of_columns(x: Any, n: Any) -> Any:
    x = x.clone()
    x[:, :n].add_(1)
    return x


def placed(buffer: Any, t: Any, i: Any) -> Any:
    buffer[i : i + t.shape[0]] = t
    return buffer.sum(0)


def prefix_of_argument(x: Any, n: Any) -> Any:
    x[:, :n].mul_(2)
    return x + 1


def one_row(x: Any, i: Any) -> Any:
    x = x.clone()
    x[i] = 0
    return x


def joined(x: Any, y: Any) -> Any:
    out = torch.zeros(x.shape[0] + y.shape[0], x.shape[1])
    out[: x.shape[0]] = x
    out[x.shape[0] :] = y
    return out


def every_second(x: Any) -> Any:
    x = x.clone()
    x[:, ::2] = 0
    x[1::2].mul_(3)
    return x


def diagonal(x: Any) -> Any:
    x = x.clone()
    x.diagonal().fill_(0)
    return x


def scattered(x: Any, n: Any) -> Any:
    x = x.clone()
    x[:, :n].scatter_(1, torch.zeros(x.shape[0], 1, dtype=torch.long), 3.0)
    return x


def listed(x: Any, index: Any) -> Any:
    x = x.clone()
    x[index] = 1.0
    return x


def together(x: Any, y: Any) -> Any:
    x, y = x.clone(), y.clone()
    torch._foreach_add_([x, y], 1)
    return x, y


def converted(x: Any, n: Any) -> Any:
    out = torch.zeros(x.shape, dtype=torch.float64)
    out[:n] = x[:n]
    return out.t()


def cached(cache: Any, k: Any, t: Any) -> Any:
    cache[:, :, t : t + k.shape[2]] = k
    return cache[:, :, : t + k.shape[2]].sum(-1)


def in_a_loop(x: Any) -> Any:
    out = torch.empty(x.shape)
    for t in range(x.shape[0]):
        out[t] = x[t] * 2
    return out


def transposed(x: Any, n: Any) -> Any:
    out = torch.empty(x.shape[1], x.shape[0])
    out.t().copy_(x)
    out[:n].t().mul_(2)
    return out


def rest_filled(x: Any, n: Any) -> Any:
    x = x.clone()
    x[n:] = 0
    x[:, n + 1 :].mul_(2)
    return x.sum(0), x[n:]


def number_added_to_a_part(x: Any, n: Any) -> Any:
    y = x * 2
    y[n:] = 0
    y[:, -n:] += 1
    return y


def scaled(x: Any, n: Any) -> Any:
    x = x.clone()
    x.mul_(n)
    x[0, 1] = n
    x[1:].fill_(n)
    return x


def halves_of_eights(x: Any) -> Any:
    assert x.shape[0] % 8 == 0
    x = x.clone()
    x[x.shape[0] // 8 :] = 0
    return torch.nn.functional.pad(x.unflatten(0, (8, -1)), (0, 1)).sum(0)


SHAPES = ((4, 9), (5, 7), (6, 11), (9, 8))


def calls_of(make: Callable[[int, int, int], tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [make(rows, columns, n) for n, (rows, columns) in enumerate(SHAPES, 2)]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


PROGRAMS: dict[Callable[..., Any], list[tuple[Any, ...]]] = {
    part_of_columns: calls_of(lambda r, c, n: (random(r, c), n)),
    placed: calls_of(lambda r, c, n: (random(20, 3), random(n, 3), n + 1)),
    prefix_of_argument: calls_of(lambda r, c, n: (random(r, c), n)),
    one_row: calls_of(lambda r, c, n: (random(r, c), n - 1)),
    joined: calls_of(lambda r, c, n: (random(r, 6), random(c, 6))),
    every_second: [(random(*shape),) for shape in ((4, 9), (5, 7), (6, 12), (9, 8))],
    diagonal: [(random(*shape),) for shape in ((2, 5), (3, 7), (4, 9), (7, 4), (5, 5))],
    scattered: calls_of(lambda r, c, n: (random(r, c), n)),
    listed: calls_of(lambda r, c, n: (random(r, 5), torch.arange(n))),
    together: calls_of(lambda r, c, n: (random(r, 4), random(c))),
    converted: calls_of(lambda r, c, n: (random(r, c), n)),
    cached: calls_of(lambda r, c, n: (random(2, 2, 16, 4), random(2, 2, r, 4), n)),
    in_a_loop: calls_of(lambda r, c, n: (random(r, c),)),
    transposed: calls_of(lambda r, c, n: (random(r, c), n)),
    number_added_to_a_part: calls_of(lambda r, c, n: (random(r, c), n)),
    scaled: calls_of(lambda r, c, n: (random(r, c), n)),
    rest_filled: calls_of(lambda r, c, n: (random(10, 8), n)),
    halves_of_eights: [(random(rows, 3),) for rows in (8, 24, 16, 80)],
}


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)


def check(f: Callable[..., Any], compiled: Any, args: tuple[Any, ...]) -> None:
    mine, theirs = copied(args), copied(args)
    expected, found = f(*theirs), compiled(*mine)
    torch.testing.assert_close(found, expected, equal_nan=True)
    for got, wanted in zip(
        found if isinstance(found, tuple) else (found,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        assert got.stride() == wanted.stride()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.spread(10)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_one_graph_for_all_sizes(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for args in PROGRAMS[f]:
        check(f, compiled, args)
        check(f, compiled, args)
    stats = compiled.stats()
    assert (stats.builds, stats.fallbacks, stats.refused) == (2, {}, {})
    (unit,) = (row.entry for row in stats.rows if isinstance(row.entry, SizedUnit))
    assert unit.why_alone == "" and unit.lowered_alone == 0


@pytest.mark.spread(3)
@pytest.mark.parametrize("n", (0, 1, 9, 12, -1, -4, -20))
def test_ends_that_torch_moves(n: int) -> None:
    compiled = smelt.compile(part_of_columns)
    for end in (2, 3, n, 5, n):
        check(part_of_columns, compiled, (random(4, 9), end))


def test_a_place_that_is_not_there_is_the_programs_error() -> None:
    compiled = smelt.compile(one_row)
    for i in (1, 2, 3):
        check(one_row, compiled, (random(5, 3), i))
    with pytest.raises(IndexError):
        compiled(random(5, 3), 5)
    check(one_row, compiled, (random(5, 3), -1))
    with pytest.raises(RuntimeError):
        smelt_placed = smelt.compile(placed)
        for rows, i in ((2, 3), (3, 4), (4, 18)):  # four rows from the eighteenth of twenty
            smelt_placed(random(20, 3), random(rows, 3), i)


def test_what_quotients_minima_and_maxima_are_at_most() -> None:
    with tracing({"B": (6, Range(2)), "S": (9, Range(2, 50))}) as trace:
        b, s = trace.symbols["B"], trace.symbols["S"]
        assert is_less(2 * ((s + 1) // 2), s + 2) and is_less(s - 2, 2 * (s // 2)) and not is_less(s - 1, 2 * (s // 2))
        assert is_less(3 * (s // 4), s) and is_less(b * 4 // 8, b)
        assert is_less(size_min(b, s), b + 1) and is_less(s, size_max(b, s) + 1) and is_less(size_min(b, s), 51)
        assert is_less(size_min(b, s) // 2 * 2, s + 1) and not is_less(size_max(b, s), s + 1)
    assert trace.guards == []


def test_a_minimum_in_a_guard_is_an_expression() -> None:
    compiled = smelt.compile(diagonal)
    for shape in ((3, 5), (4, 6), (7, 5)):
        check(diagonal, compiled, (random(*shape),))
    guards = [guard for entry in compiled.stats().to_dict()["entries"] for guard in entry["guards"]]
    assert all("Hole" not in guard for guard in guards)


def test_ends_from_both_sides() -> None:
    compiled = smelt.compile(number_added_to_a_part)
    for n, rows in ((-1, 4), (-9, 3), (2, 5), (3, 6), (0, 3), (1, 2), (7, 5), (-2, 9)):
        check(number_added_to_a_part, compiled, (random(rows, 5), n))
    assert not any("S09" in str(unit.why_alone) for row in compiled.stats().rows if (unit := row.entry) is not None
                   and isinstance(unit, SizedUnit))  # fmt: skip
