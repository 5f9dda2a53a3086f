"""The compiled object: forms of decoration, identity of modules, dispatch, fallbacks, threads, errors."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import traceback
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smelt.compiler.object.compiled_table as table
from smelt.compiler.object.compiled import CompiledFunction, make_compile
from smelt.diag import CaptureError, SmeltError, SmeltWarning
from tests.guards.double import Builder, plain_builder

compile = make_compile(plain_builder)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


@compile
def bare(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    """Adds."""
    return x + n


@compile(options={"strict": False})
def with_options(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("b", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.b

    def generate(self, x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = self(x)
        return x


class SlottedNet(Net):
    __slots__ = ("extra",)

    def __init__(self) -> None:
        super().__init__()
        self.extra = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.extra


class Subclassed(Net):
    made = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        Subclassed.made += 1


def test_decorator_forms() -> None:
    x = torch.ones(2)
    assert bare.__name__ == "bare" and bare.__doc__ == "Adds." and bare.__wrapped__(x)[0] == 2
    assert torch.equal(bare(x), x + 1) and torch.equal(bare(x, n=3), x + 3) and torch.equal(with_options(x), x * 2)
    assert compile(bare) is bare
    assert isinstance(compile(functools.partial(plain)), CompiledFunction)
    with pytest.raises(SmeltError, match="not callable"):
        compile(3)
    with pytest.raises(SmeltError, match="no option"):
        compile(plain, options={"speed": 11})


def test_methods_bind() -> None:
    class Thing:
        factor = 3.0

        @compile
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    thing, x = Thing(), torch.ones(2)
    assert torch.equal(thing.scaled(x), x * 3)
    thing.factor = 5.0
    assert torch.equal(thing.scaled(x), x * 5)
    assert torch.equal(Thing().scaled(x), x * 3)


def test_functions_pickle_and_copy() -> None:
    x = torch.ones(2)
    assert pickle.loads(pickle.dumps(bare)) is bare
    again = pickle.loads(pickle.dumps(compile(plain)))
    assert torch.equal(again(x), x * 3)
    assert copy.deepcopy(bare) is bare


def test_a_compiled_module_is_its_class_over_the_same_state() -> None:
    model = Net()
    builder = Builder()
    c = builder.compile(model)
    assert isinstance(c, Net) and repr(c) == repr(model) and c.__dict__ is model.__dict__
    assert list(c.state_dict()) == list(model.state_dict())
    assert [id(p) for p in c.parameters()] == [id(p) for p in model.parameters()]
    assert c.eval() is c and not model.training
    c.note = 1
    assert model.note == 1
    x = torch.randn(2, 4)
    assert torch.equal(c(x), model(x)) and torch.equal(c(x), model(x)) and builder.runs == 1
    c.double()
    assert model.linear.weight.dtype == torch.float64
    assert torch.equal(c(x.double()), model(x.double()))
    handle = c.register_forward_hook(lambda m, a, out: out + 1)
    assert torch.equal(c(x.double()), model(x.double()))
    handle.remove()
    assert builder.compile(c) is c
    assert "smelt" not in "".join(model.__dict__)


def test_methods_that_call_self_run_compiled() -> None:
    builder = Builder()
    model = Net().eval()
    c = builder.compile(model)
    x = torch.randn(2, 4)
    assert torch.equal(c.generate(x, 3), model.generate(x, 3))
    assert builder.runs == 2 and len(builder.entries) == 1


def test_modules_pickle_and_copy() -> None:
    model = Net().eval()
    c = compile(model)
    x = torch.randn(2, 4)
    expected = c(x)
    for again in (pickle.loads(pickle.dumps(c)), copy.deepcopy(c)):
        assert isinstance(again, Net) and torch.equal(again(x), expected)
        again.linear.weight.zero_()
        assert torch.equal(again(x), again.linear.bias + again.b.expand(2, 4))
        assert torch.equal(c(x), expected)


def test_odd_classes() -> None:
    x = torch.randn(2, 4)
    slotted = SlottedNet()
    c = compile(slotted)
    assert c.extra == 2.0
    c.extra = 4.0
    assert slotted.extra == 4.0 and torch.equal(c(x), slotted(x))
    compile(Subclassed())
    assert Subclassed.made == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(4, 4))
        assert torch.equal(compile(scripted)(x), scripted(x))


def test_a_compiled_module_inside_a_compiled_one_is_guarded_too() -> None:
    inner = compile(Net().eval())
    builder = Builder()
    outer = builder.compile(nn.Sequential(inner, nn.ReLU()))
    x = torch.randn(2, 4)
    outer(x)
    outer(x)
    assert builder.runs == 1
    inner.b = torch.zeros(4)
    assert torch.equal(outer(x), torch.relu(inner.linear(x)))


class Pair(NamedTuple):
    a: Any
    b: Any


CALLS: dict[str, tuple[Any, Any]] = {
    "bool for int": (1, True),
    "float for int": (1, 1.0),
    "sign of zero": (0.0, -0.0),
    "nan for one": (1.0, float("nan")),
    "inf": (float("inf"), float("-inf")),
    "complex": (1j, complex(-0.0, 1.0)),
    "text": ("a", "b"),
    "text in braces": ("{a}", "{b}"),
    "none": (None, 0),
    "dtype": (torch.float32, torch.float64),
    "tuple for list": ((1, 2), [1, 2]),
    "length": ([1, 2], [1, 2, 3]),
    "nested": ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2.0}]}),
    "key": ({"a": 1}, {"b": 1}),
    "key in braces": ({"{v}": [1]}, {"{a": [1]}),
    "key type": ({1: 1}, {True: 1}),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "namedtuple": (Pair(1, 2), (1, 2)),
    "slice": (slice(1), slice(2)),
    "set": ({1}, {1.0}),
    "shape": (torch.ones(2), torch.ones(3)),
    "tensor dtype": (torch.ones(2), torch.ones(2, dtype=torch.int32)),
    "stride": (torch.ones(2, 2), torch.ones(2, 2).t()),
    "expanded": (torch.ones(2, 2), torch.ones(1).expand(2, 2)),
    "0-d": (torch.ones(()), torch.ones(1)),
    "tensor for parameter": (torch.ones(2), nn.Parameter(torch.ones(2))),
    "empty": (torch.ones(0), torch.ones(1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_told_apart(name: str) -> None:
    builder = Builder()
    c = builder.compile(lambda x, value: (x + 1, repr(value), type(value)))
    x = torch.ones(2)
    first, second = CALLS[name]
    for value in (first, second, first, second):
        got = c(x, value)
        assert got[1:] == (repr(value), type(value))
    assert len(builder.entries) == 2
    assert builder.runs == 2


def test_a_list_met_again_below_a_key_in_braces_is_the_same_one() -> None:
    def f(x: torch.Tensor, data: dict[str, list[int]]) -> Any:
        return x + 1, data["{a}"] is data["{v}"]

    builder = Builder()
    c, x, one = builder.compile(f), torch.ones(2), [1]
    for data in ({"{a}": one, "{v}": one}, {"{a}": [1], "{v}": [1]}):
        assert c(x, data)[1] is f(x, data)[1]
    assert len(builder.entries) == 2


def test_aliasing_of_arguments_is_guarded() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    builder = Builder()
    c = builder.compile(f)
    base = torch.zeros(8)
    calls = [
        lambda: (torch.zeros(4), torch.zeros(4)),
        lambda: (lambda t: (t, t))(torch.zeros(4)),
        lambda: (lambda b: (b[:4], b[4:]))(torch.zeros(8)),
        lambda: (lambda b: (b[:4], b[2:6]))(torch.zeros(8)),
    ]
    for make in calls * 2:
        assert torch.equal(c(*make()), f(*make()))
    assert len(builder.entries) == 3 and base.sum() == 0
    assert any("aliasing" in text or "alias" in text for text in c.stats().guard_failures)


def test_gradients_run_the_original_where_only_inference_is_compiled() -> None:
    model = Net()
    c = compile(model, options={"train": False})
    x = torch.randn(2, 4)
    with torch.enable_grad():
        c(x).sum().backward()
        c(x)
        assert model.linear.weight.grad is not None
        with pytest.raises(CaptureError, match="gradients"):
            compile(Net(), options={"strict": True, "train": False})(x)
    assert c.stats().builds == 0 and list(c.stats().fallbacks.values()) == [2]
    c(x)
    assert c.stats().builds == 1


def test_a_parameter_that_starts_to_require_grad_is_seen() -> None:
    model = Net().requires_grad_(False)
    builder = Builder()
    c = builder.compile(model, options={"train": False})
    x = torch.randn(2, 4)
    with torch.enable_grad():
        c(x)
        c(x)
        assert builder.runs == 1
        model.linear.weight.requires_grad_()
        assert c(x).requires_grad
    assert list(c.stats().fallbacks.values()) == [1]


def test_foreign_contexts_run_the_original() -> None:
    from torch._subclasses import FakeTensorMode

    builder = Builder()
    c = builder.compile(plain)
    x = torch.ones(2, 3)
    assert torch.equal(torch.vmap(c)(x), x * 3)
    with FakeTensorMode() as mode:
        assert c(mode.from_tensor(x)).shape == (2, 3)
    with torch.device("cpu"):
        assert torch.equal(c(x), x * 3)
    for odd, reason in ((x.to_sparse(), "layout torch.sparse_coo"), (torch.ones(2, dtype=torch.complex64), "complex")):
        with pytest.warns(SmeltWarning, match=f"falls back to eager: an argument .*{reason}") as told:
            assert c(odd).dtype is odd.dtype
        assert [w.filename for w in told] == [__file__]
    assert c(x.to("meta")).is_meta
    assert not builder.entries and sum(c.stats().fallbacks.values()) == 6


def test_a_failing_builder_is_remembered_and_the_program_runs_once_per_call() -> None:
    runs = []

    def f(x: torch.Tensor) -> torch.Tensor:
        runs.append
        return x * 2

    def fail() -> None:
        raise CaptureError("no kernel for it", code="S0303")

    for stage in ("before_run", "after_run"):
        builder = Builder()
        setattr(builder, stage, fail)
        c = builder.compile(f)
        x = torch.ones(2)
        with pytest.warns(SmeltWarning, match="no kernel for it"):
            assert torch.equal(c(x), x * 2)
        assert torch.equal(c(x), x * 2)
        assert c.stats().builds == 1
        strict = Builder()
        setattr(strict, stage, fail)
        with pytest.raises(CaptureError, match="no kernel"):
            strict.compile(f, options={"strict": True})(x)
        with pytest.raises(CaptureError, match="no kernel"):
            strict.compile(f, fullgraph=True)(x)


def test_a_failing_entry_falls_back() -> None:
    builder = Builder()
    c = builder.compile(plain)
    x = torch.ones(2)
    c(x)

    def broken(args: Any, kwargs: Any) -> Any:
        raise SmeltError("native call failed", code="S0401")

    builder.entries[0].run = broken  # type: ignore[method-assign]
    with pytest.warns(SmeltWarning, match="native call failed"):
        assert torch.equal(c(x), x * 3)
    assert torch.equal(c(x), x * 3)


def test_the_programs_own_error_passes_as_in_eager() -> None:
    model = Net()

    def f(x: Any) -> Any:
        return model.missing_name

    c = compile(f)
    lines = []
    for g in (f, c):
        with pytest.raises(AttributeError, match="missing_name") as caught:
            g(torch.ones(2))
        frames = traceback.extract_tb(caught.value.__traceback__)
        lines.append([frame.line for frame in frames if frame.filename == __file__ and frame.name == "f"])
        if g is c:
            inner = frames[[frame.name for frame in frames].index("f") :]
            assert not any("/smelt/" in frame.filename for frame in inner)
    assert lines[0] == lines[1] == [["return model.missing_name"]][0:1] or lines[0] == lines[1]
    assert c.stats().rows == ()
    with pytest.raises(KeyboardInterrupt):
        compile(_interrupted)(torch.ones(1))


def _interrupted(x: Any) -> Any:
    raise KeyboardInterrupt


def test_recursion_and_nesting() -> None:
    inner = compile(plain)

    def outer(x: torch.Tensor, depth: int) -> torch.Tensor:
        return inner(x) if depth == 0 else compiled_outer(x, depth - 1) + 1

    builder = Builder()
    compiled_outer = builder.compile(outer)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled_outer(x, 2), x * 3 + 2)
    assert inner.stats().builds == 0


def test_a_second_thread_runs_the_original_while_the_first_compiles() -> None:
    builder = Builder()
    inside, release = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert release.wait(10)

    builder.before_run = wait
    c = builder.compile(plain)
    x = torch.ones(2)
    results: list[torch.Tensor] = []

    def first() -> None:
        with torch.no_grad():
            results.append(c(x))

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    assert torch.equal(c(x), x * 3)
    release.set()
    thread.join()
    assert torch.equal(results[0], x * 3) and len(builder.entries) == 1
    assert c.stats().fallbacks == {"another thread is compiling it": 1}


def test_many_threads_get_right_answers() -> None:
    c = compile(Net().eval())
    model = c.smelt_target
    xs = [torch.randn(n, 4) for n in range(1, 5)]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for i in range(20):
                x = xs[(seed + i) % len(xs)]
                if not torch.equal(c(x), model(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_background_compilation() -> None:
    builder = Builder()
    started, release = threading.Event(), threading.Event()
    c = builder.compile(plain, background=True)
    x = torch.ones(2)

    import tests.guards.double as double

    original = double.ReplayEntry.finish

    def finish(self: Any) -> None:
        started.set()
        release.wait(10)
        original(self)

    double.ReplayEntry.finish = finish  # type: ignore[method-assign]
    try:
        c(x)
        assert started.wait(10)
        assert torch.equal(c(x), x * 3) and builder.runs == 0
        release.set()
        for _ in range(1000):
            if c.stats().rows[0].is_ready:
                break
            threading.Event().wait(0.005)
        assert torch.equal(c(x), x * 3) and builder.runs == 1
    finally:
        double.ReplayEntry.finish = original  # type: ignore[method-assign]


def test_a_storm_is_bounded_and_named_once() -> None:
    builder = Builder()
    c = builder.compile(lambda x, step: x + step)
    x = torch.ones(2)
    last = table.ENTRY_LIMIT
    with pytest.warns(SmeltWarning, match=rf"value of args\[1\] was {last - 1}, now {last}\.") as caught:
        for step in range(3 * table.STORM_LIMIT):
            assert torch.equal(c(x, step), x + step)
    assert len(caught) == 1
    assert len(builder.entries) == table.STORM_LIMIT and len(c.stats().rows) == table.ENTRY_LIMIT
    assert any("was 0, now 1" in text for text in c.stats().guard_failures)


def test_constants_are_watched_and_refreshed() -> None:
    model = Net().eval()
    builder = Builder()
    builder.constants = (model.linear.weight, model.b)
    c = builder.compile(model)
    x = torch.randn(2, 4)
    c(x)
    c(x)
    assert builder.runs == 1
    model.linear.weight.data.mul_(2)
    assert torch.equal(c(x), model(x)) and len(builder.entries) == 2
    c.refresh()
    assert sum(entry.refreshed for entry in builder.entries) == 2


def test_guards_read_well() -> None:
    model = Net().eval()
    c = compile(model)
    x = torch.randn(2, 4)
    c(x)
    guards = c.stats().rows[0].guards
    texts = [str(guard) for guard in guards.guards]
    assert "args[0]: (2, 4)" in texts
    assert any(text.startswith("Net.linear._parameters") for text in texts)
    assert any(guard.span is not None and guard.span.file == __file__ for guard in guards.guards)
    assert guards.source.startswith("def check(args, kwargs):")
    assert guards.check((x,), {}) is None
    failed = guards.check((x[:1],), {})
    assert failed is not None and guards.explain(failed, (x[:1],), {}) == "shape of args[0] was (2, 4), now (1, 4)"
    assert c.stats().to_dict()["entries"][0]["runs"] == "compiled"
    model.linear.bias = None
    failed = guards.check((x,), {})
    assert failed is not None
    text = guards.explain(failed, (x,), {})
    assert text.startswith("content of Net.linear._parameters was") and "now {'bias': None}" in text


def test_warmup_returns_the_answer() -> None:
    c = compile(Net().eval())
    with torch.enable_grad():
        assert c.warmup(torch.randn(2, 4)).shape == (2, 4)
    assert c.stats().builds == 1
