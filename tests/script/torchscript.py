"""What TorchScript's language has and has not, as programs with calls: types, statements, expressions, functions,
modules.
"""

# Programs as people write them.
# ruff: noqa: B006, B007, B028, B905, C416, C417, E741, RUF005, RUF015, UP031, UP032

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import warnings
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

X = torch.linspace(-2, 2, 12).reshape(3, 4)
Y = torch.linspace(3, -1, 12).reshape(3, 4)
CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {}


def case(*calls):
    def keep(fn):
        CASES[fn.__name__] = (fn() if isinstance(fn, type) else fn, list(calls))
        return fn

    return keep


# --- types
@case((X, 2**40), (X, -3))
def t_int(x, n: int):
    return x, n * n, n**2, n // 7, n % 7, -n % 5, n / 3, n << 2, n & 3, n | 1, n ^ 5, ~n


@case((X, 2.5), (X, -0.0), (X, float("inf")))
def t_float(x, f: float):
    return x * f, f * 2, f // 2 if f == f and abs(f) < 1e9 else 0, f == 0


@case((X, 1 + 2j))
def t_complex(x, c: complex):
    return x * c, c.real, abs(c), c * c, c.conjugate()


@case((X, "ab"), (X, ""))
def t_str(x, s: str):
    return x, s + "c", len(s), s.upper(), s == "ab", "a" in s, s * 2, s[::-1], s.split("b"), f"{s:>5}"


@case((X, None), (X, 3))
def t_optint(x, n: int | None):
    return x * (n if n is not None else 1)


@case((X, 3), (X, "a"))
def t_union(x, n: int | str):
    return x * (n if isinstance(n, int) else len(n))


@case((X, 3), (X, "a"))
def t_union604(x, n: int | str):
    if isinstance(n, str):
        return x + len(n)
    return x + n


@case((X, torch.float64))
def t_dtype(x, d: torch.dtype):
    return x.to(d)


@case((X, torch.device("cpu")))
def t_device(x, d: torch.device):
    return x.to(d), torch.zeros(2, device=d)


@case((X, "mean"), (X, "sum"))
def t_literal(x, m: Literal["mean", "sum"]):
    return x.mean() if m == "mean" else x.sum()


T = TypeVar("T")


@case((X, X))
def t_typevar(x, y: T):
    return x


IntList = list[int]


@case((X, [1, 2]), (X, []))
def t_alias(x, s: IntList):
    return x * sum(s), len(s), [a * 2 for a in s]


@case((X, [1, 2], 1), (X, [], 3))
def t_listmut(x, s: list[int], n: int):
    s.append(n)
    s.insert(0, 5)
    s.reverse()
    s.sort()
    s.extend([1])
    c = s.count(1)
    i = s.index(5)
    p = s.pop()
    s.remove(5)
    return x, s, c, i, p, s.copy(), n in s, s[1:], s[::-1], s + [2], s * 2


@case((X, {"a": X}, "a"), (X, {"b": X}, "a"))
def t_dictmut(x, d: dict[str, torch.Tensor], k: str):
    d["z"] = x
    e = d.copy()
    e.update({"q": x})
    return (
        k in d,
        list(d.keys()),
        len(d.items()),
        d.get(k, x * 3),
        e.pop("q"),
        list(e.values())[0],
        d.setdefault("w", x),
    )


@case((X, (1, X)))
def t_tuple(x, t: tuple[int, torch.Tensor]):
    return t[0] * x + t[-1], t + (x,), len(t), t[1:]


class P(NamedTuple):
    a: torch.Tensor
    b: int = 3


@case((X, P(X)), (X, P(X, 4)))
def t_nt(x, p: P):
    return p.a * p.b, p._replace(b=1), P(x, p.b + 1)


class E(enum.Enum):
    A = 1
    B = 2


class IE(enum.IntEnum):
    A = 1
    B = 2


@case((X, E.A), (X, E.B))
def t_enum(x, e: E):
    return x + 1 if e == E.A else x - 1


@case((X, IE.A), (X, IE.B))
def t_intenum(x, e: IE):
    return x * e, e == IE.A


@dataclasses.dataclass
class D:
    a: torch.Tensor
    n: int = 2

    def f(self):
        return self.a * self.n


@case((X, D(X)), (X, D(Y, 3)))
def t_dc(x, d: D):
    d.n += 1
    return d.f(), D(x, 5)


@case((X, None), (X, X))
def t_any(x, a: Any):
    return x


@case((X, [None, X]))
def t_list_opt(x, a: list[torch.Tensor | None]):
    t = x * 0
    for e in a:
        if e is not None:
            t = t + e
    return t


@case((X, [(1, X)]))
def t_list_tup(x, a: list[tuple[int, torch.Tensor]]):
    for n, y in a:
        x = x + n * y
    return x


# --- statements
@case((X, 3), (X, 0))
def s_for(x, n: int):
    out = []
    for i in range(n):
        out.append(i)
    for k in {"a": 1}:
        out.append(len(k))
    for ch in "abc":
        out.append(ord(ch))
    for a, b in zip([1, 2], [3, 4]):
        out.append(a * b)
    for i, r in enumerate(x):
        out.append(i)
    for r in reversed([1, 2]):
        out.append(r)
    for v in map(lambda q: q + 1, filter(lambda q: q > 1, [1, 2, 3])):
        out.append(v)
    it = iter([5, 6])
    out.append(next(it))
    return x, out


@case((X, 5), (X, 0), (X, -1))
def s_range(x, n: int):
    out = []
    for i in range(n, 0, -2):
        out.append(i)
    for i in range(0, n):
        n = 1
        out.append(i)
    return x, out, n


@case((X, 0), (X, 2))
def s_step0(x, n: int):
    t = 0
    for i in range(0, 4, n):
        t += i
    return x * t


@case((X, 3), (X, 0))
def s_while(x, n: int):
    while True:
        n += 1
        if n % 2:
            continue
        if n > 5:
            break
    return x * n


@case((X, 1), (X, -1))
def s_mixed_exit(x, n: int):
    if n > 0:
        return x
    else:
        raise KeyError("no")


@case((X, [1], 5), (X, [1], 0))
def s_try(x, l: list[int], i: int):
    try:
        return x * l[i]
    except IndexError:
        return x - 1
    finally:
        l.append(1)


@case((X, {"a": 1}, "a"), (X, {"a": 1}, "b"))
def s_try_key(x, d: dict[str, int], k: str):
    try:
        v = d[k]
    except KeyError:
        v = 7
    else:
        v = v + 1
    return x * v


@case((X, 0), (X, 2))
def s_try_zero(x, n: int):
    try:
        v = 6 // n
    except ZeroDivisionError:
        v = -1
    return x * v


@case((X,), (X + 100,), (X * float("nan"),))
def s_try_data(x):
    try:
        if x.sum() > 50:
            raise ValueError("big")
        if x.sum() != x.sum():
            raise TypeError("nan")
        y = x + 1
    except (ValueError, TypeError) as e:
        y = x - len(str(e))
    finally:
        x = x * 2
    return y + x


@case((X,), (X + 100,))
def s_try_nested(x):
    try:
        try:
            assert x.sum() < 50, "too much"
        except ValueError:
            return x
        finally:
            x = x + 1
    except AssertionError:
        return x - 1
    return x * 3


@case((X,), (X + 100,))
def s_try_reraise(x):
    try:
        if x.sum() > 50:
            raise ValueError("a")
    except ValueError as e:
        raise RuntimeError("b") from e
    return x


@case((X, 1), (X, 9))
def s_try_loop(x, n: int):
    c = 0
    for i in range(n):
        try:
            if i == 3:
                raise StopIteration
            if i == 5:
                break
            c += 1
        except StopIteration:
            c += 10
            continue
        finally:
            c += 100
    return x * c


@case((X, "3"), (X, "q"))
def s_try_conv(x, s: str):
    try:
        n = int(s)
    except ValueError:
        n = -1
    return x * n


@case((X, 2), (X, 7))
def s_try_tensor_index(x, i: int):
    try:
        return x[i]
    except IndexError:
        return x[0] * 0


@case((X, 2), (X, 7))
def s_match(x, n: int):
    match n:
        case 2:
            y = x
        case k if k > 5:
            y = x * k
        case _:
            y = -x
    return y


@case((X, [1, 2]), (X, [1]), (X, []))
def s_match_list(x, l: list[int]):
    match l:
        case [a, b]:
            return x * a + b
        case [a]:
            return x * a
        case _:
            return x


@case((X, D(X, 1)), (X, D(X, 2)))
def s_match_class(x, d: D):
    match d:
        case D(n=1):
            return x
        case D(a=a, n=n):
            return a * n


@case((X,))
def s_warn(x):
    warnings.warn("hi")
    return x


@case((X,))
def s_import(x):
    import math as m

    from torch.nn import functional as G

    return G.relu(x) * m.pi


COUNT = 3


@case((X,))
def s_global(x):
    return x * COUNT


@case((X, 3))
def s_classdef(x, n: int):
    class A:
        k = 2

        def __init__(self, v):
            self.v = v

        def __call__(self):
            return self.v * self.k

    return x * A(n)()


@case((X, 3), (X, 0))
def s_gen(x, n: int):
    def g(k):
        for i in range(k):
            yield i * 2

    return x * sum(g(3)), list(g(2)), sum(i for i in range(n))


@case((X,))
def s_with(x):
    with torch.no_grad(), contextlib.suppress(ValueError):
        y = x * 2
    with torch.autograd.profiler.record_function("a"):
        y = y + 1
    return y


@case((X + 30,), (X,))
def s_suppress(x):
    y = x
    with contextlib.suppress(ValueError):
        if x.sum() > 50:
            raise ValueError
        y = y + 1
    return y


class Ctx:
    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, t, v, tb):
        self.log.append("err" if t else "ok")
        return t is ValueError


@case((X,), (X + 30,))
def s_ctx_exc(x):
    c = Ctx()
    with c:
        if x.sum() > 50:
            raise ValueError("x")
    return x, c.log


@case((X,))
def s_assert_static(x):
    assert x.dim() == 2, "rank"
    return x


# --- expressions
@case((X, 1), (X, 3))
def e_scope(x, n: int):
    i = n
    q = [i for i in range(2)]
    return x * i, q


@case((X, 1), (X, 3), (X, 10))
def e_chain(x, n: int):
    c = []

    def f():
        c.append(1)
        return n

    return 1 < f() < 5, x * len(c), 0 < n <= 3 != 2


@case((X, True, False), (X, False, True), (X, True, True))
def e_short(x, a: bool, b: bool):
    c = []

    def f(v):
        c.append(1)
        return v

    r = (a and f(b)) or f(a)
    return x * len(c), r, not a, a & b, a | b, a ^ b, a + b


@case((X, 3.14159, 42), (X, -0.5, -7))
def e_fmt(x, f: float, n: int):
    return (
        x,
        f"{f:.2f}|{n:05d}|{n!r:>6}|{f:e}|{n:,}",
        "%d %5.2f %s" % (n, f, "a"),
        "{} {:.1f} {k}".format(n, f, k=1),
        "ab".join(["1", "2"]),
        str(n) + repr(f),
        "x".zfill(3),
        "a,b".partition(","),
        "abc".find("c"),
        "abc".replace("a", "z"),
        " a ".strip(),
        "abc".startswith("ab"),
        "A".isupper(),
        "a" < "b",
    )


@case((X, 2))
def e_setidx(x, n: int):
    y = x.clone()
    y[n] = 1
    y[:, 0] = 2.0
    y[..., 1] += 3
    y[y > 2] = 0
    y[[0, 1], [1, 2]] = 9
    y[None, 0] = 4
    y[torch.tensor([0, 1])] *= 2
    y[1:, 1:][0] = 7
    return y


@case((X, 2), (X, 0))
def e_tern(x, n: int):
    return x * (1 if n else 2), (n or 5), (n and 7), [x, -x][n > 1]


@case((X, 7, -2), (X, -7, 2), (X, 7, 0))
def e_div(x, a: int, b: int):
    return x, a // b, a % b, divmod(a, b), a / b, -(a**2), a**2, int(a / b), round(a / b, 2)


@case((X, 2, -3), (X, 2, 3))
def e_pow(x, a: int, b: int):
    return x, a**b, pow(a, 3, 5), a**0.5, (-a) ** 2


@case((X,))
def e_is(x):
    y = x
    return y is x, x is not None, [x] == [x], None is None


# --- functions
@case((X, 5), (X, 0))
def f_rec(x, n: int):
    def fact(k):
        return 1 if k <= 1 else k * fact(k - 1)

    return x * fact(4)


@case((X, 5), (X, 0))
def f_rec_dyn(x, n: int):
    def fact(k):
        return 1 if k <= 1 else k * fact(k - 1)

    return x * fact(n)


def _even(n):
    return True if n == 0 else _odd(n - 1)


def _odd(n):
    return False if n == 0 else _even(n - 1)


@case((X,))
def f_mutual(x):
    return x * (1 if _even(7) else 2)


def _kw(a, *rest, b=2, **kw):
    return a * b + sum(rest) + sum(kw.values())


@case((X, 4))
def f_args(x, n: int):
    d = {"c": n}
    return _kw(x, 1, 2, b=n, **d), _kw(*[x, n]), _kw(a=x)


def _mutdef(x, seen=[]):
    return x * len(seen)


@case((X,))
def f_mutdef(x):
    return _mutdef(x)


@case((X, 1))
def f_value(x, i: int):
    fs = [torch.sin, torch.cos]
    return fs[0](x), {"a": torch.tanh}["a"](x), functools.reduce(lambda a, b: a + b, [x, x, x])


@functools.lru_cache
def _cached(n):
    return n * 2


@case((X,))
def f_cached(x):
    return x * _cached(3)


def deco(fn):
    @functools.wraps(fn)
    def w(*a, **k):
        return fn(*a, **k) + 1

    return w


@deco
def _dec(x):
    return x * 2


@case((X,))
def f_deco(x):
    return _dec(x)


# --- optional
@case((X, None), (X, 2))
def o_ref(x, n: int | None = None):
    if n is None or n < 0:
        return x
    return x * n


@case((X, None, None), (X, Y, None), (X, Y, Y))
def o_ref2(x, a: torch.Tensor | None, b: torch.Tensor | None):
    if a is not None and b is not None:
        x = x + a * b
    z = a if a is not None else x
    assert z is not None
    return z


@case((X, None), (X, 0), (X, 2))
def o_truth(x, n: int | None):
    if n:
        return x * n
    return x


# --- modules
class M1(nn.Module):
    w: torch.Tensor | None

    def __init__(self, w=None):
        super().__init__()
        self.w = w
        self.n = 2
        self.items = []
        self.table = {"a": 1, "b": "c"}
        self.register_buffer("buf", torch.ones(4))
        self.lin = nn.Linear(4, 4)
        self.none = None

    def forward(self, x):
        if self.w is not None:
            x = x * self.w
        if self.none:
            x = x + 1
        if hasattr(self, "zzz"):
            x = x - 100
        x = x + len(self.items) + self.table["a"]
        if self.training:
            x = F.dropout(x, 0.5)
        return self.lin(x) + self.buf * self.n


CASES["m_attr"] = (M1().eval(), [(X,)])
CASES["m_attr_w"] = (M1(Y).eval(), [(X,)])


class M2(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])
        self.d = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Sigmoid()})
        self.ps = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.pd = nn.ParameterDict({"z": nn.Parameter(torch.ones(4))})

    def forward(self, x, k: int):
        for i, l in enumerate(self.layers):
            if i == 2:
                break
            x = l(x)
        for l in self.layers[1:]:
            x = l(x)
        for n, m in self.d.items():
            x = m(x)
        return self.layers[k](x) * self.ps[0] + self.pd["z"], self.d["a"](x), len(self.layers)


CASES["m_lists"] = (M2(), [(X, 0), (X, 2), (X, -1), (X, 9)])


class M3(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("c", torch.zeros(1))

    def forward(self, x):
        self.c += 1
        return x + self.c


class M4(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 2

    @property
    def twice(self):
        return self.k * 2

    @staticmethod
    def s(x):
        return x + 1

    @classmethod
    def c(cls, x):
        return x * len(cls.__mro__)

    def forward(self, x):
        return self.step(x) * self.twice

    def step(self, x):
        return x


class Sub(Base):
    def step(self, x):
        return self.s(super().step(x)) + self.c(x)

    def forward(self, x):
        return super().forward(x) - 1


CASES["m_inherit"] = (Sub(), [(X,)])
CASES["m_lstm"] = (nn.LSTM(4, 5, batch_first=True), [(torch.randn(2, 3, 4),)])
CASES["m_gru"] = (nn.GRU(4, 5), [(torch.randn(2, 3, 4),)])
# Three tensors: for one tensor in all places eager takes one product in place of three, whose roundings are others.
CASES["m_mha"] = (nn.MultiheadAttention(4, 2, batch_first=True).eval(), [tuple(torch.randn(3, 2, 3, 4))])
CASES["m_enc"] = (
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval(),
    [(torch.randn(2, 3, 8),)],
)
CASES["m_full"] = (
    nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval(),
    [(torch.randn(2, 3, 8), torch.randn(2, 4, 8))],
)


class M5(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.l.register_forward_hook(lambda m, i, o: o * 2)
        self.l.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
        self.register_forward_hook(lambda m, i, o: (o, i[0]))

    def forward(self, x):
        return self.l(x)


CASES["m_hooks"] = (M5(), [(X,)])


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


@case((X,))
def a_fn(x):
    return Fn.apply(x)


# --- in-place & views (29-31)
@case((X, 1), (X, -1))
def v_view(x, n: int):
    y = x.clone()
    v = y[1]
    if n > 0:
        v.add_(1)
    else:
        v = y[0]
    for i in range(3):
        v.mul_(2)
        v = y[i]
    return y, v


@case((X,))
def v_order(x):
    y = x.clone()
    z = y
    z += 1
    w = y * 2
    y.mul_(3)
    return y, z, w


@case((X.long(),))
def v_idiv(x):
    y = x.clone()
    y /= 2
    return y


@case((X,))
def v_aug(x):
    y = x.clone()
    y[:2] += y[1:]
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


@case((X.clone(),))
def v_input(x):
    x.add_(1)
    return x * 2


# --- conditions (1,2)
@case((X,), (X.sum(),), (X[0, :1],))
def c_multi(x):
    if x > 0:
        return x + 1
    return x - 1


@case((X,), (X - 10,))
def c_undefined(x):
    if x.sum() > -1:
        y = x
    return y


@case((X,), (-X - 1,))
def c_none_data(x):
    y = x if x.sum() > -1 else None
    return y is None, x


@case((X,), (-X - 1,))
def c_shape(x):
    y = x if x.sum() > -1 else x[:2]
    return y * 2, y.shape[0]


@case((X, 1), (X, 5))
def c_rank(x, n: int):
    y = x if n > 2 else x[0]
    return y.sum(-1)


@case((X,), (-X - 1,))
def c_dtype(x):
    y = x if x.sum() > -1 else x.long()
    return y + 1


# tensors
@case((X,), (torch.zeros(2, 3),))
def n_nonzero(x):
    i = x.nonzero()
    return i.shape[0], x[x > 0].sum(), len(torch.unique(x)), i


@case((X,))
def n_print(x):
    print("a", x.sum(), x.shape, f"{x.mean():.3f}", sep="|", end="!\n")
    return x


@case((X, 2), (X, 0))
def n_strindex(x, n: int):
    return x, "abc"[n], ["a", "b", "c"][n], (1, 2, 3)[n], {0: "p", 2: "q"}[n]
