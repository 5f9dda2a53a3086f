#!/usr/bin/env bash
# torch 2.13.0 (CPU): gelu of +inf is NaN for tensors of two or more f32 or bf16 elements, and inf for a tensor of one element, for
# doubles, and wherever oneDNN is not used or told to use no more than AVX2. oneDNN's erf form for AVX-512 computes it; eager torch
# calls it for all but single elements. So the same program gives inf on one machine and NaN on the next, and an overflow that gelu
# would have kept visible as inf becomes NaN. ATEN_CPU_CAPABILITY=avx2 changes nothing; ONEDNN_MAX_CPU_ISA=AVX2 does.
# A CPU without AVX-512 gives inf in all rows: the script says so and checks that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import os
import torch
import torch.nn.functional as F

limit = os.environ.get('ONEDNN_MAX_CPU_ISA', 'none')
print('torch', torch.__version__, 'limit of oneDNN:', limit, 'torch itself:', torch.backends.cpu.get_cpu_capability())
found = {}
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    for count in (1, 2, 16):
        found[dtype, count] = F.gelu(torch.full((count,), float('inf'), dtype=dtype))[-1].item()
        print(dtype, count, 'elements: gelu(inf) =', found[dtype, count])
has_avx512 = ' avx512f ' in open('/proc/cpuinfo').read()
if limit == 'none' and has_avx512:
    for dtype in (torch.float32, torch.bfloat16):
        assert found[dtype, 1] == float('inf')
        assert found[dtype, 2] != found[dtype, 2] and found[dtype, 16] != found[dtype, 16]
    assert found[torch.float64, 16] == float('inf')
else:
    assert all(value == float('inf') for value in found.values()), 'all are infinite without AVX-512'
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
ATEN_CPU_CAPABILITY=avx2 "$folder/venv/bin/python" "$folder/try.py"
ONEDNN_MAX_CPU_ISA=AVX2 "$folder/venv/bin/python" "$folder/try.py"
