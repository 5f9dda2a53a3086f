"""Random modules, and random steps of a schedule on random meshes: all ranks have to do what the module does.

`python -m tests.parallel.random_steps SEED ...` runs seeds and prints what each did.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.diag import CaptureError, InternalError, ScheduleError, SmeltError, VerifyError

AXES = ("dp", "tp", "pp", "ep")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "relu": F.relu, "tanh": torch.tanh, "silu": F.silu, "sin": torch.sin,
}  # fmt: skip


class Mlp(nn.Module):
    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        inner = rng.choice([width, 2 * width, 3 * width + rng.randrange(2)])
        self.up, self.down = nn.Linear(width, inner, rng.random() < 0.7), nn.Linear(inner, width, rng.random() < 0.7)
        self.drop, self.name = nn.Dropout(rng.choice([0.0, 0.2])), rng.choice(sorted(_ACTIVATIONS))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(_ACTIVATIONS[self.name](self.up(x))))


class Gated(nn.Module):
    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width, False)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.up(x).chunk(2, -1)
        return self.down(a * torch.sigmoid(b))


class Attention(nn.Module):
    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.heads = rng.choice([h for h in (1, 2, 3, 4) if width % h == 0])
        self.causal, self.p, self.fused = rng.random() < 0.5, rng.choice([0.0, 0.2]), rng.random() < 0.5
        self.spelled = rng.random() < 0.3
        if self.fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width, False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if self.spelled:
            weights = (q @ k.transpose(-1, -2) / w**0.5).softmax(-1)
            y = F.dropout(weights, self.p, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, None, self.p if self.training else 0.0, self.causal)
        return self.out(y.transpose(1, 2).reshape(b, s, w))


class Conv(nn.Module):
    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1, groups=rng.choice([1, 1, 2]), bias=rng.random() < 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Branch(nn.Module):
    """On the input, or on what parameters made of it."""

    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.a, self.b, self.on_data = nn.Linear(width, width), nn.Linear(width, width), rng.random() < 0.3
        self.sign, self.p = rng.choice([-1.0, 1.0]), rng.choice([0.0, 0.0, 0.2])

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        test = (x if self.on_data else first).sum() * self.sign > 0
        if test:
            y = F.dropout(self.a(x), self.p, self.training)
        else:
            y = torch.tanh(self.b(x))
        return y


class Loop(nn.Module):
    """One layer several times."""

    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(width, width), rng.randrange(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x + torch.tanh(self.layer(x))
        return x


class Norm(nn.Module):
    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        kind = rng.choice(["layer", "layer", "rms", "group", "batch"])
        self.is_last = kind in ("layer", "rms")
        self.norm: nn.Module = {
            "layer": lambda: nn.LayerNorm(width), "rms": lambda: nn.RMSNorm(width),
            "group": lambda: nn.GroupNorm(2, width), "batch": lambda: nn.BatchNorm1d(width),
        }[kind]()  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.is_last else self.norm(x.transpose(1, 2)).transpose(1, 2)


_SHUFFLES: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum": lambda x: torch.einsum("bsw,btw->bst", x, x).softmax(-1) @ x,
    "cumsum": lambda x: x.cumsum(1) / x.shape[1],
    "roll": lambda x: x.roll(1, 1) + x.flip(1),
    "pad": lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1],
    "unfold": lambda x: F.pad(x, (0, 0, 0, 1)).unfold(1, 2, 1).sum(-1),
    "pool": lambda x: x + F.adaptive_avg_pool1d(x.transpose(1, 2), 1).transpose(1, 2),
    "scatter": lambda x: torch.zeros_like(x).scatter_add(1, x.detach().argsort(1), x),
    "put": lambda x: torch.zeros_like(x).index_put((torch.arange(x.shape[0])[:, None], torch.tensor([0])), x[:, :1])
    + x,
    "strided": lambda x: x.contiguous().as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)) * 2,
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1),
    "topk": lambda x: x + x.topk(2, -1).values.sum(-1, keepdim=True),
    "max": lambda x: x - x.amax(1, keepdim=True),
    "batch sum": lambda x: x / (1 + x.detach().abs().mean()),
    "repeat": lambda x: x.repeat(1, 1, 2).view(*x.shape[:2], 2, -1).mean(2),
    "mask": lambda x: x.masked_fill(x < -1, 0.5) + torch.where(x > 1, x, 0),
}  # fmt: skip


class Shuffle(nn.Module):
    """What moves elements, or needs several."""

    def __init__(self, width: int, rng: Random) -> None:
        super().__init__()
        self.name = rng.choice(sorted(_SHUFFLES))

    def forward(self, x: Tensor) -> Tensor:
        return _SHUFFLES[self.name](x)


_LAYERS = (Mlp, Mlp, Gated, Attention, Attention, Conv, Branch, Loop, Norm, Norm, Shuffle, Shuffle)


class Net(nn.Module):
    """Layers with skips; layers that occur twice; a head that may be the table of words."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.width, self.words = rng.choice([4, 6, 8, 12]), rng.choice([0, 10, 12])
        if self.words:
            self.table = nn.Embedding(self.words, self.width)
        self.layers = nn.ModuleList(rng.choice(_LAYERS)(self.width, rng) for _ in range(rng.randrange(2, 6)))
        self.order = list(range(len(self.layers))) + ([rng.randrange(len(self.layers))] if rng.random() < 0.2 else [])
        self.skips = {i: rng.randrange(i + 1) for i in range(len(self.order)) if rng.random() < 0.5}
        self.head = nn.Linear(self.width, self.words or 5, bias=rng.random() < 0.5)
        if self.words and rng.random() < 0.4:
            self.head.weight = self.table.weight
        self.loss = rng.choice(["entropy", "square", "none", "two"])

    def forward(self, x: Tensor, y: Tensor) -> Any:
        first = self.table(x) if self.words else x
        states = [first]
        for i, number in enumerate(self.order):
            layer, h = self.layers[number], states[-1]
            given = (h, x.float() - 4 if self.words else x) if isinstance(layer, Branch) else (h,)
            made = layer(*given)
            states.append(made + states[self.skips[i]] if i in self.skips else made)
        out = self.head(states[-1])
        if self.loss == "entropy":
            return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=1)
        if self.loss == "square":
            return (out - 1).square().mean()
        return out if self.loss == "none" else (out.tanh(), states[1].sum(1))


@dataclass
class Run:
    """What a seed did. steps: taken, each as text. refused: what steps and the proof refused."""

    seed: int
    mesh: dict[str, int]
    steps: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    is_proven: bool = False
    error: float = 0.0

    def __str__(self) -> str:
        told = f"proven, {self.error:.1e}" if self.is_proven else "refused"
        return f"seed {self.seed} {self.mesh} {told}: {'; '.join(self.steps)}\n    " + "\n    ".join(self.refused)


def run(seed: int) -> Run:
    """Take random steps and prove what comes of them.

    Raises: AssertionError where a refused step changes the schedule, VerifyError where ranks differ, anything that is
    no SmeltError where the library fails.
    """
    rng = Random(seed)
    torch.manual_seed(seed)
    net = Net(rng).train(rng.random() < 0.8)
    batch, length = rng.choice([4, 4, 6, 8]), rng.choice([2, 3, 4])
    x = torch.randint(net.words, (batch, length)) if net.words else torch.randn(batch, length, net.width)
    y = torch.randint(net.words or 5, (batch, length))
    # In float64, rounding cannot be taken for a fault, nor a fault for rounding.
    net, x = net.double(), x if net.words else x.double()
    mesh = _mesh(rng)
    found = Run(seed, mesh)
    s = smelt.schedule(net, (x, y))
    for _ in range(rng.randrange(1, 7)):
        _step(s, net, rng, mesh, found)
    optimizer = rng.choice([None, lambda p: torch.optim.AdamW(p, 0.01, eps=0.01, weight_decay=0.1)])
    try:
        proof = s.verify(mesh=mesh, steps=2, optimizer=optimizer)
    except (VerifyError, InternalError, CaptureError):
        raise
    except SmeltError as error:
        assert error.code not in ("S0643", "S0644"), f"ranks wait for ever: {error}"
        found.refused.append(f"proof: {_told(error)}")
        return found
    found.is_proven, found.error = True, proof.error
    assert proof.compared
    return found


def _mesh(rng: Random) -> dict[str, int]:
    axes = rng.sample(AXES, rng.choice([1, 1, 2, 2, 3]))
    mesh: dict[str, int] = {}
    for axis in axes:
        size = rng.choice([2, 2, 3, 4])
        if size * torch.tensor([1, *mesh.values()]).prod().item() <= 8:
            mesh[axis] = size
    return mesh or {"tp": 2}


def _told(error: SmeltError) -> str:
    return f"{error.code} {error.what}: {error.why}"


def _step(s: smelt.Schedule, net: nn.Module, rng: Random, mesh: dict[str, int], found: Run) -> None:
    axes, paths = list(mesh), [name for name, _ in net.named_modules() if name]
    axis, path = rng.choice(axes), rng.choice(paths)
    ready, module = smelt.schedules, net.get_submodule(path)
    tensors = [name for name, _ in module.named_parameters(recurse=False)]
    dim, unit, blocks = rng.choice([0, 0, 1, -1, 2]), rng.choice([1, 1, 2]), rng.choice([1, 1, 1, 2, 3])
    op = rng.choice(["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "shard"])
    which, schedule = rng.choice(["output", "input"]), rng.choice(["1f1b", "gpipe", "interleaved"])
    stages = mesh.get("pp", 2) * (2 if schedule == "interleaved" else 1)
    microbatches = rng.choice([1, 2, 2, 4])
    actions: dict[str, Callable[[], Any]] = {
        f"tensor_parallel over tp of {mesh.get('tp', 2)}": lambda: ready.tensor_parallel(s, ranks=mesh.get("tp", 2)),
        f"data_parallel({axis})": lambda: s.data_parallel(axis),
        f"shard_state({axis})": lambda: s.shard_state(axis),
        f"pipeline({stages}, {schedule}, {microbatches})": lambda: s.pipeline(
            stages, "pp", schedule=schedule, microbatches=microbatches
        ),
        f"ready pipeline({stages})": lambda: ready.pipeline(s, stages=mesh.get("pp", 2)),
        f"{path}.cut": lambda: s[path].cut(),
        f"{path}.sync({op}, {axis}, {which}, {dim})": lambda: s[path].sync(op, axis, dim=dim, which=which),
        f"{path}.checkpoint": lambda: s[path].checkpoint(),
        "undo": lambda: s.undo() if s.log else None,
    }
    has_tp, has_pp = "tp" in mesh, "pp" in mesh
    weights = [4 * has_tp, 3, 1, 2 * has_pp, 2 * has_pp, 0.3, 0.5, 1, 0.3]
    if tensors:
        tensor = rng.choice(tensors)
        actions[f"{path}.shard({tensor}, {dim}, {axis}, {blocks}, {unit})"] = lambda: s[path].shard(
            tensor, dim, axis, blocks=blocks, unit=unit
        )
        weights.append(6)
    name = rng.choices(list(actions), weights)[0]
    before = s.to_json()
    try:
        actions[name]()
        found.steps.append(name)
    except ScheduleError as error:
        assert s.to_json() == before, f"{name} was refused, and changed the schedule"
        found.refused.append(f"{name}: {_told(error)}")


def main(seeds: list[int]) -> None:
    """Run seeds and print what they did; of a failure its error."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failed = proven = 0
    for seed in seeds:
        try:
            found = run(seed)
            proven += found.is_proven
            print(found, flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED seed {seed}: {type(error).__name__} {str(error)[:1500]}", flush=True)
    print(f"{len(seeds)} seeds: {proven} proven, {failed} failed")


if __name__ == "__main__":
    first, count = (int(n) for n in sys.argv[1:3])
    main(list(range(first, first + count)))
