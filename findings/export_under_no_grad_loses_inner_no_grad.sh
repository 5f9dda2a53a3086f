#!/usr/bin/env bash
# torch 2.13.0: torch.export under no_grad leaves a no_grad region of the program out of the graph, without a warning; the
# exported module has other gradients than the program. Exported with gradients on, the region is there and they agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch


class Program(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = x * 2
        return y * x


def gradient(f):
    x = torch.tensor(3.0, requires_grad=True)
    f(x).backward()
    return x.grad.item()


print("torch", torch.__version__)
with torch.no_grad():
    inside = torch.export.export(Program(), (torch.tensor(3.0),))
outside = torch.export.export(Program(), (torch.tensor(3.0),))
found = [gradient(f) for f in (Program(), outside.module(), inside.module())]
print("gradient of the program, exported with gradients on, exported under no_grad:", found)
regions = ["no_grad" in p.graph_module.code or "set_grad" in p.graph_module.code for p in (outside, inside)]
print("the graph has a region:", regions)
assert found == [6.0, 6.0, 12.0] and regions == [True, False], (found, regions)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
