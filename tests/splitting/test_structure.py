"""Where a split may stand: deep in calls, in loops, generators, context managers, `try`; what passes between pieces."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from tests.splitting.log import Log
from tests.splitting.test_effects import after, before
from tests.splitting.twins import Twin, all_of, compare, compiled_pieces, inputs, splits_of


class Inner(torch.nn.Module):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.up, self.down, self.log = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6), log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).relu() * 2
        self.log.append(y.shape[0])
        return self.down(y).tanh() * 0.5 + x


class Layer(torch.nn.Module):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.norm, self.inner = torch.nn.LayerNorm(6), Inner(log)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = self.norm(x).sin() * scale
        y = self.inner(y) + y
        return (y.cos() + x).sigmoid() * 2


class Tower(torch.nn.Module):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(log) for _ in range(3)])
        self.tail = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU(), Inner(log))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        kept = {}
        for i, layer in enumerate(self.layers):
            x = layer(x, scale=0.5)
            kept[f"layer{i}"] = x
        return self.tail(x), kept


def test_at_depth() -> None:
    def make() -> Twin:
        torch.manual_seed(0)
        log = Log()
        return Twin(Tower(log), lambda: list(log))

    compiled = compare(make, inputs(4, 6))
    assert {f.original.__qualname__ for f in splits_of(compiled).split_functions} == {
        "Tower.forward", "Layer.forward", "Inner.forward", "Sequential.forward",
    }  # fmt: skip
    assert (
        compiled_pieces(compiled) == 3 * 2 + 3 * 1 + 2 - 3 + 1 + 3
    )  # layers: before and after, Inner: before and after


def test_in_loops_with_break_continue_else() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor, n: int) -> torch.Tensor:
            total = x
            for i in range(n):
                y = before(total) * (i + 1)
                if i == 2:
                    log.append("skip")
                    continue
                while y.sum() > 1e3:
                    y = after(y) / 2
                    log.append("half")
                if i == 4:
                    break
                total = after(y) + total * 0.1
            else:
                log.append("whole")
                total = before(total) * 2
            return after(total) + 1

        return Twin(program, lambda: list(log))

    compare(make, lambda i: (torch.randn(3, 4, generator=torch.Generator().manual_seed(i)), 1 + i % 6), calls=14)


def test_in_a_generator() -> None:
    def make() -> Twin:
        log = Log()

        def steps(x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
            for i in range(n):
                x = before(x) * 0.5 + i
                log.append(i)
                yield after(x) * 2

        def program(x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(x)
            for y in steps(x, 3):
                total = (total + y).sin() * y.cos()
            return total * 2

        return Twin(program, lambda: list(log))

    assert compiled_pieces(compare(make, inputs(4, 5))) >= 2


def test_in_a_context_manager() -> None:
    def make() -> Twin:
        log = Log()

        @contextlib.contextmanager
        def noted(name: str) -> Iterator[None]:
            log.append(f"+{name}")
            try:
                yield
            finally:
                log.append(f"-{name}")

        def program(x: torch.Tensor) -> torch.Tensor:
            with noted("a"):
                y = before(x) + 1
                with noted("b"):
                    z = after(y) * y
                    y = z.sin() + before(z)
            return after(y) + z

        return Twin(program, lambda: list(log))

    assert compiled_pieces(compare(make, inputs(4, 5))) >= 2


def test_a_manager_that_swallows() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor, fails: bool) -> torch.Tensor:
            y = before(x)
            with contextlib.suppress(ValueError):
                y = after(y) + 1
                log.append("first")
                y = before(y) * 2
                if fails:
                    raise ValueError
                y = after(y) * 3
                log.append("last")
            return y.sin() + y.cos() * 2

        return Twin(program, lambda: list(log))

    compare(make, lambda i: (*inputs(4, 5)(i), i % 2 == 1), calls=10)


def test_try_with_what_a_handler_reads() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = before(x)
            try:
                y = after(y) * 2
                log.append("in")
                z = before(y) + 1
                y = z @ w
                y = after(y) + 1
            except RuntimeError as error:
                log.append(str(error)[:20])
                y = y * 3 + before(y)
            else:
                log.append("else")
            finally:
                log.append("finally")
                y = after(y) - 1
            return y.sum() * 2

        return Twin(program, lambda: list(log))

    compare(make, lambda i: (*inputs(4, 5)(i), torch.ones(5 + i % 2, 5)), calls=12)


def test_errors_in_the_middle() -> None:
    def make() -> Twin:
        log = Log()

        def helper(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = before(x)
            return (
                y.sin()
                @ w
            ) * 2  # fmt: skip

        def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = before(x) + 1
            log.append(1)
            z = helper(y, w) + 1
            log.append(2)
            return after(z) * 2

        return Twin(program, lambda: list(log))

    compare(make, lambda i: (*inputs(4, 5)(i), torch.ones(5 + i % 2, 5)), calls=12)


def test_errors_of_the_program() -> None:
    def make() -> Twin:
        log = Log()

        def checked(x: torch.Tensor) -> torch.Tensor:
            log.append(x.shape[0])
            if x.shape[0] > 4:
                raise ValueError(f"{x.shape[0]} rows")
            return x

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            y = checked(y) + 1
            return after(y) * 2

        return Twin(program, lambda: list(log))

    compare(make, lambda i: inputs(3 + i % 3, 5)(i), calls=14)


def test_no_grad_and_autocast_around() -> None:
    def make() -> Twin:
        torch.manual_seed(0)
        log = Log()
        linear = torch.nn.Linear(8, 8)

        def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
            with torch.no_grad():
                y = before(linear(x)) * 2
                log.append(torch.is_grad_enabled())
                y = after(linear(y)) + 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = linear(y).relu() + linear(y).sin()
                log.append(str(z.dtype))
                z = linear(z).cos() + linear(z)
            return y, z.float() * 0, z.requires_grad

        return Twin(program, lambda: list(log))

    assert compiled_pieces(compare(make, inputs(4, 8))) >= 3


def test_tensors_and_lists_change_between_pieces() -> None:
    def make() -> Twin:
        log = Log()
        weights = torch.ones(5)
        settings = {"scale": 1.0}

        def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = before(x) * weights
            y += 1
            view = y[1:]
            log.append(len(log))
            view.mul_(2)
            weights.add_(0.5).remainder_(3)
            settings["scale"] = float(len(log) % 5)
            z = (y + view.sum() * 0.01).sin() * weights * settings["scale"]
            log.append(-1)
            y[0] = z[0] * 2
            return after(y) + z, view

        return Twin(program, lambda: (log, weights, settings))

    compare(make, inputs(4, 5), calls=12)


def test_objects_keep_their_identity() -> None:
    def make() -> Twin:
        log = Log()
        shared: dict[str, list[float]] = {"values": []}

        def program(x: torch.Tensor, batch: dict[str, Any]) -> tuple[Any, ...]:
            values = shared["values"]
            first = [before(x), after(x)]
            second = first
            kept = batch["list"]
            y = (first[0] + second[1]).sin() * 2 + x.cos()
            log.append(1)
            values.append(y.sum().item())
            second.append(y)
            kept.append(3)
            return len(first), first is second, kept is batch["list"], after(y) + first[-1]

        return Twin(program, lambda: (log, shared))

    compare(make, lambda i: (*inputs(4, 5)(i), {"list": [1, 2]}), calls=8)


class Total:
    def __init__(self) -> None:
        self.value = 0


def test_objects_made_by_pieces_are_new_each_time() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> tuple[torch.Tensor, int, list[int]]:
            total, empty = Total(), list[int]()
            y = before(x) + after(x)
            log.append(1)
            total.value += 1
            empty.append(total.value)
            return before(y) * 2, total.value, empty

        return Twin(program, lambda: list(log))

    compare(make, inputs(4, 5), calls=8)


def test_recursion() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor, depth: int) -> torch.Tensor:
            y = before(x) * 0.5
            log.append(depth)
            if depth:
                y = program(y, depth - 1) + y
            return after(y) * 0.5 + x

        return Twin(program, lambda: list(log))

    compare(make, lambda i: (*inputs(4, 5)(i), 3), calls=8)


def test_early_returns_closures_and_defaults() -> None:
    def make() -> Twin:
        log = Log()
        factor = 2.0

        def program(x: torch.Tensor, *more: torch.Tensor, mode: str = "a", **rest: Any) -> Any:
            """With a docstring."""
            nonlocal factor
            y = before(x) * factor
            if more:
                y = y + more[0]
            factor = 3.0 - factor
            log.append(len(more))
            if mode == "a" and y.shape[0] > 3:
                return after(y) * 2
            scaled = [v * factor for v in (y, y + 1)]
            return {"y": after(scaled[0]) + scaled[1], "rest": sorted(rest)}

        def call(x: torch.Tensor, i: int) -> Any:
            match i % 3:
                case 0:
                    return program(x)
                case 1:
                    return program(x, x * 2, mode="b")
                case _:
                    return program(x, mode="b", extra=1)

        return Twin(call, lambda: (log, factor))

    compare(make, lambda i: (*inputs(2 + i % 4, 5)(i), i), calls=20)


def test_decorated_functions() -> None:
    def make() -> Twin:
        log = Log()

        def noting(fn: Any) -> Any:
            @functools.wraps(fn)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                log.append(fn.__name__)
                return fn(*args, **kwargs)

            return wrapper

        @noting
        def one(x: torch.Tensor) -> torch.Tensor:
            return before(x) + 1

        @torch.no_grad()
        @noting
        def two(x: torch.Tensor) -> torch.Tensor:
            return after(x) + 1

        def program(x: torch.Tensor) -> torch.Tensor:
            y = one(x) * 2
            return two(y) + one(y)

        return Twin(program, lambda: list(log))

    compiled = compare(make, inputs(4, 5))
    assert compiled_pieces(compiled) == 2


def test_threads() -> None:
    lock, log = threading.Lock(), Log()
    linear = torch.nn.Linear(6, 6).requires_grad_(False)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(linear(x))
        with lock:
            log.append(1)
        return after(linear(y)) * 2

    compiled = smelt.compile(program)
    failures: list[str] = []

    def work(seed: int) -> None:
        for i in range(12):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * seed + i))
            with torch.no_grad():
                found = compiled(x)
                expected = after(linear(before(linear(x)))) * 2
            if not torch.allclose(found, expected, atol=1e-5):
                failures.append(f"{seed} {i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    with pytest.warns(smelt.SmeltWarning):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(4):
            compiled(torch.randn(4, 6))
    assert not failures and len(log) == 4 * 12 + 4
    assert compiled_pieces(compiled) == 2


def test_nothing_of_the_users_changes() -> None:
    log = Log()
    tower = Tower(log).requires_grad_(False)
    functions = (Tower.forward, Layer.forward, Inner.forward)
    codes = [f.__code__ for f in functions]
    before_ = [(id(m), type(m), sorted(vars(m))) for m in tower.modules()]
    compiled = smelt.compile(tower)
    with pytest.warns(smelt.SmeltWarning, match="compiled as partitions"):
        for _ in range(6):
            compiled(torch.randn(4, 6))
    assert compiled_pieces(compiled) > 0
    assert [(id(m), type(m), sorted(vars(m))) for m in tower.modules()] == before_
    assert [f.__code__ for f in functions] == codes
    assert sys.getprofile() is None


def test_a_function_that_is_replaced_is_seen() -> None:
    def make() -> Twin:
        log = Log()
        torch.manual_seed(0)
        layer = Layer(log)
        return Twin(lambda x, i: _replacing(layer, log, x, i), lambda: list(log))

    compare(make, lambda i: (*inputs(4, 6)(i), i), calls=14)


def _replacing(layer: Layer, log: Log, x: torch.Tensor, i: int) -> torch.Tensor:
    log.append(i)
    if i == 8:
        layer.inner.forward = lambda x: x.sin() * 7 + x.cos() + 1  # type: ignore[method-assign]
    y = layer(x)
    return y * 2


def test_arguments_of_other_kinds() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor, scale: Any) -> torch.Tensor:
            y = before(x) * scale
            log.append(y.dim())
            return after(y) + 1

        return Twin(program, lambda: list(log))

    kinds = [2, 2.5, torch.tensor(3.0), 2, 2.5, torch.tensor([1.0, 2.0]), 4]
    dtypes = (torch.float32, torch.float64)
    compare(make, lambda i: (torch.ones(1 + i % 3, 2, dtype=dtypes[i % 2]), kinds[i % 7]), calls=28)
    compare(make, all_of((torch.zeros(0, 2), 1)))
    compare(make, all_of((torch.tensor(float("nan")), 1)))


def test_branches_on_data_inside_a_piece_are_one_graph() -> None:
    def make() -> Twin:
        log = Log()
        torch.manual_seed(0)
        linear = torch.nn.Linear(5, 5)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(5))

        def program(x: torch.Tensor) -> torch.Tensor:
            log.append(1)
            y = before(linear(x))
            if y.sum() > 0:
                y = after(y) + 1
            else:
                y = before(y) * 2
            while y.sum() > 10:
                y = y * 0.5
            return y * 2

        return Twin(program, lambda: list(log))

    compiled = compare(make, inputs(4, 5), calls=12)
    (piece,) = splits_of(compiled).running()
    (row,) = [row for row in piece.stats().rows if row.entry is not None]
    assert row.paths is None and row.hits >= 5


def test_a_piece_that_gives_numbers_of_data() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x) + after(x)
            n = int(y.argmax()) % 3 + 1
            log.append(n)
            return after(y)[:n] * n + before(y[:n])

        return Twin(program, lambda: list(log))

    compare(make, inputs(4, 5), calls=24)


class Wider(Layer):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        y = super().forward(x, scale=scale * 0.5)
        self.inner.log.append(-1)
        return before(y) + after(x) * 0.1


def test_inheritance() -> None:
    def make() -> Twin:
        torch.manual_seed(0)
        log = Log()
        layers = torch.nn.ModuleList([Wider(log), Wider(log)])

        def program(x: torch.Tensor) -> torch.Tensor:
            for layer in layers:
                x = layer(x)
            return x

        return Twin(program, lambda: list(log))

    assert compiled_pieces(compare(make, inputs(4, 6))) >= 8


def test_refresh_reaches_the_pieces() -> None:
    log = Log()
    linear = torch.nn.Linear(6, 6).requires_grad_(False)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(linear(x)) + 1
        log.append(1)
        return after(linear(y))

    compiled = smelt.compile(program)
    x = torch.randn(4, 6)
    with pytest.warns(smelt.SmeltWarning):
        for _ in range(5):
            compiled(x)
    linear.weight.data.mul_(3)
    compiled.refresh()
    torch.testing.assert_close(compiled(x), program(x), rtol=1e-5, atol=1e-5)
    assert compiled_pieces(compiled) == 2


def test_modules_made_at_each_call() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            layer = Inner(log)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.fill_(0.1)
            return before(layer(x)) + after(x)

        return Twin(program, lambda: list(log))

    compare(make, inputs(4, 6), calls=9)


def test_many_kinds_of_calls_are_not_recorded_one_by_one() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x) * 2
            log.append(len(log))
            return after(y) + 1

        return Twin(program, lambda: list(log))

    compiled = compare(make, lambda i: inputs(2 + i, 5)(i), calls=14)
    assert compiled.stats().builds <= 5
    assert compiled_pieces(compiled) == 2
