#!/usr/bin/env bash
# torch 2.13.0: products by groups (torch.nn.functional.grouped_mm) have no gradient where the gradient that comes in is
# broadcast, as that of a sum over rows is: RuntimeError. The same products of one matrix each have it, and so have those by
# groups once the gradient is made dense.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print("torch", torch.__version__)
torch.manual_seed(0)
rows = torch.randn(8, 8, requires_grad=True)
weights = torch.randn(2, 8, 8, requires_grad=True)
ends = torch.tensor([3, 8], dtype=torch.int32)
factor = torch.randn(8)


def by_groups():
    return torch.nn.functional.grouped_mm(rows, weights, offs=ends)


def one_by_one():
    return torch.cat([rows[:3] @ weights[0], rows[3:] @ weights[1]])


def gradients(made):
    return torch.autograd.grad((made.sum(0) * factor).sum(), (rows, weights))


wanted = gradients(one_by_one())
try:
    gradients(by_groups())
    told = "none"
except RuntimeError as error:
    told = str(error).splitlines()[0]
print("error of the gradient by groups:", told)
made = by_groups()
dense = torch.autograd.grad(made, (rows, weights), factor.expand(8, 8).contiguous())
equal = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(dense, wanted))
print("with a dense gradient it is that of single products:", equal)
assert "strides" in told and equal, (told, equal)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
