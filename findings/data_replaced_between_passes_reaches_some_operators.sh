#!/usr/bin/env bash
# torch 2.13.0 (CPU, f32): a weight whose data are replaced between forward and backward (`w.data = other`) gives two kinds of
# gradients. `F.linear`, and `x @ w.mT`, saved a view of the old weight, so the gradient of x is of the old numbers; `x @ w` and `x * w`
# saved the parameter itself, so theirs is of the new ones. No error, no warning, and the version counter stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch
import torch.nn.functional as F

print('torch', torch.__version__)
found = {}
for name, f in (
    ('linear', lambda x, w: F.linear(x, w)),
    ('matmul', lambda x, w: x @ w.mT),
    ('mul', lambda x, w: x * w),
):
    w, x = torch.nn.Parameter(torch.tensor([[1.0, 2.0]])), torch.ones(1, 2, requires_grad=True)
    loss = f(x, w).sum()
    w.data = torch.tensor([[10.0, 20.0]])
    loss.backward()
    found[name] = x.grad.tolist()
    print(name, 'gradient', found[name], 'version of the weight', w._version)
w = torch.nn.Parameter(torch.tensor([[1.0], [2.0]]))
x = torch.ones(1, 2, requires_grad=True)
loss = (x @ w).sum()
w.data = torch.tensor([[10.0], [20.0]])
loss.backward()
found['matmul of the parameter itself'] = x.grad.tolist()
print('matmul of the parameter itself', x.grad.tolist())
assert found['linear'] == [[1.0, 2.0]] == found['matmul']
assert found['mul'] == [[10.0, 20.0]] == found['matmul of the parameter itself']
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
