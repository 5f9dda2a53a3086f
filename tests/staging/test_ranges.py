"""A range whose bounds depend on data is a range for all that takes one, not the list of its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt

X = torch.tensor([1.0, 2.0])


def told(numbers: Any) -> Any:
    return str(numbers), isinstance(numbers, range)


class Keeps:
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers


def into_list(numbers: Any) -> Any:
    out: list[Any] = []
    out.append(numbers)
    return out


def extended(numbers: Any) -> Any:
    out: list[Any] = [7]
    out.extend(numbers)
    return out


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "taken",
    [
        told,
        print,
        into_list,
        extended,
        lambda numbers: numbers,
        lambda numbers: Keeps(numbers).numbers,
        lambda numbers: {}.setdefault("a", numbers),
        lambda numbers: torch.tensor(numbers),
        lambda numbers: (numbers == range(3), numbers != range(3), numbers == [0, 1, 2], f"{numbers}"),
    ],
)
def test_a_range_stays_a_range(taken: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def f(x):
        return taken(range(int(x.sum())))

    compiled = smelt.compile(f)
    for x in (X, X - 1, -X, X):
        want, said = f(x), capsys.readouterr().out
        assert repr(compiled(x)) == repr(want) and capsys.readouterr().out == said


def test_a_range_that_is_left_has_nobody_go_over_the_process() -> None:
    class Told:
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                asked.append(name)
            return super().__getattribute__(name)

    asked: list[str] = []
    HEAP.append(Told())

    def alone(x: torch.Tensor) -> Any:
        return range(int(x.sum()))

    def beside_rows(x: torch.Tensor) -> Any:
        rows = [[x]]
        for _ in range(int(x.sum())):
            rows.append([x + 1])
        return range(int(x.sum())), rows

    try:
        for f in (alone, beside_rows):
            compiled = smelt.compile(f)
            for x in (X, X - 1, X):
                assert repr(compiled(x)) == repr(f(x))
            assert not asked
    finally:
        HEAP.clear()


HEAP: list[Any] = []
