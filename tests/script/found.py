"""Programs that random ones led to: numbers of a kind that only a run knows, loops that end in errors, lists that take
in what is no list, buffers that are written on one path or in a loop.
"""

# Programs as people write them.
# ruff: noqa: B905, C416

from __future__ import annotations

import enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import smelt

X = torch.linspace(-2, 2, 12).reshape(3, 4)
LENGTHS = smelt.i64["N"]
ONE, TWO, HALF = torch.tensor(1), torch.tensor(2), torch.tensor(0.5)
CASES: dict[str, tuple[Any, list[tuple[Any, ...]]]] = {}


def case(*calls):
    def keep(fn):
        CASES[fn.__name__] = (fn() if isinstance(fn, type) else fn, list(calls))
        return fn

    return keep


# --- items of tensors of which nothing is said
@case((X, TWO), (X, HALF), (X, torch.tensor(True)))
def any_arithmetic(x, j):
    n = j.item()
    m = n
    m += 1
    return x * n, x**n, x / (n + 1), torch.add(x, m), x.clamp(max=n), torch.full((2,), n), n, m


@case((X, TWO), (X, HALF))
def any_written(x, j):
    x = x.clone()
    x[0] = j.item()
    x[x > 1] = j.item() * 2
    return x


@case((X, TWO), (X, ONE))
def any_sizes(x, j):
    n = j.item()
    return torch.zeros(n, 2), x.new_ones(n), torch.arange(n), x.expand(n, 3, 4), torch.full((n,), n + 0.5)


@case((X, TWO), (X, ONE), (X, HALF))
def any_dims(x, j):
    n = j.item() - 1
    return x.sum(n), x.softmax(n), torch.cat([x, x], n), x.select(0, n % 3), x[: n + 1], x[..., n:]


@case((X, TWO), (X, ONE), (X, HALF))
def any_range(x, j):
    for i in range(j.item()):
        x = x + i
    return x


@case((X, ONE), (X, TWO))
def view_of_the_known(x, j):
    table = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
    return table[int(j) % 4].float(), [a + b for a, b in zip(x, table[int(j) % 4].float())]


# --- loops that end in errors
@case((X, 3), (X, 0))
def named_by_itself(x, n: int):
    c = [q + c[0] for q in range(n)]  # noqa: F821
    return c, x


@case((X, 3), (X, 0))
def raised_each_turn(x, n: int):
    for i in range(n):
        if i < 2:
            raise ValueError("small")
        raise KeyError("large")
    return x


@case((X, 3), (X, 1))
def raised_while(x, n: int):
    y = x + 1
    while n > 1:
        raise RuntimeError("more than one")
        y.add_(1)
    return y


# --- what exceptions say
class Worded(ValueError):
    def __init__(self, n, *, more=2):
        super().__init__(f"n is {n}", more)
        self.n = n

    def text(self):
        return f"{self.n} and {self}"


@case((X, 0), (X, 1), (X, 2), (X, 3))
def texts_of_exceptions(x, n: int):
    try:
        if n > 2:
            raise Worded(n)
        if n > 1:
            raise KeyError(n)
        if n > 0:
            raise ValueError(n, [n])
        n = 1 // n
    except Worded as error:
        return error.text(), repr(error)
    except (KeyError, ValueError) as error:
        return f"{error}", f"{error!r:>20}"
    except ZeroDivisionError as error:
        return str(error), repr(error)
    return "", ""


# --- members of enumerations
class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@case((X, 3, Colour.RED), (X, 0, Colour.BLUE), (-X, 3, Colour.BLUE))
def members(x, n: int, colour: Colour):
    return [colour, {"a": Colour.RED if n > x[0, 0] else colour}], colour is Colour.RED


# --- what lists take in
@case((X, 3), (X, 5))
def ranges_of_data(x, n: int):
    numbers = range(n)
    return len(numbers), 2 in numbers, sorted(numbers, reverse=True), numbers[-1], bool(numbers), max(numbers)


@case((X, 3), (X, 2))
def ranges_as_values(x, n: int):
    r = range(n) if x[0, 0] > n else range(1, n)
    same = r == range(3), range(3) != r, r == [1, 2], r in [range(1, 3)], range(n) == range(0, n, 1)
    return r, {"a": [r, range(2)]}, same, f"{r} {[r]}", repr(r), dict.fromkeys(r), dict.fromkeys(range(n), x)


@case((X, 3), (X, 0))
def taken_in(x, n: int):
    a = [i for i in range(n)]
    b = a
    a += range(2)
    a += (7, 8)
    a += [9] * n
    a.extend((1, 2))
    a.extend(range(n))
    return a, b, len(b)


@case((X, 3), (X, 1))
def rows_and_letters(x, n: int):
    rows, letters = [x[0] for _ in range(n)], [str(i) for i in range(n)]
    rows += x
    rows.extend(x)
    letters += "xy"
    return rows, letters


@case(([X], 3), ([], 2))
def list_by_its_use(items, n: int):
    for i in range(n):
        items += [torch.ones(2) * i]
    return len(items), items[-1]


@case((X, "a"), (X, ""))
def text_is_no_list(x, s: str):
    t = s
    for _ in range(2):
        s += "b"
    return s, t


# --- buffers
class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(4))


@case((X, 2), (X, 0))
class written_in_a_loop(Buffered):
    def forward(self, x, n: int):
        self.total.fill_(1.0)
        for i in range(n):
            self.total.add_(x.sum() + i)
        for row in x:
            self.total.mul_(row)
        return x + self.total.sum()


@case((X,), (-X - 1,))
class written_on_one_path(Buffered):
    def forward(self, x):
        self.total.fill_(1.0)
        if x.sum() > -1:
            self.total.copy_(x[0])
        return x + self.total.sum()


# --- what builtins take
@case((X,), (-X,))
def extremes_of_rows(x: smelt.f32[3, 4]):
    return x[0] * max(x[1]), min(x[0]), max(x[:, 1]), min([x[0, 1], x[2, 0]]), max(x[0][1:], key=lambda v: -v)


@case((X,), (-X,))
def taken_apart_into_too_few(x):
    if x.sum() > -1:
        a, b = torch.zeros(3)
        x = x + a + b
    return x


@case((X,), (-X,))
def taken_apart_into_too_many(x):
    try:
        a, b = torch.zeros(0)
    except LookupError:
        return x
    return x + a + b


# --- unpacking with a star, of what only a run knows the length of
@case((X,), (X[:1],), (X[:2],), (-X,))
def starred(x):
    first, *rest = x.split(1)
    return first, rest, len(rest)


@case((X,), (X[:1],), (X[:0],))
def starred_in_the_middle(x):
    first, *rest, last = x.unbind(0)
    return first, rest, last


@case((X,), (X[0],), (torch.tensor(1.0),))
def starred_sizes(x):
    *ahead, last = x.shape
    return ahead, last, x.reshape(*ahead, last, 1)


@case((X,), (X[:1],))
def starred_rows(x):
    first, *rest = x
    total = first * len(rest)
    for row in rest:
        total = total + row
    return total


@case((X,), (X[:2],))
def starred_in_a_tuple(x):
    held = {}
    (first, *held["rest"]), number = x.split(1), 2
    for one, *more in [x.split(1)]:
        first = first + one * len(more)
    return first, held["rest"], number


# --- results that give an empty tensor its size, on one path
@case((X,), (-X - 3,))
def empty_out_on_either_path(x):
    out = torch.empty(0)
    if x.sum() > -1:
        torch.add(x, 1, out=out)
    else:
        torch.sum(x, 0, out=out)
    return out, out.shape


@case((X + 3, 2), (X - 3, 2), (X - 3, 0))
def empty_out_in_an_inner_arm(x, n: int):
    out = torch.empty(0)
    if n > 1:
        if x.sum() > 0:
            torch.mul(x, 2, out=out)
        out = out + 1
    return out


# --- an index of as many tensors as a run knows


@case((X, X > 0), (X[0], X[0] > 0), (torch.tensor(2.0), torch.tensor(True)))
def at_positions(x, mask):
    found = mask.nonzero(as_tuple=True)
    y, z = x.clone(), x * 2
    y[found] = 0
    z[torch.where(mask)] += x[found]
    return x[found], y, z, len(found), x[mask.nonzero().unbind(1)], x[mask.nonzero()[:, :0].unbind(1)]


@case(
    (X, X > 0),
)
def at_rows_and_columns(x, mask):
    i, j = mask.nonzero(as_tuple=True)
    return x[i, j], x[i], (i + j).sum()


# --- torch's own checks, and lists of floats that a run makes


@case((X,), (X[:2],), (X[0],))
def checked_sizes(x):
    torch._check(x.size(0) > 2, lambda: f"{x.size(0)} of 3")
    torch._check_value(x.dim() == 2)
    return x + 1


@case((X[None],), (X[None, None],))
def enlarged(x):
    return F.interpolate(x, scale_factor=2.0)


@case((torch.tensor([5, 3]), 4), (torch.tensor([2, 7]), 1))
def sizes_of_tensors(lengths: LENGTHS, n: int):
    most = lengths.max()
    rows = torch.zeros(n, most, 2)
    return rows, torch.arange(most), torch.ones((lengths[0], n)).view(n, lengths[0])


# --- conversions, in which torch asks a tensor for its element type


@case((X.long(), X.int()), (X.double(), X.half()), (X, X))
def keeps_its_element_type(x, y):
    if x.sum() > 100:
        x = x + 1
    moved = x.cpu(), x.to("cpu"), x.to(memory_format=torch.preserve_format), torch.as_tensor(x), x.data
    other = x.to(y), x.to(y.cpu(), copy=True), torch.as_tensor(x, dtype=y.dtype), x.to(torch.float32)
    made = x.new_tensor([1.5]), x.new_tensor(2), x.new_tensor([[1, 2]], dtype=torch.float16)
    kind = x.type(), type(x) is torch.Tensor, x.__class__ is torch.Tensor, isinstance(x, (torch.FloatTensor, int))
    return moved, other, made, kind, x.stride(), torch.ops.aten.to.dtype_layout(x, dtype=torch.float32)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 3)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]


@case((X[:, None].repeat(1, 2, 1), torch.tensor([1, 3])), (X[:, None], torch.tensor([2])))
def packed(x, lengths):
    return PACKED(x, lengths)


PACKED = Packed().eval()


# --- identity, of what equal values may be two of


@case((X, 1), (X, True), (X, 0))
def is_the_very_true(x, n: int | bool):
    return x + 1 if n is True else x - 1


@case((X, True, 1), (X, False, 0))
def no_number_is_a_bool(x, a: bool, n: int):
    return x + (a is n), x + (a is not n), x + (n is False)


@case((X, True, True), (X, True, False))
def bools_are_one(x, a: bool, b: bool):
    return x + 1 if a is b else x - 1


@case((X, None, (None, 2)))
def nothing_but_none(x, mask: None, pair: tuple[None, int]):
    if mask is not None:
        x = x + 1
    return x * pair[1] if pair[0] is None else x


# --- what methods of texts give


@case((X, ONE), (X, torch.tensor(-12)), (X, torch.tensor(1211)))
def parts_of_a_text(x, j):
    text = str(j.item())
    head, separator, tail = text.partition("2")
    found = x + text.index("1") if text.isalnum() else x * text.count("1")
    return found, head.title(), separator, tail, text.find("2"), text.rpartition("1")[0]


# --- sizes that only a run knows, beside known ones


@case((torch.tensor(1.5), X[0]), (X[1:2, 0], X[0]), (X[:, 0], X[0]))
def written_into_the_known(x, row):
    known = torch.zeros(2, 3)
    known[0] = x
    known[:, 1:] = row[:2]
    return known


# --- how results lie


@case((torch.tensor([1, 2, 0, 1]),))
def compared_as_they_stand(k):
    known, columns = torch.ones([3, 4]).T, k[:, None].repeat(1, 3)
    return (known < columns).stride(), (known == columns).stride(), (columns != known).stride()


@case((X[0],), (X[:1],), (X[:2],))
def made_contiguous(x):
    y = x.expand(2, 4).contiguous()
    return y.add_(1), y.is_contiguous(), x


# --- results of operators that have several, as torch names them


@case((X,), (-X,), (X + 9,))
def greatest_of_either(x):
    found = x.max(0)
    if x[0].sum() > 0:
        found = (x + 1).max(0)
    for row in x:
        if row.sum() > 1:
            found = (x * row).max(0)
    return found, sorted([found, x.max(0)], key=lambda f: f.values.sum().item())[0]


# --- numbers that a loop carries


@case((X, 0.5), (X, 3.0))
def filled_by_a_number_of_any_kind(x, f: float):
    made = []
    for row in x:
        made.append(torch.full([2], f))
        f = f * 2 if row.sum() > 1 else 3
    return torch.stack(made)
