"""Random programs over sizes and numbers: one capture with symbols, held against eager at random other sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from smelt.capture import capture
from tests.symbolic.capture_harness import compare, everything, holds

_PROGRAMS, _CALLS = 60, 6


class Writer:
    """Writes one program: x is a matrix, y another, n an int, a a float; sizes are ints that follow from these."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.sizes = ["x.shape[0]", "x.shape[1]", "y.shape[0]", "n"]
        self.tensors = ["x", "y"]
        self.numbers = ["a", "n"]

    def pick(self, items: list[str]) -> str:
        return self.random.choice(items)

    def line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)

    def size(self) -> None:
        a, b, k = self.pick(self.sizes), self.pick(self.sizes), self.random.randint(1, 4)
        made = self.pick([
            f"{a} + {b}", f"{a} - {k}", f"{a} * {k}", f"{a} // {k}", f"{a} % {k + 1}", f"-{a} % {k + 1}",
            f"max({a}, {b})", f"min({a}, {k + 3})", f"abs({a} - {b})", f"({a} + {k}) // 2 * 2", f"int({a} * 0.5)",
            f"{a} if {a} > {b} else {b}", f"{a} // max({b}, 1)", f"(({a}) << 1) - {k}", f"divmod({a}, {k + 1})[1]",
        ])  # fmt: skip
        name = f"s{len(self.sizes)}"
        self.line(f"{name} = {made}")
        self.sizes.append(name)

    def number(self) -> None:
        a, s = self.pick(self.numbers), self.pick(self.sizes)
        made = self.pick([f"{a} * 0.5", f"{a} + {s}", f"{s} / 4", f"float({s})", f"{a} - 1.5", f"abs({a})"])
        name = f"f{len(self.numbers)}"
        self.line(f"{name} = {made}")
        self.numbers.append(name)

    def tensor(self) -> None:
        t, s, k = self.pick(self.tensors), self.pick(self.sizes), self.pick(self.numbers)
        made = self.pick([
            f"{t} * {k}", f"{t} + {s}", f"{t}[: {s} % 3 + 1]", f"{t}[{s} % 2 :]", f"{t}.t().contiguous()", f"{t}.t()",
            f"{t}.reshape(-1).reshape({t}.shape[1], {t}.shape[0])",
            f"torch.cat([{t}, {t} + 1], {self.random.randint(0, 1)})",
            f"torch.nn.functional.pad({t}, (0, {s} % 4))", f"{t}.repeat(1, {s} % 2 + 1)", f"{t}.cumsum(0)",
            f"{t} + torch.arange({t}.shape[1])", f"{t} @ {t}.t() / {t}.numel()", f"{t}.softmax(-1)", f"{t}.roll(1, 0)",
            f"{t}.view({t}.shape[0], 1, -1).squeeze(1)", f"{t} - {t}.mean(0, keepdim=True)", f"{t}.flip(1)",
            f"torch.full_like({t}, {k})", f"torch.ones({t}.shape[0], {s} % 3 + 2) * {t}[:, :1]", f"{t}.relu()",
            f"{t}[:, None, :].expand(-1, 2, -1).reshape(-1, {t}.shape[1])", f"{t}.unflatten(1, (1, -1))[:, 0]",
        ])  # fmt: skip
        name = f"t{len(self.tensors)}"
        self.line(f"{name} = {made}")
        self.tensors.append(name)

    def branch(self) -> None:
        a, b, t = self.pick(self.sizes), self.pick(self.sizes), self.tensors[-1]
        self.line(f"if {a} {self.pick(['<', '<=', '==', '!=', '>'])} {b}:")
        self.line(f"{t} = {t} * 2", 2)

    def loop(self) -> None:
        s, t = self.pick(self.sizes), self.tensors[-1]
        self.line(f"for i in range(abs({s}) % 5):")
        self.line(f"{t} = {t} * 0.5 + i", 2)

    def program(self) -> str:
        for _ in range(self.random.randint(4, 9)):
            self.random.choices(
                [self.size, self.number, self.tensor, self.branch, self.loop], weights=[4, 2, 6, 1, 0.5]
            )[0]()
        shown = [*self.random.sample(self.sizes, 2), self.pick(self.numbers)]
        return "\n".join(["def program(x, y, n, a):", *self.lines, f"    return {', '.join(self.tensors[2:] + shown)}"])


def call(r: random.Random) -> tuple[Any, ...]:
    return (
        torch.randn(r.randint(2, 9), r.randint(2, 9)),
        torch.randn(r.randint(2, 9), 3),
        r.randint(-3, 9),
        r.uniform(-2, 2),
    )


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(_PROGRAMS))
def test_random_programs(seed: int, tmp_path: Any) -> None:
    torch.manual_seed(seed)
    text = Writer(seed).program()
    path = tmp_path / f"program_{seed}.py"
    path.write_text(f"import torch\n\n{text}\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    program, r = space["program"], random.Random(seed)
    args = call(r)
    try:
        program(*args)
    except Exception:
        return  # no program: it raises natively
    found = capture(program, args, specialize=True, dynamic=everything(args))
    assert found.sizes is not None, f"{text}\n{found.warnings}"
    assert holds(found, args)
    compare(program, found, args)
    for _ in range(_CALLS):
        other = call(r)
        if holds(found, other):
            compare(program, found, other)
