"""What is slower than eager mode is left within ten calls, and builds take what the calls are worth."""

from __future__ import annotations

import dataclasses
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import smelt
from smelt._torch.library import shim
from smelt.compiler.build import build
from smelt.compiler.deciding import ledger as module
from smelt.compiler.deciding.ledger import AHEAD, FLOOR_S, FREE_BUILDS, MEASURED, SERVED, STOPPED, Ledger
from smelt.compiler.deciding.trial import BLOCK, BLOCKS, PAIRS, Trial
from smelt.compiler.deciding.worth import LITTLE, MARGIN
from smelt.compiler.object.compiled import dispatcher_of, make_compile
from smelt.compiler.object.compiled_dispatch import LOST, RESTING
from smelt.compiler.object.compiled_types import Unrepeated
from smelt.compiler.split.splitting import split_program
from smelt.compiler.training.trainable import Trainable
from smelt.runtime.entering.entry import NAME

DECIDED = 10  # calls, that of the build among them
pytestmark = [
    pytest.mark.usefixtures("adaptive", "_without_gradients"),
    pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning"),
]


@pytest.fixture
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


class Clock:
    """A clock that only builds and calls move. log: which calls ran, "e" eager and "c" compiled ones; builds: how many
    there were, of pieces, too.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.log = ""
        self.builds = 0

    def __call__(self) -> float:
        return self.now

    def timed(self, run: Callable[..., Any], seconds: float, letter: str) -> Callable[..., Any]:
        """The same, taking so long."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            self.log += letter
            return run(*args, **kwargs)

        return timed

    def compile(self, f: Any, *, build_s: float, eager_s: float, call_s: float = 0.0, **kwargs: Any) -> Any:
        """A compiled object whose builds, eager calls and compiled calls take so long."""

        def timed_build(*args: Any) -> Any:
            try:
                entry = build(*args)
            except Unrepeated:  # it has recorded a run, which takes its time, too
                self.builds += 1
                self.now += build_s
                raise
            self.builds += 1
            self.now += build_s
            entry.run = self.timed(entry.run, call_s, "c")
            return entry

        c = make_compile(timed_build, split=split_program)(f, **kwargs)
        dispatcher = dispatcher_of(c)
        dispatcher.target = dispatcher._original.target = self.timed(dispatcher.target, eager_s, "e")
        return c


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "clock", made)
    return made


X = torch.linspace(-1, 1, 6)


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * x


# ---------------------------------------------------------------- what is slower


class Quantizer(torch.nn.Module):
    """As VectorQuantize has it: the nearest of some vectors, and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.codebook = torch.nn.Parameter(torch.randn(16, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.cdist(x, self.codebook).argmin(-1)
        return self.codebook[found], found


@pytest.mark.parametrize("factor", [2.01, 8.0, MARGIN * 1.01])
def test_what_is_slower_is_left_within_ten_calls(clock: Clock, factor: float) -> None:
    model, x = Quantizer().eval(), torch.randn(5, 6)
    with shim.hidden(NAME):
        c = clock.compile(model, build_s=0.1, eager_s=1e-3, call_s=factor * 1e-3)
        for _ in range(DECIDED + RESTING + 5):
            for found, expected in zip(c(x), model(x), strict=True):
                assert torch.equal(found, expected)
    assert clock.log[: DECIDED - 1] == "cececece" + "c"
    assert set(clock.log[DECIDED - 1 :]) == {"e"}
    stats = c.stats()
    assert stats.builds == 1 and stats.rows[0].entry is None
    assert stats.fallbacks == {LOST: RESTING + 5}
    assert "1.000 ms in eager mode" in str(stats) and "1.000 ms in eager mode" in str(smelt.explain(c))


@pytest.mark.parametrize(
    ("factor", "eager_s", "eager_calls"),
    [(0.499, 1e-3, 2), (0.9, 1e-2, PAIRS), (0.9, 1e-3, PAIRS + BLOCKS * BLOCK // 2)],
)
def test_what_is_faster_stays(clock: Clock, factor: float, eager_s: float, eager_calls: int) -> None:
    with shim.hidden(NAME):
        c = clock.compile(plain, build_s=0.1, eager_s=eager_s, call_s=factor * eager_s)
        for _ in range(200):
            torch.testing.assert_close(c(X), plain(X))
    assert clock.log.count("e") == eager_calls and clock.log.endswith("c" * 150)
    assert c.stats().fallbacks == {} and c.stats().calls == 200 and c.stats().rows[0].hits == 199


@pytest.mark.parametrize(("factor", "is_lost"), [(LITTLE * 0.99, False), (LITTLE * 1.01, True)])
def test_a_little_slower_is_found_out_by_blocks(clock: Clock, factor: float, is_lost: bool) -> None:
    with shim.hidden(NAME):
        c = clock.compile(plain, build_s=0.1, eager_s=1e-3, call_s=factor * 1e-3)
        for _ in range(1 + 1 + 2 * PAIRS + BLOCK * BLOCKS):
            c(X)
    assert (c.stats().rows[0].entry is None) == is_lost
    assert clock.log[9:17] == "eeeecccc"


def test_calls_are_native_once_it_is_known(clock: Clock) -> None:
    c = smelt.compile(plain)
    dispatcher = dispatcher_of(c)
    dispatcher._original.target = clock.timed(plain, 1.0, "e")  # nothing else takes time
    for _ in range(20):
        torch.testing.assert_close(c(X), plain(X))
    assert clock.log == "ee"
    # Of the measured calls all but the first were native, and so are all since.
    assert dispatcher.counters.calls == 20 - 1 - 2 - 1
    assert c.stats().calls == 20 and c.stats().rows[0].hits == 19


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.total += x
        return self.total * self.calls


@pytest.mark.parametrize("factor", [0.9, 3.0])
def test_no_call_is_run_twice(clock: Clock, factor: float) -> None:
    model, plain_model = Counter(), Counter()
    with shim.hidden(NAME):
        c = clock.compile(model, build_s=1e-3, eager_s=1.0, call_s=factor)
        for n in range(1, 30):
            torch.testing.assert_close(c(X), plain_model(X))
            assert model.calls == n
    assert c.stats().calls == 29 and (LOST in c.stats().fallbacks) == (factor > 1)


def ways(x: torch.Tensor) -> torch.Tensor:
    return x * len(set(x.tolist())) if x.sum() > 0 else x - len(set(x.tolist()))


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_paths_are_compared_together(clock: Clock, factor: float) -> None:
    inputs = [torch.ones(4), -torch.ones(4)]
    with shim.hidden(NAME):
        c = clock.compile(ways, build_s=1e-3, eager_s=1.0, call_s=factor)
        for n in range(40):
            torch.testing.assert_close(c(inputs[n // 2 % 2]), ways(inputs[n // 2 % 2]))
    entries = [row.entry for row in c.stats().rows]
    assert all((entry is None) == (factor > 1) for entry in entries)
    assert clock.log[12:] == ("e" if factor > 1 else "c") * len(clock.log[12:])


def test_a_call_that_raises_is_no_measure() -> None:
    clock, trial = Clock(), Trial(Ledger(lambda: 0))
    trial._ledger.clock = clock

    def fails() -> None:
        clock.now += 100.0
        raise ValueError("no")

    for n in range(80):
        seconds = 2.0 if trial.is_eagers_turn else 1.0
        if n % 3 == 1:
            with pytest.raises(ValueError, match="no"):
                trial.run(fails, (), {})
        else:
            trial.run(clock.timed(lambda: None, seconds, ""), (), {})
    assert trial.is_over and not trial.is_lost


# ---------------------------------------------------------------- what builds may take


class Label:
    text = "0"


LABEL = Label()


def labelled(x: torch.Tensor) -> torch.Tensor:
    return x * len(LABEL.text)


def _call_labelled(c: Any, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        LABEL.text = str(n) * 3
        torch.testing.assert_close(c(X), X * len(LABEL.text))


@pytest.mark.parametrize("options", [{}, {"adaptive": False}, {"strict": True}, {"deterministic": True}])
def test_a_program_whose_calls_change_each_time_is_not_built_for_ever(clock: Clock, options: Any) -> None:
    c = clock.compile(labelled, build_s=0.2, eager_s=1e-5, options=options)
    _call_labelled(c, 12)
    if options:
        assert c.stats().builds == 12
        return
    # Three whatever they take.
    assert c.stats().builds == 3 and clock.log.count("e") == 9
    assert c.stats().fallbacks == {MEASURED: 1, STOPPED: 8}
    assert "3 builds took 0.60 s" in str(c.stats()) and "3 builds took 0.60 s" in str(smelt.explain(c))


def test_more_is_built_as_calls_accrue(clock: Clock) -> None:
    build_s, eager_s = 1.0, 2e-3
    c = clock.compile(labelled, build_s=build_s, eager_s=eager_s)
    for n in range(8):
        _call_labelled(c, 250, start=250 * n)
        calls = 250 * (n + 1)
        assert c.stats().builds <= max(FREE_BUILDS, 1 + (FLOOR_S + eager_s * (AHEAD + calls)) / build_s)
    assert FREE_BUILDS < c.stats().builds <= 5


def test_what_serves_calls_is_built_whatever_it_takes(clock: Clock) -> None:
    c = clock.compile(labelled, build_s=10.0, eager_s=1e-5)
    for n in range(6):
        LABEL.text = str(n) * 3
        for _ in range(SERVED + 1):
            c(X)
    assert c.stats().builds == 6


def test_what_is_asked_for_is_built_whatever_it_takes(clock: Clock) -> None:
    c = clock.compile(labelled, build_s=10.0, eager_s=1e-5)
    for n in range(6):
        LABEL.text = str(n) * 3
        c.warmup(X)
    assert c.stats().builds == 6 and "e" not in clock.log


def test_a_stopped_program_is_told_of_once(clock: Clock) -> None:
    c = clock.compile(labelled, build_s=0.5, eager_s=1e-5)
    with pytest.warns(smelt.SmeltWarning, match="falls back to eager where it is not compiled yet.*LABEL.text") as told:
        _call_labelled(c, 20)
    assert len(told) == 1 and 'options={"adaptive": False}' in str(told[0].message)


class Watched:
    """As TensorDict has it: an object made for each call, which keeps weak references."""

    def __init__(self, **items: torch.Tensor) -> None:
        self.items = items
        self.owners: list[Any] = []


class Writes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, box: Watched) -> Watched:
        box.owners = [weakref.ref(box)]
        box.items["out"] = self.linear(box.items["x"])
        return box


def test_new_objects_at_each_call(clock: Clock) -> None:
    model = Writes().eval()
    c = clock.compile(model, build_s=0.8, eager_s=4e-5)
    for _ in range(100):
        box = c(Watched(x=X))
        assert torch.equal(box.items["out"], model.linear(X)) and box.owners[0]() is box
    assert clock.builds == FREE_BUILDS and c.stats().calls == 100


@dataclasses.dataclass
class Output:
    prev_sample: torch.Tensor


class Scheduler:
    """As diffusers has it: times, a list of sigmas, the place in it, and the outputs of the last steps."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.set_timesteps(4)

    def set_timesteps(self, steps: int) -> None:
        self.timesteps = torch.linspace(999, 0, steps)
        self.sigmas = [0.5 * (i + 1) for i in range(steps, -1, -1)]
        self.step_index: int | None = None
        self.outputs: list[torch.Tensor | None] = [None, None]

    def scale_model_input(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        if self.step_index is None:
            self.step_index = int((self.timesteps == timestep).nonzero()[0])
        return sample / (self.sigmas[self.step_index] ** 2 + 1) ** 0.5

    def step(self, output: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor) -> Output:
        assert self.step_index is not None
        sigma, following = self.sigmas[self.step_index], self.sigmas[self.step_index + 1]
        derivative = (sample - (sample - sigma * output)) / sigma
        self.log.write(f"{self.step_index} {sigma}\n")
        if self.outputs[-1] is not None:
            derivative = 1.5 * derivative - 0.5 * self.outputs[-1]
        self.outputs = [self.outputs[-1], derivative]
        self.step_index += 1
        return Output(sample + derivative * (following - sigma))


def _loop(scheduler: Scheduler, model: Any) -> Any:
    def sample(x: torch.Tensor, steps: int) -> torch.Tensor:
        scheduler.set_timesteps(steps)
        for timestep in scheduler.timesteps:
            output = model(scheduler.scale_model_input(x, timestep))
            x = scheduler.step(output, timestep, x).prev_sample
        return x

    return sample


def test_pieces_of_a_scheduler_loop(clock: Clock) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.SiLU())
    build_s, eager_s = 0.16, 3e-3
    c = clock.compile(_loop(Scheduler(), model), build_s=build_s, eager_s=eager_s)
    plain_loop = _loop(Scheduler(), model)
    for calls in range(1, 41):
        steps = 3 + calls % 3
        torch.testing.assert_close(c(X, steps), plain_loop(X, steps))
        # One may have begun just within what the calls are worth.
        assert build_s * (clock.builds - 1) <= FLOOR_S + eager_s * (AHEAD + calls)
    assert c.stats().fallbacks[MEASURED] == 1


def sized(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(x)[1].abs() + x.shape[0]


def test_alternating_sizes(clock: Clock) -> None:
    c = clock.compile(sized, build_s=0.4, eager_s=1e-4)
    for n in range(40):
        x = torch.eye(3 + n % 2) + 1
        torch.testing.assert_close(c(x), sized(x))
    assert clock.builds == 2 and STOPPED not in c.stats().fallbacks


def test_stagings_take_their_time_from_the_same_account(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    staging_s = Ledger.staging_s

    def noted(self: Ledger, recorded_s: float) -> float:
        given.append(staging_s(self, 0.0))
        return given[-1]

    monkeypatch.setattr(Ledger, "staging_s", noted)
    c = clock.compile(ways, build_s=0.5, eager_s=0.1)
    for dtype in (torch.float32, torch.float32, torch.float32, torch.float64):
        c(torch.ones(4, dtype=dtype))
    # Of the first build nobody knows yet what a call takes.
    assert given == [module.STAGING_S, pytest.approx(FLOOR_S + 0.1 * (AHEAD + 4) - 0.5)]


def test_nothing_keeps_a_compiled_object_alive() -> None:
    c = smelt.compile(plain)
    for _ in range(4):  # in the midst of the comparison
        c(X)
    dispatcher = weakref.ref(dispatcher_of(c))
    del c
    assert dispatcher() is None


@pytest.mark.parametrize(
    ("forward", "backward", "is_lost"),
    [((3.0, 1.0), (1.0, 9.0), False), ((1.0, 3.0), (9.0, 1.0), True), ((1.0, 9.0), (1.0, 1.0), False)],
)
def test_with_gradients_the_way_back_counts(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, forward: Any, backward: Any, is_lost: bool
) -> None:
    """Times are compiled and eager ones; what is before the program, or behind it, is nobody's."""

    def way_back(seconds: float) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            clock.now += seconds

        return hook

    run_backward = Trainable.run_backward

    def slowly(self: Any, *args: Any) -> Any:
        clock.now += backward[0]
        return run_backward(self, *args)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    monkeypatch.setattr(Trainable, "run_backward", slowly)
    c = clock.compile(program, build_s=0.1, eager_s=forward[1], call_s=forward[0])
    dispatcher = dispatcher_of(c)
    eager = dispatcher._original.target

    def eagerly(*args: Any, **kwargs: Any) -> Any:
        result = eager(*args, **kwargs)
        if result.grad_fn is not None:
            result.grad_fn.register_hook(way_back(backward[1]))
        return result

    dispatcher.target = dispatcher._original.target = eagerly
    with torch.enable_grad():
        for _ in range(2 * DECIDED):
            leaf = torch.ones(3, requires_grad=True)
            before = leaf * 2
            before.grad_fn.register_hook(way_back(100.0))
            after = c(before) * 2
            after.grad_fn.register_hook(way_back(100.0))
            after.sum().backward()
            assert leaf.grad is not None
    assert [row.entry is None for row in dispatcher._table.rows] == [is_lost]
    assert clock.log[-1] == ("e" if is_lost else "c")


def test_with_gradients_a_call_that_nobody_goes_back_from_is_judged(clock: Clock) -> None:
    c = clock.compile(torch.sin, build_s=0.1, eager_s=1.0, call_s=3.0)
    kept = []
    with torch.enable_grad():
        for i in range(2 * DECIDED):
            result = c(torch.ones(3, requires_grad=True))
            kept = [*kept, result] if i < DECIDED else []  # somebody may still go back from those that are held
            assert i > DECIDED or all(row.entry is not None for row in dispatcher_of(c)._table.rows)
    assert [row.entry is None for row in dispatcher_of(c)._table.rows] == [True]


def test_a_checkpoint_runs_twice_what_it_ran_first(clock: Clock) -> None:
    """No comparison changes between eager and compiled calls in it."""
    net = torch.nn.Linear(3, 3)
    c = clock.compile(net, build_s=0.1, eager_s=1.0, call_s=0.9)
    with torch.enable_grad():
        for i in range(2 * DECIDED):
            x = torch.ones(2, 3, requires_grad=True)
            result = c(x) if i < 2 else checkpoint(c, x, use_reentrant=False)
            result.sum().backward()
    assert clock.log[-8:] == "c" * 8
