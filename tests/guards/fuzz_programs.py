"""Small programs for the fuzzer: each kind of read, several times and at several depths."""

from __future__ import annotations

import enum
import functools
import math
import operator
import os
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from tests.guards import fuzz_settings
from tests.guards import fuzz_settings as settings
from tests.guards.fuzz import Subject
from tests.guards.fuzz_settings import Defaults, scaled

GAIN = 1.5
ENABLED = True
STEPS = [1, 2, 3]
LAYERS: list[Any] = []
WORDS = {"relu": torch.relu, "tanh": torch.tanh}
KIND = "relu"
OFFSET = torch.tensor([0.5, -0.5, 1.0, 2.0])
PAIR = (2, (0.5, "tanh"))
CHOSEN = {1, 3}
FROZEN = frozenset({1, 3})
QUEUE = deque([1.0, 2.0])
ORDERED = OrderedDict(first=1.0, second=2.0)
COUNTS: defaultdict[str, float] = defaultdict(float, a=1.0)
NOTHING: float | None = None
Point = namedtuple("Point", "a b")
POINT = Point(1.0, Point(2, "add"))
SPACE = SimpleNamespace(rate=0.5, inner=SimpleNamespace(on=True))


class Mode(enum.Enum):
    """A choice."""

    FAST = 1
    EXACT = 2


MODE = Mode.FAST


@dataclass
class Inner:
    """A nested part of a configuration."""

    rate: float = 0.5
    names: list[str] = field(default_factory=lambda: ["relu", "tanh"])


@dataclass
class Config:
    """A configuration."""

    size: int = 4
    mode: Mode = Mode.FAST
    inner: Inner = field(default_factory=Inner)
    extra: dict[str, Any] = field(default_factory=lambda: {"shift": 1.0})

    @property
    def doubled(self) -> int:
        """Computed of a field."""
        return self.size * 2


@dataclass(frozen=True, slots=True)
class Packed:
    """A record in slots."""

    rate: float = 0.5
    steps: int = 2


CONFIG, PACKED = Config(), Packed()


class Slots:
    """An object without a dict."""

    __slots__ = ("gain", "parts")

    def __init__(self) -> None:
        self.gain, self.parts = 1.5, [1.0, 2.0]


SLOTS = Slots()


class Lazy:
    """An object whose attributes come from a table."""

    def __init__(self) -> None:
        self.table = {"gain": 1.5, "shift": 0.5}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


LAZY = Lazy()


class Base:
    """A base with settings, methods and a property."""

    rate = 0.5
    words: ClassVar = ["relu"]

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate

    @property
    def gain(self) -> float:
        return self.rate * 2

    @staticmethod
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + GAIN

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x - cls.rate


class Derived(Base):
    """One that overrides part of it."""

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return super().act(x) + self.gain

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.of_class(self.shifted(self.act(x)))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> float:
        return self.rate + index


DERIVED = Derived()


def with_globals(x: torch.Tensor) -> torch.Tensor:
    y = x * GAIN + OFFSET
    return torch.relu(y) if ENABLED else y


def with_containers(x: torch.Tensor) -> torch.Tensor:
    for step in STEPS:
        x = x + step
    for value in QUEUE:
        x = x * value
    return x + len(CHOSEN) + sum(CHOSEN) + (1 if 3 in FROZEN else 0)


def with_dicts(x: torch.Tensor) -> torch.Tensor:
    x = WORDS[KIND](x)
    for name, value in ORDERED.items():
        x = x * value + len(name)
    return x + COUNTS["a"] + settings.TABLE["inner"]["bias"]


def with_tuples(x: torch.Tensor) -> torch.Tensor:
    n, (scale, name) = PAIR
    for _ in range(n):
        x = x + scale
    return getattr(torch, name)(x) + POINT.a + POINT.b.a


def with_none(x: torch.Tensor) -> torch.Tensor:
    return x if NOTHING is None else x * NOTHING


def with_enum(x: torch.Tensor) -> torch.Tensor:
    if MODE is Mode.FAST:
        x = x * 2
    return x + MODE.value


def with_config(x: torch.Tensor) -> torch.Tensor:
    x = x * CONFIG.size + CONFIG.doubled
    if CONFIG.mode == Mode.FAST:
        x = x + CONFIG.extra["shift"]
    for name in CONFIG.inner.names:
        x = getattr(F, name)(x)
    return x * CONFIG.inner.rate


def with_slots(x: torch.Tensor) -> torch.Tensor:
    return x * SLOTS.gain + SLOTS.parts[0] + PACKED.rate * PACKED.steps


def with_getattr(x: torch.Tensor) -> torch.Tensor:
    return x * LAZY.gain + LAZY.shift + getattr(LAZY, "absent", 1.0)


def with_namespace(x: torch.Tensor) -> torch.Tensor:
    return x * SPACE.rate if SPACE.inner.on else x


def with_inheritance(x: torch.Tensor) -> torch.Tensor:
    return DERIVED(x) + len(DERIVED) + DERIVED[1] + Derived.rate + len(Base.words)


def with_other_module(x: torch.Tensor) -> torch.Tensor:
    x = scaled(x) + fuzz_settings.scaled(x) * settings.WEIGHT
    for name in settings.NAMES:
        x = settings.chosen(x, name)
    return x * Defaults.rate + (Defaults.steps if Defaults.nested["on"] else 0)


def with_local_import(x: torch.Tensor) -> torch.Tensor:
    from tests.guards.fuzz_settings import DEPTH, TABLE

    for _ in range(DEPTH):
        x = x * TABLE["gain"]
    return x


def with_math(x: torch.Tensor) -> torch.Tensor:
    return x * math.sqrt(2.0) + math.pi + operator.add(1, 2)


def with_defaults(x: torch.Tensor, gain: float = 2.0, *, shift: float = 0.5, kind: str = "relu") -> torch.Tensor:
    return getattr(torch, kind)(x * gain) + shift


def _helper(x: torch.Tensor, rate: float = 0.5, table: dict[str, float] = {"a": 1.0}) -> torch.Tensor:  # noqa: B006
    return x * rate + table["a"]


def with_helper_defaults(x: torch.Tensor) -> torch.Tensor:
    return _helper(x) + _helper(x, 2.0)


def _made(rate: float, words: list[str]) -> Callable[[torch.Tensor], torch.Tensor]:
    bias = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def middle(y: torch.Tensor) -> torch.Tensor:
        def inner(z: torch.Tensor) -> torch.Tensor:
            return z * rate + bias

        return inner(y) + len(words)

    def outer(x: torch.Tensor) -> torch.Tensor:
        for word in words:
            x = getattr(torch, word)(x)
        return middle(x)

    return outer


def _counting() -> Callable[[torch.Tensor], torch.Tensor]:
    scale = 2.0
    act = torch.relu

    def get() -> float:
        return scale

    return lambda x: act(x) * get()


def _scaled_by(gain: float, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
    return x * gain + shift


PARTIAL = functools.partial(_scaled_by, 2.0, shift=0.5)


def with_partial(x: torch.Tensor) -> torch.Tensor:
    return PARTIAL(x)


def _twice(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        return f(*args) * wrapper.factor  # type: ignore[attr-defined]

    wrapper.factor = 2.0  # type: ignore[attr-defined]
    return wrapper


@_twice
def with_decorator(x: torch.Tensor) -> torch.Tensor:
    return x + GAIN


def with_functions_in_list(x: torch.Tensor) -> torch.Tensor:
    for layer in LAYERS:
        x = layer(x)
    return x


def _plus(x: torch.Tensor) -> torch.Tensor:
    return x + 0.25


LAYERS[:] = [torch.relu, _plus, PARTIAL, DERIVED.act]


def with_environment(x: torch.Tensor) -> torch.Tensor:
    x = x * 2 if os.environ.get("SMELT_FUZZ_MODE", "on") == "on" else x
    return x * float(os.environ["SMELT_FUZZ_GAIN"]) + float(os.getenv("SMELT_FUZZ_ABSENT", "0.5").replace("off", "3"))


def with_comprehensions(x: torch.Tensor) -> torch.Tensor:
    parts = [x * step for step in STEPS if step > 1]
    return sum(parts) + max(v for v in ORDERED.values()) + len({k: v for k, v in WORDS.items()})  # noqa: C416


def with_hasattr(x: torch.Tensor) -> torch.Tensor:
    if hasattr(SPACE, "absent"):
        x = x * 3
    return x * getattr(CONFIG, "size", 1) if hasattr(CONFIG, "size") else x


def with_isinstance(x: torch.Tensor) -> torch.Tensor:
    x = x * 2 if isinstance(CONFIG.inner, Inner) else x
    return x + 1 if type(DERIVED) is Derived else x


def with_vars(x: torch.Tensor) -> torch.Tensor:
    for name, value in vars(SPACE.inner).items():
        x = x + len(name) + value
    return x * vars(SPACE)["rate"]


def with_try(x: torch.Tensor) -> torch.Tensor:
    try:
        return x * settings.TABLE["absent"]
    except KeyError:
        return x * settings.TABLE["gain"]


def with_sorting(x: torch.Tensor) -> torch.Tensor:
    for key in sorted(settings.TABLE, key=lambda k: len(k)):
        x = x * len(key)
    return x + sum(reversed(STEPS)) + min(STEPS) + (2 in STEPS) + STEPS.index(2)


class Block(nn.Module):
    """A small block with settings of its own and of its class."""

    scale = 0.5

    def __init__(self, act: Any = F.gelu, config: Config | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5)
        self.act = act
        self.config = config
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.names = ["a"]

    @property
    def gain(self) -> float:
        return self.scale * 4

    def forward(self, x: torch.Tensor, residual: bool = True) -> torch.Tensor:
        y = self.act(self.norm(self.linear(x))) * self.gain + self.shift
        if self.config is not None:
            y = y * self.config.inner.rate + len(self.names)
        return self.drop(y) + x if residual else y


class Wider(Block):
    """One that inherits."""

    def forward(self, x: torch.Tensor, residual: bool = True) -> torch.Tensor:
        return super().forward(x, residual=residual) * 2


class Nested(nn.Module):
    """Blocks in a list, a dict and a sequence, and one that is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(config=CONFIG), Wider(torch.tanh)])
        self.by_name = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.ReLU()})
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head: nn.Module | None = None
        self.order = ["second", "first"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        for name in self.order:
            x = self.by_name[name](x)
        return self.tail(x) if self.head is None else self.head(x)


class Norms(nn.Module):
    """Statistics that only evaluation reads, parameters in lists, and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.weights = nn.ParameterList([torch.full((4,), 2.0), torch.full((4,), 3.0)])
        self.table = nn.ParameterDict({"a": torch.ones(4)})
        self.plain = torch.full((4,), 0.5)
        self.index = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x) * self.weights[self.index] + self.table["a"]
        for weight in self.weights:
            x = x * weight
        return x * self.plain if not self.training else x


class Convolution(nn.Module):
    """A convolution with a folded norm: its contents are packed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(F.relu(self.norm(self.conv(x))))


class Hooked(nn.Module):
    """A module with hooks that read settings, and methods called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(_read_gain)
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] * SPACE.rate,))
        self.method = "double"

    def double(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def half(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.method)(self.inner(x))


def _read_gain(module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * GAIN


class Attending(nn.Module):
    """Attention of torch's own, with its fast path."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.embed = nn.Embedding(10, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embed(ids))


class Caller:
    """An object whose method is compiled."""

    def __init__(self) -> None:
        self.block = Block()
        self.gain = 2.0
        self.history: list[float] = [1.0]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x, residual=False) * self.gain + self.history[-1]


class Indirect(nn.Module):
    """A module that finds its parts by names, through a plain dict and a private attribute."""

    def __init__(self) -> None:
        super().__init__()
        self._cache = {"scale": torch.full((4,), 2.0)}
        self.parts = {"plain": nn.Linear(4, 4)}
        self.first = nn.Linear(4, 4)
        self.count = 1

    def __getattr__(self, name: str) -> Any:
        if name == "renamed":
            return super().__getattr__("first")
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = self.renamed(x) * self._cache["scale"]
        return self.parts["plain"](x)


class Stateful(nn.Module):
    """A module that counts, averages, appends to lists and keeps tables."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls, self.rate = 3, 0.5
        self.average = torch.ones(4)
        self.table: dict[str, Any] = {"rows": 2, "last": torch.zeros(4)}
        self.seen: list[torch.Tensor] = []
        self.register_buffer("moving", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rate *= 0.9
        y = self.linear(x) * self.rate
        self.average = self.average * self.rate + y.mean(0)
        self.table["rows"] += x.shape[0]
        self.table["last"] = y.sum(0) + self.table["last"]
        self.moving = self.moving * 0.5 + y.mean(0)
        self.seen.append(y.mean())
        return y * self.calls + self.table["rows"] + self.average + self.moving

    def state(self) -> list[tuple[Any, tuple[str, ...]]]:
        """What it changes; no builtin of this module is called, which the fuzzer replaces."""
        own: Any = self.__dict__
        found = [(own, ("calls", "rate", "average", "table", "seen")), (own["_buffers"], ("moving",))]
        held = [own.get(name) for name in ("table", "seen")]
        return [*found, *((value, ()) for value in held if type(value) in (dict, list))]


def subjects() -> list[Subject]:
    """All programs, with fixed arguments."""
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    os.environ.setdefault("SMELT_FUZZ_GAIN", "2")
    functions = [
        with_globals, with_containers, with_dicts, with_tuples, with_none, with_enum, with_config, with_slots,
        with_getattr, with_namespace, with_inheritance, with_other_module, with_local_import, with_math, with_defaults,
        with_helper_defaults, with_partial, with_decorator, with_functions_in_list, with_comprehensions, with_hasattr,
        with_isinstance, with_vars, with_try, with_sorting,
    ]  # fmt: skip
    found = [Subject(f.__name__, f, (x,)) for f in functions]
    variables = ("SMELT_FUZZ_MODE", "SMELT_FUZZ_GAIN", "SMELT_FUZZ_ABSENT")
    found.append(Subject("with_environment", with_environment, (x,), environment=variables))
    found.append(Subject("closures", _made(0.5, ["relu", "tanh"]), (x,)))
    found.append(Subject("closure_of_closure", _counting(), (x,)))
    found.append(Subject("partial", functools.partial(_scaled_by, 2.0, shift=1.0), (x,)))
    found.append(Subject("method", Caller().run, (x,)))
    found.append(Subject("object", DERIVED, (x,)))
    modules = [Block(), Block(config=CONFIG), Wider(torch.relu), Nested(), Norms(), Hooked(), Indirect()]
    for i, module in enumerate(modules):
        found.append(Subject(f"{type(module).__name__}_{i}", module.eval(), (x,)))
    stateful = Stateful().eval()
    found.append(Subject("Stateful", stateful, (x,), state=stateful.state))
    found.append(Subject("Block_no_residual", Block().eval(), (x,), {"residual": False}))
    found.append(Subject("Convolution", Convolution().eval(), (torch.randn(2, 2, 8, 8),)))
    found.append(Subject("Attending", Attending().eval(), (torch.randint(0, 10, (2, 5)),)))
    return found
