"""The native entry: its verdicts are those of the Python check, its answers those of the Python way, its leaks none."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import itertools
import pickle
import random
import sys
import threading
import traceback
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import Enum
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt._torch import state_native, tensor_layout
from smelt._torch.library import shim
from smelt._torch.seen import busy
from smelt.compiler.object import compiled_native
from smelt.compiler.object.compiled import dispatcher_of
from smelt.runtime.entering import entry
from smelt.runtime.entering.entry import NAME, Counters, Target
from smelt.runtime.guarding.guards import GuardSet
from tests.guards.double import Builder

RULE = {"measure": False}
Pair = namedtuple("Pair", ["a", "b"])
LIST, SET = [1.0, 2.0], {1, 2, "three"}
VARIABLE: ContextVar[float] = ContextVar("VARIABLE", default=2.0)
SCALE = 3.0


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    with torch.no_grad():
        yield
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def lerp(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + w * (y - x)


def xyw(n: int = 8) -> tuple[torch.Tensor, ...]:
    return torch.randn(n), torch.randn(n), torch.randn(n)


def warm(compiled: Any, *args: Any, **kwargs: Any) -> Any:
    """The compiled object's first row, after calls enough that native code serves it."""
    for _ in range(3):
        compiled(*args, **kwargs)
    row = dispatcher_of(compiled).stats().rows[0]
    assert row.native is not None
    return row


def verdicts(compiled: Any, row: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """What native code and Python say of a call."""
    native = dispatcher_of(compiled)._table._native.holds(row.native.guards, args, kwargs)
    return native, row.guards.check(args, kwargs) is None


# --- served natively, with the same answers --------------------------------------------------------------------------


def test_a_call_is_served_natively() -> None:
    compiled, args = smelt.compile(lerp, options=RULE), xyw()
    row = warm(compiled, *args)
    assert row.native.runs_plan and row.native.guards.asks == 0
    before, served = compiled.stats(), dispatcher_of(compiled).counters.calls
    for _ in range(5):
        torch.testing.assert_close(compiled(*args), lerp(*args))
    after = compiled.stats()
    assert (before.calls, after.calls, row.hits) == (3, 8, 7)
    assert dispatcher_of(compiled).counters.calls == served + 5
    assert row.entry.executable.stats.runs == after.rows[0].hits


RESULTS: dict[str, Callable[..., Any]] = {
    "tensor": lambda x, y: x + y,
    "tuple": lambda x, y: (x + y, x - y),
    "list": lambda x, y: [x + y, x - y],
    "nested": lambda x, y: {"sum": x + y, "pair": (x - y, 1)},
    "itself": lambda x, y: (x, x + y),
    "view": lambda x, y: x[:2],
    "none": lambda x, y: None,
    "twice": lambda x, y: (lambda t: (t, t))(x + y),
    "written": lambda x, y: x.add_(y),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_all_shapes(name: str) -> None:
    f = RESULTS[name]
    compiled = smelt.compile(f, options=RULE)
    for _ in range(5):
        x, y = torch.randn(4), torch.randn(4)
        x2, y2 = x.clone(), y.clone()
        expected, found = f(x, y), compiled(x2, y2)
        torch.testing.assert_close(found, expected)
        assert type(found) is type(expected) and torch.equal(x, x2)
        if name == "itself":
            assert found[0] is x2
        if name == "twice":
            assert found[0] is found[1]
    assert not compiled.stats().fallbacks


def test_forms_of_calls() -> None:
    compiled, (x, y, w) = smelt.compile(lerp, options=RULE), xyw()
    want = lerp(x, y, w)
    calls: list[Callable[[], Any]] = [
        lambda: compiled(x, y, w),
        lambda: compiled(x, y, w=w),
        lambda: compiled(x, w=w, y=y),
        lambda: compiled(x, y=y, w=w),
        lambda: compiled(*[x, y], **{"w": w}),
        lambda: compiled(**{"".join("x"): x, "y": y, "w": w}),
    ]
    for _ in range(4):
        for call in calls:
            torch.testing.assert_close(call(), want)
    assert len(compiled.stats().rows) == 5
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        compiled(x, y)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        compiled(x, y, w, z=1)


def test_objects_stay_what_they_are() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    compiled, x = smelt.compile(model, options=RULE), torch.randn(2, 4)
    warm(compiled, x)
    cls = type(compiled)
    assert isinstance(compiled, nn.Linear) and inspect.signature(compiled).parameters.keys() == {"args", "kwargs"}
    torch.testing.assert_close(cls.__call__(compiled, x), model(x))
    torch.testing.assert_close(compiled.__call__(x), model(x))
    torch.testing.assert_close(nn.Sequential(compiled)(x), model(x))
    torch.testing.assert_close(copy.deepcopy(compiled)(x), model(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(x), model(x))
    compiled.train()
    assert model.training
    torch.testing.assert_close(compiled(x), model(x))
    function = smelt.compile(lerp, options=RULE)
    warm(function, *xyw())
    assert list(inspect.signature(function).parameters) == ["x", "y", "w"] and function.__wrapped__ is lerp

    class Sub(cls):  # type: ignore[valid-type, misc]
        def __call__(self, x: torch.Tensor) -> str:
            return "own"

    sub = object.__new__(Sub)
    assert sub(x) == "own"
    with pytest.raises(AttributeError):
        object.__new__(cls)(x)


def test_a_patched_call_of_all_modules_leaves_it_native() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    compiled, x = smelt.compile(model, options=RULE), torch.randn(2, 4)
    warm(compiled, x)
    original = nn.Module.__call__
    nn.Module.__call__ = lambda self, *args: original(self, *args)  # type: ignore[method-assign]
    try:
        assert dispatcher_of(compiled)._table._native.is_installed(type(compiled))
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


class Slotted(nn.Module):
    __slots__ = ("extra", "more")

    def __init__(self) -> None:
        super().__init__()
        self.extra, self.more = 2.0, 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.extra


def test_modules_with_slots() -> None:
    compiled, x = smelt.compile(Slotted(), options=RULE), torch.randn(3)
    warm(compiled, x)
    torch.testing.assert_close(compiled(x), x * 2)
    compiled.smelt_target.extra = 5.0
    torch.testing.assert_close(compiled(x), x * 5)


# --- verdicts --------------------------------------------------------------------------------------------------------


def tensor_values() -> list[Any]:
    base = torch.randn(4, 6)
    parameter = nn.Parameter(base.clone())
    with torch.inference_mode():
        inference = torch.randn(4, 6)
    return [
        base, base.clone(), base[:2], base[1:3], base.t(), base.t().contiguous(), base[:, ::2], base.expand(2, 4, 6),
        base.reshape(6, 4), base.reshape(2, 2, 6), base.double(), base.half(), base.to(torch.bfloat16), base > 0,
        base.long(), base.int(), torch.tensor(1.0), torch.empty(0, 6), torch.empty(0), parameter,
        nn.Parameter(base.clone(), False), nn.Buffer(base.clone()), parameter.detach(), inference, base.to("meta"),
        base.clone().requires_grad_(), torch.zeros(4, 6, dtype=torch.complex64).conj().imag, torch.randn(24).view(4, 6),
        torch.randn(40)[5:29].view(4, 6), torch.randn((2,) * 6), torch.randn((2,) * 7).transpose(0, 6),
    ]  # fmt: skip


OTHER_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**40, 2**63 - 1, -(2**63), 2**70, 0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"),
    -float("inf"), "", "a", "b", "".join(["a", "b"]), "ab", "ä", 1j, b"x", torch.float32, torch.float64,
    torch.device("cpu"), torch.Size([1]), slice(1), range(3), (), [], {}, (1,), [1], (1, 2.0), [1, 2.0], {"k": 1},
    {"k": 2}, {"k": 1, "l": 2}, {"l": 2, "k": 1}, {1: 2}, Pair(1, 2), Pair(1, 3), (1, 2), OrderedDict(k=1), {1, 2},
    frozenset({1}), len, torch.relu, ((1, (2,)), [3]), ((1, (2,)), [4]),
]  # fmt: skip


class Side(Enum):
    LEFT = 1
    RIGHT = 2


@dataclasses.dataclass
class Held:
    first: Any
    second: Any = 0
    count: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Narrow:
    first: Any
    second: Any


KEYS: list[Any] = [
    0, 1, True, None, 2**40, 2**70, 0.5, float("nan"), "a", "".join(["a", "b"]), b"x", 1j, len, torch.float32,
    Side.LEFT, Side.RIGHT, (), (1,), (1, "a"), (Side.LEFT, (1, 2.0)), Pair(1, 2), frozenset({1}), tensor_values,
]  # fmt: skip


def _row_for(args: tuple[Any, ...], kwargs: dict[str, Any], writes: bool = True) -> tuple[Any, Any]:
    """The guards of a program called so, and the same natively (None where there is no such thing)."""
    code = entry_code()
    guards = GuardSet((), args, kwargs, writes=writes)
    row = code.row(guards, args, kwargs, Target(lambda args, kwargs: None), Counters())
    return guards, row


def entry_code() -> Any:
    compiled = smelt.compile(lerp, options=RULE)
    warm(compiled, *xyw())
    return dispatcher_of(compiled)._table._native


def value_from(rng: random.Random, tensors: list[Any], depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(tensors)
    if kind < 0.8 or depth > 1:
        return rng.choice(OTHER_VALUES)
    inner = [value_from(rng, tensors, depth + 1) for _ in range(rng.randrange(4))]
    keys = rng.choice(["abcd", rng.sample(KEYS, 4)])
    fields = [*inner, None, None][:2]
    return rng.choice([tuple(inner), inner, dict(zip(keys, inner, strict=False)), Held(*fields), Narrow(*fields)])


def mutated(rng: random.Random, values: list[Any], tensors: list[Any]) -> list[Any]:
    """The same, often a copy, sometimes with another value somewhere."""
    made = [copy.copy(v) if type(v) in (list, dict, Held, Narrow) else v for v in values]
    for i, value in enumerate(made):
        if isinstance(value, torch.Tensor) and rng.random() < 0.4:
            made[i] = (
                value.detach().clone()
                if rng.random() < 0.5
                else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            )
    if made and rng.random() < 0.6:
        made[rng.randrange(len(made))] = value_from(rng, tensors)
    if rng.random() < 0.1:
        made = made[:-1]
    return made


@pytest.mark.parametrize(
    ("seen", "others"),
    [
        ({1: 1, 2: 2}, [{2: 2, 1: 1}, {1: 2, 2: 1}, {1.0: 1, 2: 2}, {True: 1, 2: 2}, {1: 1}, {1: 1, 2: 2, 3: 3}]),
        ({Side.LEFT: 1, "a": 2}, [{Side.RIGHT: 1, "a": 2}, {"a": 1, Side.LEFT: 2}, {Side.LEFT: 1, "b": 2}]),
        ({(0, "k"): 1, (1, "k"): 2}, [{(0, "k"): 1, (2, "k"): 2}, {(0, "k"): 1, (1, "v"): 2}, {(0, "k"): 1, (1,): 2}]),
        ({None: 0, 0.5: 1}, [{None: 0, 0.25: 1}, {False: 0, 0.5: 1}, {0.5: 0, None: 1}]),
    ],
)
def test_dicts_with_keys_of_any_kind(seen: dict[Any, int], others: list[dict[Any, int]]) -> None:
    _, row = _row_for((seen,), {})
    again = {(*key,) if type(key) is tuple else key: value for key, value in seen.items()}
    assert entry_code().holds(row.guards, (again,), {})
    for other in others:
        assert not entry_code().holds(row.guards, (other,), {})


class Computed:
    """Gives another object to whoever asks."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return owner if instance is None else float(instance.__dict__["second"]) * 1e300

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["second"] = value


@pytest.mark.usefixtures("young_heap")
@pytest.mark.spread(2)
@pytest.mark.parametrize("cls", [Held, Narrow])
def test_dataclasses(cls: type) -> None:
    x = torch.randn(2)
    _, row = _row_for((cls(x, 1.5),), {})
    holds = entry_code().holds
    gc.collect()
    before = sys.getrefcount(x)
    assert holds(row.guards, (cls(torch.randn(2), 1.5),), {}) and holds(row.guards, (cls(x, 1.5),), {})
    others = [cls(torch.randn(3), 1.5), cls(x, 2.5), cls(x, 1), cls(x, None), (x, 1.5), {"first": x, "second": 1.5}, x]
    others += [Narrow(x, 1.5) if cls is Held else Held(x, 1.5), type("Sub", (cls,), {})(x, 1.5), cls, None]
    assert not any(holds(row.guards, (other,), {}) for other in others)
    missing = cls.__new__(cls)
    object.__setattr__(missing, "first", x)
    if cls is Narrow:
        assert not holds(row.guards, (missing,), {})  # Held has a default
    del others
    gc.collect()
    assert sys.getrefcount(x) == before + 1


def test_a_field_that_is_computed_is_no_field() -> None:
    @dataclasses.dataclass
    class Late:
        first: Any
        second: Any

    late = Late(torch.randn(2), 1.5)
    _, row = _row_for((late,), {})
    assert entry_code().holds(row.guards, (late,), {})
    Late.second = Computed()
    assert not entry_code().holds(row.guards, (late,), {})
    assert _row_for((late,), {})[1] is None


@pytest.mark.spread(4)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("writes", [False, True])
def test_random_arguments_are_judged_as_python_judges_them(grad: bool, writes: bool) -> None:
    rng, tensors, code = random.Random(3 + 2 * grad + writes), tensor_values(), entry_code()
    natives = passes = misses = stricter = 0
    with torch.set_grad_enabled(grad):
        for _ in range(60):
            values = [value_from(rng, tensors) for _ in range(rng.randrange(5))]
            named = rng.randrange(len(values) + 1)
            args, kwargs = tuple(values[named:]), dict(zip("pqrst", values[:named], strict=False))
            guards, row = _row_for(args, kwargs, writes)
            assert guards.check(args, kwargs) is None
            if row is None:
                continue
            natives += 1
            assert code.holds(row.guards, args, kwargs)
            for _ in range(12):
                again = mutated(rng, values, tensors)
                keys = list(kwargs)
                if rng.random() < 0.1:
                    rng.shuffle(keys)
                args2 = tuple(again[named:])
                kwargs2 = dict(zip(keys, again[:named], strict=False))
                native, python = code.holds(row.guards, args2, kwargs2), guards.check(args2, kwargs2) is None
                assert python or not native, (args, kwargs, args2, kwargs2)
                passes, misses = passes + native, misses + (not python)
                stricter += python and not native
    assert natives > 30 and passes > 75 and misses > 75
    # Equal values in other objects (a device, a slice), which Python compares at length, are all that differs.
    assert stricter < passes / 10


def test_aliasing_is_seen() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    compiled = Builder().compile(f)
    whole = torch.zeros(8)
    row = warm(compiled, torch.zeros(4), torch.zeros(4))
    for start in range(5):
        pair = whole[:4], whole[start : start + 4]
        native, python = verdicts(compiled, row, pair, {})
        assert (native, python) == (start == 4, start == 4)
        a, b = whole.clone(), whole.clone()
        assert torch.equal(compiled(a[:4], a[start : start + 4]), f(b[:4], b[start : start + 4])) and torch.equal(a, b)


# --- torch's state ---------------------------------------------------------------------------------------------------


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


STATES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "function mode": FunctionMode,
    "device": lambda: torch.device("cpu"),
    "dispatch mode": Mode,
    "recording": busy.busy,
}
SETTERS: dict[str, Callable[[], Any]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("hidden", [(), *[(name,) for name in state_native.NAMES], state_native.NAMES])
def test_states_are_seen_whatever_symbols_there_are(hidden: tuple[str, ...]) -> None:
    with shim.hidden(*hidden):
        compiled, args = smelt.compile(lerp, options=RULE), xyw()
        row = warm(compiled, *args)
    served = dispatcher_of(compiled).counters
    for name, state in STATES.items():
        before = served.calls
        with state():
            torch.testing.assert_close(compiled(*args), lerp(*args), msg=name)
        assert served.calls == before, name
        compiled(*args)  # brings the row to the front again
        before = served.calls
        compiled(*args)
        assert served.calls == before + 1, name
    for transform in (torch.vmap, torch.func.functionalize):
        before = served.calls
        torch.testing.assert_close(transform(compiled)(*args), lerp(*args))
        assert served.calls == before
    before = served.calls
    torch.jit.trace(compiled, args, check_trace=False)
    assert served.calls == before
    for name, setter in SETTERS.items():
        setter()
        assert verdicts(compiled, row, args, {}) == (False, False), name
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        assert verdicts(compiled, row, args, {}) == (True, True), name
    torch.compiler._is_compiling_flag = True  # type: ignore[attr-defined]
    try:
        before = served.calls
        compiled(*args)
        assert served.calls == before
    finally:
        torch.compiler._is_compiling_flag = False  # type: ignore[attr-defined]
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    assert verdicts(compiled, row, args, {}) == (False, False)
    handle.remove()
    assert verdicts(compiled, row, args, {}) == (True, True)


# --- what the program reads ------------------------------------------------------------------------------------------


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factors = [1.0, 2.0]
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor * self.factors[0] * LIST[0] * len(SET) * VARIABLE.get() * SCALE


def _global(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda model: globals().__setitem__(name, value)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda model: setattr(model, "factor", 7.0),
    "list attribute": lambda model: model.factors.__setitem__(0, 4.0),
    "global list": lambda model: LIST.__setitem__(0, 6.0),
    "global list appended": lambda model: LIST.append(6.0),
    "set": lambda model: SET.add(9),
    "set member exchanged": lambda model: (SET.discard(1), SET.add(11)),
    "context": lambda model: VARIABLE.set(4.0),
    "global": _global("SCALE", 8.0),
    "parameter": lambda model: setattr(model.linear, "bias", nn.Parameter(torch.ones(3))),
    "parameter data": lambda model: model.linear.weight.data.mul_(2),
    "parameter moved": lambda model: setattr(model.linear.weight, "data", torch.ones(3, 3)),
    "hook": lambda model: model.linear.register_forward_hook(lambda m, i, o: o + 1),
    "class": lambda model: setattr(Reads, "extra", 1),
}


@pytest.mark.spread(5)
@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_what_is_read_are_seen(name: str, way: str) -> None:
    global SCALE
    LIST[:], SCALE = [1.0, 2.0], 3.0
    SET.clear()
    SET.update({1, 2, "three"})
    VARIABLE.set(2.0)
    model = Reads().eval()
    x = torch.randn(2, 3)
    with shim.hidden(*([NAME] if way == "python" else [])):
        compiled = smelt.compile(model, options=RULE)
        for _ in range(4):
            torch.testing.assert_close(compiled(x), model(x))
        row = dispatcher_of(compiled).stats().rows[0]
        assert (row.native is not None) == (way == "native")
        CHANGES[name](model)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    if hasattr(Reads, "extra"):
        del Reads.extra


def test_other_names_of_a_namespace_may_change() -> None:
    compiled, args = smelt.compile(lambda x: x * SCALE, options=RULE), (torch.randn(3),)
    row = warm(compiled, *args)
    served = dispatcher_of(compiled).counters
    for i in range(5):
        globals()["_UNRELATED"] = i
        before = served.calls
        torch.testing.assert_close(compiled(*args), args[0] * SCALE)
        assert served.calls == before + 1
    assert verdicts(compiled, row, args, {}) == (True, True)


def test_an_equal_value_in_another_object_is_the_same() -> None:
    big = 10**12

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + big

    compiled, x = smelt.compile(f, options=RULE), torch.zeros(2, dtype=torch.float64)
    row = warm(compiled, x)
    big = int("1" + "0" * 12)
    assert verdicts(compiled, row, (x,), {}) == (True, True)
    big += 1
    assert verdicts(compiled, row, (x,), {}) == (False, False)
    assert torch.equal(compiled(x), f(x))


# --- tables ----------------------------------------------------------------------------------------------------------


def test_rows_are_evicted_by_use() -> None:
    compiled = smelt.compile(lambda x: x + 1, dynamic=False, options=RULE)
    first = torch.zeros(1)
    for _ in range(3):
        compiled(first)
    with pytest.warns(smelt.SmeltWarning, match="again and again"):
        for n in range(2, 12):
            for _ in range(2):
                compiled(torch.zeros(n))
            assert torch.equal(compiled(first), first + 1)  # used natively all the time
    shapes = [row.guards.guards[5].seen for row in compiled.stats().rows]
    assert any(row.guards.check((first,), {}) is None for row in compiled.stats().rows), shapes


def test_entries_in_python_are_guarded_natively() -> None:
    builder = Builder()
    compiled, args = builder.compile(lerp), xyw()
    row = warm(compiled, *args)
    assert not row.native.runs_plan
    runs, calls = builder.runs, compiled.stats().calls
    torch.testing.assert_close(compiled(*args), lerp(*args))
    assert builder.runs == runs + 1 and compiled.stats().calls == calls + 1


def test_refresh_and_witness() -> None:
    model = nn.Linear(3, 3)
    compiled, x = smelt.compile(model, options=RULE), torch.randn(2, 3)
    warm(compiled, x)
    with torch.enable_grad():
        assert compiled(x).requires_grad
    torch.testing.assert_close(compiled(x), model(x))
    compiled.refresh()
    for _ in range(4):
        torch.testing.assert_close(compiled(x), model(x))


# --- faults, threads, leaks ------------------------------------------------------------------------------------------


def test_errors_come_through_with_their_lines() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i]

    compiled, x = smelt.compile(f, options=RULE), torch.arange(4.0)
    warm(compiled, x, torch.tensor([1, 2]))
    for _ in range(3):
        with pytest.raises(IndexError) as caught:
            compiled(x, torch.tensor([1, 9]))
        assert "out of bounds" in str(caught.value) or "out of range" in str(caught.value)
        assert torch.equal(compiled(x, torch.tensor([1, 2])), x[1:3])

    def g(x: torch.Tensor, n: int) -> torch.Tensor:
        if n == 3:
            raise ValueError("three")
        return x + n

    compiled = smelt.compile(g, options=RULE)
    warm(compiled, x, 2)
    for _ in range(3):
        with pytest.raises(ValueError, match="three") as failed:
            compiled(x, 3)
        assert [frame.name for frame in traceback.extract_tb(failed.value.__traceback__)][-1] == "g"
        assert torch.equal(compiled(x, 2), x + 2)


def test_recursion_through_native_calls() -> None:
    @smelt.compile(options=RULE)
    def f(x: torch.Tensor, depth: Any) -> Any:
        return x if depth.value == 0 else depth.next(f, x)

    class Depth:
        def __init__(self, value: int) -> None:
            self.value = value

        def next(self, g: Any, x: torch.Tensor) -> Any:
            return g(x + 1, Depth(self.value - 1))

    for value in (0, 1, 3, 3, 3):
        assert float(f(torch.zeros(()), Depth(value))) == value

    def forever(x: torch.Tensor) -> Any:
        return endless(x)

    endless = smelt.compile(forever, options=RULE)
    with pytest.raises(RecursionError):
        endless(torch.zeros(1))


def test_threads_share_a_table() -> None:
    compiled = smelt.compile(lerp, options=RULE)
    cases = [xyw(n) for n in (3, 5, 7)]
    wants = [lerp(*case) for case in cases]
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            with torch.no_grad():
                for _ in range(400):
                    k = rng.randrange(3)
                    torch.testing.assert_close(compiled(*cases[k]), wants[k])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and compiled.stats().calls == 1600


def test_inputs_live_while_a_run_goes_on() -> None:
    """Tensors reached through a list that another thread empties."""
    compiled = smelt.compile(lambda items: items[0] @ items[1], options=RULE)
    held = [torch.randn(64, 64), torch.randn(64, 64)]
    warm(compiled, held)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            held[0], held[1] = torch.randn(64, 64), torch.randn(64, 64)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert compiled(held).shape == (64, 64)
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("young_heap")
def test_nothing_is_leaked() -> None:
    pair = smelt.compile(lambda x, y, **more: (x + y, x - y), options=RULE)
    single = smelt.compile(lambda items, n: items[0] + items[1] * n, options=RULE)
    x, y = torch.randn(3), torch.randn(3)
    items = [x, y]

    def calls(count: int) -> None:
        for _ in itertools.repeat(None, count):
            pair(x, y)
            pair(x, y, k=2.0)
            single(items, 3)
            single(items, n=3)

    calls(50)
    gc.collect()
    counts = [sys.getrefcount(value) for value in (x, y, items, None, True)]
    blocks = sys.getallocatedblocks()
    calls(25_000)
    after = [sys.getrefcount(value) for value in (x, y, items, None, True)]
    assert after[:3] == counts[:3] and all(abs(a - b) < 200 for a, b in zip(after[3:], counts[3:], strict=True))
    assert abs(sys.getallocatedblocks() - blocks) < 500


@pytest.mark.usefixtures("young_heap")
def test_compiled_objects_are_freed() -> None:
    model = nn.Linear(3, 3)
    compiled = smelt.compile(model, options=RULE)
    warm(compiled, torch.randn(2, 3))
    executable = weakref.ref(dispatcher_of(compiled).stats().rows[0].entry.executable)
    del compiled
    gc.collect()
    assert executable() is None


# --- adapters --------------------------------------------------------------------------------------------------------


def test_the_layout_agrees_with_torch() -> None:
    layout = tensor_layout.tensor_layout()
    assert layout is not None and tensor_layout.agrees(layout, [*tensor_layout.samples(), *_strided(tensor_values())])


def _strided(values: list[Any]) -> list[Any]:
    return [value for value in values if value.device.type == "cpu"]


def test_a_wrong_layout_is_not_believed() -> None:
    layout = tensor_layout.tensor_layout()
    assert layout is not None
    # Each is another number that lies in the same implementation.
    for field, other in {
        "keys": layout.offset, "dtype": layout.ndim, "sizes": layout.sizes + 8,
        "offset": layout.ndim, "meta": layout.offset, "capacity": 4,
    }.items():  # fmt: skip
        wrong = dataclasses.replace(layout, **{field: other})  # type: ignore[arg-type]
        assert not tensor_layout.agrees(wrong, [torch.randn(3, 2)[1:], torch.ones(2, requires_grad=True)]), field


@pytest.mark.parametrize("name", [NAME, tensor_layout.LAYOUT])
def test_without_the_adapter_calls_go_through_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_native, "_process", compiled_native._Process())
    with shim.hidden(name):
        compiled, args = smelt.compile(lerp, options=RULE), xyw()
        for _ in range(4):
            torch.testing.assert_close(compiled(*args), lerp(*args))
        assert dispatcher_of(compiled).stats().rows[0].native is None and compiled.stats().rows[0].hits == 3


def test_classes_laid_out_otherwise_are_left_alone() -> None:
    class Other:
        __slots__ = ("a", "b")

    assert not entry.keeps_in_reach(Other(), object())


@pytest.mark.parametrize("count", [2, 5, 20])
def test_whether_arguments_are_one_object_is_seen(count: int) -> None:
    def f(*tensors: torch.Tensor) -> torch.Tensor:
        return tensors[0] * 3 if tensors[0] is tensors[-1] else tensors[0] + tensors[-1]

    compiled = smelt.compile(f)
    apart = [torch.full((3,), float(i)) for i in range(count)]
    one = [*apart[:-1], apart[0]]
    for tensors in [apart] * 5 + [one] * 5 + [apart, one] * 3:
        assert torch.equal(compiled(*tensors), f(*tensors))
    assert compiled.stats().builds == 2
