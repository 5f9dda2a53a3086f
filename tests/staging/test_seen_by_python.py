"""What Python sees of sizes and numbers that follow data: strides, texts, strides of results; and its warnings."""

from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt

Tensor = torch.Tensor
Pair = namedtuple("Pair", ["left", "right"])
VECTORS = ([1.0, 1.0, -1.0, -1.0], [1.0, 1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0], [1.0, -1.0, -1.0, -1.0])


def of_a_cut(x: Tensor) -> object:
    z = x.view(2, 2)[:, : (x > 0).sum().item() // 2].contiguous()
    return z.stride(0), z.stride(), torch.as_strided(z, (2,), (z.stride(0),))


def of_a_mask(x: Tensor) -> object:
    y = x[x > 0][None]
    return x * y.stride(0), (y + 1).stride(), torch.stack([y, y]).stride()


@pytest.mark.parametrize("f", [of_a_cut, of_a_mask])
def test_strides_of_tensors_whose_size_follows_data(f: Callable[[Tensor], Any]) -> None:
    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        x = torch.tensor(data)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a new dimension": lambda x: x[x > 0][None] + 1,
    "a stack of one": lambda x: torch.stack([x[x > 0]]),
    "two before": lambda x: x[x > 0].view(1, 1, -1) * 1,
    "behind and before": lambda x: (x[x > 0] * 2)[None, :, None],
    "a copy": lambda x: x[x > 0][None].clone(),
    "columns": lambda x: x[None][:, x > 0],
}


@pytest.mark.parametrize("name", RESULTS)
def test_strides_of_results_with_dimensions_of_one_element(name: str) -> None:
    f = RESULTS[name]
    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        x = torch.tensor(data)
        found, wanted = compiled(x), f(x)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()


def turned(x: Tensor) -> Tensor:
    """Row-major or column-major, by way."""
    return torch.stack([x, x * 2, x + 1]) if x.sum() > 0 else torch.ones(4, 3).transpose(0, 1)


def channels_last(x: Tensor) -> Tensor:
    y = torch.arange(24.0).view(1, 2, 3, 4) + x
    return y if x.sum() > 0 else y.to(memory_format=torch.channels_last)


BY_WAY: dict[str, Callable[[Tensor], Tensor]] = {
    "one operator": lambda x: turned(x).neg(),
    "two": lambda x: turned(x).relu().clamp(max=3),
    "with another": lambda x: turned(x) + torch.ones(3, 4),
    "another is first": lambda x: torch.where(turned(x) > 0, turned(x), 1.0),
    "a view": lambda x: turned(x)[1:] * 2,
    "turned back": lambda x: turned(x).transpose(0, 1).exp(),
    "like it": lambda x: torch.zeros_like(turned(x)) + x,
    "a sum": lambda x: (turned(x) * 2).sum(0, keepdim=True) + 1,
    "channels": lambda x: channels_last(x).relu() * 2,
    "every other": lambda x: (torch.ones(8)[::2] if x.sum() > 0 else x).view(2, 2).neg(),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", BY_WAY)
def test_strides_of_results_whose_operand_lies_by_way(name: str) -> None:
    f = BY_WAY[name]
    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        x = torch.tensor(data)
        found, wanted = compiled(x), f(x)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()


def asked_how_it_lies(x: Tensor) -> object:
    y, z = turned(x), channels_last(x)
    if y.is_contiguous():
        y = y + 1
    last = z.is_contiguous(memory_format=torch.channels_last)
    return y, turned(x).is_contiguous(), last, y[y[:, 0] > 0].is_contiguous(), z.mean(1).is_contiguous()


def asked_where_it_lies(x: Tensor) -> object:
    rows = x.view(2, 2)
    y = rows[0] if x.sum() > 0 else rows[1]
    return (
        y + y.storage_offset(),
        y[1:].storage_offset(),
        rows[int(x[0] > 0)].storage_offset(),
        (x * 2).storage_offset(),
    )


@pytest.mark.filterwarnings("ignore:.*where in its memory:smelt.SmeltWarning")  # then it falls back to eager
@pytest.mark.parametrize("f", [asked_how_it_lies, asked_where_it_lies])
def test_python_hears_how_a_tensor_lies_on_this_way(f: Callable[[Tensor], Any]) -> None:
    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        x = torch.tensor(data)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)


def given_back(x: Tensor) -> object:
    y = turned(x)
    z = y.contiguous()
    return z is y, z, y


def asked(x: Tensor) -> object:
    y = turned(x)
    return y.view(-1) if y.is_contiguous() else y.t().view(-1)


def not_viewed(x: Tensor) -> object:
    y = turned(x)
    try:
        return y.view(-1) + 1, True
    except RuntimeError:
        return y.reshape(-1) + 2, False


def refused(x: Tensor) -> object:
    y = turned(x)
    y.view(-1)
    return y + 1


def whole_or_part(x: Tensor) -> object:
    return x.view(2, 2)[:, : int((x > 0).sum()) // 2].contiguous()


def from_a_place(x: Tensor) -> object:
    y = x[int((x > 0).sum()) - 1]
    return y, y.storage_offset()


def _observed(f: Callable[[Tensor], Any], data: list[float]) -> Any:
    """What a call gives, and what it holds once the argument is written."""
    x = torch.tensor(data)
    try:
        found = f(x)
    except RuntimeError as error:
        return str(error)
    x += 100
    return str(found)


@pytest.mark.spread(3)
@pytest.mark.parametrize("f", [given_back, asked, not_viewed, refused, whole_or_part, from_a_place])
@pytest.mark.parametrize("order", [VECTORS, VECTORS[::-1]])
def test_what_follows_from_how_a_tensor_lies(f: Callable[[Tensor], Any], order: tuple[list[float], ...]) -> None:
    compiled = smelt.compile(f)
    for data in (*order, *order):
        assert _observed(compiled, data) == _observed(f, data)


def begins(x: Tensor) -> object:
    return x.storage_offset(), x[1:].storage_offset(), x * x[1:].storage_offset()


def _traced(f: Any) -> Any:
    return smelt.trace(f, (torch.arange(12.0)[1:5],))


@pytest.mark.parametrize("make", [smelt.compile, smelt.script, _traced])
def test_where_an_argument_begins_is_its_own_at_each_call(make: Any) -> None:
    made = make(begins)
    many = torch.arange(12.0)
    for at in (0, 2, 5, 0):
        x = many[at : at + 4]
        torch.testing.assert_close(made(x), begins(x), rtol=0, atol=0)


def formatted(x: Tensor) -> object:
    n = (x > 0).sum().item()
    if n > 2:
        n = n + 1
    return str({"n": n}), "%r" % ([n],), "{}".format([n]), str(ValueError(n, 1)), repr(slice(n))  # noqa: UP031, UP032


def shapes(x: Tensor) -> object:
    y = x[x > 0]
    size, pair = y.shape, Pair(y.shape[0], 1)
    return str(size), repr(size), f"{size}", str(pair), str([size, 2]), repr((y.size(0), [1])), str([y.shape[0]])


def caught(x: Tensor) -> object:
    try:
        return {1: 5}[(x > 0).sum().item()]
    except KeyError as error:
        return str(error)


@pytest.mark.parametrize("f", [formatted, shapes, caught])
def test_texts_hold_numbers_of_the_run(f: Callable[[Tensor], Any]) -> None:
    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        x = torch.tensor(data)
        assert compiled(x) == f(x)


# The program is split where it prints what only a run knows, which is told once, and is not what is tested here.
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_printed_containers_hold_numbers_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> Tensor:
        n = (x > 0).sum().item()
        print({"n": n}, (n, 1), [n])
        return x + n

    compiled = smelt.compile(f)
    for data in (*VECTORS, *VECTORS):
        capsys.readouterr()
        wanted = f(torch.tensor(data)), capsys.readouterr().out
        found = compiled(torch.tensor(data)), capsys.readouterr().out
        assert torch.equal(found[0], wanted[0]) and found[1] == wanted[1]


def test_warnings_are_those_of_the_ways_that_are_taken() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        if total == 0:
            warnings.warn("divided by zero", stacklevel=2)
        warnings.warn(f"{x.shape[0]} rows", RuntimeWarning, stacklevel=2)
        return x / total

    # `trace` runs the program itself, before it is called.
    for make, runs in ((smelt.compile, 2), (lambda f: smelt.trace(f, (torch.ones(3),)), 3)):
        with warnings.catch_warnings(record=True) as told, torch.no_grad():
            warnings.simplefilter("always")
            f = make(program)
            assert torch.equal(f(torch.ones(3)), program(torch.ones(3)))
        assert {str(w.message) for w in told} == {"3 rows"} and len(told) == runs


def write_at_one(z: Tensor) -> Tensor:
    z[1] = 5
    return z.sum()


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda z: z[1],
    "from the end": lambda z: z[-2],
    "NumPy's number": lambda z: z[np.int64(1)],
    "one of several": lambda z: z[None, 1],
    "behind all others": lambda z: z[..., 1],
    "a write": write_at_one,
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_looked_for_in_the_tensor_of_the_call(name: str) -> None:
    at = PLACES[name]

    def f(x: Tensor) -> Tensor:
        try:
            return at(x[x > 0])
        except IndexError:
            return x - 1

    compiled = smelt.compile(f)
    for data in ([-1.0, 2.0, -1.0, -3.0], *VECTORS, [-1.0, 2.0, -1.0, -3.0]):
        x = torch.tensor(data)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)
