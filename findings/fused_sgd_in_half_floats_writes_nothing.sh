#!/usr/bin/env bash
# torch 2.13.0 (CPU): torch.optim.SGD(fused=True) over bf16 or f16 parameters. Parameters of fewer elements than a vector register
# holds are updated as without fused. Of larger ones all whole vectors keep their old values and only the elements behind the last
# whole vector are updated; with momentum, the buffer of those vectors gets numbers far beyond any sum of the gradients, from the
# second step on. No error, no warning; f32 and f64 are right. So a model in bf16 does not train on a CPU with fused SGD, and what
# compares a compiled step with eager sees garbage on eager's side. Told as pytorch/pytorch issue 191763, and fixed after 2.13.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print('torch', torch.__version__, torch.backends.cpu.get_cpu_capability())


def steps(dtype, count, fused, momentum):
    p = torch.nn.Parameter(torch.zeros(count, dtype=dtype))
    optimizer = torch.optim.SGD([p], lr=0.5, momentum=momentum, fused=fused)
    for _ in range(3):
        p.grad = torch.ones_like(p)
        p.grad[1::2] = 2
        optimizer.step()
    held = optimizer.state[p].get('momentum_buffer') if momentum else None
    return p.detach().double(), None if held is None else held.double()


for dtype in (torch.bfloat16, torch.float16, torch.float32):
    for count in (4, 131):
        plain, _ = steps(dtype, count, False, 0.0)
        fused, _ = steps(dtype, count, True, 0.0)
        _, kept = steps(dtype, count, False, 0.5)
        _, held = steps(dtype, count, True, 0.5)
        stays = int((fused == 0).sum())
        wrong = int((~((held - kept).abs() < 0.1)).sum())
        print(dtype, count, 'elements:', stays, 'are never updated,', wrong, 'of the momentum are wrong')
        assert plain[:2].tolist() == [-1.5, -3] and kept[:2].tolist() == [1.75, 3.5]
        if count == 4 or dtype == torch.float32:
            assert torch.equal(fused, plain) and wrong == 0
        else:
            assert 64 < stays < count and torch.equal(fused[stays:], plain[stays:]) and 0 < wrong <= stays
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
