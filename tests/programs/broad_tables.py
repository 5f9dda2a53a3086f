"""What random programs of `broad` may say, as templates with places for expressions.

Beside the places of `wide_tables`: {h} float16, {p} bfloat16, {z} int8, {y} uint8, {w} int32, vectors of 4 all.
"""

from __future__ import annotations

from typing import Any

from tests.programs.generate import VECTOR, tensor
from tests.programs.wide_tables import EXPRESSIONS, INTS, MASK, MATRIX, OPAQUE, SCALAR, SHORT

HALVES, NARROW = ("float16", "bfloat16"), ("int32", "int16", "int8", "uint8")
HOLES = {
    "{h}": ("float16", (4,)),
    "{p}": ("bfloat16", (4,)),
    "{z}": ("int8", (4,)),
    "{y}": ("uint8", (4,)),
    "{w}": ("int32", (4,)),
}

_MORE: dict[Any, dict[str, tuple[str, ...]]] = {
    VECTOR: {
        "from narrow dtypes": (
            "{h}.float()",
            "{p}.float()",
            "{z}.float()",
            "{y}.to(torch.float32)",
            "({h} + {v}).clamp(-9, 9)",
            "({p} * {s}).float().clamp(-9, 9)",
            "({z} + {v}).clamp(-9, 9)",
            "torch.where({b}, {h}, {v})",
            "torch.where({b}, {p}, {f}).float()",
            "({w} / 4).clamp(-9, 9)",
            "({p} - {h}).float()",
            "torch.maximum({h}, {p}).float()",
            "{y}.div(2, rounding_mode='floor').float()",
        ),
        "call by all kinds of arguments": (
            "mixed({v}, {i} % 3)",
            "mixed({v}, 1, {v}, {v})",
            "mixed({v}, scale={f})",
            "mixed({v}, extra={v}, other={v})",
            "mixed({v}, 2, *[{v}, {v}], scale=1)",
            "mixed(*[{v}, {i} % 3], **{{'scale': 2, 'b': {v}}})",
            "masked({v})",
            "masked({v}, None)",
            "masked({v}, {b})",
            "masked({v}, {b} if {q} else None)",
            "masked(t={v}, mask={v} > 0)",
            "chosen({{'a': {v}, 'b': {v}}}, 'a' if {q} else 'b')",
            "chosen({{'a': {v}}}, 'z', {v})",
            "boxed(Box({v}, {i} % 4))",
            "boxed(Box({v}), {v})",
            "mixed({v}, **{{'scale': {i}}})",
            "only({v}, 2)",
        ),
        "infinite": (
            "({v} + INF * ({v} > 1)).clamp(-9, 9)",
            "({v} / 0).nan_to_num(0, 2, -2)",
            "({v} * NAN).nan_to_num(1)",
            "{v}.log().nan_to_num(0, 1, -1).sign()",
            "torch.full((4,), -INF).maximum({v})",
            "{v}.masked_fill({b}, -INF).clamp(min=-9)",
            "({v} == INF).float()",
            "{v}.masked_fill({b}, NAN).nan_to_num(3)",
            "torch.minimum({v}, torch.tensor(NAN)).nan_to_num(1)",
            "({v} * 0 == 0).float()",
        ),
        "early exit of a function": ("first_above({m}, {i})", "first_above({m}, {f})", "searched({v}, {k})"),
        "recursion": ("folded([{v}, {v}, {v}])", "folded(list({m}))", "depth_of({v}, {i} % 5)"),
        "random numbers": (
            "torch.bernoulli(torch.full((4,), 0.5))",
            "F.dropout({v}, 0.5, training={q})",
            "F.dropout({v}, 0.5)",
            "torch.randint(-2, 3, (4,)).float() + {v}",
            "{v}[torch.randperm(4)]",
            "torch.randint_like({v}, 0, 5)",
            "torch.empty(4).random_(0, 3)",
            "{v}[torch.randint(0, 4, ())].expand(4)",
            "{v} + torch.multinomial(torch.ones(4), 2).sum()",
        ),
        "views of one memory": (
            "{v}.unfold(0, 2, 1).sum(1).expand(4, 3)[:, 0]",
            "{v}[None].expand(3, 4)[1]",
            "{v}.as_strided((4,), (0,), 1)",
            "{m}.view(-1).as_strided((4,), (3,))",
            "{m}.as_strided((2, 4), (1, 2))[1]",
            "{m}.t()[1:, 1].new_ones(4)",
            "{m}.T.reshape(-1)[2:6]",
            "{v}.view(2, 2).transpose(0, 1).flatten()",
            "{v}.real",
            "{m}.permute(1, 0).select(1, {i} % 3)",
            "{v}.data",
            "{v}.view_as({v})",
            "{v}.squeeze(0).unsqueeze(1)[:, 0]",
        ),
        "text chooses": ("pooled({m}, 'sum' if {q} else 'amax')", "pooled({m}, f'a{{{i} % 2}}')", "pooled({m})"),
        "properties of tensors": (
            "({v} + {m}.ndim)",
            "({v} * {m}.is_contiguous())",
            "({v} + {v}.element_size())",
            "({v} + {m}.stride(0))",
            "({v} + ({v}.dtype == torch.float32))",
            "({v} + {u}.nelement())",
            "({v} + {v}.storage_offset())",
            "({v} + {m}.t().stride()[1])",
            "({v} + isinstance({v}, torch.Tensor))",
            "({v} + hasattr({v}, 'shape'))",
        ),
    },
    MATRIX: {
        "from narrow dtypes": (
            "({h} + {m}).clamp(-9, 9)",
            "({m}.bfloat16() + {p}).float()",
            "({m}.half() * 2).float().clamp(-9, 9)",
            "{m}.bfloat16().amax(1, keepdim=True).expand(3, 4).float()",
            "{z}.expand(3, 4).float()",
        ),
        "random numbers": ("{m}[torch.randperm(3)]", "torch.randint(0, 2, (3, 4)).float()"),
        "views of one memory": (
            "{m}.as_strided((3, 4), (1, 1))",
            "{m}[[0, 0, 1]]",
            "{v}.expand(3, 4)",
            "{m}.flip(1).flip(1)",
        ),
    },
    SCALAR: {
        "from narrow dtypes": ("{h}.amax().float()", "{p}[{i} % 4].float()", "{z}.sum().float()", "{y}.max().float()"),
        "infinite": ("({s} / 0).nan_to_num(0, 5, -5)", "torch.tensor(INF).minimum({s})", "({s} == NAN).float()"),
        "random numbers": ("torch.randint(0, 3, ()).float()", "torch.bernoulli(torch.tensor(0.5))"),
        "0-d": (
            "{s}[None][0]",
            "{s}.expand(3)[1]",
            "{s}.view(1).squeeze()",
            "{s}.reshape(())",
            "{s}[()]",
            "{s}[...].clone()",
        ),
    },
    INTS: {
        "from narrow dtypes": (
            "{z}.long()",
            "{y}.long() % 9",
            "{w}.to(torch.int64)",
            "({z} * 7 % 5).long()",
            "({y} - 3).long() % 7",
        ),
        "random numbers": ("torch.randperm(4)", "torch.randint(0, 4, (4,))"),
    },
    MASK: {
        "from narrow dtypes": (
            "({h} > {f})",
            "({p} == {p})",
            "({z} < {i})",
            "{y}.bool()",
            "({w} != {k})",
            "({h} <= {v})",
        ),
        "infinite": ("{v}.isinf()", "({v} / 0).isnan()", "({v} < INF)", "({v} != {v})"),
    },
    SHORT: {
        "empty": (
            "{v}[:0]",
            "{u}[{u} > INF]",
            "torch.zeros(0) + {s}",
            "{u}[:{i} % 3]",
            "torch.cat([{v}[:0], {u}])",
            "{v}[4:]",
        ),
    },
    OPAQUE: {
        "narrow dtypes": (
            "{h} + {i}",
            "{p} + {f}",
            "{z} + {i}",
            "{y} - {i}",
            "{w} * {i}",
            "{z} * {z}",
            "{y} + {z}",
            "{h} * {p}",
            "{z} // 2",
            "-{z}",
            "{z} / 2",
            "{h} / 3",
            "{p} / 3",
            "{w} % 5",
            "{y} & 3",
            "~{y}",
            "{z} << 1",
            "{z}.sum()",
            "{y}.float().mean()",
            "{h}.sum()",
            "{p}.cumsum(0)",
            "{w}.prod()",
            "torch.cat([{h}, {p}])",
            "{z} > {y}",
            "torch.stack([{z}, {z}])",
            "{h}.softmax(0)",
            "{p}.sin()",
            "{h}.exp()",
            "{p} @ {p}",
            "{y}.bitwise_or(8)",
            "torch.where({b}, {z}, {i})",
            "{h}.double()",
            "{z}.to(torch.uint8)",
            "{y}.abs()",
            "{z}.abs()",
            "{w} ** 2",
            "{h}.mean()",
            "{p}.var()",
            "{p}.norm()",
            "{z}.float().std()",
            "{h}.max(0)",
            "{y}.sort()[0]",
            "{w} // {w}.clamp(1)",
            "{h}.to(torch.bfloat16)",
            "{k}.half()",
            "{b}.bfloat16()",
            "{z} == {i}",
            "{h}.sigmoid() * {s}",
            "{b}.to(torch.uint8) * 255",
            "{z}.sign() * {h}",
            "F.gelu({h})",
            "F.layer_norm({p}, (4,))",
            "{y}.div(3, rounding_mode='trunc')",
            "{h}.pow(2)",
            "{p}.rsqrt()",
            "torch.add({h}, {p}, alpha=2)",
            "{z}.add({i}, alpha=3)",
            "{h}.lerp({h}, 0.5)",
            "{h}.clamp({f}, 4)",
        ),
        "infinite": (
            "{v} * INF",
            "{v} - INF",
            "{v} / 0",
            "{v}.exp()",
            "-INF + {s}",
            "{v}.masked_fill({b}, -INF).softmax(0)",
            "{f} * INF",
        ),
        "empty": (
            "{v}[:0]",
            "{m}[:, :0]",
            "{v}[:0].sum()",
            "{m}[:0].mean(1)",
            "torch.zeros(0, 3) @ torch.zeros(3, 0)",
            "{v}[:0].prod()",
            "torch.cat([{v}[:0], {v}[:0]])",
            "{v}[:0].tolist()",
            "{m}[:0].any()",
            "{m}[:0].all()",
            "{v}[:0].sort()[0]",
        ),
        "tuple result": (
            "{v}.max(0)",
            "{m}.sort(1)",
            "{v}.topk(2)",
            "{m}.unbind(1)",
            "{v}.split(2)",
            "{m}.aminmax()",
            "{m}.std_mean()",
        ),
    },
}

_HALF = {
    tensor(dtype, (4,)): {
        "narrow dtypes": (
            f"{{v}}.clamp(-8, 8).to(torch.{dtype})",
            f"{{k}}.clamp(-8, 8).to(torch.{dtype})",
            f"torch.full((4,), {{i}} % 5, dtype=torch.{dtype})",
            f"torch.tensor([1, {{i}} % 7, 0.5, -2], dtype=torch.{dtype})",
            f"F.relu({{v}}.clamp(-8, 8).to(torch.{dtype}))",
            f"torch.zeros(4, dtype=torch.{dtype}) + {{i}} % 6",
        )
    }
    for dtype in HALVES
}
TABLE: dict[Any, dict[str, tuple[str, ...]]] = EXPRESSIONS | {
    kind: EXPRESSIONS.get(kind, {}) | more for kind, more in (_MORE | _HALF).items()
}

# Statements on a named vector {n}, with a new name {r}: each a few lines.
LOOPS: tuple[tuple[str, ...], ...] = (
    ("for {r} in range(3):", "    {n}[{r}] += {n}[{r} - 1]"),
    ("for {r} in range(1, 4):", "    {n}[{r}:].sub_({n}[{r} - 1])"),
    ("{r} = {n}", "while {r}.numel() > {c}:", "    {r} = {r}[1:]", "    {r}.add_({f})"),
    ("for {r} in range({i} % 4):", "    {n}[{r}:{r} + 2] = {n}[{r}:{r} + 2].flip(0)"),
    ("for {r} in {n}.view(2, 2).t():", "    {r}.neg_()"),
    ("for {r} in {n}.unbind():", "    if {r} > {f}:", "        {r}.zero_()"),
    ("for {r} in {n}.split(2):", "    {r}[0] = {r}[1]", "    if {r}.sum() > {i}:", "        break"),
    ("for {r} in (0, 2):", "    {n}[{r}:][:2].copy_({v}[:2])"),
    ("{r} = {n}.view(2, 2)", "for _ in range({i} % 3):", "    {r}[0], {r}[1] = {r}[1].clone(), {r}[0].clone()"),
    ("for {r} in range(2):", "    torch.add({v}, {r}, out={n})"),
    ("{r} = {n}[::2]", "for _ in range(2):", "    {r} += {r}.sum()", "    {r}.clamp_(-9, 9)"),
    ("for {r} in {k}.tolist():", "    {n}[{r} % 4] = {r}"),
    ("for {r} in range(4):", "    if {n}[{r}] < {f}:", "        {n}[{r}:] = {f}", "        break"),
    ("{r} = [{n}[:2], {n}[2:]]", "for _ in range(2):", "    {r}[0].add_({r}[1])", "    {r}.reverse()"),
    ("for {r} in range(3):", "    {n} = {n} + {r}", "    {n}[{r}].neg_()"),
    ("{r} = {n}.detach()", "for _ in range({i} % 3):", "    {r} *= -1"),
)
# Statements with out=; {n} a named vector, {r} a new name that is afterwards a vector.
OUTS: tuple[tuple[str, ...], ...] = (
    ("{r} = torch.empty(4)", "torch.sub({v}, {v}, out={r})"),
    ("{r} = torch.empty(0)", "torch.add({v}, {i}, out={r})"),
    ("{r}, o = torch.empty(4), torch.empty(4, dtype=torch.int64)", "torch.sort({v}, out=({r}, o))"),
    ("{r} = {n}.clone()", "torch.cat([{v}[:2], {v}[2:]], out={r})"),
    ("{r} = {n}", "torch.sum({m}, 0, out={r})"),
    ("{r} = torch.zeros(4)", "torch.mul({k}, {v}, out={r})"),
    ("{r} = torch.zeros(2, 4)", "torch.neg({v}, out={r}[1])", "{r} = {r}.sum(0)"),
    ("{r} = torch.zeros(4, 2)", "torch.abs({v}, out={r}[:, {c} % 2])", "{r} = {r}.sum(1)"),
    ("{r} = torch.zeros(4, dtype=torch.int64)", "torch.gt({v}, {f}, out={r})", "{r} = {r}.float()"),
    ("{r} = torch.max({m}, 0, out=(torch.empty(4), torch.empty(4).long()))[0]",),
    ("{r} = torch.add({v}, {v}, out={n}[:])",),
    ("{r} = torch.stack([{s}, {s}, {s}, {s}], out=torch.empty(4))",),
    ("{r} = torch.full((4,), {i}, out=torch.empty(4))",),
    ("{r} = torch.arange(4, out=torch.empty(4))",),
    ("{r} = torch.zeros(4)", "torch.where({b}, {v}, {v}, out={r})"),
)
# Functions made here; {r} is afterwards a vector.
FUNCTIONS: tuple[tuple[str, ...], ...] = (
    ("{n} = []", "for i in range(3):", "    {n}.append(lambda t: t + i)", "{r} = {n}[{c} % 3]({v})"),
    ("{n} = 0", "def {r}():", "    nonlocal {n}", "    {n} += 1", "    return {n}", "{r} = {v} + {r}() + {r}()"),
    ("def {n}(t, s={i}, *, u=None):", "    return t + s if u is None else t + u", "{r} = {n}({n}({v}), u={f})"),
    (
        "def {n}(t, *more, **named):",
        "    for one in more:",
        "        t = t + one",
        "    return t + len(named)",
        "{r} = {n}({v}, {i}, {s}, a=1)",
    ),
    (
        "def {n}(t, left):",
        "    if left <= 0:",
        "        return t",
        "    if t.sum() > {i}:",
        "        return {n}((t - 1).clamp(-9, 9), left - 1)",
        "    return {n}((t + 1).clamp(-9, 9), left - 2)",
        "{r} = {n}({v}, 4)",
    ),
    (
        "def {n}(t):",
        "    def inner():",
        "        nonlocal t",
        "        t = t * 2",
        "        return t.clamp(-9, 9)",
        "    inner()",
        "    return t.clamp(-9, 9)",
        "{r} = {n}({v})",
    ),
    ("{n} = lambda t, n={i} % 3: t if n < 1 else {n}(t + 1, n - 1)", "{r} = {n}({v})"),
    (
        "def {n}(t):",
        "    try:",
        "        return t[{i} % 6]",
        "    except IndexError:",
        "        return t[0] * 0",
        "{r} = {v} + {n}({v})",
    ),
    (
        "def {n}(t):",
        "    with torch.no_grad():",
        "        if t[0] > {f}:",
        "            return t + 1",
        "    return t",
        "{r} = {n}({v})",
    ),
    ("{n} = {{'f': lambda t: t + {i}, 'g': torch.neg}}", "{r} = {n}['f' if {q} else 'g']({v})"),
    (
        "class {n}:",
        "    k = {i}",
        "    def __init__(self, t):",
        "        self.t = t",
        "    def __call__(self):",
        "        return self.t + self.k",
        "{r} = {n}({v})()",
    ),
    ("{n} = functools.partial(mixed, scale={i} % 3)", "{r} = {n}({v}, 1, {v})"),
    (
        "def {n}(t):",
        "    yield t",
        "    if t.sum() > {i}:",
        "        yield t + 1",
        "    yield t * 2",
        "{r} = list({n}({v}))[-1].clamp(-9, 9)",
    ),
    (
        "def {n}(ts):",
        "    return ts[0] if len(ts) == 1 else torch.maximum(ts[0], {n}(ts[1:]))",
        "{r} = {n}([{v}, {v}, {v}])",
    ),
)
# Errors with a way on; {r} is afterwards a vector.
CAUGHT: tuple[tuple[str, ...], ...] = (
    ("try:", "    {r} = checked({v}, {i})", "except ValueError as e:", "    {r} = {v} + len(str(e))"),
    (
        "try:",
        "    {r} = checked({v}, {f})",
        "except (KeyError, ValueError):",
        "    {r} = {v}",
        "else:",
        "    {r} = {r} + 1",
    ),
    (
        "{r} = {v}",
        "for _ in range(3):",
        "    try:",
        "        {r} = checked({r} + 1, 4)",
        "    except ValueError:",
        "        break",
    ),
    ("try:", "    {r} = {v}.reshape(2, {i})[0].expand(4)", "except RuntimeError:", "    {r} = {v} * 2"),
    (
        "try:",
        "    try:",
        "        {r} = checked({v}, {i})",
        "    except ValueError as e:",
        "        raise KeyError('k') from e",
        "except KeyError as e:",
        "    {r} = {v} + (e.__cause__ is not None)",
    ),
    (
        "try:",
        "    {r} = {v} + 1 // ({i} % 3)",
        "except ZeroDivisionError:",
        "    {r} = {v}",
        "finally:",
        "    {n}.clamp_(-9, 9)",
    ),
    ("try:", "    {n}.add_(1)", "    {r} = checked({n}, {i}) + 1", "except ValueError:", "    {r} = {n} - 1"),
    ("{r} = {v}", "with contextlib.suppress(ValueError):", "    {r} = checked({v}, {i}) * 2", "{r} = {r} + 1"),
    (
        "try:",
        "    assert {s} < {f}, 'too large'",
        "    {r} = {v}",
        "except AssertionError as e:",
        "    {r} = {v} + len(e.args)",
    ),
    ("try:", "    {r} = {v}[int({s}.nan_to_num())].expand(4)", "except IndexError:", "    {r} = {v}"),
)
# What acts on an object outside.
ACTS: tuple[tuple[str, ...], ...] = (
    ("HELD.n += 1",),
    ("HELD.last = {v}",),
    ("if HELD.last is not None:", "    {r} = {v} + HELD.last", "else:", "    {r} = {v}", "HELD.last = {v}.clone()"),
    ("HELD.memo['a' if {q} else 'b'] = {i}",),
    ("HELD.total += {s}", "HELD.total.clamp_(-9, 9)"),
    ("if HELD.n % 2:", "    {r} = {v} * 2", "else:", "    {r} = {v}", "HELD.n = HELD.n + 1"),
    ("{r} = {v} + HELD.n",),
    ("HELD.n = {i}",),
    ("if 'a' not in HELD.memo:", "    HELD.memo['a'] = {i}", "{r} = {v} + HELD.memo['a']"),
    ("counted()", "{r} = {v} + COUNT"),
    ("HELD.seen.append({i})", "{r} = {v} + len(HELD.seen) % 4"),
    ("if {s} > {f}:", "    HELD.n += 1", "    HELD.last = {v}"),
)

PRELUDE = """
import types

INF = float('inf')
HELD = types.SimpleNamespace(n=0, last=None, memo={}, total=torch.zeros(()), seen=[])
COUNT = 0


def counted():
    global COUNT
    COUNT += 1


def mixed(t, n=1, *rest, scale=1, **named):
    t = t * scale + n
    for one in rest:
        t = t + one
    for name in sorted(named):
        t = torch.maximum(t, named[name])
    return t.clamp(-9, 9)


def masked(t, mask=None):
    if mask is None:
        return t
    return t.masked_fill(mask, 0)


def chosen(table, key, default=None):
    if key not in table:
        return default if default is not None else table['a']
    return table[key]


def boxed(box, other=None):
    if other is not None:
        box.value = box.value + other
    box.weight += 1
    return box.value * (box.weight % 3)


def only(t, n, /):
    return t + n


def first_above(rows, limit):
    for number, row in enumerate(rows):
        if row.sum() > limit:
            return row + number
    return rows[0] * 0


def searched(t, keys):
    low, high = 0, 3
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < t[0]:
            low = middle + 1
        else:
            high = middle
    return t + low


def folded(ts):
    if len(ts) < 2:
        return ts[0]
    middle = len(ts) // 2
    left, right = folded(ts[:middle]), folded(ts[middle:])
    return left if left.sum() > right.sum() else right


def depth_of(t, n):
    if n <= 0 or t[0] > 4:
        return t
    return depth_of((t + 1).clamp(-9, 9), n - 1)


def pooled(rows, how='sum'):
    if how == 'sum':
        return rows.sum(0).clamp(-9, 9)
    if how.startswith('a'):
        return rows.amax(0)
    raise ValueError(f'how is {how}')


def checked(t, limit):
    if t.nan_to_num(0, 9, -9).amax() > limit:
        raise ValueError(f'above {limit}')
    return t
"""
