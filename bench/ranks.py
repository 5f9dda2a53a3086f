"""What `smelt plan` predicts of a step, beside what torchrun's processes take.

    OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 bench/ranks.py tp=2 dp=2 pp=2

One row a mesh: seconds of a step by the clock and of the processor (the most of any rank), bytes that rank 0 sends, and
memory that a step takes beyond parameters, gradients and the optimizer's state; each predicted and measured. A machine
with fewer free cores than ranks is slower by the clock than any prediction: the processor's time is what to compare.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import smelt
from smelt.inspect.ranks.cluster import local_figures
from smelt.parallel.mesh import Mesh
from smelt.scheduling.ranks.planning import plan_on

WORDS, LENGTH, BATCH, DEPTH = 8192, 128, 4, 4
STEPS, FIRST = 12, 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        h = self.before(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.behind(x))))


class Gpt(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, max(width // 64, 1)) for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.blocks(self.words(x) + self.places.weight[: x.shape[1]])
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """For `smelt plan bench/ranks.py:gpt`."""
    torch.manual_seed(0)
    x, y = (torch.randint(WORDS, (BATCH, LENGTH)) for _ in range(2))
    return Gpt(int(os.environ.get("WIDTH", "256"))), (x, y)


def scheduled(mesh: Mesh) -> tuple[smelt.Schedule, tuple[torch.Tensor, ...]]:
    """The model with the ready schedules of a mesh's axes."""
    model, examples = gpt()
    s = smelt.schedule(model, examples)
    for axis, size in mesh.axes:
        if axis == "tp" and size > 1:
            smelt.schedules.tensor_parallel(s, ranks=size)
        elif axis == "dp":
            s.data_parallel("dp")
        elif axis == "pp":
            s.pipeline(size, "pp", microbatches=BATCH)
    return s, examples


def stepped(module: nn.Module, mesh: Mesh, rank: int, inputs: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """One step of training on a rank."""
    axes, here = dict(mesh.axes), mesh.coordinates(rank)
    own = tuple(x.chunk(axes.get("dp", 1))[here.get("dp", 0)] for x in inputs)
    update = torch.optim.AdamW(module.parameters(), lr=1e-4)
    forward = module.__dict__["forward"]

    def step() -> Any:
        update.zero_grad()
        if "pp" in axes:
            loss = forward.train(own, {})
        else:
            loss = module(*own)
            loss.backward()
        update.step()
        return loss

    return step


def _peak(step: Callable[[], Any], module: nn.Module) -> int:
    """The most bytes that torch has allocated within a step, beyond what there is before it without gradients, and the
    plans' arenas, which stay."""
    for one in module.parameters():
        one.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    made = int(max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))))
    forward = module.__dict__["forward"]
    pipe = forward.entries[0].pipe
    programs = [forward.entries[0].trained] if pipe is None else [code.program for code in pipe.codes.values()]
    plans = [half.lowered.plan for program in programs if program for half in (program.forward, program.backward)]
    return made + sum(plan.arena_nbytes for plan in plans)


def main() -> None:
    """All meshes that are named, one after the other."""
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    figures = local_figures(1) if rank == 0 else None
    dist.barrier()
    for text in sys.argv[1:]:
        mesh = Mesh.of(text)
        s, examples = scheduled(mesh)
        module = s.build(
            mesh=init_device_mesh("cpu", tuple(mesh.extent(a) for a in mesh.names), mesh_dim_names=mesh.names)
        )
        step = stepped(module, mesh, rank, examples)
        clock, cpu = [], []
        for _ in range(STEPS + FIRST):
            dist.barrier()
            time.sleep(0.05)
            start, spent = time.perf_counter(), time.process_time()
            step()
            clock.append(time.perf_counter() - start)
            cpu.append(time.process_time() - spent)
        peak = torch.tensor([float(_peak(step, module))])
        mine = torch.tensor([sorted(clock[FIRST:])[STEPS // 2], min(clock[FIRST:]), min(cpu[FIRST:])])
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        if figures is not None:
            found = plan_on(s._state, mesh, figures)
            busy = max(kin.busy for kin in found.kinds) * found.seconds
            beyond = max(k.memory.peak - k.memory.parameters - k.memory.optimizer for k in found.kinds)
            print(
                f"{text:<12} step: predicted {found.seconds * 1e3:.0f} ms, least {mine[1] * 1e3:.0f}, median "
                f"{mine[0] * 1e3:.0f}; processor: predicted {busy * 1e3:.0f}, measured {mine[2] * 1e3:.0f}; memory: "
                f"predicted {beyond / 1e6:.1f} MB, measured {peak.item() / 1e6:.1f}", flush=True,
            )  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
