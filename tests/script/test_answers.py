"""The graph itself answers as eager does, in its words where it raises; what it cannot tell is refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.forked import smelt_forks
from tests.script.checking import by_evaluator, ended, same

Tensor = torch.Tensor
F32 = smelt.f32["B", "N"]
OTHER = smelt.f32["C", "M"]


def answers(f: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    """The graph ends as eager does, to the word."""
    program = smelt.script(f)
    expected, found = ended(lambda: f(*make())), ended(lambda: by_evaluator(program, *make()))
    assert expected[0] == found[0] and same(expected[1], found[1]), (expected, found)


def lists_and_tuples(n: int) -> Any:
    return [*list(range(n)), *tuple(range(n, 0, -1))]


def tuple_twice(n: int, s: str) -> Any:
    t = tuple(range(n))
    return [*t, *s, *t]


def given_tuple(xs: list[int], t: tuple[int, ...]) -> Any:
    return [*xs, *t], [*t[1:], 1]


def given_keys(xs: list[str], d: dict[str, int]) -> Any:
    return [*xs, *d]


def grown_by_a_tuple(xs: list[int], t: tuple[int, ...]) -> Any:
    out = xs + [1]  # noqa: RUF005
    out += t
    out.extend(xs)
    t += (3,)
    return out, t


def chained(xs: list[int], t: tuple[int, ...]) -> Any:
    return list(itertools.chain(xs, t, xs)), list(itertools.chain(t, [1]))


def held_tuples(ts: list[tuple[int, ...]]) -> Any:
    return [*ts[0], 1]


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (lists_and_tuples, (3,)), (tuple_twice, (2, "ab")), (given_tuple, ([1], (2, 3))),
        (given_keys, (["c"], {"a": 1, "b": 2})), (grown_by_a_tuple, ([4], (1, 2))), (held_tuples, ([(1, 2)],)),
        (chained, ([1], (2, 3))),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_a_list_takes_in_whatever_can_be_gone_over(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    answers(f, lambda: args)


def removed(xs: list[int]) -> Any:
    xs = xs + [5]  # noqa: RUF005
    xs.remove(3)
    return xs


@pytest.mark.parametrize("items", [[1, 2], [3, 1, 3]])
def test_what_is_not_in_a_list_is_told_as_python_tells_it(items: list[int]) -> None:
    answers(removed, lambda: (list(items),))
    compiled = smelt.script(removed)
    assert ended(lambda: compiled.code.run(*compiled.inputs_for(items))) == ended(lambda: (removed(list(items)),))


def columns(x: F32, y: OTHER, k: int) -> Tensor:
    out = x.new_zeros(x.shape[0], x.shape[1] + k)
    out[:, k:] = y
    return out


def a_row(x: F32, y: OTHER, k: int) -> Tensor:
    out = torch.zeros_like(x)
    out[k] = y
    return out


@pytest.mark.spread(10)
@pytest.mark.parametrize("f", [columns, a_row])
@pytest.mark.parametrize(
    ("shape", "k"), [((2, 3), -1), ((2, 3), 1), ((1, 3), 0), ((2, 1), -1), ((1, 1), -2), ((3, 3), 1), ((2, 4), 0)]
)
def test_what_is_assigned_fits_or_is_refused_as_by_eager(f: Callable[..., Any], shape: tuple[int, int], k: int) -> None:
    answers(f, lambda: (torch.ones(2, 3), torch.ones(shape), k))


def the_largest(xs: list[F32]) -> Any:
    return max(xs, key=lambda t: float(t.abs().sum())) is xs[0]


def the_largest_or_none(xs: list[F32]) -> Any:
    big = max(xs, key=lambda t: float(t.abs().sum()), default=None)
    return big is xs[0]


def the_last(xs: list[F32]) -> Any:
    last = xs[0]
    for x in xs:
        last = x
    return last is xs[-1]


def put_in(x: F32, n: int) -> Any:
    return [x, x * 2][n] is x


def lists(xs: list[list[int]]) -> Any:
    return xs[0] is xs[-1]


def of_two_branches(x: F32, y: F32, n: int) -> Any:
    a = x if n > 0 else y
    b = y if n > 1 else x
    return a is b


def of_two_arguments(xs: list[F32], x: F32) -> Any:
    return xs[0] is x


def of_two_containers(xs: list[F32], d: dict[str, F32], key: str) -> Any:
    v = d.get(key)
    return v is not None and v is xs[0]


_OF_ITEMS = [
    the_largest, the_largest_or_none, the_last, put_in, lists, of_two_branches, of_two_arguments, of_two_containers
]  # fmt: skip


@pytest.mark.parametrize("f", _OF_ITEMS)
def test_which_item_is_the_very_object_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(smelt.CaptureError, match="S0109") as caught:
        smelt.script(f)
    assert caught.value.where is not None and caught.value.where.file == __file__


def two_for_sure(xs: list[F32], mask: F32, n: int) -> Any:
    made = xs[0] * 2
    out = mask
    for _ in range(n):
        out = out + xs[0]
    same_list = xs is xs
    k = n - 1
    same_item = xs[k] is xs[k], xs[0] is not xs[0]
    return xs[0] is made, out is made, [made, made * 2][n] is xs[0], same_list, same_item


def test_what_can_be_told_apart_is() -> None:
    answers(two_for_sure, lambda: ([torch.ones(2, 2)], torch.zeros(2, 2), 1))


def turned(x: Tensor, y: Tensor | None = None, w: bool = False) -> Any:
    if y is not None and not w:
        x = x + y
    elif w:
        x = x @ (y if y is not None else x).T
    return x


@pytest.mark.parametrize("f", [turned, lambda x: x.T * 2])
def test_what_torch_warns_of_is_not_shown_while_a_script_is_made(f: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smelt.script(f)
    assert not torch.is_warn_always_enabled()


SAYS_ONCE = """
import sys
import warnings

import torch

import smelt


def reads(x):
    return x.H * 2


def asks(x):
    return x * 2 if hasattr(x, "H") else x + 1


program = {"reads": reads, "asks": asks}[sys.argv[1]]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    smelt.script(program)
print([str(warning.message) for warning in said])
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    program(torch.ones(()))
    program(torch.ones(()))
print(["deprecated on 0-D tensors" in str(warning.message) for warning in said])
"""


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["reads", "asks"])
def test_what_torch_says_once_it_still_says_after_a_script_is_made(name: str, tmp_path: Path) -> None:
    # In a process of its own: in this one another test may have made torch say it, and fake tensors keep results.
    path = tmp_path / "says_once.py"
    path.write_text(SAYS_ONCE)
    code = f"import runpy, sys\nsys.argv = ['', {name!r}]\nrunpy.run_path({str(path)!r}, run_name='__main__')"
    assert smelt_forks().run(code) == "[]\n[True]\n"
