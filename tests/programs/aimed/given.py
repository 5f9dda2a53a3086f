"""Containers among the arguments that calls change, and that come in other lengths from call to call.

Why: a call is known by its arguments as they came; what it leaves in them may be what another call comes with.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

CHANGES = (
    "items.append(x * {k})", "items.append({t})", "items.insert({k}, x)", "items.pop()", "items[0] = x + {k}",
    "items[-1] = torch.cat([x, x])", "items += [x, {t}]", "items.reverse()", "del items[0]", "items.extend([x] * {k})",
    "items[0] = x.double()", "items.clear()", "table['k{k}'] = x", "table['n'] = len(items)", "table['n'] += {k}",
    "table.pop('k{k}', None)", "table['list'].append(x)", "table['list'].append({k})", "table.update(k{k}=x + 1)",
    "items[:] = [x] + items", "table['list'] = items", "items.append(table['n'])",
)  # fmt: skip
READS = (
    "y = y * len(items)", "y = y + len(table)", "y = y + sum(t.sum() for t in items if isinstance(t, torch.Tensor))",
    "y = y + {t}.sum()", "y = y + table['n']", "y = y * len(table['list'])", "n = len(items)", "y = y + n",
    "y = torch.stack([x] * (len(items) + 1)).sum(0)", "for t in items: y = y + (t.sum() if hasattr(t, 'sum') else t)",
    "for i, key in enumerate(sorted(table)): y = y + i * len(key)",
)  # fmt: skip
CONDITIONS = ("x.sum() > 0", "x[0] > 0", "x[1] < 1", "len(items) > {k}", "x.sum() > len(items)", "'k{k}' in table")
RESULTS = ("y", "y", "items", "y, len(items)", "(items[-1] if items else None)", "y, table", "n, y", "None", "{t}")


def given(seed: int, size: int = 0) -> Generated:
    """The program of this number with containers that it changes."""
    lines = lines_for(seed, size)
    lines.put(1, "y, n = x + 1, 0")
    while lines.budget > 0:
        lines.block(1, lambda depth: _statement(lines, depth))
    lines.put(1, f"return {_filled(lines, RESULTS)}")
    calls = []
    for _ in range(5):
        items = ", ".join(
            lines.rng.choice(("torch.ones(2)", "torch.zeros(2)")) for _ in range(lines.rng.randrange(1, 4))
        )
        table = f"dict(n={lines.rng.randrange(2)}, list=[1] * {lines.rng.randrange(3)})"
        x = [float(lines.rng.randint(-1, 2)) for _ in range(2)]
        calls.append(f"(torch.tensor({x}), [{items}], {table})")
    return generated(seed, "", "x, items, table", lines.lines, calls)


def _statement(lines: Lines, depth: int) -> bool:
    if depth < 3 and lines.chance(0.35):
        lines.put(depth, f"if {_filled(lines, CONDITIONS)}:")
        lines.block(depth + 1, lambda at: _statement(lines, at))
        if lines.chance(0.15):
            lines.put(depth + 1, f"return {_filled(lines, RESULTS)}")
        return True
    lines.put(depth, _filled(lines, lines.rng.choice((CHANGES, READS))))
    return True


def _filled(lines: Lines, choices: tuple[str, ...]) -> str:
    return lines.pick(choices).format(k=lines.rng.randrange(3), t=lines.pick(("x", "y", "items[0]", "items[-1]")))
