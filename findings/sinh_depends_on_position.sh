#!/usr/bin/env bash
# torch 2.13.0 (CPU, f32): sinh and cosh of one number differ by where it stands in the tensor. Elements that fill whole
# vectors overflow to infinity from about 88.73 on, where exp does; those of the rest that fills no vector are right up to
# 89.41, where the true value leaves f32. So sinh(x)[i] is not a function of x[i], and x[:3].sinh() is not x.sinh()[:3].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print("torch", torch.__version__)
x = torch.full((35,), 89.0)
true = torch.sinh(x[0].double()).item()
assert true < torch.finfo(torch.float32).max
for f in (torch.sinh, torch.cosh):
    finite = [i for i, y in enumerate(f(x).tolist()) if y != float("inf")]
    print(f.__name__, "of 35 numbers 89.0 is finite at", finite, "and of the first three alone", f(x[:3]).tolist())
    assert 0 < len(finite) < 16 and finite == list(range(35 - len(finite), 35))
    assert all(abs(y / true - 1) < 1e-5 for y in f(x[:3]).tolist())
print("true value:", true)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
