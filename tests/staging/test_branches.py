"""Branches that depend on data: both sides, merged or forked, as in eager."""

import contextlib

import torch

import smelt
from tests.staging.programs import check, raises, refused

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_early_return_of_the_seed():
    def f1(x, y):
        a = torch.sin(x)
        b = a @ y
        if b.sum() < 0:
            return -y
        return b + 1

    y = torch.eye(3)
    text = check(f1, (X, y), (-X, y), has=("if",))
    assert "f1" in text and "f32[_, 3]" in text


def test_elif_chain_with_values_of_all_arms():
    def f(x):
        s = x.sum()
        if s > 10:
            y, k = x * 2, 1
        elif s > 0:
            y, k = x + 1, 2
        elif s > -10:
            y, k = x - 1, 3
        else:
            y, k = -x, 4
        return y, k

    check(f, (X,), (X + 10,), (X - 2,), (X - 20,), has=("if",))


def test_value_on_one_path_only():
    def f(x):
        flag = x.sum() > 0
        if flag:
            y = x * 2
        z = x + 1
        if flag:
            z = z + y
        return z

    check(f, (X,), (-X,))


def test_value_that_is_missing_raises_as_in_eager():
    def f(x):
        if x.sum() > 0:
            y = x * 2
        return y

    captured_text = check(f, (X,))
    assert "UnboundLocalError" in captured_text


def test_none_or_tensor_forks():
    def f(x):
        mask = None
        if (x > 2).any():
            mask = x > 2
        y = x * 3
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return y

    check(f, (X,), (-X - 5,), has=("if",))


def test_ternary_and_or_not_chain():
    def f(x):
        s = x.sum()
        a = x if s > 0 else -x
        b = 1 if s > 0 and x.max() > 3 else 2
        c = s > 100 or not x.min() > -1
        d = 0 < s.item() < 10
        return a + b, bool(c), d

    check(f, (X,), (-X,), (X * 10,), (X * 0.1 + 50,))


def test_in_place_in_arms_and_views():
    def f(x):
        y = x * 1
        row = y[0]
        if x.sum() > 0:
            row.add_(10)
            y[1] = 7
        else:
            y[:, 0].mul_(2)
        return y

    check(f, (X,), (-X,))


def test_in_place_on_an_argument():
    def f(x):
        if x.sum() > 0:
            x.add_(1)
        return x * 2

    check(f, (X,), (-X,))


def test_alias_of_one_arm_written_later():
    def f(x):
        base = x + 0
        if x.sum() > 0:
            y = base
        else:
            y = base.clone()
        y.add_(1)
        return base, y

    check(f, (X,), (-X,))


def test_containers_changed_in_arms():
    def f(x):
        d = {"a": x, "n": 0}
        items = [x, x + 1]
        if x.sum() > 0:
            d["a"] = x * 2
            d["n"] += 1
            items[1] = items[0] - 1
        return d, items

    check(f, (X,), (-X,))


def test_lists_of_different_lengths_fork():
    def f(x):
        items = [x]
        if x.sum() > 0:
            items.append(x + 1)
        return torch.cat(items)

    check(f, (X,), (-X,))


def test_attributes_are_merged_and_put_back():
    class State:
        def __init__(self):
            self.h = torch.zeros(3)
            self.count = 0

    def f(x):
        state = State()
        if x.sum() > 0:
            state.h = state.h + x[0]
            state.count += 2
        return state.h * state.count

    check(f, (X,), (-X,))


def test_raise_and_assert():
    # From elsewhere: pytest rewrites what tests assert.
    check(raises, (X,), (-X,), (X * 1000,), has=("py.raise",))


def test_checks_of_torch_with_a_message_of_data():
    def f(x):
        n = int(x.sum())
        torch._check_with(IndexError, n < 100, lambda: f"too many: {n}")
        torch._check_tensor_all_with(ValueError, x > -50, lambda: f"too small: {x.min().item()}")
        return x * n

    check(f, (X,), (-X,), (X - 60,), (X * 1000,), has=("py.raise",))


def test_raise_that_the_program_catches():
    def inner(x):
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    def f(x):
        try:
            return inner(x)
        except ValueError:
            return x - 1

    check(f, (X,), (-X,))


def test_print_and_text():
    def f(x):
        s = x.sum()
        print("sum", s, s.item(), sep="|")
        if s > 0:
            print(f"positive {s.item():8.3f} {x[0, 0].item()!r}")
        return x

    check(f, (X,), (-X,), has=("py.print", "py.format"))


def test_items_in_arithmetic():
    def f(x):
        n = int(x.sum())
        v = x.mean().item()
        return x * n + v / 3 - (n // 2) % 3 + abs(v), n * 2, v**2, n == 5, float(n), str(n)

    check(f, (X,), (-X,), (X * 7,))


def test_sizes_that_depend_on_data():
    def f(x):
        y = x[x > 0]
        idx = x.nonzero()
        n = y.shape[0]
        if n == 0:
            return x.sum() + idx.size(0)
        first = y[:2].sum()
        return first + y.sum() / n + idx[:, 0].sum() + torch.zeros(n, 2).sum() + len(y)

    check(f, (X,), (-X.abs(),), (X.abs(),), (torch.tensor([[1.0, -1.0, -2.0]]),)[:1] and (X * 2,))


def test_branches_of_nested_modules():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            if x.mean() > 0:
                return self.linear(x)
            return x.relu() - 1

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.ModuleList([Inner(), Inner()])

        def forward(self, x):
            for layer in self.inner:
                x = layer(x)
                if x.norm() > 5:
                    x = x / x.norm()
            return x

    torch.manual_seed(0)
    check(Outer(), (X,), (-X,), (X * 10,), has=("if", "param"))


def test_max_min_any_all():
    def f(x):
        a, b = x[0].sum(), x[1].sum()
        hi = max(a, b)
        lo = min(a.item(), b.item(), 1.5)
        return hi * 2, lo, any(v > 2 for v in x[0]), all([a > 0, b > 0])

    check(f, (X,), (-X,), (X.flip(0),))


def test_a_number_that_is_whole_or_not_divides_as_the_one_that_it_is():
    """`max(1, x)` is an int or a float, as data tell; a quotient of it is a float, of which a tensor can be made."""

    def f(x):
        total = x.sum().item()
        most, least = max(1, total - 3), min(total, 2, 7)
        return torch.as_tensor(1 / most), torch.tensor(least / 4) * x, min(most, least) / most, most / total

    nan = torch.full((2, 3), torch.nan)
    text = check(f, (X,), (-X,), (X * 10,), (nan,))
    assert "py.max(1.0, " in text


def test_what_cannot_be_staged_says_so():
    class Keeper(torch.nn.Module):
        def forward(self, x):
            self.last = x * 2
            return x if x.sum() > 0 else -x

    keeper = Keeper()
    keeper.last = None
    assert "keeps what depends on data" in refused(keeper, X)
    assert not isinstance(keeper.last, torch._subclasses.FakeTensor)


def test_an_operator_that_may_raise_where_it_would_be_caught():
    def f(x):
        try:
            return x * (10 // int(x.sum()))
        except ZeroDivisionError:
            return x

    def g(x):
        return x * (10 // int(x.sum()))

    assert "may raise" in refused(f, X)
    check(g, (X,), (X * 0,))


def test_sizes_as_a_result_are_refused():
    assert "depends on data" in refused(lambda x: x[x > 0].shape, X)


def test_a_question_asked_again_is_not_asked_twice():
    def f(x):
        flag = bool(x.sum() > 0)
        y = [x] if flag else None
        z = x + 1 if y is None else y[0]
        return z * 2 if flag else z

    check(f, (X,), (-X,))


class Shared:
    total = 0


def test_class_attributes_and_globals_of_one_arm():
    def f(x):
        Shared.total = 1
        if x.sum() > 0:
            Shared.total = 5
        y = x * Shared.total
        Shared.total = 0
        return y

    check(f, (X,), (-X,))
    assert Shared.total == 0


def test_raise_that_a_with_suppresses():
    def f(x):
        y = x
        with contextlib.suppress(ValueError):
            if x.sum() > 0:
                raise ValueError("suppressed")
            y = x + 1
        return y

    check(f, (X,), (-X,))


class Rotary(torch.nn.Module):
    """None or a tensor follows from data, and then a buffer is given back by an operator that has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.rand(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = None if mask.all() else mask
        y = x * self.steps.float().contiguous()
        return y if kept is None else y.masked_fill(~kept, 0.0) + self.steps


def test_a_buffer_that_an_operator_gave_back_on_one_path_is_the_buffer_on_the_other() -> None:
    model, x = Rotary(), torch.randn(3, 4)
    masks = [torch.ones(3, 4, dtype=torch.bool), torch.rand(3, 4) > 0.5]
    with torch.no_grad():
        for first in masks:
            compiled = smelt.compile(model)
            compiled(x, first)
            for mask in masks:
                torch.testing.assert_close(compiled(x, mask), model(x, mask))
            (row,) = compiled.stats().rows
            assert row.entry is not None and row.entry.is_staged


def test_masks_that_no_data_decide():
    """How many elements they take is known, and the same on both sides."""

    def f(x):
        mask = torch.arange(4) > 0
        out = torch.zeros_like(x)
        out[mask] = x[mask] * 2
        rows = torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1]), dim=0)
        if x.sum() > 0:
            return out + rows, x[mask], torch.masked_select(x, mask)
        return out - rows, x[~mask], torch.bincount(torch.tensor([0, 2, 2, 1]), x[0])

    x = torch.rand(4, 4)
    text = check(f, (x,), (-x,), has=("if",))
    assert "f32[3, 4]" in text and "f32[12]" in text


def test_a_layer_that_is_moved_to_where_it_is():
    layer = torch.nn.Linear(3, 3)

    def f(x):
        moved = layer.to(x.dtype)
        return moved(x) if x.sum() > 0 else moved(x) * 2

    check(f, (X,), (-X,), has=("if",))


def test_a_constant_that_is_moved_after_paths_part():
    def f(x):
        known = torch.tensor(4)
        added = None if (x > 0).all() else x * 2
        known = known.to(x.device)
        return (x if added is None else x + added), known

    check(f, (X.abs(),), (X,), has=("if",))


def test_none_that_is_returned_out_of_a_loop_is_no_result_that_is_yet_to_come():
    def f(x):
        for i in range(4):
            x = x + 1
            if x.sum() > 10 * i + 40:
                return None
        return x

    compiled = smelt.compile(f)
    for x in (torch.ones(4), torch.ones(4) * 9, torch.ones(4) * -9, torch.ones(4) * 14):
        found, wanted = compiled(x), f(x)
        assert (found is None) == (wanted is None)
        assert found is None or torch.equal(found, wanted)
