"""Programs whose sizes and numbers change from call to call, each with a maker of random calls.

`check` runs a compiled one beside eager: results with strides, aliases and identity, and what becomes of the arguments.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import smelt

Call = tuple[Any, ...]
Maker = Callable[[random.Random], Call]


@dataclass(frozen=True)
class Program:
    name: str
    make: Callable[[], Callable[..., Any]]
    call: Maker


class Pair(NamedTuple):
    left: Any
    right: Any


def size(r: random.Random, low: int = 2, high: int = 12) -> int:
    """Mostly an ordinary size, now and then 0 or 1."""
    return r.choice((0, 1)) if r.random() < 0.15 else r.randint(low, high)


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


PROGRAMS: list[Program] = []


def program(call: Maker) -> Callable[[Any], Any]:
    """A function, or a maker of modules, as a program with these calls."""

    def add(f: Any) -> Any:
        make = f if isinstance(f, type) else lambda: f
        PROGRAMS.append(Program(f.__name__, make, call))
        return f

    return add


def xb(r: random.Random) -> Call:
    return (floats(size(r), 8),)


def xy(r: random.Random) -> Call:
    b = size(r)
    return floats(b, 6), floats(b, 6)


# --- sizes ---


@program(xb)
def pointwise(x: Any) -> Any:
    return torch.sigmoid(x) * 2 + x.exp()


@program(xy)
def of_two(x: Any, y: Any) -> Any:
    return (x + y) * torch.tanh(x - y)


@program(lambda r: (floats(size(r), 6), floats(1, 6), floats(6)))
def broadcast(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


@program(lambda r: (floats(size(r), size(r), 4), floats(r.choice((1, 3)), 1, 4)))
def broadcast_over_a_size_that_changes(x: Any, y: Any) -> Any:
    return x + y.sum(0, keepdim=True)


@program(lambda r: (floats(size(r), 5), floats(5, size(r))))
def product(x: Any, y: Any) -> Any:
    return x @ y


@program(lambda r: (lambda b, k: (floats(b, size(r), k), floats(b, k, size(r))))(size(r), size(r)))
def batched_product(x: Any, y: Any) -> Any:
    return torch.bmm(x, y).relu()


@program(lambda r: (floats(size(r), size(r), 16),))
class Feedforward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16), torch.nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


@program(lambda r: (floats(size(r, 2, 4), size(r), 16),))
class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        b, s, d = x.shape
        q, k, v = (t.view(b, s, 4, d // 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, s, d))


@program(lambda r: (floats(size(r), size(r)),))
def reductions(x: Any) -> Any:
    return x.sum(0), x.mean(1), x.sum(), torch.softmax(x, -1)


@program(lambda r: (floats(r.randint(1, 9), r.randint(1, 9)),))
def extremes(x: Any) -> Any:
    return x.amax(1), x.argmin(0), x.max()


@program(lambda r: (lambda s: (floats(size(r), s, 4), torch.rand(s) > 0.5))(size(r)))
def masked(x: Any, keep: Any) -> Any:
    return torch.where(keep[:, None], x, torch.zeros(())).sum(1) / (keep.sum() + 1)


@program(lambda r: (floats(size(r), size(r)),))
def causal(x: Any) -> Any:
    s = x.size(1)
    return x[:, None, :] + torch.full((s, s), -math.inf).triu(1)


@program(lambda r: (floats(size(r), 3, 4),))
def flattened(x: Any) -> Any:
    return x.reshape(x.shape[0], -1), x.view(-1), x.flatten(1)


@program(lambda r: (floats(size(r), 2 * r.randint(1, 5)),))
def halves(x: Any) -> Any:
    a, b = x.chunk(2, dim=1)
    return a * b, x[:, : x.shape[1] // 2]


@program(lambda r: (floats(size(r), 4), floats(size(r), 4)))
def joined(x: Any, y: Any) -> Any:
    return torch.cat([x, y * 2, x[:1]]), torch.stack([x, x + 1])


@program(lambda r: (floats(2, 3, r.randint(1, 20), 4), floats(2, 3, 1, 4)))
def cache(past: Any, new: Any) -> Any:
    keys = torch.cat([past, new], dim=2)
    return torch.softmax(new @ keys.transpose(-1, -2), -1) @ keys, keys


@program(lambda r: (floats(size(r), size(r)).t(),))
def transposed_input(x: Any) -> Any:
    return x * 2, x.contiguous().sum(0)


@program(lambda r: (floats(12, 16)[:, : r.randint(0, 16)],))
def part_of_a_buffer(x: Any) -> Any:
    return x.sin(), x.sum(1)


@program(lambda r: (floats(size(r), 3).to(r.choice((torch.float32, torch.float64))),))
def dtype_changes_too(x: Any) -> Any:
    return x * 3 - x.mean()


@program(lambda r: (torch.randint(0, 10, (size(r), size(r))),))
class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = torch.nn.Embedding(10, 8), torch.nn.Embedding(16, 8)

    def forward(self, ids: Any) -> Any:
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))


@program(lambda r: (floats(size(r), 4),))
def ramp(x: Any) -> Any:
    return x * torch.arange(x.shape[0], dtype=x.dtype)[:, None] / max(x.shape[0], 1)


@program(lambda r: (floats(r.randint(0, 6), 3),))
def rows_one_by_one(x: Any) -> Any:
    y = torch.zeros(3)
    for row in x:
        y = y * 0.5 + row
    return y


@program(lambda r: (floats(r.randint(1, 14), 2),))
def recurrent(x: Any) -> Any:
    h, out = torch.zeros(2), []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h)
        out.append(h)
    return torch.stack(out)


@program(lambda r: (floats(size(r), 4), floats(4)))
def data_decides_too(x: Any, w: Any) -> Any:
    if (x * w).sum() > 0:
        return x * w
    return x - w


@program(lambda r: (floats(r.choice((3, 8, 16, 24)), 2),))
def size_decides(x: Any) -> Any:
    if x.shape[0] % 8 == 0:
        return x.view(-1, 8).sum(1)
    return x.sum(1)


@program(lambda r: (floats(size(r), 4),))
def size_in_the_answer(x: Any) -> Any:
    return x.shape[0], x.sum() / len(x) if len(x) else x.sum(), x.shape


@program(lambda r: (floats(size(r), 3),))
def nonzero(x: Any) -> Any:
    return x[x > 0].sum(), (x > 0).nonzero().shape[1]


# --- what is written, aliases ---


@program(lambda r: (floats(size(r), 4),))
def written_input(x: Any) -> Any:
    x.mul_(2)
    return x.sum(0)


@program(lambda r: (floats(size(r, 3), 4), floats(1, 4)))
def written_part(x: Any, row: Any) -> Any:
    x[-1:].copy_(row)
    return x


@program(lambda r: (floats(size(r), 4),))
def views_of_inputs(x: Any) -> Any:
    return x, x.t(), x[:, 1:3], x.view(-1)


def aliased(r: random.Random) -> Call:
    base = floats(8, 4)
    n = r.randint(2, 7)
    return (base[:n], base[1 : n + 1]) if r.random() < 0.5 else (base[:n], floats(n, 4))


@program(aliased)
def inputs_that_share(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


def twice(r: random.Random) -> Call:
    x = floats(size(r), 4)
    return (x, x) if r.random() < 0.5 else (x, floats(*x.shape))


@program(twice)
def given_twice(x: Any, y: Any) -> Any:
    return x + y, x * y


@program(lambda r: (floats(size(r), 4),))
class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.total += x.sum(0)
        return x - self.total


# --- numbers ---


@program(lambda r: (floats(3, 4), r.randint(-6, 6)))
def either_sign(x: Any, n: Any) -> Any:
    y = x**2
    return (n + 1) * y if n >= 0 else y / n


@program(lambda r: (floats(3), r.choice((0.0, -0.0, 1.0, 0.5, -2.5, math.inf, -math.inf, math.nan, 1e300))))
def a_float(x: Any, a: Any) -> Any:
    return x * a, a + 1.0, torch.full((2,), a)


@program(lambda r: (floats(3), r.choice((2, 3, True, False, 2.0, 0.0, 5))))
def int_bool_or_float(x: Any, n: Any) -> Any:
    return x * n, torch.tensor(n).dtype == torch.float32, n


@program(lambda r: (floats(9), r.randint(-9, 8)))
def index(x: Any, n: Any) -> Any:
    return x[n], [10, 20, 30, 40][n % 4]


@program(lambda r: (floats(3, 4), r.randint(0, 5)))
def repeated(x: Any, n: Any) -> Any:
    for _ in range(n):
        x = torch.sin(x) + 1
    return x


@program(lambda r: (floats(12, 2), r.randint(0, 12)))
def first_rows(x: Any, n: Any) -> Any:
    return x[:n].sum(0), x.narrow(0, 0, n), torch.zeros(n, 2) + 1


@program(lambda r: (floats(3), r.randint(-(2**40), 2**40), r.randint(1, 9)))
def integer_arithmetic(x: Any, a: Any, b: Any) -> Any:
    return x * (a // b % 7), a // b, a % b, divmod(-a, b), a**2, a * a, abs(a) + min(a, b)


@program(lambda r: ({"x": floats(size(r), 2), "n": [r.randint(1, 5), r.random()]}, Pair(floats(2), r.randint(2, 4))))
def nested(batch: Any, pair: Any) -> Any:
    return {"y": batch["x"] * batch["n"][0] + pair.left, "z": batch["n"][1] * pair.right}


@program(lambda r: (floats(size(r), 4), r.choice(("sum", "mean")), r.choice((None, 2, 3))))
def text_and_none(x: Any, how: Any, n: Any) -> Any:
    y = x.sum(0) if how == "sum" else x.mean(0)
    return y if n is None else y * n


@program(lambda r: (floats(size(r), 8), r.choice((0.0, 0.5))))
def dropped(x: Any, p: Any) -> Any:
    return F.dropout(x, p)


# --- the comparison ---


def check(compiled: Any, eager: Any, call: Call) -> None:
    """One call of both, on copies of its own. Raises: AssertionError."""
    mine, theirs = copy.deepcopy(call), copy.deepcopy(call)
    seed = random.Random(repr(call)).getrandbits(31)
    got, want = outcome(compiled, mine, seed), outcome(eager, theirs, seed)
    same(got, want, "result")
    same(mine, theirs, "arguments")
    aliases(got, mine, want, theirs)


def outcome(f: Any, call: Call, seed: int) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        try:
            return f(*call)
        except smelt.SmeltError:
            raise
        except Exception as error:
            return type(error).__name__


def same(a: Any, b: Any, at: str) -> None:
    assert type(a) is type(b), (at, a, b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), (at, a.stride(), b.stride())
        exact = not a.is_floating_point()
        torch.testing.assert_close(a, b, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))
    elif isinstance(a, dict):
        assert list(a) == list(b), at
        for key in a:
            same(a[key], b[key], f"{at}[{key!r}]")
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{at}[{i}]")
    elif isinstance(a, float):
        assert (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b), (at, a, b)
    else:
        assert a == b, (at, a, b)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def aliases(got: Any, mine: Call, want: Any, theirs: Call) -> None:
    """Which results are arguments, or lie in their memory, must agree."""

    def pattern(result: Any, call: Call) -> list[Any]:
        found = []
        for a in tensors(result):
            for b in tensors(call):
                shares = a.numel() and b.numel() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
                found.append((a is b, bool(shares)))
        return found

    assert pattern(got, mine) == pattern(want, theirs)
