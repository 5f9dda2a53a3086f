"""Padded tensors where it is easy to be wrong: memory that is shared, dtypes, errors, costs, free sizes, loops."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.codegen.lower import lower
from smelt.codegen.lower.unknown import padded
from smelt.diag import Options
from smelt.ir import parse
from smelt.ops.evaluate import no_state
from smelt.runtime.plan import PyCall
from tests.control.harness import compare
from tests.control.test_padded import masks, rows, same


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def python_calls(compiled: Any) -> int:
    (row,) = compiled.stats().rows
    return sum(isinstance(i, PyCall) for i in row.entry.lowered.plan.instructions)


# --- what is returned


def test_one_count_for_several_numbers() -> None:
    def f(x: Tensor) -> Any:
        places = (x > 0).nonzero()
        return places.shape[0], len(places), (x > 0).nonzero().shape[0], places, places

    compiled = smelt.compile(f)
    for x in (torch.tensor([1.0, -1, 2]), torch.ones(3), -torch.ones(3), torch.tensor([-1.0, -1, 2])):
        got, want = compiled(x), f(x)
        assert got[:3] == want[:3] and torch.equal(got[3], want[3]) and got[3] is got[4]
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "places",
    (
        Tensor.nonzero, torch.argwhere,
        lambda x: x.nonzero().float(),
        lambda x: x.nonzero() + 1,
        lambda x: x.nonzero()[:2],
        lambda x: x.nonzero()[:, 1:].t(),
    ),
)  # fmt: skip
def test_rows_of_places_have_the_strides_of_eager_also_where_there_are_none(places: Callable[[Tensor], Tensor]) -> None:
    compiled = smelt.compile(places)
    for x in (torch.eye(3, 4), torch.zeros(3, 4), torch.ones(3, 4)):
        for _ in range(3):
            got, wanted = compiled(x), places(x)
            assert got.equal(wanted)
            assert got.stride() == wanted.stride()


def test_a_cut_of_an_input_is_a_view_of_it() -> None:
    def head(x: Tensor, n: Tensor) -> Tensor:
        return x[: int(n)]

    compiled = smelt.compile(head)
    for count in (3, 0, 7, -2):
        x = rows()
        got = compiled(x, torch.tensor(count))
        same(got, head(x, torch.tensor(count)))
        x.add_(1)
        same(got, head(x, torch.tensor(count)))


@pytest.mark.parametrize(
    "parts",
    (
        lambda x: (lambda y: (y, y[:, 0]))(x.nonzero()),
        lambda x: (lambda y: (y[:2], y.t()))(x.nonzero()),
        lambda x: torch.where(x > 0),
        lambda x: (lambda y: (y + 1, y[0], y[1:, 1]))(x.nonzero()),
    ),
)
def test_outputs_that_are_one_memory_in_eager_are_one(parts: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    compiled = smelt.compile(parts)
    for x in (torch.eye(3, 4), torch.ones(3, 4)):
        for _ in range(3):
            got, wanted = compiled(x), parts(x)
            memories = [[t.untyped_storage().data_ptr() for t in found] for found in (got, wanted)]
            starts = [[a == b for a in found for b in found] for found in memories]
            assert starts[0] == starts[1]
            assert [t.storage_offset() for t in got] == [t.storage_offset() for t in wanted]
            same(got, wanted)


def test_a_cut_of_one_arm_is_a_view_of_the_input_in_that_arm() -> None:
    def either(x: Tensor, n: Tensor) -> Tensor:
        return x[: int(n)] if n > 2 else x[: int(n) + 1] * 2

    compiled = smelt.compile(either)
    for count in (3, 1, 5, 0):
        x = rows()
        got = compiled(x, torch.tensor(count))
        same(got, either(x, torch.tensor(count)))
        got.zero_()
        assert bool((x[:count] == 0).all()) == (count > 2 or count == 0)


def test_results_of_one_memory_share_it() -> None:
    def both(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y[: int(n)]

    compiled = smelt.compile(both)
    for count in (3, 5):
        whole, part = compiled(rows(), torch.tensor(count))
        part.zero_()
        assert (whole[:count] == 0).all() and (whole[count:] == rows()[count:] * 2).all()


def test_results_are_the_callers_own() -> None:
    compiled = smelt.compile(lambda x, m: x[m] * 2)
    first = compiled(rows(), masks()[0])
    kept = first.clone()
    compiled(rows(seed=5), masks()[2])
    assert torch.equal(first, kept)


def test_a_count_is_an_int_and_a_constant_is_not_given_away() -> None:
    def counted(m: Tensor) -> tuple[Tensor, int]:
        index = m.nonzero()[:, 0]
        return torch.arange(len(index)), len(index)

    compiled = smelt.compile(counted)
    for m in masks():
        got, count = compiled(m)
        assert type(count) is int and count == int(m.sum())
        got.add_(100)
        same(compiled(m), counted(m))


# --- dtypes and layouts


@pytest.mark.spread(6)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    def select(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.zeros_like(x)
        out[m] = x[m]
        return x[m], out, x[m].sum()

    compiled = smelt.compile(select)
    for m in masks():
        x = (rows() * 3).to(dtype)
        same(compiled(x, m), select(x, m))


@pytest.mark.spread(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.float16])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rows_are_added_in_order(dtype: torch.dtype, index: torch.dtype, dim: int) -> None:
    def add(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return torch.index_add(x, dim, at, y)

    compiled = smelt.compile(add)
    for width in (1, 130):
        x = (torch.randn(3, 5, width) * 5).to(dtype)
        at = torch.tensor([2, 0, 2, 1, 0], dtype=index) % x.shape[dim]
        y = (torch.randn(x.movedim(dim, 0).shape[1:].numel() * 5) * 1e4).to(dtype)
        y = y.view(5, *x.movedim(dim, 0).shape[1:]).movedim(0, dim)
        assert torch.equal(compiled(x, at, y), add(x, at, y))
        outside = at.clone()
        outside[3] = x.shape[dim]
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            add(x, outside, y)
        with pytest.raises(type(wanted.value)):
            compiled(x, outside, y)


def test_nothing_is_added_where_nothing_counts() -> None:
    def add(x: Tensor, m: Tensor) -> Tensor:
        (index,) = torch.where(m)
        return torch.full((7, 4), -0.0).index_add(0, index, x[index])

    compiled = smelt.compile(add)
    for m in masks():
        x = rows() / 0.0
        got, wanted = compiled(x, m), add(x, m)
        assert torch.equal(got, wanted) and torch.equal(got.signbit(), wanted.signbit())


@pytest.mark.parametrize("arrange", [Tensor.t, lambda x: x[::2], lambda x: x[:, 1:3], lambda x: x[:1].expand(7, 4)])
def test_layouts(arrange: Callable[[Tensor], Tensor]) -> None:
    def select(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return x[m] + 1, x[x > 0]

    compiled = smelt.compile(select)
    x = arrange(rows())
    for m in masks(x.shape[0]):
        same(compiled(x, m), select(x, m))


def test_nothing_and_numbers() -> None:
    def select(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[x > 0], (x > 0).nonzero()

    for x in (torch.zeros(0), torch.zeros(0, 3), torch.zeros(4, 0), torch.tensor(2.0), torch.tensor(-1.0), rows(1)):
        compiled = smelt.compile(select)
        for _ in range(3):
            same(compiled(x), select(x))


# --- errors


def raised(call: Callable[[], Any]) -> tuple[type[BaseException], str] | None:
    try:
        call()
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    return None


def first_row(x: Tensor, m: Tensor) -> Tensor:
    return x[m][0]


def by_index(x: Tensor, m: Tensor) -> Tensor:
    return x[m][torch.tensor([0, -1])]


def put_too_few(x: Tensor, m: Tensor) -> Tensor:
    out = x.clone()
    out[m] = x[:3][m[:3]]
    return out


def added_together(x: Tensor, m: Tensor) -> Tensor:
    return x[m] + x[~m]


def largest(x: Tensor, m: Tensor) -> Tensor:
    return x[m].amax(0)


def stacked(x: Tensor, m: Tensor) -> Tensor:
    left, kept = x[m], []
    while left.shape[0] > 0:
        kept.append(left[0])
        left = left[1:]
    return torch.stack(kept)


@pytest.mark.parametrize("program", [first_row, by_index, put_too_few, added_together, largest, stacked])
def test_errors_are_those_of_eager(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    some = torch.zeros(7) > 0
    some[0] = True
    for m in (masks()[2], *masks(), some, some):
        wanted = raised(lambda m=m: program(rows(), m))  # type: ignore[misc]
        assert raised(lambda m=m: compiled(rows(), m)) == wanted  # type: ignore[misc]
        if wanted is None:
            same(compiled(rows(), m), program(rows(), m))


# --- costs


def test_a_product_of_much_that_does_not_count_is_not_padded() -> None:
    weight = torch.randn(256, 256)

    def project(x: Tensor, m: Tensor) -> Tensor:
        return (x[m] @ weight).tanh()

    compiled = smelt.compile(project)
    x, m = torch.randn(512, 256), torch.arange(512) < 5
    for _ in range(3):
        torch.testing.assert_close(compiled(x, m), project(x, m), atol=1e-3, rtol=1e-4)
    assert python_calls(compiled) > 0


# --- free sizes


def test_free_sizes_and_counts() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, int]:
        order, turns = x[:, 0].argsort(), 0
        kept = x[x[:, 1] > 0] * 2
        while order.numel() > 0:
            order = order[1:]
            order = order[x[order, 1] > -0.5]
            turns += 1
        out = torch.zeros_like(x).index_add(0, torch.where(x[:, 1] > 0)[0], kept)
        return kept, out, turns

    compiled = smelt.compile(program)
    for count in (7, 9, 30, 31, 7, 64, 2):
        x = rows(count, seed=count)
        same(compiled(x), program(x))
    assert compiled.stats().builds <= 3


# --- lists and loops in graphs

JOINED = """graph f(%x: f32[6, 2]) -> f32[_, 2], int {
  %s: f32[6] = aten.select.int(%x, 1, 0)
  %o: i64[6] = aten.argsort.default(%s)
  %e: list[f32[2]] = py.list()
  %z: f32[2] = aten.select.int(%x, 0, 0)
  %l0: list[f32[2]] = py.append(%e, %z)
  %w: i64[_], %l: list[f32[2]] = while with (%a: i64[_] = %o, %b: list[f32[2]] = %START) {
    %n: int = aten.sym_numel.default(%a)
    %g: bool = py.gt(%n, 0)
    yield %g
  } do (%c: i64[_], %d: list[f32[2]]) {
    %i: i64[] = aten.select.int(%c, 0, 0)
    %k: int = aten.item.default(%i)
    %r: f32[2] = aten.select.int(%x, 0, %k)
    %v: f32[] = aten.select.int(%r, 0, 1)
    %p: bool[] = aten.gt.Scalar(%v, 0.0)
    %q: list[f32[2]] = if %p {
      %t: list[f32[2]] = py.append(%d, %r)
      yield %t
    } else {
      yield %d
    }
    %rest: i64[_] = aten.slice.Tensor(%c, 0, 1)
    yield %rest, %q
  }
  %y: list[f32[2]] = py.append(%l, %z)
  %u: f32[_, 2] = aten.stack.default(%y)
  %m: int = py.len(%l)
  return %u, %m
}"""


def test_a_list_that_grows_by_chance() -> None:
    for start in ("e", "l0"):
        made = compare(
            JOINED.replace("%START", f"%{start}"), *([torch.randn(6, 2) * sign] for sign in (1, 1, 0, -1)), exact=False
        )
        assert len(made.plan.outputs) == 2


def test_a_loop_that_is_left_by_a_signal() -> None:
    def forever(x: Tensor) -> Tensor:
        left = x
        while left.shape[0] > 0:
            left = left[left > -1] * 1.0
        return left.sum()

    compiled = smelt.compile(forever)
    compiled(torch.tensor([-2.0, -3.0, -4.0]))
    assert python_calls(compiled) == 0
    left = threading.Event()

    def interrupt() -> None:
        # One that falls into a finalizer is lost, as in any Python program.
        while not left.wait(0.5):
            signal.raise_signal(signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    # A shell has its background jobs ignore it, and Python then leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupting.start()
        compiled(torch.ones(3))
    except KeyboardInterrupt:
        left.set()
    finally:
        is_left = left.is_set()
        left.set()
        interrupting.join()
        signal.signal(signal.SIGINT, before)
    assert is_left
    same(compiled(torch.tensor([-2.0, -3.0, -4.0])), torch.zeros(()))


def test_a_graph_without_such_sizes_stays_as_it_is() -> None:
    graph = parse("graph f(%x: f32[4]) -> f32[4] {\n  %0: f32[4] = aten.sin.default(%x)\n  return %0\n}")
    assert padded(graph) is graph
    assert not [i for i in lower(graph, no_state, Options()).plan.instructions if isinstance(i, PyCall)]


# --- cuts that begin at a number


FROM = """graph f(%x: f32[3, 7], %n: i64[2]) -> f32[3, _], f32[3, 7], int {
  %0: i64[] = aten.select.int(%n, 0, 0)
  %1: int = aten.item.default(%0)
  %2: i64[] = aten.select.int(%n, 0, 1)
  %3: int = aten.item.default(%2)
  %4: f32[3, _]{7, 1} = aten.slice.Tensor(%x, 1, %1, %3)
  %5: f32[3, _] = aten.neg.default(%4)
  %6: f32[3, _]{7, 1} = aten.copy.default(%4, %5)
  %7: f32[3, 7] = aten.slice_scatter.default(%x, %6, 1, %1, %3)
  %8: int = aten.sym_size.int(%4, 1)
  return %5, %7, %8
}"""


def test_a_cut_between_two_numbers_is_put_back_natively() -> None:
    x, ends = torch.randn(3, 7), (0, 1, 3, 6, 7, 9, -1, -4, -7, -9)
    calls = [[x, torch.tensor((a, b))] for a in ends for b in ends]
    compare(FROM, *calls, python=0)


def test_a_cut_from_a_number_that_is_returned_is_a_view() -> None:
    def rest(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[int(n) :], y

    compiled = smelt.compile(rest)
    for count in (3, 0, 9, -2):
        part, whole = compiled(rows(), torch.tensor(count))
        wanted, _ = rest(rows(), torch.tensor(count))
        assert part.shape == wanted.shape
        whole.zero_()
        assert not part.any()


def _column(m: Tensor, x: Tensor) -> Any:
    return m[:, 1].nonzero(), x[m[:, 0]], m[:, 2].nonzero().shape[0]


def _row_of_columns(m: Tensor, x: Tensor) -> Any:
    return m.t()[0].nonzero(), torch.where(m[::2, 0])[0], m[0:1, 0].expand(5).nonzero()


def _column_by_number(m: Tensor, x: Tensor, n: int = 0) -> Any:
    return m[:, n % 3].nonzero(), x[m[:, n % 3]]


@pytest.mark.parametrize("program", [_column, _row_of_columns, _column_by_number])
def test_masks_that_do_not_lie_in_one_piece(program: Callable[..., Any]) -> None:
    compiled, generator = smelt.compile(program, options={"measure": False}), torch.Generator().manual_seed(0)
    for number in range(12):
        m, x = torch.rand(5, 3, generator=generator) > 0.5, torch.randn(5, 2, generator=generator)
        more = (number,) if program is _column_by_number else ()
        for found, want in zip(compiled(m, x, *more), program(m, x, *more), strict=True):
            assert torch.equal(found, want) if isinstance(want, Tensor) else found == want
