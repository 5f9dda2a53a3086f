"""A process that compiles a model: its peak beside eager's, with the originals of packed weights and without them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from smelt.codegen.llvm.isa import host_isa

PEAK = """
import json, sys, torch
from torch import nn
torch.set_num_threads(1)
torch.set_grad_enabled(False)

class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(n, n) for _ in range(4))
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)
        self.first, self.second = nn.LayerNorm(n), nn.LayerNorm(n)

    def forward(self, x):
        q, k, v = (p(x).view(1, -1, 12, 64).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))

torch.manual_seed(0)
model = nn.Sequential(*[Block(768) for _ in range(6)]).eval()
run, x = model, torch.randn(1, 128, 768)
if sys.argv[1] != "eager":
    import smelt
    run = smelt.compile(model, options=json.loads(sys.argv[1]))
open("/proc/self/clear_refs", "w").write("5")
for _ in range(4):
    found = run(x)
if sys.argv[1] != "eager":
    assert run.stats().builds == 1 and not run.stats().fallbacks, run.stats()
status = dict(line.split(":") for line in open("/proc/self/status"))
print(*(int(status[what].split()[0]) / 1e3 for what in ("VmHWM", "VmRSS")))
"""

PACKED = 6 * (4 * 768 * 768 + 8 * 768 * 768) * 4 / 1.024e6  # in the units of `VmHWM`, / 1000
COMPILER = 40
"""What `smelt.compile` imports."""
LLVM = 60
"""What makes kernels on top of that, where no earlier process did."""

pytestmark = pytest.mark.skipif(
    host_isa() is None or not os.access("/proc/self/clear_refs", os.W_OK), reason="packs nothing, or has no /proc"
)


def memory(kind: str, cache: Path | None = None) -> tuple[float, float]:
    """The peak, and what is resident after four calls. cache: the folder of what earlier processes made."""
    env = os.environ | ({} if cache is None else {"SMELT_CACHE_DIR": str(cache)})
    command = [sys.executable, "-c", PEAK, kind]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    peak, resident = map(float, run.stdout.split())
    return peak, resident


@lru_cache(maxsize=1)
def eager() -> tuple[float, float]:
    return memory("eager")


@pytest.mark.nightly
def test_a_compiled_process_has_the_packed_weights_on_top(tmp_path: Path) -> None:
    """And what the compiler is, where an earlier process left the code of kernels."""
    memory("{}", tmp_path)
    peak, resident = memory("{}", tmp_path)
    assert peak <= eager()[0] + PACKED + COMPILER and resident <= eager()[1] + PACKED + COMPILER


def test_originals_go_one_after_the_other(tmp_path: Path) -> None:
    """Packed weights and originals are never in memory together, also where kernels are made meanwhile."""
    released = '{"release_originals": true}'
    peak, resident = memory(released, tmp_path)
    assert peak <= eager()[0] + COMPILER + LLVM and resident <= eager()[1] + COMPILER + LLVM
    peak, resident = memory(released, tmp_path)
    assert peak <= 1.15 * eager()[0] and resident <= 1.15 * eager()[1]
