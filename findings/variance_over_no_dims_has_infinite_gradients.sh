#!/usr/bin/env bash
# torch 2.13.0 (CPU, f32): var and std take an empty list of dimensions for all of them, and give the value of that. Their
# backward counts one element for it, divides by 1 - 1, and gives infinite gradients for a result that is right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print('torch', torch.__version__)
x = torch.tensor([1.0, 2.0, 4.0, 8.0], requires_grad=True)
for f in (torch.var, torch.std):
    assert torch.equal(f(x, dim=[]), f(x))
    (listed,) = torch.autograd.grad(f(x, dim=[]), x)
    (plain,) = torch.autograd.grad(f(x), x)
    print(f.__name__, 'value', f(x, dim=[]).item(), 'gradient with dim=[]', listed.tolist(), 'without dim', plain.tolist())
    assert listed.isinf().all() and plain.isfinite().all()
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
