"""What random programs may say beyond `generate`, as templates with places for expressions."""

from __future__ import annotations

from typing import Any

from tests.programs.generate import FLOAT, LONG, UNKNOWN, VECTOR, tensor

MATRIX, SCALAR, INTS, MASK = tensor(FLOAT, (3, 4)), tensor(FLOAT, ()), tensor(LONG, (4,)), tensor("bool", (4,))
TRIPLE = tensor(FLOAT, (3,))
OPAQUE = ("opaque",)
POINT, BOX = ("point",), ("box",)
SHORT = tensor(FLOAT, UNKNOWN)

# {v} a vector of 4, {m} a matrix of 3 x 4, {t} a vector of 3, {s} a 0-d tensor, {k} integers, {b} a mask, {j} a 0-d
# integer, {d} doubles of 4 x 3, {u} a vector whose length follows data, {i} an int, {f} a float, {q} a condition,
# {c} an index in range of 4.
EXPRESSIONS: dict[Any, dict[str, tuple[str, ...]]] = {
    VECTOR: {
        "recursion": ("halve({v})[0]", "even({v}, {i} % 4)", "odd({v}, {k}[0].item() % 3)"),
        "keyword-only": (
            "guarded({v}, limit={i})",
            "guarded({v}, strict={q})",
            "spread({v}, {v}, scale=2, b={v}, a={s})",
        ),
        "defaults": ("kept({v})", "kept({v}, [{v}])", "spread({v})"),
        "generator function": (
            "sum(rows({m}), torch.zeros(4))",
            "torch.stack([torch.zeros(4), *rows({m})]).sum(0)",
            "next(rows({m}), {v})",
            "next(iter([{v} + 1]))",
        ),
        "object": (
            "Box({v}).doubled",
            "Box({v}, {i}).moved({v}).value",
            "(Box({v}) + Box({v})).value",
            "Box({v})({v})",
            "Point({v}, {v}).right",
            "Point({v}, {i})._replace(left={v}).left",
            "Point(*({v}, {v}))[1]",
        ),
        "decorator": ("stepped({v}, by={i} % 5)", "stepped({v})"),
        "functools": (
            "functools.reduce(torch.maximum, [{v}, {v}])",
            "functools.partial(torch.add, alpha=2)({v}, {v})",
            "functools.reduce(lambda a, c: (a + c).clamp(-9, 9), {m}, {v})",
        ),
        "key function": (
            "max([{v}, {v}], key=lambda t: t.nan_to_num().sum().item())",
            "sorted([{v}, {v} + 1], key=lambda t: -t.nan_to_num().sum())[0]",
            "min({m}, key=lambda t: t.nan_to_num().amax())",
        ),
        "functions in a table": (
            "TABLE['abs' if {q} else 'neg']({v})",
            "TABLE.get('none', torch.clone)({v})",
            "PARTS[{i} % 2]({v})",
        ),
        "view by name": (
            "{m}.narrow(0, {i} % 3, 1).squeeze(0)",
            "{m}.unbind(0)[{i} % 3]",
            "{m}.chunk(2, 0)[0][-1]",
            "{m}.split([1, 2])[1][0]",
            "{v}.as_strided((4,), (0,))",
            "{v}.view(2, 2).mT.reshape(4)",
            "{v}[None].squeeze(0)",
            "{m}[..., 1, :]",
            "{m}.reshape(-1)[::3]",
            "{m}.flatten()[{i} % 8:][:4]",
            "{v}.view(torch.int32).view(torch.float32)",
            "{d}.T.float()[1]",
            "{m}.movedim(0, 1)[:, 0]",
            "{v}.unflatten(0, (2, -1)).flatten()",
            "{v}.expand_as({m})[2]",
        ),
        "index by tensor": (
            "{v}[[3, 0, 1, 1]]",
            "{v}[{k} % 4]",
            "{v}.gather(0, {k} % 4)",
            "{v}.take({k} % 4)",
            "{m}.index_select(0, ({k} % 3)[:1])[0]",
            "{m}[{k} % 3, {k} % 4]",
            "{m}[{j} % 3]",
            "{v}.index_add(0, {k} % 4, {v})",
            "{v}.scatter(0, {k} % 4, 1.5)",
            "{v}.scatter_add(0, {k} % 4, {v})",
            "{v}.index_fill(0, {k}[:2] % 4, {f})",
            "torch.take_along_dim({v}, {k} % 4)",
            "{m}[[{c} % 3]][0]",
        ),
        "order": (
            "{v}.sort()[0]",
            "{v}.nan_to_num().sort(descending={q}).values",
            "{v}.topk(4)[0]",
            "{v}.msort()",
            "torch.cummax({v}.nan_to_num(), 0)[0]",
            "{v}[{v}.nan_to_num().argsort(stable=True)]",
            "{m}.nan_to_num().max(0).values",
            "{m}.nan_to_num().median(0).values",
        ),
        "made of numbers": (
            "torch.tensor([{i}, {f}, 1.0, {i}])",
            "torch.tensor([{f}] * 4)",
            "{v}.new_tensor([1, 2, {i}, 4])",
            "torch.as_tensor([float({i}), 0.5, 1.0, {f}])",
            "torch.full_like({v}, {f})",
            "torch.arange({i}, {i} + 8, 2)[:4].float()",
            "torch.tensor({k}.tolist()).float()",
            "F.pad({t}, (1, 0), value={f})",
            "F.pad({u}, (0, 4))[:4]",
            "F.one_hot({j} % 4, 4).float()",
            "torch.eye(4)[{c}]",
            "torch.cat([{u}, {v}])[:4]",
            "torch.arange(4) + {f}",
        ),
        "integer arithmetic": (
            "({v} // 2)",
            "({v} % 3)",
            "({v} // {f}).nan_to_num(0, 4, -4)",
            "{v}.fmod(2.5)",
            "({v} ** 2).clamp(-9, 9)",
            "(2 ** {v}.round().clamp(-3, 3))",
            "({i} - {v} % {i})",
            "{v}.pow(2).clamp(max=9)",
            "torch.remainder({i}, {v})",
            "{v}.mul(0.5).round()",
            "({k} // 2).float()",
            "(7 // {k}.clamp(min=1)).float()",
            "({k} >> 1).float()",
            "torch.rsub({v}, {f})",
            "{v}.clamp({f}, 8)",
            "{v}.clamp(max={s})",
        ),
        "round trip of dtypes": (
            "{v}.bfloat16().float()",
            "{v}.half().float()",
            "{v}.nan_to_num(0).to(torch.int8).float()",
            "({v}.bfloat16() + 1).float()",
            "{v}.abs().nan_to_num(0).to(torch.uint8).float()",
            "({v}.half() + {s}.half()).to({v}.dtype)",
            "{k}.int().float()",
            "({k}.int() * {i}).float().clamp(-9, 9)",
            "({v} + {k}.short()).clamp(-9, 9)",
            "({b} * {v})",
            "({b} + {b}).float()",
            "{v}.type_as({m})",
            "({k}.to(torch.int8) + 120).float() % 16",
            "({k}.to(torch.uint8) // 64).float()",
        ),
        "sum of empty": (
            "torch.zeros(0, 4).sum(0)",
            "{m}[:0].sum(0)",
            "torch.cat([{v}[:0], {v}])",
            "{m}[:, :0].any(1).float().sum() + {v}",
            "({u}[:0, None] * {v}).sum(0)",
        ),
        "einsum": (
            "torch.einsum('i,ij->j', {t}, {m}).clamp(-9, 9)",
            "({t} @ {m}).clamp(-9, 9)",
            "{t}.matmul({m}).clamp(-9, 9)",
            "torch.tensordot({t}, {m}, 1).clamp(-9, 9)",
        ),
        "multiple of row": (
            "{v}.repeat(2)[2:6]",
            "{v}.tile(2)[1:5]",
            "{v}.roll({i}, 0)",
            "torch.stack([{v}, {v}], 1).flatten()[::2]",
            "torch.meshgrid({v}, {t}, indexing='ij')[0][:, 0]",
            "torch.broadcast_tensors({v}, {m})[0][1]",
            "torch.vstack([{m}, {v}])[-1]",
            "{v}.diff(prepend={v}[:1])",
            "{v}.cumsum(0).clamp(-9, 9)",
        ),
        "inference": ("no_gradients({v})",),
    },
    MATRIX: {
        "view by name": (
            "{m}.view(4, 3).view(3, 4)",
            "{m}.swapaxes(0, 1).T",
            "{d}.T.float()",
            "{v}.unsqueeze(0).repeat(3, 1)",
            "{m}.tril({i} % 3)",
            "{m}.unfold(1, 4, 1).squeeze(1)",
            "torch.outer({t}, {v}).clamp(-9, 9)",
            "{m}.masked_fill({b}, {f})",
            "{m}.where({b}, {v})",
            "{m}[[2, 0, 0]]",
            "{m}[{k}[:3] % 3]",
            "F.embedding({k}[:3] % 3, {m})",
            "{m}.permute(1, 0).contiguous().t()",
            "{m}.flip(0, 1)",
        ),
    },
    TRIPLE: {
        "view by name": (
            "{m}.diagonal()",
            "{v}.unfold(0, 2, 1).sum(1)",
            "{m}.select(1, {c})",
            "{v}.diff()",
            "{m}[:, {j} % 4]",
            "{m}.mean(1).mul(4).round()",
            "{m}.view(-1)[::4]",
            "{v}.narrow(0, {i} % 2, 3)",
            "{m}.any(1).float()",
        ),
    },
    SCALAR: {
        "sum of empty": (
            "{u}.sum()",
            "{u}.any().float()",
            "{m}[:0].sum()",
            "{u}.nan_to_num().amax()",
            "{u}.prod().clamp(-9, 9)",
            "{u}[0]",
            "{u}.max()",
        ),
        "sum of python": (
            "sum({v})",
            "sum(t * 2 for t in {v}).clamp(-9, 9)",
            "max({v}.nan_to_num())",
            "min({s}, {s})",
            "torch.tensor({f})",
            "torch.tensor(float({i}))",
            "torch.dot({t}, {t}).clamp(-9, 9)",
            "{v}.norm(1).clamp(max=9)",
            "{t}.dist({t}, 1).clamp(max=9)",
            "{v}.nan_to_num().count_nonzero().float()",
            "{v}.std().mul(0)",
        ),
    },
    INTS: {
        "integers": (
            "({k} * {i}) % 7",
            "{k} // 2",
            "{k} & 3",
            "({k} << 1) % 9",
            "~{k}",
            "{v}.nan_to_num(0).int().long()",
            "{b}.cumsum(0)",
            "{v}.nan_to_num().argsort(stable=True)",
            "torch.arange(4) * {i} % 5",
            "{k}.bincount(minlength=4)[:4] if ({k} >= 0).all() else {k}",
            "torch.tensor([{i}, 1, 2, len({u})])",
            "{k}.remainder(3)",
            "torch.bucketize({v}.nan_to_num(), {t}.nan_to_num().sort()[0])",
            "{m}.nan_to_num().argmax(0)",
            "torch.full((4,), {i})",
            "{k}.scatter(0, {k} % 4, {i})",
            "-{k} // 3",
            "{k} ^ 1",
        ),
    },
    MASK: {
        "masks": (
            "({v} > 0).logical_xor({b})",
            "{v}.isfinite()",
            "{v}.isnan() | {b}",
            "torch.isin({k}, torch.tensor([1, {i}]))",
            "{m}.any(0)",
            "{m}.bool().all(0)",
            "torch.tensor([True, {q}, False, {q}])",
            "{b}[{k} % 4]",
            "{v}.gt({s})",
            "({k} == {j})",
            "~({v} <= {f})",
            "{v}.signbit()",
            "{v}.isclose({v})",
            "{b} ^ {q}",
        ),
    },
    SHORT: {
        "size of data": (
            "{u} * 2",
            "{u}[{u} > 0]",
            "torch.cat([{u}, {v}])[{i} % 3:]",
            "{v}[{k}[{k} > 0] % 4]",
            "{u} - {s}",
            "{v}[: {k}[1]]",
            "torch.zeros_like({u})",
            "{v}.repeat_interleave({k} % 3)",
            "{v}[{b}.nonzero()[:, 0]]",
            "{u}.flip(0)",
            "{u}.clamp(-3, 3)",
            "torch.unique({v}.nan_to_num())",
            "{m}[{m} > 0]",
            "torch.full(({i} % 4,), {f})",
            "torch.stack([t for t in {v} if t > 0] or [{s}])",
            "{u}.contiguous()",
            "{v}.split([{c} % 4, 4 - {c} % 4])[0]",
        ),
    },
    OPAQUE: {
        "mixed dtypes": (
            "{v}.bfloat16() + {k}",
            "{v}.half() * {f}",
            "{k}.int() / 4",
            "{b} * {i}",
            "{k} * {f}",
            "{v}.double() + {s}",
            "{k}.to(torch.uint8) + {k}.to(torch.int8)",
            "{s}.double() * {v}",
            "{j} + {v}.bfloat16()",
            "{b}.sum()",
            "{k}.sum(dtype=torch.int32)",
            "{v}.bfloat16().sum()",
            "{v}.to(torch.complex64)",
            "torch.where({b}, {i}, {f})",
            "torch.where({b}, {k}, {v})",
            "torch.cat([{k}, {v}])",
            "torch.stack([{k}.int(), {b}.int()])",
            "{v}.bfloat16().softmax(-1)",
            "{v}.half().mean()",
            "{k}.float().mean()",
            "{i} ** {b}.int()",
            "{k}.pow(2).int()",
            "torch.add({k}, {b}, alpha=2)",
            "torch.tensor([1, {i}], dtype=torch.int16)",
            "torch.maximum({v}, {k})",
            "{v}.to(torch.int32, copy=True) if not {v}.isnan().any() else {k}",
            "torch.result_type({v}, {i}) == torch.float32",
            "{v}.bfloat16() @ {m}.bfloat16().t()",
            "{d}.bfloat16().float().sin()",
            "torch.tensor({q})",
            "torch.tensor([{f}, {i}]).dtype",
            "{v}.nan_to_num(0).to(torch.int8) * 100",
            "{v}.shape",
            "{m}.stride()",
            "{u}.shape",
            "{m}.t().is_contiguous()",
            "{v}.dtype",
            "{m}.mean(dtype=torch.float64)",
            "{k}.prod()",
            "{b}.any().int() + {f}",
        ),
    },
}
# Each raises for some arguments.
RISKS = (
    "{v} @ {t}",
    "[][0]",
    "{{}}['z']",
    "1 // ({i} % 2)",
    "torch.stack([])",
    "{v}.view(3)",
    "{v}[{i} + 3]",
    "int('x')",
    "None.real",
    "guarded({v}, strict=True)",
    "1 / {i}",
    "{u}.amax()",
    "torch.cat([{v}, {m}])",
    "{v}.item()",
    "{v}.reshape({i}, 2)",
    "[1, 2, 3][{i}]",
    "{{1: 2}}[{i}]",
    "next(rows({m}))",
    "bool({u})",
    "{m}.sum({i})",
    "{v} + {t}",
    "({k} % 2).tolist().index(1)",
    "'ab'[{i}]",
    "a, b = {u}",
    "({v} > 0).nonzero()[0]",
    "{v}.unknown",
    "len(5)",
    "{v}[{k}]",
    "torch.zeros({i})",
    "{v}.expand(2, {i})",
    "stop({i})",
    "stop({s})",
)
ERRORS = (
    "RuntimeError",
    "(IndexError, KeyError)",
    "ZeroDivisionError",
    "Stop",
    "Exception",
    "(ValueError, TypeError)",
    "LookupError",
    "ArithmeticError",
)

# In-place operators on a named vector {n}; a second item that is true where values must be held small after it.
WRITES: tuple[tuple[str, str], ...] = (
    ("{n} *= {i}", "in-place operator"),
    ("{n} //= 2", "in-place operator"),
    ("{n} **= 2", "in-place operator"),
    ("{n} %= 3", "in-place operator"),
    ("{n} -= {k}", "in-place operator"),
    ("{n} += {f}", "in-place operator"),
    ("{n} += {m}", "in-place operator that may fail"),
    ("{n}[{b}] += 1", "write by mask"),
    ("{n}[{k} % 4] = {v}[0]", "write by index"),
    ("{n}[{v} > 0] = {v}[{v} > 0] * 2", "write by mask"),
    ("{n}[::2] = {v}[::2]", "write through a view"),
    ("{n}[..., 0] = {i}", "write through a view"),
    ("{n}[None] += 1", "write through a view"),
    ("{n}.view(2, 2)[1] -= {v}[:2]", "write through a view"),
    ("{n}.view(2, 2).t()[0].zero_()", "write through a view"),
    ("{n}[1:][1:] *= 2", "write through a view"),
    ("{n}.index_put_(({k} % 4,), {v}, accumulate=True)", "write by index"),
    ("{n}.scatter_(0, {k} % 4, {f})", "write by index"),
    ("{n}.index_fill_(0, {k}[:2] % 4, {f})", "write by index"),
    ("{n}.index_copy_(0, torch.tensor([2, 0]), {v}[1:3])", "write by index"),
    # Of a source that is what is written to, torch gives whatever its loop has written so far (decision 0004).
    ("{n}.masked_scatter_({b}, ({v}).clone())", "write by mask"),
    ("{n}.masked_fill_({b}, {s})", "write by mask"),
    ("{n}.index_add_(0, {k} % 4, {v})", "write by index"),
    ("torch.add({v}, {v}, out={n})", "out="),
    ("torch.clamp({v}, max={i}, out={n})", "out="),
    ("torch.mul({v}, 2, out={n}[:])", "out="),
    ("{n}.detach().add_(1)", "write through detach"),
    ("{n}.data.neg_()", "write through data"),
    ("{n}.copy_({k})", "write of another dtype"),
    ("{n}[1:].copy_({n}[:-1].clone())", "write through a view"),
    ("{n}.set_({v}.clone())", "write through a view"),
    ("{n}.zero_().add_({f})", "in-place update"),
    ("{n}[{c}], {n}[0] = {n}[0].clone(), {n}[{c}].clone()", "write by index"),
    ("{n}[{j} % 4] = {f}", "write by index"),
    ("{n}[{i} % 4:] = {i}", "write through a view"),
    ("{n}[:{i} % 5] += 1", "write through a view"),
    ("{n}.relu_()", "in-place update"),
    ("{n}.mul_({v} > 0)", "write of another dtype"),
    ("torch.where({b}, {v}, {n}, out={n})", "out="),
    ("{n}.flip(0).add_(1)", "write to a copy"),
    ("{n}.reshape(2, 2)[0] += 1", "write through a view"),
    ("{n}.expand(2, 4)[0].add_(1)", "write through a view"),
    ("{n}.unbind(0)[{c}].fill_({f})", "write through a view"),
    ("{n}.split(2)[1].neg_()", "write through a view"),
    ("for r in {n}.view(2, 2): r += {f}", "write through a view in a loop"),
    ("for r in {n}: r.mul_(2)", "write through a view in a loop"),
    ("{n}.as_strided((2,), (2,)).add_({f})", "write through a view"),
    ("{n}.diagonal_scatter if False else {n}.add_(1)", "in-place update"),
    ("{n}.exp_().clamp_(0, 9).floor_()", "in-place update"),
)

PRELUDE = """
import contextlib
import functools
from collections import defaultdict, namedtuple
from dataclasses import dataclass

Point = namedtuple('Point', 'left right')


class Stop(Exception):
    def __init__(self, level):
        super().__init__(f'level {level}')
        self.level = level


@dataclass
class Box:
    value: torch.Tensor
    weight: int = 2

    @property
    def doubled(self):
        return self.value * 2

    def moved(self, by):
        return Box(self.value + by, self.weight + 1)

    def __add__(self, other):
        return Box(self.value + other.value, self.weight)

    def __call__(self, t):
        return t + self.value * self.weight


def halve(t, depth=0):
    if depth > 3 or t.nan_to_num().abs().max() < 1:
        return t, depth
    return halve((t / 2).floor(), depth + 1)


def even(t, n):
    return t if n <= 0 else odd(t + 1, n - 1)


def odd(t, n):
    return -t if n <= 0 else even(t, n - 1)


def stop(level):
    if level > 1:
        raise Stop(level)
    return level


def guarded(t, *, limit=4, strict=False):
    if strict and t.sum() > limit:
        raise Stop(limit)
    return t.clamp(max=limit)


def spread(*parts, scale=1, **named):
    total = sum(parts) * scale
    for name in sorted(named):
        total = total + named[name]
    return total


def kept(t, others=()):
    for other in others:
        if other[0] > t[0]:
            return other
    return t


def rows(t):
    for row in t:
        if row.sum() > 8:
            return
        yield row * 2


@contextlib.contextmanager
def shifted(t, by):
    t.add_(by)
    try:
        yield t
    finally:
        t.sub_(by)


def twice(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(fn(*args, **kwargs), **kwargs)
    return inner


@twice
def stepped(t, by=1):
    return (t + by).clamp(-16, 16)


@torch.no_grad()
def no_gradients(t):
    return t + 1


TABLE = {'abs': torch.abs, 'neg': lambda t: -t}
PARTS = (torch.relu, lambda t: t.clamp(-2, 2))


class Scale(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
        self.register_buffer('seen', torch.zeros(()))

    def forward(self, t, add=None):
        self.seen += 1
        return (t * self.by).clamp(-16, 16) if add is None else t + add
"""


PARTS = (
    "self.parts = nn.ModuleList([Scale(2), Scale(-1)])",
    "self.table = nn.ModuleDict({'up': Scale(3), 'down': Scale(1)})",
    "self.gain = nn.Parameter(torch.tensor([1.0, 0.5, -2.0, 0.0]))",
)
