"""Whether two objects are one where data decide it, and lists of the caller's that others hold, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor
DATA = ([1.0, 2.0, -1.0], [-1.0, 1.0, -2.0], [3.0, -1.0, 1.0], [-1.0, -2.0, -3.0])


def of_a_branch(x: Tensor, y: Tensor) -> object:
    z = x if x.sum() > 0 else y
    return z is x, z is not y


def after_a_write(x: Tensor, y: Tensor) -> object:
    z = x if x.sum() > 0 else y
    x.add_(1)
    return z is x


def of_two_branches(x: Tensor, y: Tensor) -> object:
    z = x if x.sum() > 0 else y
    w = y if x[0] > 0 else x
    return z is w


def in_a_list(x: Tensor, y: Tensor) -> object:
    items = [x, y]
    if x.sum() < 0:
        items[0] = items[1]
    return items[0] is items[1]


def of_a_loop(x: Tensor, y: Tensor) -> object:
    last, count = x, 0
    for i in range(3):
        count += last is x
        last = x if x[i] > 0 else y
    return count, last is y


def of_an_element(x: Tensor, y: Tensor) -> object:
    return [x, y][int(x.sum() > 0)] is y


def of_turns(x: Tensor, y: Tensor) -> object:
    a, b, count, turns = x + 1, y, 0, 0
    while turns < x.abs().sum():
        turns += 1
        if a is b:
            count += 1
        else:
            a = b = y * 3
    return count


def in_a_test(x: Tensor, y: Tensor) -> object:
    a, b, turns = x + 1, y, 0
    while a is not b and turns < 9:
        turns += 1
        if turns > x.sum():
            a = b
    return turns


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "f",
    [of_a_branch, after_a_write, of_two_branches, in_a_list, of_a_loop, of_an_element, of_turns, in_a_test],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("order", [DATA, DATA[::-1]], ids=["first", "last"])
def test_whether_two_tensors_are_one(f: Callable[..., Any], order: tuple[list[float], ...]) -> None:
    compiled = smelt.compile(f)
    for data in (*order, *order):
        wanted = f(torch.tensor(data), torch.ones(3))
        assert compiled(torch.tensor(data), torch.ones(3)) == wanted


def grows_in_a_dict(x: Tensor, held: Any) -> Tensor:
    if x.sum() > 0:
        held["items"].append(held["count"])
    else:
        held["count"] += 1
    return x + 1


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("is_state", [False, True], ids=["argument", "state"])
def test_a_list_that_grows_on_one_way_stays_the_list_that_it_was(is_state: bool) -> None:
    seen = []
    for door in (lambda f: f, smelt.compile):
        items: list[int] = [7]
        held = {"count": 1, "items": items}

        state = held

        def on_state(x: Tensor, state: Any = state) -> Tensor:
            return grows_in_a_dict(x, state)

        program = door(on_state if is_state else grows_in_a_dict)
        rows = []
        for data in (*DATA, *DATA):
            if not is_state:
                held = {"count": 1, "items": items}
            program(torch.tensor(data), *(() if is_state else (held,)))
            rows.append((held["count"], list(items), held["items"] is items))
        seen.append(rows)
    assert seen[0] == seen[1]


def put_on_one_way(x: Tensor, items: list[Tensor]) -> object:
    if x[0] > 0:
        items[-1] = x.view(3)
    return x + 1


def put_in_a_loop(x: Tensor, items: list[Tensor]) -> object:
    for _ in range(int(x[0])):
        items[-1] = x.view(3)
    return x + 1


def given_back_by_a_loop(x: Tensor, items: list[Tensor]) -> object:
    last = items[0]
    for _ in range(int(x[0])):
        last = x.view(3)
    return last


def what_a_loop_begins_with(x: Tensor, items: list[Tensor]) -> object:
    last = x.view(3)
    for _ in range(1, int(x[0])):
        last = x.view(3)
    return last


@pytest.mark.parametrize("dynamic", [None, True], ids=["first", "free"])
@pytest.mark.parametrize(
    "f",
    [put_on_one_way, put_in_a_loop, given_back_by_a_loop, what_a_loop_begins_with],
    ids=lambda f: f.__name__,
)
def test_a_view_of_all_of_an_argument_is_a_tensor_of_its_own(f: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(f, dynamic=dynamic)
    for data in (*DATA, *DATA):
        seen = []
        for run in (f, compiled):
            x, items = torch.tensor(data), [torch.ones(3), torch.zeros(3)]
            tensors = [run(x, items), *items]
            seen.append([(t is x, t.data_ptr() == x.data_ptr(), t.tolist()) for t in tensors])
        assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "captured", [smelt.compile, lambda f: smelt.trace(f, (-torch.ones(4),))], ids=["compile", "trace"]
)
def test_an_operand_that_is_given_back_where_it_is_empty_is_another_tensor_where_it_is_not(captured: Any) -> None:
    def f(x: torch.Tensor) -> Any:
        chosen = x[x > 0]
        steps = chosen.diff()
        return chosen.sum(), steps, chosen * 2

    program = captured(f)
    for x in (-torch.ones(4), torch.arange(4.0), torch.tensor([-1.0, 5, -1, -1]), -torch.ones(4), torch.ones(4)):
        for got, want in zip(program(x), f(x), strict=True):
            assert torch.equal(got, want)


def a_view_or_what_follows_it(x: Tensor) -> list[Tensor]:
    v = x.view(3)
    w = v + 1 if x.sum() > 0 else v
    return [v, w, v, x]


def a_view_from_a_loop(x: Tensor) -> list[Tensor]:
    v, w = x.view(3), x
    for _ in range(int(x[0].abs())):
        w = v
    return [v, w, x]


def constants_cut_at_a_number(x: Tensor) -> list[Tensor]:
    made = torch.zeros(len(x))
    return [made.unsqueeze(1), made[: int(x[0].abs())], x]


def a_constants_element(x: Tensor) -> list[Tensor]:
    made = torch.arange(3)
    return [made, made[int(x[0].abs()) - 1], x]


@pytest.mark.parametrize(
    "f",
    [a_view_or_what_follows_it, a_view_from_a_loop, constants_cut_at_a_number, a_constants_element],
    ids=lambda f: f.__name__,
)
def test_what_leaves_several_times_is_one_tensor_and_shares_as_in_eager(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for data in (*DATA, *DATA):
        seen = []
        for run in (f, compiled):
            left = run(torch.tensor(data))
            pairs = [
                (a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()) for a in left for b in left
            ]
            seen.append((pairs, [t.tolist() for t in left]))
        assert seen[0] == seen[1], data
    assert compiled.stats().builds == 1


def bound_anew_on_one_way(x: Tensor, seen: dict[str, Any]) -> object:
    items = [x]
    other = items
    if x[0] > 0:
        items = [x + 1]
    return items, other


def bound_anew_where_a_dict_holds_it(x: Tensor, seen: dict[str, Any]) -> object:
    items = [x]
    seen["kept"] = items
    if x[0] > 0:
        items = [x + 1]
    return items, seen["kept"]


def one_on_one_way_and_two_on_the_other(x: Tensor, seen: dict[str, Any]) -> object:
    if x[0] > 0:
        return {"a": x * 2}, {"a": x * 3}
    items = {"a": x + 1}
    return items, items


def of_the_way_that_does_not_raise(x: Tensor, seen: dict[str, Any]) -> object:
    if x[0] > 2:
        raise ValueError("large")
    elif x[0] > 0:
        raise ValueError("positive")
    else:
        items = [x + 2]
        other = items
    return items, other


def bound_anew_in_a_loop(x: Tensor, seen: dict[str, Any]) -> object:
    items = {"a": x}
    seen["kept"] = items
    n = 0
    while n < x[0]:
        n += 1
        items = {**items}
    items["a"] = x + n
    return items, seen["kept"]


def bound_anew_in_a_loop_where_another_variable_holds_it(x: Tensor, seen: dict[str, Any]) -> object:
    items = [x]
    other = items
    for _ in range(int(x[0])):
        items = [x + 1]
    other[0] = x + 5
    return items, other


@pytest.mark.parametrize(
    "f",
    [
        bound_anew_in_a_loop,
        bound_anew_in_a_loop_where_another_variable_holds_it,
        bound_anew_on_one_way,
        bound_anew_where_a_dict_holds_it,
        one_on_one_way_and_two_on_the_other,
        of_the_way_that_does_not_raise,
    ],
    ids=lambda f: f.__name__,
)
def test_a_container_is_one_on_each_way_as_in_eager(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)

    def told(run: Callable[..., Any], data: list[float]) -> object:
        seen: dict[str, Any] = {}
        try:
            one, other = run(torch.tensor(data), seen)
        except ValueError as error:
            return str(error)
        return one is other, str(one), str(other), [held is other for held in seen.values()]

    for data in (*DATA, *DATA[::-1]):
        assert told(compiled, data) == told(f, data)


def test_a_list_that_nothing_else_holds_is_carried_by_a_loop() -> None:
    def f(x: Tensor) -> object:
        items, n = [x, x * 2], 0
        while n < x[0]:
            n += 1
            items = [item + 1 for item in items]
        return items

    compiled = smelt.compile(f)
    for data in (*DATA, *DATA):
        assert str(compiled(torch.tensor(data))) == str(f(torch.tensor(data)))
    (row,) = compiled.stats().rows
    assert " while " in str(row.entry.graph)


@pytest.mark.parametrize(
    "captured", [smelt.compile, lambda m: smelt.trace(m, (torch.ones(3),))], ids=["compile", "trace"]
)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_parameter_that_is_given_back_where_it_is_empty_is_the_parameter(captured: Any, n: int) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.levels = torch.nn.Parameter(torch.arange(float(n)))

        def forward(self, x: torch.Tensor) -> Any:
            steps = self.levels.diff()
            return steps, x + 1, steps is self.levels

    model = Steps().eval()
    program = captured(model)
    with torch.no_grad():
        for _ in range(3):
            (got, _, is_same), (want, _, was_same) = program(torch.ones(3)), model(torch.ones(3))
            assert torch.equal(got, want)
            assert type(got) is type(want)
            assert (is_same, got is model.levels) == (was_same, want is model.levels)


@pytest.mark.parametrize(
    "captured", [smelt.compile, lambda f: smelt.trace(f, (torch.ones(0),))], ids=["compile", "trace"]
)
@pytest.mark.parametrize("is_staged", [False, True])
def test_what_is_empty_at_its_known_size_is_given_back_itself(captured: Any, is_staged: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        steps, double = x.diff(), x * 2
        more = steps + 1 if is_staged and x.sum() > 0 else steps * 2
        return steps, more, double, double.diff(), steps is x

    program = captured(f)
    for _ in range(3):
        x = torch.ones(0)
        steps, more, double, given, is_same = program(x)
        assert steps is x and is_same and given is double
        assert more.shape == (0,)


def test_a_view_of_written_memory_chosen_on_one_way_is_that_view() -> None:
    def program(x: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = s.clone()
        first, second = -x
        first += 1
        if chosen != -2:
            chosen = first
        return chosen, first, second

    compiled = smelt.compile(program, options={"measure": False})
    with torch.no_grad():
        for s in (3.0, 3.0, -2.0, -2.0, 1.0, 3.0):
            chosen, first, second = compiled(torch.ones(2), torch.tensor(s))
            assert (chosen is first) == (s != -2)
            assert second.data_ptr() - first.data_ptr() == 4
            assert [t.item() for t in (chosen, first, second)] == [0 if s != -2 else s, 0, -1]


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: (x[1], x.select(0, 1)),
        lambda x: (x, x.t().t()),
        lambda x: (x[0], x[0].to(x.dtype)),
        lambda x: (x.mT, x.mT),
    ],
    ids=["select", "transposed twice", "unchanged", "transposed"],
)
@pytest.mark.parametrize("is_dict", [False, True], ids=["list", "dict"])
def test_equal_views_in_a_container_that_grows_are_two_tensors(view: Callable[[Tensor], Any], is_dict: bool) -> None:
    def program(x: Tensor, s: Tensor) -> Any:
        x = x * 2
        kept: Any = dict(enumerate(view(x))) if is_dict else list(view(x))
        if s > 0:
            for i in range(2):
                if is_dict:
                    kept[i + 2] = x * 3
                else:
                    kept.append(x * 3)
        return kept

    compiled = smelt.compile(program, options={"measure": False})
    for s in (2.0, -1.0, 1.0, -2.0, 2.0, -1.0):
        x = torch.arange(12.0).view(3, 4)
        want, kept = program(x, torch.tensor(s)), compiled(x, torch.tensor(s))
        assert len(kept) == len(want)
        assert kept[0] is not kept[1]
        assert kept[0].untyped_storage().data_ptr() == kept[1].untyped_storage().data_ptr()
        assert torch.equal(kept[0], want[0])
        assert torch.equal(kept[1], want[1])
