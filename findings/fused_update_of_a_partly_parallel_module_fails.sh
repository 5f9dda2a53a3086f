#!/usr/bin/env bash
# torch 2.13.0: after parallelize_module, what the plan names has DTensors as parameters, and what it leaves out (norms, say)
# has plain ones. torch.optim.AdamW of model.parameters() then works as it is by default, and raises in its first step with
# fused=True: one fused operator gets both kinds. Two groups, one of each kind, work.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

dist.init_process_group("gloo", init_method="file://" + os.path.join(sys.argv[1], "store"), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))


def step(grouped, **options):
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    parallelize_module(model, mesh, {"1": ColwiseParallel()})
    both = list(model.parameters())
    kinds = [[p for p in both if isinstance(p, DTensor) == kind] for kind in (False, True)]
    optimizer = torch.optim.AdamW([{"params": kind} for kind in kinds] if grouped else both, **options)
    model(torch.ones(2, 8)).square().sum().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        return "mixed torch.Tensor and DTensor" in str(error) and "refused"
    return "updated"


found = {"default": step(False), "fused": step(False, fused=True), "fused, two groups": step(True, fused=True)}
print("torch", torch.__version__, found)
assert found == {"default": "updated", "fused": "refused", "fused, two groups": "updated"}, found
dist.destroy_process_group()
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
