"""Writes into places of a tensor whose operand lies in the same memory, directly, by name, or in another argument.

Why: eager writes while it reads, as a graph of values does not, and some of it eager refuses; what is seen through a
view made before must be what was written since.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

# Places of x (3 rows) by their shape, in groups whose shapes agree; an operand may also be broadcast.
PLACES = (
    ("x[1:]", "x[:-1]", "x[::2]", "x[1:].flip(0)", "x[[0, 2]]"),
    ("x[:, 1:]", "x[:, :-1]"),
    ("x[0]", "x[1]", "x[-1]", "y", "x[0].clone()"),
    ("x[:, 0]", "x[:, 1]", "x[:, -1]", "x.t()[0]"),
    ("x", "x.view(3, -1)", "x.flip(0)", "x[:]"),
    ("x[1:, 1:]", "x[:-1, :-1]", "x[1:, :-1]"),
    ("x[0, 0]", "x[1, 2]", "x.view(-1)[1]"),
    ("x.view(-1)[1:]", "x.view(-1)[:-1]", "x.flatten()[1:]"),
    ("x[:, :3].t()", "x[:, :3]"),
)
BROADCAST = ("x[0, 0]", "x[1, 2]", "x.amax()", "x[1, 1].clone()", "c[0]", "2")
WRITES = ("{to} += {of}", "{to} = {of}", "{to}.add_({of})", "{to}.sub_({of})", "{to}.copy_({of})", "{to} -= {of}",
          "torch.add({of}, 1, out={to})", "{to}.mul_({of}).clamp_(-9, 9)")  # fmt: skip
ENDS = ("x", "x, y", "p", "(p, x)", "x + 1", "y", "[x, p]", "x.sum(0)")


class _Overlaps(Lines):
    def statement(self, depth: int) -> bool:
        """One statement."""
        nests = depth < 3 and self.budget > 0
        if nests and self.chance(0.2):
            self.put(depth, f"if c[{self.rng.randrange(2)}] > 0:")
            self.block(depth + 1, self.statement)
        elif nests and self.chance(0.12):
            self.put(depth, f"for i in {self.pick(('range(2)', 'range(int(c[1]) % 3)'))}:")
            self.block(depth + 1, self.statement)
        elif self.chance(0.2):
            self.put(depth, f"p = {self.pick(self.rng.choice(PLACES))}")
        else:
            places = self.rng.choice(PLACES)
            to, of = self.pick(places), self.pick(places if self.chance(0.7) else BROADCAST)
            to = "p" if self.chance(0.1) else to
            write = self.pick(WRITES)
            # Only what is indexed can be assigned to without being another variable's new value.
            is_indexed = to.endswith("]") and "flip" not in to
            self.put(depth, (write if is_indexed else write.replace("{to} = ", "{to}[...] = ")).format(to=to, of=of))
            if write.startswith("{to} +=") and not is_indexed:
                self.lines[-1] = "    " * depth + f"{to}.add_({of})"
            if write.startswith("{to} -=") and not is_indexed:
                self.lines[-1] = "    " * depth + f"{to}.sub_({of})"
        return True


def overlaps(seed: int, size: int = 0) -> Generated:
    """The program of this number with writes that see their own memory."""
    lines = _Overlaps(**vars(lines_for(seed, size)))
    lines.budget = min(lines.budget, 7)
    if lines.chance(0.6):
        lines.put(1, "x = x + 0")
    lines.put(1, "p = x[1]")
    while lines.budget > 0:
        lines.block(1, lines.statement)
    lines.put(1, f"return {lines.pick(ENDS)}")
    width = lines.rng.choice((3, 4, 37))
    shared = [lines.chance(0.3) for _ in range(5)]
    calls = [
        f"given({width}, {k}, {is_shared}, {[float(lines.rng.randint(-1, 2)) for _ in range(2)]})"
        for k, is_shared in enumerate(shared)
    ]
    return generated(seed, HEAD, "x, y, c", lines.lines, calls)


HEAD = """
def given(width, k, is_shared, c):
    x = (torch.arange(3.0 * width) * (k + 3) % 7 - 3).view(3, width)
    return x, x[2] if is_shared else x[2] + 1, torch.tensor(c)
"""
