"""What raises, in all kinds, between what is printed, warned of, written and drawn.

Why: kernels are put together and moved; what is heard of a program must end where it raises, and an operator that data
make raise does so for elements that nobody needs, too. Numbers are small quarters, whose sums are exact in any order.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

RAISES = (
    "if {v}[{i}] > {k}: raise ValueError('r{n}')", "if {v}.sum() > 6: raise RuntimeError('s{n}')",
    "assert {v}[{i}] <= 1, 'a{n}'", "if not {v}[{i}] <= {k}: raise KeyError('k{n}', int({v}[{j}]))",
)  # fmt: skip
HEARD = (
    "print('p{n}')", "print('p{n}', {v}[{i}].item())", "print(f'f{n} {{{v}.sum()}}')", "warnings.warn('w{n}')",
    "warnings.warn('w{n}', stacklevel=2)", "if {v}[{i}] < 0: print('n{n}')",
)  # fmt: skip
COMPUTED = (
    "{v} = {u} + {v}", "{v} = {u} * 0.5", "{v} = ({u} - {v}[{i}]).clamp(-2, 2)",
    "{v} = {v} + t[({u} * 3).long().abs()]",
    "{v} = {v} + t[{u}.long().abs() * 2][{i}]", "{v} = {v} + t.gather(0, ({u} * 3).long().abs())[{j}]",
    "{v} = {v} + (torch.arange(4) // ({u}.long() - 1))[{i}]", "{v} = {v}.roll(1)", "x.add_(0.25)", "x[{i}] = {v}[{j}]",
    "{v} = torch.nn.functional.embedding({u}.long().abs(), t.view(4, 1))[:, 0] - {v}",
)  # fmt: skip


def raises(seed: int, size: int = 0) -> Generated:
    """The program of this number with errors at many places."""
    lines = lines_for(seed, size)
    lines.put(1, "y = x * 2")
    while lines.budget > 0:
        lines.block(1, lambda depth: _statement(lines, depth))
    lines.put(1, f"return {lines.pick(('y', 'x, y', 'y[1]', 'y + x'))}")
    numbers = (-1.0, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.25, 2.0)
    calls = [f"(torch.tensor({[lines.rng.choice(numbers) for _ in range(4)]}), torch.arange(4.0))" for _ in range(5)]
    return generated(seed, "import warnings", "x, t", lines.lines, calls)


def _statement(lines: Lines, depth: int) -> bool:
    kind = lines.rng.choices((RAISES, HEARD, COMPUTED, "for", "while"), (30, 30, 30, 6, 4))[0]
    if isinstance(kind, tuple):
        lines.put(depth, _filled(lines, kind))
    elif depth < 3:
        head = ("for i in range(3):",) if kind == "for" else ("m = 0", "while m < 3 and y[0] < 1:", "    m += 1")
        lines.put(depth, *head)
        lines.put(depth + 1, f"if x[{'i' if kind == 'for' else 'm'}] > 1: raise IndexError('t', {lines.budget})")
        lines.block(depth + 1, lambda at: _statement(lines, at))
    return True


def _filled(lines: Lines, choices: tuple[str, ...]) -> str:
    rng = lines.rng
    return lines.pick(choices).format(
        v=rng.choice("xy"), u=rng.choice("xy"), i=rng.randrange(4), j=rng.randrange(4), k=rng.choice((0.5, 1, 1.5)),
        n=len(lines.lines),
    )  # fmt: skip
