"""Random modules for the fuzzer of schedules: blocks of random operators, layers used twice, ties, hooks, buffers."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8
_UNARY = {
    "gelu": F.gelu,
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, -1),
    "halved": lambda x: x * 0.5,
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "turned": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "folded": lambda x: x.reshape(x.shape[0], -1).view(x.shape),
    "cut": lambda x: torch.cat([x[..., :3], x[..., 3:] * 2], -1),
    "written": lambda x: (x + 1).mul_(0.5),
    "filled": lambda x: x.clone().masked_fill_(x > 1.5, 0.25),
    "part": lambda x: torch.stack(x.chunk(2, -1), -1).flatten(-2),
    "rms": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
}
_BINARY = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "attend": lambda a, b: F.softmax(a @ b.transpose(-1, -2) * 0.4, -1) @ b,
    "gate": lambda a, b: F.silu(a) * b,
    "max": torch.maximum,
}


class Drop(nn.Dropout):
    """Draws in the order of rows: what is drawn follows memory, and steps keep values, not how they lie in memory."""

    def forward(self, x):
        return super().forward(x.contiguous())


class Counted(nn.Module):
    """A norm by statistics that it keeps: its buffers change in training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    """Runs a plan: rows of (operator, operands by number); what no row uses is added up at the end."""

    def __init__(self, rng: random.Random, depth: int):
        super().__init__()
        self.plan, self.layers = [], nn.ModuleDict()
        unused = {0}
        for i in range(1, rng.randint(3, 9)):
            kind = rng.choice(["linear"] * 4 + ["unary"] * 4 + ["binary"] * 3 + ["norm", "drop", "counted", "block"])
            a, b = rng.randrange(i), rng.randrange(i)
            if kind == "unary":
                name, operands = rng.choice(sorted(_UNARY)), (a,)
            elif kind == "binary":
                name, operands = rng.choice(sorted(_BINARY)), (a, b)
            else:
                name, operands = self._layer(kind, rng, depth), (a,)
            self.plan.append((name, operands))
            unused = (unused - set(operands)) | {i}
        self.last = sorted(unused)

    def _layer(self, kind: str, rng: random.Random, depth: int) -> str:
        again = [name for name in self.layers if name.startswith(kind)]
        if again and rng.random() < 0.2:
            return rng.choice(again)
        name = f"{kind}{len(self.layers)}"
        if kind == "linear" or (kind == "block" and not depth):
            made = nn.Linear(WIDTH, WIDTH, bias=rng.random() < 0.7)
            others = [m for m in self.layers.values() if isinstance(m, nn.Linear)]
            if others and rng.random() < 0.15:
                made.weight = rng.choice(others).weight
        elif kind == "block":
            made = Block(rng, depth - 1)
        else:
            made = {"norm": lambda: nn.LayerNorm(WIDTH), "drop": lambda: Drop(0.3), "counted": Counted}[kind]()
        self.layers[name] = made
        return name

    def forward(self, x):
        values = [x]
        for name, operands in self.plan:
            given = [values[i] for i in operands]
            if name in _UNARY:
                values.append(_UNARY[name](*given))
            elif name in _BINARY:
                values.append(_BINARY[name](*given))
            else:
                values.append(self.layers[name](*given))
        result = values[self.last[0]]
        for i in self.last[1:]:
            result = result + values[i]
        return result


class Model(nn.Module):
    """Blocks behind each other: random ones, copies of the first, the first again."""

    def __init__(self, rng: random.Random):
        super().__init__()
        first = Block(rng, 1)
        self.blocks = nn.ModuleList([first])
        for _ in range(rng.randint(0, 2)):
            kind = rng.choice(["copy", "copy", "same", "new"])
            self.blocks.append(
                copy.deepcopy(first) if kind == "copy" else first if kind == "same" else Block(rng, rng.randint(0, 1))
            )
        self.head = nn.Linear(WIDTH, WIDTH)
        self.several = rng.random() < 0.3

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return {"y": self.head(x), "x": [x, x.sum()]} if self.several else self.head(x)


def model_of(seed: int) -> nn.Module:
    """The model of a seed, in float64, where rounding cannot hide a wrong answer."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = Model(rng).double()
    if rng.random() < 0.15:
        doubled = rng.choice([m for m in model.modules() if isinstance(m, nn.Linear)])
        doubled.register_forward_hook(_double)
    return model.train(rng.random() < 0.4)


def _double(module, args, output):
    return output * 2
