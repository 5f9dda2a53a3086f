"""Change each kind of thing that a program reads: the next call must see it; an unchanged call must run compiled."""

from __future__ import annotations

import argparse
import contextvars
import dataclasses
import functools
import logging
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from smelt.runtime.guarding import guard_versions
from tests.guards import double, fuzz_settings
from tests.guards.double import Builder

SCALE: Any = 2.0
TABLE = {"a": 1.0, "b": 2.0}
WEIGHTS = [1.0, 2.0, 3.0]
TENSOR = torch.arange(4.0)
CONFIG = types.SimpleNamespace(scale=2.0, inner=types.SimpleNamespace(shift=1.0))
ARGS = argparse.Namespace(scale=2.0)
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("VARIABLE", default=2.0)
ARRAY = np.array([1.0, 2.0])
LOGGER = logging.getLogger("tests.guards.mutation")
LOGGER.setLevel(logging.WARNING)
CHILD = LOGGER.getChild("child")


class Settings:
    scale = 2.0
    options: dict[str, float] = {"k": 1.0}  # noqa: RUF012


class Sized(type):
    scale = 2.0

    @property
    def twice(cls) -> float:
        return cls.scale * 2

    def __len__(cls) -> int:
        return int(cls.scale)


class OfSized(metaclass=Sized):
    pass


class Layer(nn.Module):
    scale = 2.0


LAYERS = {"a": Layer}
MODULES = types.SimpleNamespace(settings=fuzz_settings)


@dataclasses.dataclass
class Config:
    scale: float = 2.0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Computed:
    def __init__(self) -> None:
        self.base = 2.0

    @property
    def scale(self) -> float:
        return self.base * 2


class Dynamic:
    def __init__(self) -> None:
        self.values = {"scale": 2.0}

    def __getattr__(self, name: str) -> float:
        return self.values[name]


class Aliased:
    names = {"size": "n_size"}  # noqa: RUF012

    def __init__(self) -> None:
        self.n_size = 2.0

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


class Callback:
    def __init__(self) -> None:
        self.factor = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


CONFIG_OBJECT, SLOTTED, COMPUTED, DYNAMIC, ALIASED, CALLBACK = (
    Config(), Slotted(), Computed(), Dynamic(), Aliased(), Callback(),
)  # fmt: skip


def helper(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return x * scale


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x - 100


def make_counter() -> tuple[Callable[..., Any], Callable[[float], None]]:
    value = 2.0

    def read(x: torch.Tensor) -> torch.Tensor:
        return x * value

    def write(v: float) -> None:
        nonlocal value
        value = v

    return read, write


READ, WRITE = make_counter()


def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
    settings = {"shift": 1.0}

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs) + settings["shift"]

    wrapper.settings = settings  # type: ignore[attr-defined]
    return wrapper


@decorate
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 2


PARTIAL = functools.partial(helper, scale=4.0)


def through_local_alias(x: torch.Tensor) -> torch.Tensor:
    settings = Settings
    return x * settings.scale


def through_getattr(x: torch.Tensor) -> torch.Tensor:
    return x * getattr(CONFIG, "scale")  # noqa: B009


def nested_scope(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y * SCALE

    return sum([inner(r) for r in x.unbind(0)])


def late_import(x: torch.Tensor) -> torch.Tensor:
    from tests.guards.test_mutation import SCALE as scale

    return x * scale


def optional(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * LATE_SCALE  # type: ignore[name-defined,no-any-return]
    except NameError:
        return x


def _swap(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def _item(owner: Any, key: Any, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(owner, key, value)


def _this(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(globals(), name, value)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[pytest.MonkeyPatch], Any]]] = {
    "global float": (lambda x: x * SCALE, _this("SCALE", 3.0)),
    "global to int": (lambda x: x.int() * SCALE, _this("SCALE", 2)),
    "global sign of zero": (lambda x: torch.copysign(x, torch.tensor(0.0 * SCALE)), _this("SCALE", -2.0)),
    "dict item": (lambda x: x * TABLE["a"], _item(TABLE, "a", 5.0)),
    "dict new key": (lambda x: x * len(TABLE), _item(TABLE, "c", 5.0)),
    "dict replaced by an equal one": (lambda x: x * TABLE["a"], _this("TABLE", {"a": 9.0, "b": 2.0})),
    "list": (lambda x: x * sum(WEIGHTS), lambda p: WEIGHTS.__setitem__(0, 7.0)),
    "namespace": (lambda x: x * CONFIG.scale, _swap(CONFIG, "scale", 3.0)),
    "namespace inside": (lambda x: x * CONFIG.inner.shift, _swap(CONFIG.inner, "shift", 3.0)),
    "argparse": (lambda x: x * ARGS.scale, _swap(ARGS, "scale", 3.0)),
    "dataclass": (lambda x: x * CONFIG_OBJECT.scale, _swap(CONFIG_OBJECT, "scale", 3.0)),
    "dataclass true for one": (lambda x: x.bool() * CONFIG_OBJECT.scale, _swap(CONFIG_OBJECT, "scale", True)),
    "slots": (lambda x: x * SLOTTED.scale, _swap(SLOTTED, "scale", 3.0)),
    "property": (lambda x: x * COMPUTED.scale, _swap(COMPUTED, "base", 3.0)),
    "__getattr__": (lambda x: x * DYNAMIC.scale, _item(DYNAMIC.values, "scale", 3.0)),
    "__getattribute__": (lambda x: x * ALIASED.size, lambda p: p.setitem(ALIASED.__dict__, "n_size", 3.0)),
    "__call__": (lambda x: CALLBACK(x), _swap(CALLBACK, "factor", 4.0)),
    "class attribute": (lambda x: x * Settings.scale, _swap(Settings, "scale", 3.0)),
    "class attribute by alias": (through_local_alias, _swap(Settings, "scale", 3.0)),
    "class attribute dict": (lambda x: x * Settings.options["k"], _item(Settings.options, "k", 3.0)),
    "class attribute of a layer by getattr": (lambda x: x * getattr(Layer, "scale"), _swap(Layer, "scale", 3.0)),  # noqa: B009
    "class attribute of a layer in a table": (lambda x: x * LAYERS["a"].scale, _swap(Layer, "scale", 3.0)),
    "metaclass attribute": (lambda x: x * OfSized.scale, _swap(Sized, "scale", 3.0)),
    "metaclass property": (lambda x: x * OfSized.twice, _swap(Sized, "scale", 3.0)),
    "metaclass method": (lambda x: x * len(OfSized), _swap(Sized, "scale", 3.0)),
    "class method replaced": (lambda x: CALLBACK(x), _swap(Callback, "__call__", lambda self, x: x - 1)),
    "function default": (lambda x: helper(x), _swap(helper, "__defaults__", (3.0,))),
    "function code": (lambda x: helper(x), _swap(helper, "__code__", other_helper.__code__)),
    "function replaced": (lambda x: helper(x), _this("helper", other_helper)),
    "builtin shadowed": (lambda x: x * len(WEIGHTS), _this("len", lambda _: 11)),
    "closure": (READ, lambda p: WRITE(3.0)),
    "closure of a callee": (lambda x: READ(x), lambda p: WRITE(5.0)),
    "closure of a decorator": (lambda x: decorated(x), lambda p: decorated.settings.update(shift=4.0)),  # type: ignore[attr-defined]
    "partial": (lambda x: PARTIAL(x), lambda p: PARTIAL.keywords.update(scale=9.0)),
    "getattr": (through_getattr, _swap(CONFIG, "scale", 4.0)),
    "nested scope": (nested_scope, _this("SCALE", 5.0)),
    "late import": (late_import, _this("SCALE", 6.0)),
    "context variable": (lambda x: x * VARIABLE.get(), lambda p: VARIABLE.set(7.0)),
    "global that is not there": (optional, lambda p: p.setitem(globals(), "LATE_SCALE", 3.0)),
    "name that a module has not": (
        lambda x: x * getattr(double, "LATE_SCALE", 2.0),
        lambda p: p.setattr(double, "LATE_SCALE", 3.0, raising=False),
    ),
    "global of a module that is held": (lambda x: x * MODULES.settings.SCALE, _swap(fuzz_settings, "SCALE", 3.0)),
    "its function": (lambda x: MODULES.settings.scaled(x), _swap(fuzz_settings, "scaled", other_helper)),
    "its global by getattr": (lambda x: x * getattr(MODULES.settings, "SCALE"), _swap(fuzz_settings, "SCALE", 3.0)),  # noqa: B009
    "class in it": (lambda x: x * MODULES.settings.Defaults.rate, _swap(fuzz_settings.Defaults, "rate", 3.0)),
    "level of a logger": (lambda x: x * 2 if CHILD.isEnabledFor(10) else x, lambda p: LOGGER.setLevel(10)),
    "logging disabled": (lambda x: x * 2 if CHILD.isEnabledFor(40) else x, lambda p: logging.disable(50)),
    "array": (lambda x: x * float(ARRAY[0]), lambda p: ARRAY.__setitem__(0, 5.0)),
    "torch function replaced": (lambda x: nn.functional.relu(x), _swap(nn.functional, "relu", lambda x: x - 1)),
    "default dtype": (lambda x: torch.zeros(4) + x, lambda p: torch.set_default_dtype(torch.float64)),
    "global tensor replaced": (lambda x: x + TENSOR, _this("TENSOR", torch.ones(4))),
    "global tensor in place": (lambda x: x + TENSOR, lambda p: TENSOR.add_(1)),
}


@pytest.fixture(autouse=True, params=["stamps", "objects", "portable"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways to look at namespaces: by the interpreter's stamps; by comparing every value in those of objects (3.13);
    by comparing every value.
    """
    if request.param == "objects":
        monkeypatch.setattr(guard_versions, "HAVE_OBJECT_STAMPS", False)
    if request.param == "portable":
        monkeypatch.setattr(guard_versions, "HAVE_STAMPS", False)
        monkeypatch.setattr(guard_versions, "_HAVE_POINTERS", False)


@pytest.fixture(autouse=True)
def restored() -> Any:
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    LOGGER.setLevel(logging.WARNING)
    logging.disable(logging.NOTSET)
    WRITE(2.0)
    VARIABLE.set(2.0)
    decorated.settings["shift"] = 1.0  # type: ignore[attr-defined]
    PARTIAL.keywords["scale"] = 4.0
    WEIGHTS[0], ARRAY[0] = 1.0, 1.0


def agree(compiled: Any, eager: Any) -> None:
    assert type(compiled) is type(eager)
    assert compiled.dtype == eager.dtype
    torch.testing.assert_close(compiled, eager, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(compiled), torch.signbit(eager))


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_changed_read_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, change = FUNCTIONS[name]
    builder = Builder()
    c = builder.compile(f)
    x = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    with torch.no_grad():
        agree(c(x), f(x))
        agree(c(x), f(x))
        assert builder.runs == 1, c.stats().to_dict()
        before = f(x)
        change(monkeypatch)
        after = f(x)
        assert before.dtype != after.dtype or not torch.equal(before, after) or "zero" in name or "in place" in name
        agree(c(x), after)
        agree(c(x), after)


class Block(nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.stack = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.items = nn.ModuleList([nn.Identity(), nn.Tanh()])
        self.drop = nn.Dropout(0.5)
        self.one = nn.Parameter(torch.ones(1))
        self.register_buffer("offset", torch.zeros(4))
        self.scale: Any = 1
        self.names = ["a"]
        self.config = Config()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stack(self.linear(x)) * self.scale * self.gain * self.config.scale + self.offset * len(self.names)
        for item in self.items:
            x = item(x)
        return self.drop(x) * self.one


def _hook(module: Any, args: Any, out: Any) -> Any:
    return out + 1


MODULE_CHANGES: dict[str, Callable[[Block], Any]] = {
    "train": lambda m: m.train(),
    "one training flag": lambda m: m.drop.train(),
    "attribute": lambda m: setattr(m, "scale", 3),
    "attribute int to float": lambda m: setattr(m, "scale", 1.0),
    "attribute deleted": lambda m: delattr(m, "scale"),
    "nested config": lambda m: setattr(m.config, "scale", 4.0),
    "config replaced by an equal one": lambda m: setattr(m, "config", Config()),
    "list grown": lambda m: m.names.append("b"),
    "parameter replaced": lambda m: setattr(m.linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "one-element parameter replaced by an equal one": lambda m: setattr(m, "one", nn.Parameter(torch.ones(1))),
    "parameter in place": lambda m: m.linear.weight.data.mul_(2),
    "parameter data": lambda m: setattr(m.linear.weight, "data", torch.ones(4, 4)),
    "bias removed": lambda m: setattr(m.linear, "bias", None),
    "buffer replaced": lambda m: setattr(m, "offset", torch.ones(4)),
    "submodule replaced": lambda m: setattr(m, "linear", nn.Linear(4, 4)),
    "submodule appended": lambda m: m.stack.append(nn.Tanh()),
    "list item replaced": lambda m: m.items.__setitem__(0, nn.ReLU()),
    "order of modules": lambda m: m.stack._modules.update({"0": m.stack._modules.pop("0")}),
    "forward hook": lambda m: m.linear.register_forward_hook(_hook),
    "forward pre hook": lambda m: m.linear.register_forward_pre_hook(lambda mod, a: (a[0] + 1,)),
    "hook inside": lambda m: m.stack[1].register_forward_hook(_hook),
    "own forward": lambda m: setattr(m.linear, "forward", lambda x: x - 3),
    "class forward": lambda m: setattr(type(m.items[1]), "forward", lambda self, x: x - 3),
    "class attribute": lambda m: setattr(Block, "gain", 3.0),
    "shadowed class attribute": lambda m: setattr(m, "gain", 3.0),
    "class changed": lambda m: setattr(m.items[1], "__class__", nn.Sigmoid),
    "dict of attributes replaced": lambda m: setattr(
        m.items[1], "__dict__", {**m.items[1].__dict__, "training": False}
    ),
    "dtype": lambda m: m.double().float(),
    "load_state_dict": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "written to __dict__": lambda m: m.__dict__.__setitem__("scale", 5),
}


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_a_changed_module_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Tanh, "forward", nn.Tanh.forward)
    monkeypatch.setattr(Block, "gain", 1.0)
    torch.manual_seed(0)
    module = Block().eval()
    builder = Builder()
    c = builder.compile(module)
    x = torch.randn(3, 4)

    def compare() -> None:
        torch.manual_seed(1)
        try:
            expected: Any = module(x)
        except AttributeError as error:
            with pytest.raises(AttributeError, match=str(error)):
                c(x)
            return
        torch.manual_seed(1)
        agree(c(x), expected)

    with torch.no_grad():
        compare()
        compare()
        assert builder.runs == 1, c.stats().to_dict()
        MODULE_CHANGES[name](module)
        compare()
        compare()


STATES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": lambda: torch.inference_mode(),
    "grad mode": lambda: torch.enable_grad(),
}


@pytest.mark.parametrize("name", STATES)
def test_torch_state_is_guarded(name: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    builder = Builder()
    c = builder.compile(f)
    x = torch.randn(4, 4)
    with torch.no_grad():
        agree(c(x), f(x))
        with STATES[name]():
            agree(c(x), f(x))
            assert len(builder.entries) == 2
        agree(c(x), f(x))
    assert builder.runs == 1


def test_ordered_dict_order_is_guarded() -> None:
    order = OrderedDict(a=1.0, b=2.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * next(iter(order.values()))

    builder = Builder()
    c = builder.compile(f)
    x = torch.ones(2)
    with torch.no_grad():
        c(x)
        order.move_to_end("a")
        agree(c(x), f(x))
