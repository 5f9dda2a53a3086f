"""Tensors whose lengths data decide, one made of another, and what is asked of these lengths.

Why: in a graph such a tensor is as long as it can get, with a count beside it; whatever reads it, returns it or asks
for its size must see as much of it as there is. Numbers are small integers, whose sums are exact in any order.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

BOUNDS = ("0", "1", "n", "x.sum() / 4")
TENSORS = (
    "{t}[{t} > {k}]", "{t}.unique()", "({t} > {k}).nonzero()[:, 0]", "torch.where({t} > {k})[0]", "{t}[:n]", "{t}[n:]",
    "{t}[-n:]", "torch.arange(n)", "{t}.repeat_interleave(x.clamp(0, 2).long().sum().clamp(max=3).item())", "{t} * 2",
    "{t}.sort()[0]", "{t}.cumsum(0)", "torch.cat([{t}, {u}])", "{t}[:2]", "{t}.flip(0)", "{t}.clone()", "{t}.double()",
    "torch.zeros(len({t}))", "torch.arange(len({t}))", "{t}.new_ones({t}.shape[0])", "{t}[{t} == {t}]",
    "{t}.masked_select({t} > {k})", "{t}[torch.arange(len({t})) % 2 == 0]", "{t}.view(-1)",
    "{t}.bincount() if {t}.dtype == torch.int64 and ({t} >= 0).all() else {t}", "torch.stack([{t}, {t}]).flatten()",
    "{t}.topk(min(2, len({t})))[0]", "{t}.diff()", "{t}.nonzero().flatten()", "{t}.clamp(max={k})", "{t}.roll(1)",
)  # fmt: skip
INTS = (
    "len({t})", "{t}.shape[0]", "{t}.numel()", "int({t}.sum())", "({t} > {k}).sum().item()", "{n} + {m}", "{n} * 2",
    "min(len({t}), {n})", "max({n}, 1)", "len({t}) // 2", "{t}.count_nonzero().item()",
)  # fmt: skip
RESULTS = (
    "{t}", "{t}", "{t}", "{n}", "{n}", "len({t})", "{t}.shape[0]", "{t}.sum()", "{t}.numel()", "{t} + 1", "{t}[:1]",
    "{t}.shape", "{t}.sum().item()", "[{t}, {t}]", "{t}.tolist()", "{t}.view(1, -1)", "({t} > 0).any().item()",
    "{t}.size()", "f'{{len({t})}}'", "{t}.unsqueeze(1)", "{{'a': {t}, 'n': len({t})}}",
)  # fmt: skip


def lengths(seed: int, size: int = 0) -> Generated:
    """The program of this number with lengths that follow data."""
    lines = lines_for(seed, size)
    rng, tensors, ints = lines.rng, ["x"], ["n"]

    def fill(text: str) -> str:
        return text.format(t=rng.choice(tensors), u=rng.choice(tensors), n=rng.choice(ints), m=rng.choice(ints),
                           k=rng.choice(BOUNDS))  # fmt: skip

    lines.put(1, "n = int(n)")
    for number in range(min(lines.budget, 1 + rng.randrange(6))):
        made, names, name = (TENSORS, tensors, "t") if lines.chance(0.75) else (INTS, ints, "m")
        lines.put(1, f"{name}{number} = {fill(lines.pick(made))}")
        names.append(f"{name}{number}")
    lines.put(1, f"return {', '.join(fill(lines.pick(RESULTS)) for _ in range(1 + rng.randrange(4)))}")
    return generated(seed, "", "x, n", lines.lines, _calls(lines))


def _calls(lines: Lines) -> list[str]:
    rng, is_fixed, is_float, calls = lines.rng, lines.chance(0.6), lines.chance(0.7), []
    for _ in range(5):
        x = [rng.randint(-3, 3) for _ in range(5 if is_fixed else rng.choice((5, 5, 3, 7, 1, 0)))]
        dtype = "torch.float32" if is_float else "torch.int64"
        calls.append(f"(torch.tensor({x}, dtype={dtype}), torch.tensor({rng.randrange(4)}))")
    return calls
