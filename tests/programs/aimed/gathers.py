"""Lists that loops gather, long and short ones, nested, and all that is done with them: stacked, summed, walked over.

Why: a long loop is one loop of the graph and its list one tensor, whose gradient is cut into the gradients of what was
appended, iteration by iteration and in order.
"""

from __future__ import annotations

from tests.programs.aimed.lines import Lines, generated, lines_for
from tests.programs.generate import Generated

# What an iteration computes: of the state, of the element, of the weights, of what was gathered.
VALUES = (
    *("torch.tanh(h @ w + v)", "torch.tanh(h * u + v)", "torch.sin(h + v)", "h * u", "v * u", "h") * 2,
    "{l}[-1] * 0.5 + h", "{l}[0] * 0.5 + v", "(h * v).clamp(-2, 2)", "torch.where(v > 0, h, u)", "h.detach() * u",
    "torch.cat([h[1:], v[:1]])", "torch.stack([h[0], v[1], u[2]])", "h + i * 0.01", "h.flip(0) * 0.9", "h[[1, 0, 2]]",
    "(h if i % 2 else v) * 0.9", "h / (1 + h.abs().sum())", "cell(h, v, w)", "v", "u", "torch.relu(h) + v",
    "x[i % len(x)] * h", "h * len({l}) * 0.1", "{l}[i // 2] * 0.5", "{l}[-1]", "h.view(1, 3)[0]",
    "h.exp().clamp(max=2)",
    "torch.stack({l}[-2:]).sum(0) * 0.5", "sum({l}[-2:]) * 0.4", "h.softmax(0) - 0.3", "h * float(c[0] > 0)",
)  # fmt: skip
SCALARS = ("h.sum()", "h[0]", "h.norm()", "v[1] * u[0]", "(h * v).mean()", "h.max()", "h.square().sum()", "u.sum()")
STEPS = (
    *("{l}.append({v})",) * 9, *("h = {v}",) * 5, "{l}.append(h)", "s.append({n})", "s.append({n})",
    "p.append((h, v))",
    "p.append(({v}, {n}))", "{l} += [{v}]", "{l}.extend([{v}, h])", "{l} = {l} + [{v}]", "d[i] = {v}", "d[i] = h",
    "{l}[-1] = {v}", "{l}[i % len({l})] = {v}", "{l}.insert(0, {v})", "h = {l}.pop() * 0.5", "h += v",
    "h = h.clone(); h *= 0.5",
    "h, k = k, torch.tanh(h + k)", "k = {v}", "n = n + {n}",
    "best = h if best is None or h.sum() > best.sum() else best",
    "{l}[-1] = {l}[-1] * 0.5", "o[i % 4] = {v}", "o[i % 4, 1:] += h[1:]", "{l}.append({l}[-1] + h)",
    "p.append([h, {v}])",
    "d['a'] = {v}", "del {l}[0]", "rows.append(torch.stack({l}))", "rows.append([h, {v}])",
    "t = (h, {v}); p.append(t)",
)  # fmt: skip
GROWING = ("append", "extend", "insert", "+= [", "+ [", "d[i]")
CONDITIONS = (
    "h.sum() > 0", "c[{k}] > 0", "i % 2 == 0", "i > 3", "v[0] > 0", "i == {k}", "len({l}) > 5", "h[0] > v[0]",
    "{l}[-1].sum() > 0", "i % 3",
)  # fmt: skip
LONG = (
    *("i in range(9)", "i in range(9)", "i in range(70)", "i, v in enumerate(x)", "v in x",
    "i in range(len(x))") * 3,
    "i in range(1, 18, 2)", "i in reversed(range(8))", "v in x.unbind()", "v, u in zip(x, y)", "v in reversed(x)",
    "i, (v, u) in enumerate(zip(x, y))", "v in list(x)", "v in x.split(1)[0]", "v in x.flip(0)", "v in x[1:]",
    "v in torch.unbind(x)", "i in range(int(c[1]) + 7)", "v, b in zip(x, range(20))", "i, v in enumerate(y, 1)",
)  # fmt: skip
OVER = (
    *("v in {l}", "i, v in enumerate({l})", "v in list({l})", "v in {l}[:]") * 3, "v, u in zip({l}, {m})",
    "v, u in zip({l}, x)",
    "v in reversed({l})", "i in range(len({l}))", "v in {l}[::2]", "v in {l}[1:]", "v, b in p",
    "i, (v, b) in enumerate(p)",
    "b in s", "i, v in d.items()", "v in d.values()", "i, (v, u) in enumerate(zip({l}, {m}))", "v, b in zip({l}, p)",
    "v, b in zip({l}, s)", "v in {l} + {m}", "v in {l}[-12:]", "v in [e * 0.5 for e in {l}]",
    "v, u in zip({l}[:-1], {l}[1:])",
)  # fmt: skip
SHORT = ("i in range(3)", "i in range(2)", "i in range(int(c[0]) + 1)", "v in x[:3]", "b in (0.1, 0.2)")
BETWEEN = (
    "{l} = [e * 0.5 for e in {l}]", "h = torch.stack({l}).sum(0) * 0.1", "h = sum({l}) * 0.1", "x = torch.stack({l})",
    "{l} = {l}[::2]", "{l} = {l}[1:] + [h]", "{l} = {l}[::-1]", "{l} = []", "h = {l}[-1]", "h = {l}[len({l}) // 2]",
    "{l}, {m} = {m}, {l}", "{l} = list(torch.stack({l}).cumsum(0))", "{l} = [e + u for e, u in zip({l}, {m})]",
    "{l} = {m} + {l}", "{l} = [e for e in {l} if e.sum() > 0] or [h]", "x = torch.cat([x, torch.stack({l})])",
    "{l} = [e for i, e in enumerate({l}) if i % 2] or [h]", "u = {l}[0]", "n = n + torch.stack({l}).mean()",
    "{l} = {m}",
    "n = n + (torch.stack(s).sum() if s else 0)", "h = torch.stack([a for a, b in p] or [h]).mean(0)",
    "{l}.reverse()",
    "x = torch.stack([torch.tanh(e) for e in {l}])", "{l} = [*{l}, *{m}]", "rows.append(torch.stack({l}))",
    "v = x[0]",
    "h = torch.cat({l}).view(-1, 3).mean(0)", "{l} = torch.stack({l}).unbind(0); {l} = list({l})", "{l} = {l}[:]",
)  # fmt: skip
ENDS = (
    *("torch.stack({l})", "torch.stack({l}), h", "torch.cat({l})", "{l}", "sum({l})") * 3, "{l}, {m}", "{l}, h, n",
    "torch.stack({l}).square().sum() + n", "h, n", "torch.stack({l}), torch.stack({m})", "p, h", "s, h",
    "d, h", "rows, n",
    "torch.stack(s or [n])", "torch.stack([a * 2 for a, b in p] or [h])",
    "torch.stack(list(d.values()) or [h])", "o, h",
    "{l}[-1] * {l}[0]", "torch.stack({l}).mean(0), {l}[2:3]", "best, h", "torch.stack({l}[::2])", "{l}[1:], h",
    "max(s or [n]), n", "torch.stack({l}[::-1]), {l}", "torch.stack([torch.stack({l}), torch.stack({l})])",
    "{l}, {l}",
    "torch.cat([e[:2] for e in {l}])", "torch.stack([e.sum() for e in {l}])", "tuple({l}), n", "{{'l': {l}, 'p': p}}",
    "torch.stack({l}, 1) @ u.new_ones(len({l}))", "torch.vstack({l})", "k, h, torch.stack({l})",
    "functools.reduce(mul, {l})",
)  # fmt: skip
HEAD = """
import functools

def mul(a, b): return a * b * 0.5

def cell(h, v, w):
    parts = []
    for row in w:
        parts.append((h * row).sum())
    return torch.tanh(torch.stack(parts) + v)

def given(n, m, c):
    grid = torch.arange(1, 1 + 3 * n).view(n, 3)
    return STATE, (grid * 0.37).sin(), (grid[:m] * 0.61).cos(), torch.linspace(-0.9, 0.8, 9).view(3, 3), torch.tensor(c)
"""


class _Gathers(Lines):
    steps: tuple[str, ...] = STEPS

    def fill(self, choices: tuple[str, ...]) -> str:
        text = self.pick(choices)
        for name, of in (("v", VALUES), ("n", SCALARS)):
            while f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", self.pick(of), 1)
        one, other = self.rng.choice((("l", "m"), ("l", "m"), ("m", "l")))
        return text.format(k=self.rng.randrange(3), l=one, m=other)

    def loop(self, depth: int, grows: bool = True) -> None:
        """A loop over what was given or gathered, or a while loop; short where it stands in another."""
        kinds = ("long", "over", "short", "while")
        kind = self.rng.choices(kinds, (6, 4, 1, 1) if depth == 1 else (1, 2, 4, 1))[0]
        at = len(self.lines)
        if kind == "while":
            bound = self.pick(("c[1] + 6", "8", "c[2] + 1"))
            self.put(depth, f"j{depth} = 0", f"while j{depth} < {bound}:", f"    j{depth} += 1")
        else:
            head = self.fill({"long": LONG, "over": OVER, "short": SHORT}[kind])
            head = head.replace("(70)", "(8)") if depth > 1 else head
            self.put(depth, f"for {head}:")
            grows = grows and (kind != "over" or "list(" in head or "[:]" in head)
        if depth > 1 and self.chance(0.5):
            name = self.pick(("l", "m"))
            self.lines.insert(at, "    " * depth + f"{name} = [h]")
        self.block(depth + 1, lambda at: self.statement(at, grows))

    def statement(self, depth: int, grows: bool) -> bool:
        """A statement in a loop; grows: lists may become longer."""
        nests = depth < 4 and self.budget > 0
        match self.rng.choices(("if", "loop", "leave", "plain"), (12, 9, 3, 76))[0]:
            case "if" if nests:
                self.put(depth, f"if {self.fill(CONDITIONS)}:")
                self.block(depth + 1, lambda at: self.statement(at, grows))
                if self.chance(0.4):
                    self.put(depth, "else:")
                    self.block(depth + 1, lambda at: self.statement(at, grows))
            case "loop" if nests and depth < 3:
                self.loop(depth, grows)
            case "leave":
                self.put(depth, f"if {self.fill(CONDITIONS)}: {self.pick(('break', 'continue'))}")
            case _:
                line = self.fill(self.steps)
                while not grows and any(part in line for part in GROWING):
                    line = self.fill(STEPS)
                self.put(depth, line)
        return True


def gathers(seed: int, size: int = 0) -> Generated:
    """The program of this number with lists that loops gather."""
    lines = _Gathers(**vars(lines_for(seed, size)))
    rng = lines.rng
    first = ("[]", "[h]", "[h]", "[x[1], h]", "[u] * 3", "[e * 2 for e in x]", "list(x)")
    lines.put(1, "h, k, v, u, n, i, b, best = x[0] * 0.5, x[1], x[0], w[0], x.sum() * 0.1, 0, 1.0, None")
    lines.put(1, f"l, m = {lines.pick(first)}, {lines.pick(first)}")
    lines.put(1, lines.pick(("s, p, d = [], [], {}", "s, p, d = [n], [(h, k)], {'a': k}")))
    lines.put(1, "rows, o = [], x.new_zeros(4, 3)")
    if lines.chance(0.7):  # Where nothing asks for data, loops are recorded as their iterations.
        lines.put(1, f"if c[{rng.randrange(3)}] > 0: h = {lines.fill(('h * 0.5', 'torch.tanh(h)', 'x[1]', 'v * u'))}")
    # Few kinds of statements in each: a program meets with itself then.
    lines.steps = (*STEPS[:9], *rng.sample(STEPS, rng.choice((2, 4, 8))))
    while lines.budget > 0:
        lines.budget -= 1
        if lines.chance(0.3):
            lines.put(1, lines.fill(BETWEEN))
        else:
            lines.loop(1)
    lines.put(1, f"return {lines.fill(ENDS)}")
    return generated(seed, HEAD, "self, x, y, w, c", lines.lines, _calls(lines))


def _calls(lines: Lines) -> list[str]:
    """Of one length, or of several; numbers that choose another path."""
    rng, is_fixed = lines.rng, lines.chance(0.7)
    calls = []
    for _ in range(5):
        n = 8 if is_fixed else rng.choice((8, 8, 5, 11))
        calls.append(
            f"given({n}, {n if is_fixed else rng.choice((n, 3))}, {[float(rng.randint(-1, 2)) for _ in range(3)]})"
        )
    return calls
