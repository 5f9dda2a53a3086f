"""Programs that TorchScript rejects, accepts, or answers otherwise than eager; each with calls."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn

import smelt

X = torch.linspace(-2, 2, 12).reshape(3, 4)
Y = torch.linspace(3, -1, 12).reshape(3, 4)
ONE = torch.tensor(1.0)
CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {}


def case(*calls: tuple[Any, ...]) -> Any:
    def keep(fn: Any) -> Any:
        CASES[fn.__name__] = (fn() if isinstance(fn, type) else fn, list(calls))
        return fn

    return keep


# --- functions and arguments ------------------------------------------------------------------------------------------


def _gather(*args: Any, scale: float = 1.0, **kwargs: Any) -> Any:
    total = args[0]
    for more in args[1:]:
        total = total + more
    for name in sorted(kwargs):
        total = total * kwargs[name]
    return total * scale


@case((X, Y))
def variable_arguments(x, y):
    return _gather(x, y, x, scale=2.0, a=y, b=x)


@case((X, Y))
def spread_arguments(x, y):
    parts = (x, y)
    named = {"scale": 0.5}
    return _gather(*parts, **named)


@case((X, Y))
def keyword_only(x, y):
    def inner(a, *, b, c=2):
        return a * b + c

    return inner(x, b=y)


@case((X,))
def closure(x):
    k = 3
    scale = lambda v, by=2: v * by * k  # noqa: E731

    def add(v):
        nonlocal k
        k += 1
        return v + k

    return scale(add(x)) + add(scale(x, by=k))


@case((X, torch.tensor(3)), (-X, torch.tensor(0)))
def recursion(x, n):
    def fib(k):
        return 1 if k < 2 else fib(k - 1) + fib(k - 2)

    return x * fib(6) + n


@case((X,))
def partials(x):
    return functools.partial(torch.add, x, alpha=3)(x)


@case((X,))
def mutable_default(x, seen: Any = None):
    seen = [] if seen is None else seen
    seen.append(x)
    return seen[0] * len(seen)


# --- classes ----------------------------------------------------------------------------------------------------------


class _Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((4,), 0.5))

    def scale(self, x):
        return x * self.w

    def forward(self, x):
        return self.scale(x) + 1


@case((X,))
class inheritance(_Base):
    def scale(self, x):
        return super().scale(x) - 1

    @property
    def twice(self):
        return self.w * 2

    @staticmethod
    def shift(x, by=1):
        return x + by

    @classmethod
    def named(cls):
        return len(cls.__name__)

    def forward(self, x):
        return self.shift(super().forward(x) * self.twice, by=self.named())


@case((X, torch.tensor(0)), (X, torch.tensor(2)), (X, torch.tensor(-1)))
class dynamic_module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, i: smelt.i64[()]):
        return self.layers[i](x)


@case((X, 0), (X, 2), (X, -1), (X, 7))
class dynamic_module_int(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x, i: int):
        return self.layers[i](x)


@case((X,))
class containers_of_modules(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.seq = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.none = None

    def forward(self, x):
        for name, layer in self.layers.items():
            x = layer(x)
            if name == "b":
                break
        if self.none is not None:
            x = x + self.none
        return self.seq(x)


@case((X,))
class hooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.register_forward_hook(lambda m, args, out: out * 2)
        self.inner.register_forward_pre_hook(lambda m, args: (args[0] + 1,))

    def forward(self, x):
        return self.inner(x)


class Mode(enum.Enum):
    ADD = 1
    MUL = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@case((X, Y))
def enums(x, y):
    mode = Mode.MUL
    if mode is Mode.ADD:
        x = x + y
    elif mode == Mode.MUL:
        x = x * y
    return x * Level.HIGH + Mode["ADD"].value


@dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor
    k: int = 2

    def total(self):
        return (self.a + self.b) * self.k


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


Plain = namedtuple("Plain", "u v")


@case((X, Y))
def dataclasses_(x, y):
    p = Pair(x, y)
    p.k += 1
    return Pair(p.total(), y), Point(x, y=y), Plain(u=x, v=1)


@case((Point(X, Y), (X, 3)))
def structured_parameters(p: Point, q: tuple[torch.Tensor, int]):
    t, n = q
    return p.x * n + p.y + t


class Vector:
    scale = 2

    def __init__(self, items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def __iter__(self):
        return iter(self.items)

    def __add__(self, other):
        return Vector([a + b for a, b in zip(self.items, other.items, strict=True)])

    def __radd__(self, other):
        return Vector([other + a for a in self.items])

    def __mul__(self, k):
        return Vector([a * k if k is not None else a for a in self.items])

    def __eq__(self, other):
        return len(self) == len(other)

    def __contains__(self, k):
        return k < len(self)

    def __call__(self, x):
        return x + self.items[0]


@case((X, Y))
def own_classes(x, y):
    v = Vector([x, y]) + Vector([y, y])
    v.extra = 3
    w = 1 + v * 2
    assert 1 in w and v == w
    total = w(x)
    for item in w:
        total = total + item * v.extra
    return total + w[1] * Vector.scale


# --- statements -------------------------------------------------------------------------------------------------------


@case((X,), (X + 10,))
def walrus(x):
    if (s := x.sum()) > 5:
        return x * s
    return x - s


@case((X, 1), (X, 2), (X, 9))
def match_number(x, n: int):
    match n:
        case 1:
            return x + 1
        case 2 | 3:
            return x * 2
        case _:
            return x - 1


@case((X, Y))
def match_structure(x, y):
    match (x, [y, 1], {"k": y}):
        case (a, [b, 1], {"k": c}):
            return a + b * c
    return x


@case((X, Y))
def try_except(x: smelt.f32[3, 4], y: smelt.f32[3, 4]):
    try:
        z = x @ y
    except RuntimeError:
        z = x @ y.t()
    else:
        z = z * 0
    finally:
        z = z + 1
    try:
        {}["k"]
    except KeyError as e:
        z = z + len(e.args)
    return z


@case((X,), (-X - 5,))
def loop_else(x):
    for i in range(4):
        x = x + i
        if x.sum() > 30:
            break
    else:
        x = x - 100
    n = 0
    while n < 3:
        n += 1
        if x.min() < -1000:
            break
    else:
        x = x * 2
    return x, n


@case((X, 3), (X, 0), (X, 5))
def while_else(x, n: int):
    i = 0
    while i < n:
        x = x * 2
        i += 1
        if i == 4:
            break
    else:
        x = x + 1
    return x, i


@case((X,))
def comprehension_if(x):
    parts = [x[i] * i for i in range(3) if i != 1]
    named = {str(i): p for i, p in enumerate(parts)}
    sizes = {len(k) for k in named}
    nested = [a + b for a in parts for b in parts]
    return torch.stack(nested), named, max(sizes), sum(p.sum() for p in parts)


@case((X, 3), (X, -7))
def strings(x, n: int):
    text = f"{n:>5}|{3.14159:.2f}|{n!r}|{'ab' * 2}" + "%d-%s" % (4, "q") + "{}".format("z")  # noqa: UP031
    return x, text, text.upper().split("|"), len(text)


@case((X + 1,), (X * 3 + 1,))
def tensor_text(x):
    return f"{x.sum().item():.2f}", str(x.dim()), "n=" + str(x.size(0))


@case((X,))
def sorting(x):
    rows = [("b", 2), ("a", 3), ("c", 1)]
    rows.sort(key=lambda r: r[1], reverse=True)
    best = max(rows, key=lambda r: r[0])
    picked = list(map(lambda r: r[1], filter(lambda r: r[1] > 1, rows)))  # noqa: C417
    return x * rows[0][1] + best[1], sorted(picked), list(reversed(picked)), ~picked[0]


@case((X,))
def lists(x):
    items = [x, x + 1]
    alias = items
    alias.append(x * 2)
    items[0:1] = [x - 1, x - 2]
    last = items.pop()
    items.insert(0, last)
    del items[1]
    a, *rest = items
    (b, c), d = (rest[0], rest[1]), 3
    return items, len(alias), a, rest, b + c * d, type(rest) is list


@case((X, Y))
def dicts(x, y):
    d = {"a": x}
    d.setdefault("b", y)
    d.update(c=x + y)
    total = torch.zeros(3, 4)
    for k, v in d.items():
        total = total + v * len(k)
    popped = d.pop("a")
    return {k: d[k] for k in sorted(d)}, "a" in d, d.get("z", popped), total


@case((X,))
def numbers(x):
    big = 2**40 * 2**40
    return (
        x,
        big,
        7 // -2,
        -7 % 3,
        2**-1,
        2**3,
        divmod(-7, 2),
        round(2.5),
        7 / 2,
        math.floor(-1.5),
        1 < 2 < 3,
        bool(big) and 4,
    )


@case((X, 5), (X, -3), (X, 2**40))
def run_time_numbers(x, n: int):
    return x * 1, n * n * n, n // 3, n % 4, -n, abs(n), n / 2, 2**3 * n, min(n, 2), max(n, 1, 7), n == 5, divmod(n, 3)


@contextlib.contextmanager
def _doubling(items):
    items.append(1)
    try:
        yield 2
    finally:
        items.append(3)


class _Scope:
    def __enter__(self):
        self.n = 4
        return self

    def __exit__(self, *error):
        self.n = 0
        return False


@case((X,))
def context_managers(x):
    log = []
    with _doubling(log) as k, _Scope() as s:
        x = x * k + s.n
    with torch.no_grad():
        y = x * 2
    return y + len(log) + s.n


@case((X, True), (X, False))
def flags(x, flag: bool):
    y = x + 1 if flag else x - 1
    if not flag and x.sum() > -100:
        y = y * 2
    return y


@case((X,), (X.t(),), (X.reshape(-1),), (ONE,))
def ranks(x):
    if x.dim() == 1:
        return x * 2
    if x.dim() == 0 or x.shape[-1] > 3:
        return x + 1
    return x.transpose(0, 1)


@case((X,), (X.double(),), (X.long(),))
def dtypes(x):
    if x.dtype == torch.float32:
        return x + 1
    if x.is_floating_point():
        return x.to(torch.float16)
    return x * 2


@case((X,), (X.double(),))
def made_like(x):
    return torch.zeros(x.shape[0], 2, dtype=x.dtype, device=x.device) + torch.ones(x.size(), dtype=x.dtype).sum()


@case((X,), (torch.randn(2, 3, 4),))
def sizes(x):
    b = x.size(0)
    rest = x.shape[1:]
    n = 1
    for s in x.shape:
        n *= s
    assert x.numel() == n
    return x.reshape(b, -1), x.reshape(rest.numel(), -1), x.view(*x.shape), len(x), x.shape[-1] * 2


@case((X,))
def indexing(x):
    y = x.clone()
    y[0] = 5
    y[:, 1] += 2
    y[1:, -1] = x[0, 0]
    y[x > 1] = 0
    return y[..., 0], y[None, :, ::2], y[torch.tensor([0, 2])], y[-1, 1:3], x[[0, 1], [1, 2]]


@case((X, 1, torch.tensor(2)), (X, 0, torch.tensor(0)), (X, 5, torch.tensor(0)))
def indexing_by_value(x, i: int, t: smelt.i64[()]):
    y = x.clone()
    y[i] = 1.0
    y[t, 0] = x[i, 1] * 2
    return y[i:], y[:, t], x[t]


@case((X,), (-X - 1,))
def in_place(x):
    y = x.clone()
    v = y[0]
    if y.sum() > 1:
        v.mul_(2)
    else:
        y += 3
    v.add_(1)
    return y, v


@case((X,), (X + 20,))
def one_path_only(x):
    if x.sum() > 10:
        z = x * 2
    if x.sum() > 10:
        x = x + z
    return x


@case((X,), (X * 9,))
def growing(x):
    out = []
    n = 0
    while x.abs().max() < 10:
        x = x * 2
        out.append(x)
        n += 1
    return x, n, len(out)


@case((X,), (X + 5,))
def data_loop(x):
    total = torch.zeros(4)
    for row in x:
        if row.sum() < 0:
            continue
        total = total + row
    return total


@case(([X, Y],), ([X],), ([],))
def list_parameter(xs: list[torch.Tensor]):
    total = torch.zeros(3, 4)
    for i, x in enumerate(xs):
        total = total + x * i
    return total, len(xs)


@case(({"a": X, "b": Y},), ({"b": X},))
def dict_parameter(d: dict[str, torch.Tensor]):
    y = d["b"] * 2
    if "a" in d:
        y = y + d["a"]
    return y


@case((X, None), (X, Y))
def optional_parameter(x, y: Optional[torch.Tensor]):  # noqa: UP045
    if y is not None:
        x = x + y
    return x if y is None else x * y


@case((X,))
def optional_default(x, y: Optional[torch.Tensor] = None):  # noqa: UP045
    return x if y is None else x + y


@case((X, 2), (X, -1))
def asserts(x, n: int):
    assert n > 0, f"n is {n}"
    return x * n


@case((X,), (-X + 100,))
def raises(x):
    if x.sum() > 50:
        raise ValueError("too large")
    return x


@case((X, 0), (X, 3))
def division(x, n: int):
    return x + 6 // n


@case((X, [1, 2, 3], 1), (X, [1], 5))
def list_index(x, items: list[int], i: int):
    return x * items[i]


@case((X,))
def functional(x):
    y = F.layer_norm(x, (4,)) + F.softmax(x, -1) + F.gelu(x)
    return F.interpolate(y[None, None], scale_factor=2, mode="nearest"), F.pad(y, (1, 1)), F.normalize(y)


@case((X,))
def torch_functional(x):
    a, b = torch.split(x, 2, dim=1)
    u = torch.unique(x)
    return torch.einsum("ij,kj->ik", a, b), x.norm(), torch.norm(x, dim=1), u, torch.meshgrid(a[0], b[0], indexing="ij")


@case((X, 1), (X, 0), (X, -1))
def run_time_dim(x, d: int):
    return x.sum(d), torch.softmax(x, dim=d), x.unsqueeze(d), torch.cat([x, x], d)


@case((X, 2.0), (X, 0.5))
def default_number(x, k: float = 1.0):
    return x * k


@case((X,))
def default_mode(x, mode: str = "mean"):
    return F.mse_loss(x, x * 2, reduction=mode)


@case((X, Y))
def no_grad_function(x, y):
    @torch.no_grad()
    def inner(a):
        return a * 2

    return inner(x) + y


@case((X,))
def many_comparisons(x):
    n = x.size(0)
    return 1 < n < 5, n in (2, 3), n not in [7], not n, n and 4, n or 9, (n == 3) is True


@case((X,), (X.repeat(4, 1),))
def size_loop(x):
    h = torch.zeros(4)
    for i in range(x.size(0)):
        h = torch.tanh(h + x[i])
        if i % 2 == 0:
            h = h * 2
    return h


@case((X,), (X.repeat(4, 1),))
def nested_loops(x):
    total = torch.zeros(())
    for i in range(x.size(0)):
        for j in range(4):
            if j == 3:
                break
            if i == j:
                continue
            total = total + x[i, j] * (i + 1)
    return total


@case((X,), (-X,))
def exceptions_caught(x: smelt.f32[3, 4]):
    try:
        if x[0, 0] > 0:
            raise ValueError("a")
        y = x + 1
    except ValueError:
        y = x - 1
    return y
