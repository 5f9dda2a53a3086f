#!/usr/bin/env bash
# Triton 3.6.0: the sign of `-x` is lost where x is zero: the negative of 0.0 is 0.0, where IEEE, torch and NumPy have -0.0, and
# 1 / -x is inf and not -inf there. `x * -1.0` has the sign. Seen in the interpreter, without a GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps triton==3.6.0
cat > "$folder/try.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, minus, times):
    at = tl.arange(0, 4)
    value = tl.load(x + at)
    tl.store(minus + at, -value)
    tl.store(times + at, value * -1.0)


x = torch.tensor([0.0, 1.0, -2.0, float("inf")])
minus, times = torch.empty(4), torch.empty(4)
kernel[(1,)](x, minus, times)
found = [t.signbit().tolist() for t in (minus, times, -x)]
print("triton", triton.__version__, "signs of -x:", found[0], "x * -1.0:", found[1], "torch's -x:", found[2])
assert found == [[False, True, False, True], [True, True, False, True], [True, True, False, True]], found
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/try.py"
