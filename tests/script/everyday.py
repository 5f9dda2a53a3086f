"""Programs as people write them every day, with calls that take their different ways: containers of any length,
builtins that go over them, loops that data end, records, text.
"""

# Programs as people write them.
# ruff: noqa: B007, B905, C416, C417, RUF005, UP007, UP045
# ruff: noqa: SIM401

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import nn

import smelt

X = torch.linspace(-2, 2, 12).reshape(3, 4)
Y = torch.linspace(3, -1, 12).reshape(3, 4)
V = torch.tensor([3.0, -1.0, 2.0, 0.5])
CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {}


def case(*calls):
    def keep(fn):
        CASES[fn.__name__] = (fn() if isinstance(fn, type) else fn, list(calls))
        return fn

    return keep


# --- parameters
@case((X,))
def p_callable_default(x, act: Callable = torch.sin):
    return act(x) + 1


@case((X, (X, Y)), (X, (X,)))
def p_var_tuple(x, ts: tuple[torch.Tensor, ...]):
    for t in ts:
        x = x + t
    return x, len(ts), isinstance(ts, tuple), ts


@case(([X, Y],), ([X],))
def p_list_typed(xs: list[smelt.f32[3, 4]]):
    return torch.stack(xs).sum(0), xs[0] * 2, xs[-1].shape[0]


@case(({"a": X, "b": Y},), ({"b": X},))
def p_dict_typed(d: dict[str, smelt.f32[None, 4]]):
    return sum(v.sum() for v in d.values()), sorted(d)


@case(({"a": [X, Y], "b": [X]},), ({"a": []},))
def p_dict_of_lists(d: dict[str, list[torch.Tensor]]):
    n = 0
    for k, xs in d.items():
        n += len(xs)
    return n, len(d)


@case(([[1, 2], [3]],), ([],))
def p_nested_lists(xs: list[list[int]]):
    return sum(len(x) for x in xs), [sum(x) for x in xs]


@case(([{"a": X}, {"a": Y}],), ([],))
def p_list_of_dicts(xs: list[dict[str, torch.Tensor]]):
    out = []
    for d in xs:
        out.append(d["a"] * 2)
    return out


@case((X, None), (X, [1, 2]), (X, []))
def p_optional_list(x, ns: Optional[list[int]] = None):
    if ns is None:
        ns = [4]
    for n in ns:
        x = x + n
    return x


@case((X, None), (X, {"k": Y}))
def p_optional_dict(x, d: Optional[dict[str, torch.Tensor]] = None):
    if d is not None and "k" in d:
        x = x + d["k"]
    return x


@case((X, [None, Y]), (X, []))
def p_list_of_optionals(x, ms: list[Optional[torch.Tensor]]):
    for i, m in enumerate(ms):
        x = x + i if m is None else x * m
    return x


@case((X, (2, 3.5)), (X, (1, -0.5)))
def p_pair(x, p: tuple[int, float]):
    n, f = p
    return x * n + f


@case((X, 2), (X, 2.5), (X, Y))
def p_number_or_tensor(x, s: Union[float, int, torch.Tensor]):
    if isinstance(s, torch.Tensor):
        return x * s.sum()
    return x * s


@case((X, [2, 3]), (X, (1, 2)))
def p_sequence(x, sizes: Sequence[int]):
    return x.sum() * math.prod(sizes), len(sizes)


@case((X, 3), (X, [1, 2]))
def p_int_or_list(x, k: Union[int, list[int]]):
    if isinstance(k, int):
        k = [k]
    return x * sum(k)


@case((X, [0]), (X, [0, 1]), (X, [-1]))
def p_dims(x, dims: list[int]):
    return x.sum(dims), x.mean(dim=dims, keepdim=True)


@case((X, [4, 3]), (X, [12]), (X, [2, -1]))
def p_shape(x, shape: list[int]):
    return x.reshape(shape), x.reshape(*shape), torch.zeros(shape[0])


# --- builtins over what only a run knows
@case(([X, Y],), ([X],), ([],))
def b_map(xs: list[torch.Tensor]):
    return list(map(lambda t: t * 2, xs)), len(list(map(torch.sin, xs)))


@case(([1, 2, 3, 4],), ([1],), ([],))
def b_filter(ns: list[int]):
    return list(filter(lambda n: n % 2 == 0, ns)), [n for n in ns if n > 1], sum(1 for n in ns if n > 2)


@case(([3, -1, 2],), ([],), ([2, -2, 1],))
def b_sorted_key(ns: list[int]):
    return sorted(ns, key=lambda n: -n), sorted(ns, key=abs), sorted(ns, key=lambda n: abs(n), reverse=True)


@case(([(3, "a"), (1, "b"), (3, "c")],), ([],))
def b_sorted_pairs(ps: list[tuple[int, str]]):
    return sorted(ps, key=lambda p: p[0]), sorted(ps, key=operator.itemgetter(0), reverse=True)


@case(([3, -1, 2],), ([5],))
def b_minmax_key(ns: list[int]):
    return min(ns, key=lambda n: abs(n)), max(ns, key=lambda n: -n), max(ns), min(ns)


@case(([],), ([2],))
def b_minmax_default(ns: list[int]):
    return max(ns, default=7), min(ns, key=abs, default=None) if len(ns) else 0


@case(([X, Y],), ([Y, X],))
def b_max_tensor_key(xs: list[torch.Tensor]):
    return max(xs, key=lambda t: t.sum().item())


@case(([1, 0],), ([1, 2],), ([],))
def b_any_all(ns: list[int]):
    return any(ns), all(ns), any(n > 1 for n in ns), all(n > 0 for n in ns)


@case(([X, Y], [1, 2]), ([X], [3, 4]), ([], []))
def b_zip(xs: list[torch.Tensor], ns: list[int]):
    total = torch.zeros(3, 4)
    for x, n in zip(xs, ns):
        total = total + x * n
    pairs = [x.sum() * n for x, n in zip(xs, ns)]
    return total, pairs, len(list(zip(xs, ns)))


@case(([1, 2], [3, 4]), ([1], [3, 4]))
def b_zip_strict(a: list[int], b: list[int]):
    return [x * y for x, y in zip(a, b, strict=True)]


@case((["a", "b"], [1, 2]), ([], []))
def b_dict_zip(ks: list[str], ns: list[int]):
    d = dict(zip(ks, ns))
    return len(d), {k: n * 2 for k, n in zip(ks, ns)}


@case(([X, Y],), ([],))
def b_enumerate(xs: list[torch.Tensor]):
    out = [x * i for i, x in enumerate(xs, 1)]
    return out, list(enumerate([n for n in range(len(xs))]))


@case(([1, 2, 3],), ([],))
def b_reversed(ns: list[int]):
    out = []
    for n in reversed(ns):
        out.append(n)
    return out, list(reversed(ns)), ns[::-1]


@case((X, 4), (X, 0))
def b_reversed_range(x, n: int):
    out = []
    for i in reversed(range(n)):
        out.append(i)
    return x, out


@case(([1, 2, 3],), ([],))
def b_reduce(ns: list[int]):
    return functools.reduce(lambda a, b: a * 2 + b, ns, 1)


@case(([1, 2, 3],), ([4],))
def b_accumulate(ns: list[int]):
    return list(itertools.accumulate(ns)), list(itertools.chain(ns, [7]))


@case(([1, 2], [3]), ([], []))
def b_product(a: list[int], b: list[int]):
    return [x * y for x, y in itertools.product(a, b)]


@case(([X, Y],), ([],))
def b_sum_start(xs: list[torch.Tensor]):
    return sum(xs, torch.zeros(3, 4))


@case((5,), (0,), (1,))
def b_list_range(n: int):
    return list(range(n)), tuple(range(n)), sum(range(n)), [i for i in range(n) if i % 2 == 0], len(range(n))


@case((5,), (0,))
def b_dict_comp(n: int):
    d = {i: i * i for i in range(n)}
    return len(d), sum(d.values()), 3 in d


@case(([1, 2, 3, 4, 5], 2), ([1], 3))
def b_chunks(ns: list[int], k: int):
    return [ns[i : i + k] for i in range(0, len(ns), k)]


@case((X, 3), (X, 1))
def b_str_join(x, n: int):
    return ",".join(str(i) for i in range(n)), "-".join([f"{i:02d}" for i in range(n)])


@case((X, "a b c"), (X, ""))
def b_split(x, s: str):
    words = s.split()
    return [w.upper() for w in words], len(words), {w: len(w) for w in words}


@case((X, "abca"), (X, ""))
def b_chars(x, s: str):
    n = 0
    for ch in s:
        if ch == "a":
            n += 1
    return n, [c for c in s if c != "a"], s.count("a")


@case((X, [2, 3]), (X, [1]))
def b_math(x, ns: list[int]):
    return math.prod(ns), math.sqrt(sum(n * n for n in ns)), math.floor(ns[0] / 2), math.ceil(ns[-1] / 2)


@case((X, [2, 3]), (X, []))
def b_isinstance(x, ns: list[int]):
    return isinstance(ns, list), isinstance(ns, (list, tuple)), bool(ns), not ns


@case((X, [2, 3]), (X, [5, 1]))
def b_star_call(x, ns: list[int]):
    return max(*ns), x.new_zeros(*ns), x.new_ones(ns)


# --- lists that programs build
@case((X, 4), (X, 0))
def l_if_append(x, n: int):
    out = []
    for i in range(n):
        if i % 2 == 0:
            out.append(i)
        else:
            out.append(i * 10)
            out.append(-1)
    return out


@case((X,), (X - 3,), (X + 3,))
def l_data_append(x):
    keep = []
    for row in x:
        if row.sum() > 0:
            keep.append(row)
    return torch.stack(keep) if keep else torch.zeros(0, 4)


@case((X,), (X - 3,))
def l_comp_data_if(x):
    rows = [row for row in x if row.sum() > 0]
    return len(rows), sum(rows)


@case((X, 3), (X, 0))
def l_comp_if_range(x, n: int):
    ts = [x * i for i in range(n) if i != 1]
    return ts, len(ts)


@case((X, 3), (X, 0), (X, 1))
def l_nested_comp(x, n: int):
    return [[i * j for j in range(i)] for i in range(n)], [i + j for i in range(n) for j in range(i) if j != 1]


@case((X, 3), (X, 0))
def l_optional_rebuilt(x, n: int):
    acc: Optional[list[int]] = None
    for i in range(n):
        if acc is None:
            acc = [i]
        else:
            acc = acc + [i]
    return x, acc


@case((X, 3), (X, 0))
def l_optional_tensor(x, n: int):
    h = None
    for i in range(n):
        h = x if h is None else h + x * i
    return x if h is None else h


@case((X, 3), (X, 0))
def l_best(x, n: int):
    best = None
    for i in range(n):
        v = (i * 7) % 5
        if best is None or v > best:
            best = v
    return x, best


@case((X, 3), (X, 1))
def l_windows(x, n: int):
    ns = [0] * n
    for i in range(n):
        ns[i] = i * i
    return ns


@case((X, 4), (X, 2))
def l_fib(x, n: int):
    fs = [1, 1]
    while len(fs) < n:
        fs.append(fs[-1] + fs[-2])
    return x * fs[-1], fs


@case((X, 6), (X, 0))
def l_stack_queue(x, n: int):
    stack, out = [n], []
    while stack:
        k = stack.pop()
        out.append(k)
        if k > 1:
            stack.append(k // 2)
            stack.append(k - 2)
    return out


@case((X, 3), (X, 0))
def l_deque(x, n: int):
    q = collections.deque([1, 2])
    for i in range(n):
        q.append(i)
        q.popleft()
    return list(q), len(q)


@case((X, 3), (X, 0))
def l_dict_build(x, n: int):
    d = {}
    for i in range(n):
        d[str(i)] = i
    return d, sum(d.values())


@case((X, 3), (X, 0))
def l_dict_of_lists(x, n: int):
    d = {"a": [], "b": []}
    for i in range(n):
        d["a"].append(i)
        if i % 2:
            d["b"].append(-i)
    return d


@case((X, 3), (X, 0))
def l_cat_grow(x, n: int):
    out = x[:0]
    for i in range(n):
        out = torch.cat([out, x[:1] * i])
    return out


@case((X, [1, 2]), (X, []))
def l_param_append(x, ns: list[int]):
    ns.append(7)
    return x * len(ns)


# --- loops that data end
@case((X, 5), (X, 2), (X - 5, 3))
def w_nested_break(x, n: int):
    total = torch.zeros(())
    for i in range(n):
        for row in x:
            if row.sum() < -3:
                break
            total = total + row.sum()
        if total > 20:
            break
    return total


@case((X, 5), (X, 2))
def w_nested_break_index(x, n: int):
    found = (-1, -1)
    for i in range(n):
        for j in range(n):
            if i * j == 6:
                found = (i, j)
                break
        if found[0] >= 0:
            break
    return x, found


@case((X, 5), (X, 0), (X, 12))
def w_return_in_nested(x, n: int):
    for i in range(n):
        for j in range(i):
            if i + j == 7:
                return x * i + j
    return x


@case((X,), (X * 100,), (X * 0,))
def w_converge(x):
    for step in range(20):
        y = x / 2
        if (y - x).abs().max() < 1e-2:
            break
        x = y
    return x, step


@case((X, 3), (X, 0))
def w_while_true(x, n: int):
    i = 0
    while True:
        if i >= n:
            return x * i
        i += 1
        if i == 2:
            continue
        x = x + i


@case((V, 2), (V, 4))
def w_argmax_loop(v, k: int):
    picked = []
    v = v.clone()
    for _ in range(k):
        i = int(v.argmax())
        picked.append(i)
        v[i] = -math.inf
    return picked


@case((V,), (-V,))
def w_item_loop(v):
    n = int(v.sum().item())
    out = []
    for i in range(n):
        out.append(v * i)
    return len(out), sum(out)


@case((V, 1.0), (V, 100.0))
def w_sample_until(v, limit: float):
    total, n = 0.0, 0
    while total < limit and n < len(v):
        total += v[n].item()
        n += 1
    return total, n


@case((X, 3), (X, 0))
def w_for_else_return(x, n: int):
    for i in range(n):
        if i == 2:
            break
    else:
        return x - 1
    return x + i


@case((X, 6), (X, 1))
def w_prime(x, n: int):
    primes = []
    for k in range(2, n + 1):
        for p in primes:
            if k % p == 0:
                break
        else:
            primes.append(k)
    return primes


@case((X, [3, 1, 2]), (X, []))
def w_bubble(x, ns: list[int]):
    ns = list(ns)
    for i in range(len(ns)):
        for j in range(len(ns) - 1 - i):
            if ns[j] > ns[j + 1]:
                ns[j], ns[j + 1] = ns[j + 1], ns[j]
    return ns


@case((X, [1, 3, 5], 3), (X, [1, 3, 5], 4), (X, [], 1))
def w_bisect(x, ns: list[int], k: int):
    lo, hi = 0, len(ns)
    while lo < hi:
        mid = (lo + hi) // 2
        if ns[mid] < k:
            lo = mid + 1
        else:
            hi = mid
    return lo


# --- ints that a loop makes of each other
@case((X, 10), (X, 27), (X, 1))
def i_collatz(x, n: int):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return x + steps


@case((X, 12, 18), (X, 0, 4), (X, 832040, 514229))
def i_gcd(x, a: int, b: int):
    while b:
        a, b = b, a % b
    return x * a


@case((X, 99), (X, 1), (X, 123456789))
def i_square_root(x, n: int):
    r = n
    while r * r > n:
        r = (r + n // r) // 2
    return x + r


@case((X, 360), (X, 1))
def i_factors(x, n: int):
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p += 1
    return out, x * len(out)


@case((X, 19), (X, 4))
def i_happy(x, n: int):
    while n not in (1, 4):
        s = 0
        while n > 0:
            n, d = divmod(n, 10)
            s += d * d
        n = s
    return x + n


# --- classes and records
@dataclasses.dataclass
class Config:
    size: int = 4
    act: str = "relu"
    scales: list[float] = dataclasses.field(default_factory=lambda: [1.0, 2.0])


@case((X,))
class r_config(nn.Module):
    def __init__(self, config=Config()):  # noqa: B008
        super().__init__()
        self.config = config
        self.lin = nn.Linear(config.size, config.size)
        self.acts = {"relu": F.relu, "tanh": torch.tanh}

    def forward(self, x):
        x = self.acts[self.config.act](self.lin(x))
        for s in self.config.scales:
            x = x * s
        return x


@dataclasses.dataclass
class State:
    h: torch.Tensor
    step: int = 0
    log: list[int] = dataclasses.field(default_factory=list)

    def advance(self, x):
        self.h = torch.tanh(self.h + x)
        self.step += 1
        self.log.append(self.step)
        return self


@case((X, 3), (X, 0))
def r_state(x, n: int):
    s = State(x * 0)
    for _ in range(n):
        s.advance(x)
    return s.h, s.step, s.log


class Node:
    def __init__(self, value, left=None, right=None):
        self.value, self.left, self.right = value, left, right


@case((X,), (X - 9,))
def r_tree(x):
    tree = Node(x, Node(x + 1), Node(x * 2, Node(x - 1)))

    def total(node):
        if node is None:
            return 0
        return node.value.sum() + total(node.left) + total(node.right)

    t = total(tree)
    return t if t > 0 else -t


class r_registry(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})

    def forward(self, x, name: str):
        return self.heads[name](x)


CASES["r_registry"] = (r_registry(), [(X, "a"), (X, "b"), (X, "c")])


class r_moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        which = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (which == i).nonzero().squeeze(-1)
            if rows.numel() > 0:
                out[rows] = expert(x[rows])
        return out


CASES["r_moe"] = (r_moe(), [(X,), (torch.randn(7, 4),)])


class r_cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, cache: Optional[list[torch.Tensor]] = None):
        y = self.lin(x)
        if cache is None:
            cache = []
        cache = cache + [y]
        return torch.cat(cache), cache


CASES["r_cache"] = (r_cache(), [(X,), (X, [X, Y])])


class r_decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(7, 4), nn.GRUCell(4, 4), nn.Linear(4, 7)

    def forward(self, h, start: int, most: int):
        token = torch.full((h.shape[0],), start)
        tokens = []
        for _ in range(most):
            h = self.cell(self.emb(token), h)
            token = self.out(h).argmax(-1)
            tokens.append(token)
            if (token == 3).all():
                break
        return torch.stack(tokens, 1), h


CASES["r_decoder"] = (r_decoder(), [(X, 1, 4), (X[:1], 2, 6)])


# --- numbers, text, tensors
@case((X, 3), (X, -2))
def n_clamped(x, n: int):
    n = max(0, min(n, 2))
    return x[:n], x[n:], x * n


@case((X, 0.5), (X, 1.5))
def n_float_branch(x, p: float):
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], not {p}")
    return F.dropout(x, p, training=False) * (1 - p)


@case((X,), (X.long(),), (X > 0,))
def n_like(x):
    y = torch.zeros_like(x)
    z = torch.full_like(x, 1)
    return y, z, x.new_zeros(2), torch.arange(x.shape[0], dtype=x.dtype if x.is_floating_point() else torch.int64)


@case((X, 2), (X, 1))
def n_mask(x, n: int):
    m = torch.arange(x.shape[1]) < n
    return x.masked_fill(m, 0.0), x[:, m], torch.where(m, x, -x), m.sum()


@case((X, 2), (X, 1))
def n_topk(x, k: int):
    v, i = x.topk(k, dim=-1)
    return v, i, torch.zeros_like(x).scatter(1, i, v)


@case((X, torch.tensor([0, 2])), (X, torch.tensor([1])))
def n_lengths(x, lengths: smelt.i64[None]):
    out = []
    for n in lengths.tolist():
        out.append(x[:n].sum())
    return out


@case((X, torch.tensor([1, 3])), (X, torch.tensor([2])))
def n_pad(x, lengths):
    most = int(lengths.max())
    mask = torch.arange(most)[None, :] < lengths[:, None]
    return mask, most


@case((X, "sum"), (X, "mean"), (X, "none"), (X, "bad"))
def n_reduction(x, reduction: str = "mean"):
    if reduction == "sum":
        return x.sum()
    elif reduction == "mean":
        return x.mean()
    elif reduction == "none":
        return x
    else:
        raise ValueError(f"{reduction} is not a valid value for reduction")


@case((X, "relu"), (X, "tanh"), (X, "q"))
def n_table(x, name: str):
    table = {"relu": torch.relu, "tanh": torch.tanh}
    return table[name](x)


@case((X, 2), (X, 0))
def n_pair_swap(x, n: int):
    a, b = x, x * 2
    for _ in range(n):
        a, b = b, a + b
    return a, b


@case((X, 3), (X, 1))
def n_einsum(x, n: int):
    return torch.einsum("ij,kj->ik", x, x[:n]), x @ x[:n].T


@case((X,), (X[:, :2],))
def n_shape_tuple(x):
    b, _ = x.shape
    h = x.shape[-1] // 2
    y = x.view(b, 2, h)
    return y.transpose(0, 1).reshape(2 * b, h), tuple(x.shape), list(x.shape), x.shape[0] == b


@case((X,), (torch.randn(2, 3, 4),))
def n_flatten_batch(x):
    lead = x.shape[:-1]
    y = x.reshape(-1, x.shape[-1]) * 2
    return y.reshape(*lead, -1), y.view(lead + (y.shape[-1],))


@case((X, 2.0), (X, -3.0))
def n_round(x, f: float):
    return round(f), round(f, 1), int(f), f // 1, f % 1, abs(f), math.isnan(f), f"{f:.1f}", x * f


@case((X,), (X - 3,))
def n_print_branch(x):
    if x.sum() > 0:
        print("positive", x.sum().item())
    return x


@case((X, 4), (X, 0))
def n_log(x, n: int):
    log = []
    for i in range(n):
        log.append(f"step {i}: {i / 2:.2f}")
    return "\n".join(log)


@case((X, [1.0, 2.0]), (X, [3.0]))
def n_tensor_of_list(x, fs: list[float]):
    return torch.tensor(fs) * 2, torch.tensor([fs[0], 1.0]), x * torch.tensor(fs).sum()


@case((X, 2), (X, 5))
def n_try_index(x, i: int):
    try:
        y = x[i]
    except IndexError:
        y = torch.zeros(4)
    return y * 2


@case((X, {"a": 1}), (X, {}))
def n_kwargs(x, options: dict[str, int]):
    a = options.get("a", 3)
    b = options["b"] if "b" in options else 0
    return x * a + b


@case((X,), (X - 9,))
def n_closure_counter(x):
    count = 0

    def bump(t):
        nonlocal count
        if t.sum() > 0:
            count += 1
        return t * 2

    y = bump(bump(x))
    return y, count


@case((X,), (X - 9,))
def n_early(x):
    if x.sum() > 0:
        return x
    y = x * 2
    if y.sum() < -100:
        return y
    return y + 1


@case((X,), (X - 9,))
def n_dict_result(x):
    out = {"x": x}
    if x.sum() > -1:
        out["extra"] = x * 2
    return out


@case((X,), (X - 9,))
def n_list_result(x):
    out = [x]
    if x.sum() > -1:
        out.append(x * 2)
    return out


@case((X, 1), (X, 2), (X, 3))
def n_match(x, n: int):
    match n:
        case 1 | 2:
            y = x * n
        case k if k > 2:
            y = x - k
    return y


# --- torch.distributions: checks with messages of data, shapes made of shapes


@case((X,), (V,), (-8 * torch.ones(2),), (torch.tensor(-9.0),))
def normal(x):
    n = torch.distributions.Normal(x, x.exp() - 0.001, validate_args=True)
    return n.log_prob(x + 1), n.entropy(), n.rsample((2,)).shape


@case((X,), (Y,), (V,))
def categorical(x, validate=True):
    c = torch.distributions.Categorical(logits=x, validate_args=validate)
    chosen = c.sample()
    return c.log_prob(chosen).shape, c.entropy(), c.probs


# --- a generator taken apart at once


@case((X,), (Y,))
def halves(x):
    a, b = (F.relu(c) for c in x.chunk(2, -1))
    [c], (d, *e) = (t for t in [(a,), (b, 1, 2)])
    return a * b, c + d, e
