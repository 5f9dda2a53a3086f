"""What is no tensor, list or dictionary and yet changes where data say so, and lists that many hold.

Why: staging takes back what an arm did and merges what two arms did; whatever it does not know of is done twice, or on
all ways. A list that grows by a count of data must be that list for all that hold it.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

# What each is made by, what changes it, and what reads it.
THINGS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "arr": ("np.arange(3.0)", (
        "arr[{k}] = {i}", "arr += 1", "arr[:2] *= 2", "arr.sort()", "arr.fill({i})", "arr = arr + {i}",
        "arr[::-1].sort()", "arr.put({k}, {i})",
        "np.add(arr, 1, out=arr)", "torch.from_numpy(arr).add_(1)", "arr.flat[{k}] = {i}",
    ), ("arr.tolist()", "float(arr.sum())", "arr[{k}]", "arr.copy()", "arr.argmax()", "torch.from_numpy(arr) + 1")),
    "buf": ("bytearray(b'abc')", (
        "buf[{k}] = 100 + {k}", "buf += b'z'", "buf.append(97)", "buf.reverse()", "buf.extend(b'yx')",
        "memoryview(buf)[0] = 98",
    ), ("bytes(buf)", "len(buf)", "buf[0]", "buf.upper()")),
    "nums": ("array.array('d', [1, 2, 3])", (
        "nums.append({i})", "nums[{k}] = {i}", "nums.reverse()", "nums.extend([{i}])", "nums.insert(0, 4)",
    ), ("nums.tolist()", "len(nums)", "nums[-1]", "sum(nums)")),
    "var": ("contextvars.ContextVar('var', default=1)", (
        "var.set({i})", "var.set({e})", "var.reset(var.set(3))", "var.set([{e}])",
    ), ("var.get()", "[var.get()]")),
    "od": ("collections.OrderedDict(a=torch.ones(3), b=2, c=3)", (
        "od.move_to_end('a')", "od.move_to_end('b', last=False)", "od['d'] = {e}", "od['a'] = od.pop('a', {i})",
        "od.pop('b', 0)", "od['b'] = {i}", "od |= {{'e': {i}}}", "od.setdefault('b', {e})",
    ), ("list(od)", "next(iter(od))", "dict(od)", "list(od.values())", "len(od)", "list(reversed(od))")),
    "dq": ("collections.deque([torch.ones(3), 2], maxlen=4)", (
        "dq.append({e})", "dq.appendleft({i})", "dq.rotate(1)", "dq[0] = {e}", "dq.extend([{i}, {e}])", "dq.reverse()",
        "dq.insert(1, {i}) if len(dq) < 4 else dq.pop()", "dq.append(dq.popleft())",
    ), ("dq[0]", "list(dq)", "len(dq)", "dq[-1]", "dq.copy()")),
    "cnt": ("collections.Counter('aab')", (
        "cnt['a'] += 1", "cnt.update('bbc')", "cnt['d'] = {i}", "cnt.subtract('a')", "del cnt['b']",
        "cnt += collections.Counter('c')",
    ), ("cnt.most_common()", "dict(cnt)", "cnt['b']", "sum(cnt.values())", "sorted(cnt.elements())")),
    "dd": ("collections.defaultdict(list, a=[1])", (
        "dd['a'].append({e})", "dd['b'].append({i})", "dd[{n}].append(1)", "dd['a'] += [{i}]", "dd.pop('b', None)",
    ), ("dict(dd)", "len(dd)", "dd['a'][-1]", "list(dd)", "dd['b']")),
    "st": ("{1, 2}", (
        "st.add({n})", "st.discard(1)", "st |= {{5, {n}}}", "st -= {{2}}", "st.update(['a'])", "st.add(('q', {n}))",
        "st.clear()",
    ), ("len(st)", "1 in st", "st", "{n} in st", "frozenset(st)")),
    "text": ("'ab'", (
        "text += 'c'", "text = text + str({n})", "text = text.upper()", "text = f'{{text}}{{{n}}}'",
        "text = text[::-1]",
    ), ("text", "len(text)", "text.count('a')", "text[-1]", "'c' in text")),
    "error": ("ValueError('a', 1)", (
        "error.args += ({i},)", "error.args = ({e},)", "error.held = {i}", "error.add_note('n')",
        "error.__cause__ = KeyError({k})",
    ), ("error.args", "len(error.args)", "getattr(error, 'held', None)", "type(error.__cause__).__name__", "error")),
    "fn": ("make_fn()", (
        "fn.held = {i}", "fn.held = {e}", "fn.__defaults__ = ({k},)", "fn.__name__ = 'zed'", "fn.items.append({e})",
    ), ("fn()", "fn.held", "fn.__name__", "len(fn.items)")),
    "ten": ("torch.zeros(3)", (
        "ten.note = {i}", "ten.note = {e}", "ten.data = {e}", "ten.resize_(2)", "ten.add_(({e})[:ten.numel()])",
        "ten.set_(({e}).clone())",
    ), ("getattr(ten, 'note', None)", "ten", "ten.numel()", "ten.sum()")),
}  # fmt: skip
# What holds the list L, and what is asked of it at last.
HOLDERS = (
    ("L.append", "({h}({e}), len(L))"), ("L.pop", "{h}() if L else x"), ("L.__len__", "{h}()"),
    ("lambda: len(L)", "{h}()"), ("lambda l=L: l", "{h}()"), ("iter(L)", "list({h})"), ("iter(L)", "next({h}, x)"),
    ("reversed(L)", "list({h})"), ("enumerate(L)", "list({h})"), ("zip(L, L)", "list({h})"),
    ("map(lambda v: v * 2, L)", "list({h})"), ("(v for v in L)", "list({h})"), ("filter(None.__ne__, L)", "list({h})"),
    ("functools.partial(list.append, L)", "{h}({e})"), ("functools.partial(len, L)", "{h}()"),
    ("{{'a': {{'b': L}}}}", "{h}['a']['b']"), ("{{'a': L}}.values()", "list({h})"),
    ("types.MappingProxyType({{'a': L}})", "{h}['a']"), ("functools.lru_cache(lambda k: L)", "{h}(1)"),
    ("Holder(L)", "{h}.items"), ("Holder(L).add", "{h}({e})"), ("Slot(L)", "{h}.items"), ("Slot(L)", "{h}.grown({e})"),
    ("ValueError(L)", "{h}.args[0]"), ("itertools.repeat(L)", "next({h})"), ("itertools.chain(L, [1])", "list({h})"),
    ("itertools.islice(L, 3)", "list({h})"), ("[0, L]", "{h}[1]"), ("collections.deque([L])", "{h}[0]"),
    ("each(L)", "list({h})"), ("(L,)", "{h}[0]"), ("collections.ChainMap({{'a': L}})", "{h}['a']"),
    ("operator.itemgetter(0)", "{h}(L)"), ("CV.set(L)", "CV.get()"), ("setattr(Cls, 'items', L)", "Cls.items"),
    ("itertools.tee(L)[0]", "list({h})"), ("default(L)", "{h}()"), ("setattr(fnattr, 'items', L)", "fnattr.items"),
)  # fmt: skip
GROWS = (
    "L.append({e})", "L.append({e})", "L += [{e}]", "L.extend([{e}, x])", "L.insert(0, {e})", "L.pop() if L else None",
    "L.clear()", "L[0:1] = [{e}, {e}]", "del L[1:]", "L.reverse()", "seen.append(len(L))", "M = L", "M.append({e})",
)  # fmt: skip
CONDITIONS = (
    "c[{k}] > 0", "c[{k}] > 0", "c.sum() > {k}", "x[{k}] > 1", "int(c[{k}]) == 1", "len(L) > {k}", "a[0] > 2",
    "x.sum() > len(L)",
)  # fmt: skip
VALUES = ("x", "x + 1", "x * 2", "a", "a + {k}", "x * len(L)")
NUMBERS = ("{k}", "int(c[0])", "float(x[{k}])", "len(L)", "7")
HEAD = """
import array
import collections
import contextvars
import functools
import itertools
import operator
import types
import numpy as np

class Holder:
    def __init__(self, items): self.items = items
    def add(self, v):
        self.items.append(v)
        return self.items

class Slot:
    __slots__ = ('items',)
    def __init__(self, items): self.items = items
    def grown(self, v):
        self.items += [v]
        return len(self.items)

class Cls: items = None

def each(items):
    for i, v in enumerate(items):
        if i > 4: return
        yield v

def make_fn():
    def fn(a=1): return a
    fn.held, fn.items = 0, []
    return fn

def default(items):
    def inner(l=items): return l
    return inner

def fnattr(): pass

CV = contextvars.ContextVar('CV', default=None)
def ask(): return Cls.items, CV.get(), vars(fnattr)
STATE.ask = ask
"""


class _Outside(Lines):
    names: tuple[str, ...]

    def fill(self, text: str, held: str = "") -> str:
        nested = {
            name: self.fill(self.pick(of)) for name, of in (("e", VALUES), ("i", NUMBERS)) if f"{{{name}}}" in text
        }
        simple = {"k": self.rng.randrange(3), "n": self.pick(("int(c[0])", "len(L)", "3", "int(c[1])")), "h": held}
        return text.format(**simple, **nested)

    def statement(self, depth: int, in_loop: bool = False) -> bool:
        """One statement; whether others may follow."""
        kind = self.rng.choices(("if", "for", "while", "leave", "plain"), (30, 8, 5, 3, 54))[0]
        if kind == "leave" and depth > 1:
            self.put(depth, self.pick(("break", "continue")) if in_loop else f"return a, {self.read()}")
            return False
        if kind in ("plain", "leave") or depth > 3 or self.budget <= 0:
            self.put(depth, self.fill(self.plain()))
            return True
        n = f"n{len(self.lines)}"
        if kind == "while":
            self.put(depth, f"{n} = 0")
        over = self.pick(("range(int(c[0]) % 3)", "range(2)", "x", "L[:3]"))
        heads = {
            "if": f"if {self.fill(self.pick(CONDITIONS))}:",
            "for": f"for t in {over}:",
            "while": f"while {n} < c[1]:",
        }
        self.put(depth, heads[kind], *((f"    {n} += 1",) if kind == "while" else ()))
        self.block(depth + 1, lambda at: self.statement(at, in_loop or kind != "if"))
        if kind == "if" and self.chance(0.4):
            self.put(depth, "else:")
            self.block(depth + 1, lambda at: self.statement(at, in_loop))
        return True

    def plain(self) -> str:
        name = self.pick(self.names)
        of = self.rng.choices((THINGS[name][1], ("seen.append({read})",), GROWS, ("a = {e}",)), (50, 10, 25, 15))[0]
        text = self.pick(of)
        return text.replace("{read}", self.pick(THINGS[name][2]))

    def read(self) -> str:
        return self.fill(self.pick(THINGS[self.pick(self.names)][2]))


def outside(seed: int, size: int = 0) -> Generated:
    """The program of this number with things of two or three kinds, and a list with two holders."""
    lines = _Outside(**vars(lines_for(seed, size)))
    names = tuple(lines.rng.sample(sorted(THINGS), lines.rng.choice((1, 2, 2, 3))))
    lines.names = names
    lines.put(1, "a, seen, L = x + 1, [], [x, x * 3]", "M = L")
    origins = {name: lines.pick(("here", "here", "here", "given", "G")) for name in names}
    for name, origin in origins.items():
        lines.put(1, f"{name} = {THINGS[name][0] if origin == 'here' else f'{origin}[{name!r}]'}")
    held = [lines.rng.choice(HOLDERS) for _ in range(lines.rng.choice((0, 1, 2)))]
    for number, (made, _) in enumerate(held):
        lines.put(1, f"h{number} = {lines.fill(made)}")
    while lines.budget > 0:
        lines.block(1, lines.statement)
    asked = [lines.fill(ask, f"h{number}") for number, (_, ask) in enumerate(held)]
    more = lines.rng.sample((*names, "a", "L", "seen", "M", "len(L)"), 3)
    lines.put(1, f"return {', '.join([lines.read(), *asked, *more])}")
    given, kept = (
        ", ".join(f"{name!r}: {THINGS[name][0]}" for name in names if origins[name] == where)
        for where in ("given", "G")
    )
    head = f"""{HEAD}
def given(x, c): return torch.tensor(x), torch.tensor(c), {{{given}}}
G = STATE.globals = {{{kept}}}
"""
    return generated(seed, head, "x, c, given", lines.lines, [_call(lines) for _ in range(5)])


def _call(lines: Lines) -> str:
    x = lines.rng.choice(([1.0, 2.0, 3.0], [2.0, 0.0, 0.5], [-1.0, 2.0, 3.0], [3.0, 2.0, 3.0], [-1.0, -2.0, 0.0]))
    c = [float(lines.rng.randint(-1, 2)), float(lines.rng.randint(0, 2)), float(lines.rng.randint(-1, 2))]
    return f"given({x}, {c})"
