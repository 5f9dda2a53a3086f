"""Random graphs with branches, loops, numbers and lists, as text.

Tensors hold small whole numbers, so that every order of additions gives the same bits and no condition hangs on a
rounding (and nothing asks which of two zeros is the greater); loops are bounded by a counter that they carry.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

TENSORS = ("f32[4, 3]", "f32[3, 4]", "f32[3]", "f32[]", "i64[]", "bool[]")
NUMBERS = ("int", "float", "bool")
_SMALL = "remainder.Scalar"


class Generator:
    """One graph. `Generator(seed).text()`; `inputs(seed)` gives inputs for it."""

    PARAMS = (("x", "f32[4, 3]"), ("y", "f32[3, 4]"), ("v", "f32[3]"), ("s", "f32[]"), ("k", "i64[]"), ("c", "bool[]"))

    def __init__(self, seed: int, *, lists: bool = True) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.lines: list[str] = []
        self.lists = lists
        self.scopes: list[dict[str, list[str]]] = [{}]

    def text(self) -> str:
        for name, type_ in self.PARAMS:
            self.define(type_, f"%{name}")
        self.body(2, self.random.randint(4, 9))
        outputs = [self.value(t) for t in self.random.sample((*TENSORS, *NUMBERS), self.random.randint(2, 5))]
        # Each output is a value of its own: what shares memory with an input is told apart elsewhere.
        results = [self.own(v) for v in outputs]
        types = ", ".join(t for _, t in results)
        params = ", ".join(f"%{name}: {type_}" for name, type_ in self.PARAMS)
        returned = ", ".join(v for v, _ in results)
        return f"graph f({params}) -> {types} {{\n" + "\n".join(self.lines) + f"\n  return {returned}\n}}"

    def own(self, found: tuple[str, str]) -> tuple[str, str]:
        value, type_ = found
        if type_ in NUMBERS:
            return found
        if type_ == "bool[]":
            return self.emit(type_, f"aten.logical_not.default({value})"), type_
        return self.emit(type_, f"aten.neg.default({value})"), type_

    # --- values

    def define(self, type_: str, name: str) -> str:
        self.scopes[-1].setdefault(type_, []).append(name)
        return name

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count}"

    def emit(self, type_: str, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{'  ' * len(self.scopes)}{name}: {type_} = {text}")
        return self.define(type_, name)

    def known(self, type_: str) -> list[str]:
        return [v for scope in self.scopes for v in scope.get(type_, ())]

    def value(self, type_: str) -> tuple[str, str]:
        return self.pick(type_), type_

    def pick(self, type_: str) -> str:
        known = self.known(type_)
        if known and self.random.random() < 0.9:
            # Later values more often, so that chains come about.
            return known[max(self.random.randrange(len(known)), self.random.randrange(len(known)))]
        make = {
            "int": lambda: self.emit("int", f"aten.item.default({self.pick('i64[]')})"),
            "float": lambda: self.emit("float", f"aten.item.default({self.pick('f32[]')})"),
            "bool": lambda: self.emit("bool", f"aten.item.default({self.pick('bool[]')})"),
        }
        return make[type_]() if type_ in make else known[0]

    def number(self, type_: str) -> str:
        """A number or a literal."""
        if self.random.random() < 0.4:
            return {"int": str(self.random.randint(-4, 5)), "float": f"{self.random.randint(-3, 3)}.0"}[type_]
        return self.pick(type_)

    # --- nodes

    def body(self, depth: int, count: int) -> None:
        for _ in range(count):
            roll = self.random.random()
            if depth and roll < 0.13:
                self.branch(depth)
            elif depth and roll < 0.24:
                self.counted(depth)
            elif depth and roll < 0.33:
                self.repeated(depth)
            elif depth and self.lists and roll < 0.38:
                self.gathered(depth)
            elif self.lists and roll < 0.42:
                self.listed()
            else:
                self.simple()

    def small(self, type_: str, text: str) -> str:
        """A tensor brought back to small whole numbers."""
        return self.emit(type_, f"aten.remainder.Scalar({self.emit(type_, text)}, 7)")

    def simple(self) -> None:
        r = self.random
        t = r.choice(TENSORS[:4])
        match r.randrange(22):
            case 0 | 1 | 2:
                op = r.choice(("add.Tensor", "sub.Tensor", "mul.Tensor"))
                self.small(t, f"aten.{op}({self.pick(t)}, {self.pick(t)})")
            case 3:
                self.small("f32[4, 3]", f"aten.add.Tensor({self.pick('f32[4, 3]')}, {self.pick('f32[3]')})")
            case 4:
                self.emit(t, f"aten.{r.choice(('neg', 'abs', 'relu', 'clone'))}.default({self.pick(t)})")
            case 5:
                self.small("f32[]", f"aten.sum.default({self.pick(r.choice(TENSORS[:3]))})")
            case 6:
                self.small("f32[3]", f"aten.sum.dim_IntList({self.pick('f32[4, 3]')}, [0])")
            case 7:
                self.emit("f32[3, 4]{1, 3}", f"aten.transpose.int({self.pick('f32[4, 3]')}, 0, 1)")
            case 8:
                known = self.known("f32[3, 4]{1, 3}")
                if known:
                    format_ = "memory_format=memory_format(contiguous_format)"
                    self.emit("f32[3, 4]", f"aten.clone.default({r.choice(known)}, {format_})")
            case 9:
                mm = self.emit("f32[4, 4]", f"aten.mm.default({self.pick('f32[4, 3]')}, {self.pick('f32[3, 4]')})")
                low = self.emit("f32[4, 4]", f"aten.remainder.Scalar({mm}, 5)")
                self.small("f32[4, 3]", f"aten.mm.default({low}, {self.pick('f32[4, 3]')})")
            case 10:
                index = r.choice((str(r.randint(-4, 3)), self.pick("int")))
                if not index.startswith("%"):
                    self.emit("f32[3]", f"aten.select.int({self.pick('f32[4, 3]')}, 0, {index})")
                else:
                    at = self.emit("int", f"py.mod({index}, 4)")
                    self.emit("f32[3]", f"aten.select.int({self.pick('f32[4, 3]')}, 0, {at})")
            case 11:
                op = r.choice(("lt", "ge", "eq"))
                self.emit("bool[]", f"aten.{op}.Tensor({self.pick('f32[]')}, {self.pick('f32[]')})")
            case 12:
                kind = r.choice(("int", "float"))
                self.small(t, f"aten.{r.choice(('add', 'sub', 'mul'))}.Tensor({self.pick(t)}, {self.number(kind)})")
            case 13 | 14:
                op = r.choice(("add", "sub", "mul", "min", "max", "and_", "xor"))
                wide = self.emit("int", f"py.{op}({self.pick('int')}, {self.number('int')})")
                self.emit("int", f"py.mod({wide}, 11)")
            case 15:
                op = r.choice(("add", "sub", "mul", "min", "max"))
                wide = self.emit("float", f"py.{op}({self.pick('float')}, {self.number('float')})")
                self.emit("float", f"py.mod({wide}, 9.0)")
            case 16:
                kind = r.choice(("int", "float"))
                self.emit("bool", f"py.{r.choice(('lt', 'le', 'eq', 'ne'))}({self.pick(kind)}, {self.number(kind)})")
            case 17:
                self.emit("bool", f"py.not_({self.pick(r.choice(NUMBERS))})")
            case 18:
                self.emit("int", f"py.{r.choice(('floordiv', 'mod'))}({self.pick('int')}, {r.choice((2, -3, 5))})")
            case 19:
                self.emit("int", f"py.int({self.pick('float')})")
            case 20:
                self.emit("i64[]", f"aten.add.Tensor({self.pick('i64[]')}, {r.randint(-2, 2)})")
            case _:
                mask = self.emit("bool[4, 3]", f"aten.gt.Scalar({self.pick('f32[4, 3]')}, {self.number('float')})")
                self.emit("f32[4, 3]", f"aten.where.self({mask}, {self.pick('f32[4, 3]')}, {self.pick('f32[4, 3]')})")

    def listed(self) -> None:
        """A list that lives in Python, and a tensor and a number out of it."""
        made = self.emit("list[f32[3]]", f"py.list({self.pick('f32[3]')}, {self.pick('f32[3]')})")
        longer = self.emit("list[f32[3]]", f"py.append({made}, {self.pick('f32[3]')})")
        self.emit("f32[3]", f"py.getitem({longer}, {self.random.choice((0, 1, 2, -1))})")
        self.emit("int", f"py.len({longer})")

    def condition(self) -> str:
        return self.pick(self.random.choice(("bool", "bool[]", "f32[]")))

    def carried(self) -> list[str]:
        types = [self.random.choice((*TENSORS, *NUMBERS)) for _ in range(self.random.randint(1, 3))]
        return types + types[:1] * self.random.randint(0, 1)

    def line(self, text: str) -> None:
        self.lines.append("  " * len(self.scopes) + text)

    def results(self, types: Sequence[str]) -> list[str]:
        return [self.fresh() for _ in types]

    def region(self, depth: int, types: Sequence[str]) -> None:
        self.body(depth - 1, self.random.randint(0, 4))
        self.line(f"yield {', '.join(self.pick(t) for t in types)}")

    def branch(self, depth: int) -> None:
        types, condition = self.carried(), self.condition()
        names = self.results(types)
        left = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
        self.line(f"{left} = if {condition} {{")
        for end in ("} else {", "}"):
            self.scopes.append({})
            self.region(depth, types)
            self.scopes.pop()
            self.line(end)
        for name, type_ in zip(names, types, strict=True):
            self.define(type_, name)

    def _begin(self, types: Sequence[str]) -> tuple[list[str], list[str], str]:
        first = [self.pick(t) for t in types]
        names, params = self.results(types), self.results(types)
        left = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
        given = ", ".join(f"{p}: {t} = {v}" for p, t, v in zip(params, types, first, strict=True))
        return names, params, f"{left} = {{}} with ({given})"

    def counted(self, depth: int) -> None:
        types = self.carried()
        start, step = self.random.choice(("0", "1", "-2")), self.random.choice((1, 1, 2, -1))
        stop = str(self.random.randint(-3, 4))
        if self.random.random() < 0.4:
            stop = self.emit("int", f"py.mod({self.pick('int')}, 5)")
        names, params, head = self._begin(types)
        index = self.fresh()
        self.line(head.replace("{}", f"for {index}: int in ({start}, {stop}, {step})") + " {")
        self.scopes.append({})
        for name, type_ in zip((index, *params), ("int", *types), strict=True):
            self.define(type_, name)
        self.region(depth, types)
        self.scopes.pop()
        self.line("}")
        for name, type_ in zip(names, types, strict=True):
            self.define(type_, name)

    def gathered(self, depth: int) -> None:
        """A loop that appends a tensor in each turn, and what is made of the list."""
        element = self.random.choice(("f32[3]", "f32[4, 3]"))
        count, first = self.random.randint(1, 3), self.random.randint(0, 1)
        start = self.emit(f"list[{element}]", f"py.list({', '.join(self.pick(element) for _ in range(first))})")
        carried = self.pick(element)
        last, made, param, rest, index = (self.fresh() for _ in range(5))
        given = f"{param}: {element} = {carried}, {rest}: list[{element}] = {start}"
        self.line(f"{last}: {element}, {made}: list[{element}] = for {index}: int in (0, {count}, 1) with ({given}) {{")
        self.scopes.append({})
        self.define(element, param)
        self.define("int", index)
        self.body(depth - 1, self.random.randint(0, 4))
        longer = self.fresh()
        self.line(f"{longer}: list[{element}] = py.append({rest}, {self.pick(element)})")
        self.line(f"yield {self.pick(element)}, {longer}")
        self.scopes.pop()
        self.line("}")
        self.define(element, last)
        total = count + first
        if element == "f32[3]":
            stacked = self.emit(f"f32[{total}, 3]", f"aten.stack.default({made})")
        else:
            stacked = self.emit(f"f32[{4 * total}, 3]", f"aten.cat.default({made})")
        self.small("f32[3]", f"aten.sum.dim_IntList({stacked}, [0])")
        if self.random.random() < 0.3:
            self.emit(element, f"py.getitem({made}, 0)")

    def repeated(self, depth: int) -> None:
        types = ["int", *self.carried()]
        names, params, head = self._begin(types)
        counter = "0"
        head = head.replace(
            head[head.index("(") :].split(",")[0],
            f"({params[0]}: int = {counter}" + (")" if "," not in head[head.index("(") :] else ""),
        )
        self.line(head.replace("{}", "while") + " {")
        self.scopes.append({})
        for name, type_ in zip(params, types, strict=True):
            self.define(type_, name)
        self.body(0, self.random.randint(0, 2))
        below = self.emit("bool", f"py.lt({params[0]}, {self.random.randint(0, 4)})")
        if self.random.random() < 0.5:
            other = self.emit("bool", f"py.bool({self.pick(self.random.choice(('f32[]', 'bool[]', 'float')))})")
            below = self.emit("bool", f"py.and_({below}, {other})")
        self.line(f"yield {below}")
        self.scopes.pop()
        again = self.results(types)
        given = ", ".join(f"{p}: {t}" for p, t in zip(again, types, strict=True))
        self.line(f"}} do ({given}) {{")
        self.scopes.append({})
        for name, type_ in zip(again, types, strict=True):
            self.define(type_, name)
        self.body(depth - 1, self.random.randint(0, 4))
        more = self.emit("int", f"py.add({again[0]}, 1)")
        self.line(f"yield {', '.join((more, *(self.pick(t) for t in types[1:])))}")
        self.scopes.pop()
        self.line("}")
        for name, type_ in zip(names, types, strict=True):
            self.define(type_, name)


def inputs(seed: int) -> list[torch.Tensor]:
    """Inputs of any graph of the generator."""
    g = torch.Generator().manual_seed(seed)

    def whole(*sizes: int) -> torch.Tensor:
        return torch.randint(-3, 4, sizes, generator=g).float()

    k = torch.randint(-5, 6, (), generator=g)
    return [whole(4, 3), whole(3, 4), whole(3), whole(), k, torch.rand((), generator=g) > 0.5]
