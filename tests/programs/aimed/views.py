"""Views of arguments, state and fresh tensors, made and handed out among effects.

Why: a result that is a view of an argument must lie in its memory, with its strides and offset, and be the argument
itself where eager gives that back; writes before and after it was made are seen through it.
"""

from __future__ import annotations

from tests.programs.aimed.lines import generated, lines_for
from tests.programs.generate import Generated

BASES = ("x", "z", "self.buffer", "c")
VIEWS = (
    "{b}[int(y[1]) % 3]", "{b}[int(y[0]) % 3:]", "{b}[:1 + int(y[1]) % 2]", "{b}.t()", "{b}[1]", "{b}[:, 1]",
    "{b}.reshape(-1)", "{b}.flatten()", "{b}[y.argmax()]", "{b}.unbind(0)[1]", "{b}.contiguous()",
    "{b}.to(torch.float32)", "{b}.narrow(0, int(y[1]) % 2, 1)", "{b}.unsqueeze(0)", "{b}.expand_as({b})",
    "{b}.detach()", "{b}", "{b}.view_as({b})", "{b}.split(1)[int(y[1]) % 3]", "{b}.diagonal()", "{b}.float()",
    "{b}[None].squeeze(0)", "{b}.chunk(3)[0]", "list({b})[int(y[1]) % 3]", "[r for r in {b}][2]",
    "{b}.select(0, int(y[1]) % 3)", "{b}[(y > 0).sum() % 3]", "{b}.permute(1, 0)", "{b}.unfold(0, 2, 1)[0]",
    "{b}.view(9)[int(y[1]) % 3:]", "{b}[..., ::2]", "{b}.expand(2, 3, 3)[1]", "{b}.T.T", "{b}.data",
)  # fmt: skip
EFFECTS = (
    "pass", "y2.add_(1)", "self.count += 1", "z.add_(1)", "x.mul_(2)", "self.buffer.add_(1)", "self.log.append(1)",
    "print(y[0])", "y2[int(y[1]) % 2] = 3", "self.last = y2", "self.buffer[0] = 1", "x[1] = 0",
    "y2.clamp_(max=float(y[0]))", "self.kept = y2 + 1", "c.sub_(1)", "c[int(y[1]) % 3] += 1", "self.kept = r",
    "r.add_(1)",
)  # fmt: skip
# Where a view is made: {s} makes it, {e} is an effect.
PLACES = (
    "{s}",
    "if y[0] > 0:\n    {s}\nelse:\n    r = x[0]",
    "if y[0] > 0:\n    {s}\nelse:\n    r = z * 2",
    "for i in range(1 + int(y[1])):\n    {s}",
    "for i in range(3):\n    {s}\n    if y[0] > i: break",
    "try:\n    {s}\n    if y[0] > 1: raise ValueError('a')\nexcept ValueError:\n    r = x",
    "n = 0\nwhile n < y.abs().sum():\n    n += 2\n    {s}\nelse:\n    n = 7",
    "if y[0] > 0:\n    {e}\n{s}",
    "{s}\nif y[0] > 0:\n    {e}",
    "{s}\n{e}",
    "for i in range(2):\n    {s}\n    if y[1] > i:\n        {e}",
)
ENDS = ("r", "(r, z)", "[r, r]", "{'a': r, 'b': x}", "(r, c, self.buffer)", "(r + 1, r)")
POINTS = ([1.0, 2.0], [-1.0, 1.0], [0.0, 0.0], [2.0, 1.0], [1.0, 1.0], [-2.0, 3.0])
HEAD = """
def given(k, y):
    x, z = ((torch.arange(9.0) * step % 8 - 4).view(3, 3) for step in (k + 3, 2 * k + 5))
    return STATE, x, torch.tensor(y), torch.tensor([3.0, -1.0]), z
"""


def views(seed: int, size: int = 0) -> Generated:
    """The program of this number with views among effects. size: over 4, the second view is made in a place, too."""
    lines = lines_for(seed, size)

    def view() -> str:
        return lines.pick(VIEWS).format(b=lines.pick(BASES))

    def place(name: str) -> list[str]:
        return lines.pick(PLACES).format(s=f"{name} = {view()}", e=lines.pick(EFFECTS)).splitlines()

    lines.put(1, "c = x + 1", "r = z", lines.pick(EFFECTS), *place("r"), lines.pick(EFFECTS))
    second = lines.rng.choice((["q = 0"], [f"q = {view()}"], ["q = z", *place("q")] if lines.budget > 4 else ["q = r"]))
    lines.put(1, *second, f"return {lines.pick(ENDS)}, q")
    calls = [f"given({k}, {lines.rng.choice(POINTS)})" for k in range(5)]
    return generated(seed, HEAD, "self, x, y, y2, z", lines.lines, calls)
