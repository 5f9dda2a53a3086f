#!/usr/bin/env bash
# torch 2.13.0 (CPU, f32): a query that may look at no key, masked with the least float (`torch.finfo(dtype).min`, as libraries of
# models write their masks), gets the mean of the values from `scaled_dot_product_attention`, as from the formula. Going back, the kernel
# that is chosen by default counts each key's probability as 1 instead of 1 / keys: gradients of the values of that row are as many times
# too large as there are keys (64 below). With the mathematical backend they are right. No error, no warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

print('torch', torch.__version__)
keys = 64
mask = torch.zeros(keys, keys)
mask[1] = torch.finfo(torch.float32).min
found = {}
for name in ('default', 'math'):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, keys, 8, requires_grad=True) for _ in range(3))
    if name == 'default':
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    else:
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out[0, 0, 1].sum().backward()
    found[name] = out[0, 0, 1].detach(), v.grad[0, 0, 0, 0].item()
    print(name, 'gradient of a value', found[name][1], 'by', out.grad_fn.name())
assert torch.allclose(found['default'][0], found['math'][0], atol=1e-5), 'the row itself'
assert found['math'][1] == 1 / keys
assert found['default'][1] == 1.0
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
