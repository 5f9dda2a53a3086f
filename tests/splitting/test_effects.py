"""Each kind of effect in the middle of a program: it happens at every call, and what stands around it is compiled."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import types
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from tests.splitting.log import Log
from tests.splitting.twins import Twin, breaks, compare, compiled_pieces, inputs, is_whole, splits_of


def before(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2 + x
    return (y.cos() + y).tanh() * 3


def after(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().exp() * 0.1 + x.sigmoid()).relu() * 2 - 1


def test_an_outer_Log() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x) * 2
            log.append(y.sum().item())
            return after(y) + 1

        return Twin(program, lambda: list(log))

    compiled = compare(make, inputs(4, 5))
    assert compiled_pieces(compiled) == 2
    assert "it changes" in breaks(compiled) and "log" in breaks(compiled)


def test_a_counter_on_self() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.linear = torch.nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = before(self.linear(x))
            self.calls += 1
            return after(y) * 2

    def make() -> Twin:
        torch.manual_seed(0)
        model = Model()
        return Twin(model, lambda: (model.calls, sorted(vars(model)), type(model).__name__, list(model.state_dict())))

    assert is_whole(compare(make, inputs(4, 5)))


def test_a_cache() -> None:
    def make() -> Twin:
        cache: dict[Any, torch.Tensor] = {}

        def scale(n: int, x: torch.Tensor) -> torch.Tensor:
            if n not in cache:
                cache[n] = before(x.new_ones(n)) * n
            return cache[n]

        def program(x: torch.Tensor, n: int) -> torch.Tensor:
            y = before(x) + scale(n, x)
            return after(y) / 2

        return Twin(program, lambda: cache)

    compare(make, lambda i: (torch.randn(3, 5 + i, generator=torch.Generator().manual_seed(i)), 5 + i), calls=9)


def test_a_global() -> None:
    def make() -> Twin:
        space: dict[str, Any] = {"before": before, "after": after, "__name__": __name__}
        namespace = types.ModuleType("counted")
        namespace.__dict__.update(space)
        program = types.FunctionType(_counting.__code__, namespace.__dict__, "_counting")
        namespace.__dict__["seen"] = 0
        return Twin(program, lambda: namespace.__dict__["seen"])

    assert is_whole(compare(make, inputs(4, 5)))


def _counting(x: torch.Tensor) -> torch.Tensor:
    global seen
    y = before(x)
    seen = seen + y.shape[0]  # type: ignore[name-defined]
    return after(y)


def test_random_numbers_of_numpy() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x) + 1
        z = y * float(np.random.rand(2)[0])
        return after(z) + 1

    compiled = compare(lambda: Twin(program), inputs(4, 5))
    assert compiled_pieces(compiled) == 2
    assert "random numbers" in breaks(compiled)


def test_random_numbers_of_python_and_torch() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x) + torch.rand(5)
        if random.randbytes(1)[0] < 128:
            y = y * 2
        return after(y) + torch.randn_like(y)

    assert compiled_pieces(compare(lambda: Twin(program), inputs(4, 5), calls=12)) == 2


def test_the_clock() -> None:
    def make() -> Twin:
        taken: list[bool] = []

        def program(x: torch.Tensor) -> torch.Tensor:
            start = time.time()
            y = before(x)
            z = after(y)
            taken.append(time.time() >= start)
            return z * 2 + y.sum()

        return Twin(program, lambda: taken)

    compiled = compare(make, inputs(4, 5))
    assert compiled_pieces(compiled) == 2
    assert "reads the clock" in breaks(compiled)


def test_an_open_file(tmp_path: Any) -> None:
    def make() -> Twin:
        path = tmp_path / f"{random.getrandbits(64)}"
        path.write_text("")

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            with open(path, "a") as file:
                file.write(f"{y.shape}\n")
                z = after(y) + 1
            return z.sum(1) * 2 + os.path.getsize(path)

        return Twin(program, path.read_text)

    assert compiled_pieces(compare(make, inputs(4, 5))) >= 2


def test_logging() -> None:
    def make() -> Twin:
        records: list[tuple[str, int, str]] = []

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                records.append((record.getMessage(), record.lineno, record.funcName))

        logger = logging.Logger("splitting")
        logger.addHandler(Handler())

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            logger.warning("seen %s", tuple(y.shape))
            return after(y)

        return Twin(program, lambda: records)

    compiled = compare(make, inputs(4, 5))
    assert compiled_pieces(compiled) == 2
    assert "logs a message" in breaks(compiled)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_messages_that_are_wanted_only_later() -> None:
    told: list[str] = []
    logger = logging.getLogger("splitting.late")
    logger.filter = lambda record: told.append(record.getMessage())  # type: ignore[assignment,method-assign,return-value]

    def program(x: torch.Tensor) -> torch.Tensor:
        logger.debug("seen %s", tuple(x.shape))
        return before(x)

    compiled = smelt.compile(program)
    with torch.no_grad():
        for level, count in ((logging.WARNING, 0), (logging.DEBUG, 3), (logging.WARNING, 3)):
            logger.setLevel(level)
            for _ in range(3):
                torch.testing.assert_close(compiled(torch.ones(4, 5)), before(torch.ones(4, 5)))
            assert len(told) == count


def test_state_that_cannot_be_watched() -> None:
    def make() -> Twin:
        local = threading.local()
        local.seen = 0

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            local.seen += 1
            return after(y)

        return Twin(program, lambda: local.seen)

    assert compiled_pieces(compare(make, inputs(4, 5))) == 2


def test_numpy_in_the_middle() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x)
        z = torch.from_numpy(np.fft.fft(y.numpy()).real.astype(np.float32))
        return after(z) + 1

    assert compiled_pieces(compare(lambda: Twin(program), inputs(80, 64))) == 2


def round_trip(x: torch.Tensor) -> torch.Tensor:
    y = before(x)
    z = torch.from_numpy(y.numpy() * 2)
    return after(z) + 1


def copied_round_trip(x: torch.Tensor) -> torch.Tensor:
    y = before(x)
    z = torch.tensor(np.asarray(y) * 2)
    return after(z) + 1


@pytest.mark.parametrize("program", [round_trip, copied_round_trip], ids=lambda f: f.__name__)
def test_small_arrays_of_numpy_that_become_tensors_again(program: Any) -> None:
    line = program.__code__.co_firstlineno + 2
    compiled = compare(lambda: Twin(program), inputs(4, 5))
    assert compiled_pieces(compiled) == 2
    assert compiled.stats().builds == 1
    (told,) = [row for row in smelt.explain(compiled).breaks if "where" in row]
    assert "through NumPy" in str(told["why"]) and str(told["where"]).endswith(f":{line} in {program.__name__}")
    with pytest.raises(smelt.CaptureError, match="an array becomes a tensor again") as caught:
        smelt.compile(program, fullgraph=True)(*inputs(4, 5)(0))
    assert caught.value.where is not None and caught.value.where.line == line
    assert caught.value.why and caught.value.fix


def test_state_written_at_each_call() -> None:
    class Cell(torch.nn.Module):
        state: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            state = self.state
            if state is None:
                state = torch.zeros_like(y)
            new = (y + state).tanh() * 0.5 + y.sin()
            self.state = new
            return after(new) + y

    def make() -> Twin:
        cell = Cell()
        return Twin(cell, lambda: cell.state)

    assert is_whole(compare(make, inputs(4, 5), calls=12))


def test_backward_in_the_middle() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x)
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            loss = (leaf * leaf).sum()
            loss.backward()
        assert leaf.grad is not None
        return after(leaf.grad) + 1

    compare(lambda: Twin(program), inputs(4, 5))


def test_the_debugger_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    stops: list[tuple[str, int, Any]] = []

    def hook() -> None:
        frame = sys._getframe(1)
        stops.append((frame.f_code.co_name, frame.f_lineno, sorted(n for n in frame.f_locals if "smelt" not in n)))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    def make() -> Twin:
        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            z = after(y) * 2
            breakpoint()
            return before(z) + 1

        return Twin(program)

    compiled = compare(make, inputs(4, 5))
    assert len(stops) == 14 and set(map(str, stops)) == {str(stops[0])}
    assert stops[0][2] == ["x", "y", "z"]
    assert compiled_pieces(compiled) == 2
    assert "stops in the debugger" in breaks(compiled)


def test_a_hook_that_keeps_activations() -> None:
    def make() -> Twin:
        torch.manual_seed(0)
        kept = Log()
        model = torch.nn.Sequential(
            torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Tanh(),
            torch.nn.Linear(8, 5), torch.nn.Softmax(-1),
        )  # fmt: skip

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = model[:3], model[3:]

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.second(self.first(x)) * 2

        outer = Model()
        outer.first.register_forward_hook(lambda module, args, output: kept.append(output.abs().sum()))
        return Twin(outer, lambda: list(kept))

    compiled = compare(make, inputs(4, 5))
    assert compiled_pieces(compiled) >= 2


def test_too_small_to_pay() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            log.append(1)
            z = y * 2
            log.append(2)
            return z - 1

        return Twin(program, lambda: list(log))

    compiled = compare(make, inputs(4, 5), calls=14)
    assert compiled_pieces(compiled) == 0
    assert splits_of(compiled).is_idle


def test_a_value_that_differs_at_each_call() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0.0
            self.steps = Log(maxlen=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            self.step += 1
            self.steps.append(self.step)
            z = y * self.step
            return after(z) * 2

    def make() -> Twin:
        model = Model()
        return Twin(model, lambda: model.step)

    compiled = compare(make, inputs(4, 5), calls=14)
    assert compiled_pieces(compiled) == 2
    assert "self.step differs at each call" in breaks(compiled)
    assert sum(piece.stats().builds for piece in splits_of(compiled).running()) == 2


def test_data_that_lead_another_way_each_time() -> None:
    def make() -> Twin:
        log = Log()

        def program(x: torch.Tensor) -> torch.Tensor:
            y = before(x)
            log.append(1)
            z = after(y) + before(y * 2)
            rows = sorted(x[:, 0].tolist())
            return before(z * (rows[0] * 0.1)) + after(z)

        return Twin(program, lambda: log)

    compiled = compare(make, inputs(4, 5), calls=40)
    assert compiled_pieces(compiled) >= 2
