#!/usr/bin/env bash
# torch 2.13.0 (CPU, f32): the gradient of hardtanh, elu and hardswish at NaN depends on where the NaN stands. In elements
# that fill whole vectors it is 0 for hardtanh and NaN for elu and hardswish; in the rest, which fills no vector, it is 1 for
# all three. So one gradient of a tensor is not what its parts' gradients are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch
import torch.nn.functional as F

print('torch', torch.__version__)
for f in (F.hardtanh, F.elu, F.hardswish):
    x = torch.full((67,), float('nan'), requires_grad=True)
    (grad,) = torch.autograd.grad(f(x).sum(), x)
    y = torch.full((3,), float('nan'), requires_grad=True)
    (alone,) = torch.autograd.grad(f(y).sum(), y)
    print(f.__name__, 'of 67 NaN: first', grad[0].item(), 'last', grad[-1].item(), 'and of three alone', alone.tolist())
    assert alone.tolist() == [1.0, 1.0, 1.0] and grad[-1].item() == 1.0
    assert grad[0].item() == 0.0 if f is F.hardtanh else grad[0].isnan()
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
