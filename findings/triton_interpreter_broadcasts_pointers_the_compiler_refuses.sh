#!/usr/bin/env bash
# Triton 3.6.0: `tl.store` of a block of 4 x 8 through pointers of 1 x 8 under a mask of 4 x 8. The interpreter broadcasts the
# pointers and stores; the compiler refuses the kernel. So a kernel that passes in the interpreter (where one row is left, as with
# one query of an attention) may not compile: each needs both checks. Compiled for sm_80 without a GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps triton==3.6.0
cat > "$folder/kernel.py" <<'PYTHON'
import triton
import triton.language as tl


@triton.jit
def kernel(out):
    rows, columns = tl.arange(0, 4), tl.arange(0, 8)
    mask = (rows[:, None] < 1) & (columns[None, :] < 8)
    tl.store(out + columns[None, :], tl.full([4, 8], 3.0, tl.float32), mask=mask)
PYTHON
cat > "$folder/interpreted.py" <<'PYTHON'
import torch
from kernel import kernel

out = torch.zeros(8)
kernel[(1,)](out)
print("interpreter:", out.tolist())
assert out.tolist() == [3.0] * 8
PYTHON
cat > "$folder/compiled.py" <<'PYTHON'
import triton
from kernel import kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

try:
    triton.compile(ASTSource(kernel, {"out": "*fp32"}, {}), target=GPUTarget("cuda", 80, 32))
except triton.CompilationError as refused:
    said = str(refused.__cause__ or refused)
    print("compiler:", said.strip().splitlines()[-1])
    assert "[4, 8]" in said and "[1, 8]" in said, said
else:
    raise SystemExit("the compiler takes it")
PYTHON
cd "$folder"
TRITON_INTERPRET=1 "$folder/venv/bin/python" interpreted.py
TRITON_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" compiled.py
