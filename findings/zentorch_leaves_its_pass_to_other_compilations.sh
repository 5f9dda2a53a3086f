#!/usr/bin/env bash
# zentorch 2.13.0.2 with torch 2.13: `torch.compile(backend="zentorch")` sets `torch._inductor.config.joint_custom_post_pass`
# and leaves it set. What the process compiles afterwards with the default backend goes through zentorch's graph pass, too,
# and calls its operators, though nobody asked for that. Put the option back (`torch._inductor.config.patch`) around a call
# that compiles.
# Needs torch 2.13 (CPU, x86-64) and a C++ compiler. ~1 minute.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/packages" zentorch==2.13.0.2 deprecated==1.3.1 wrapt==2.5.2
export PYTHONPATH="$folder/packages${PYTHONPATH:+:$PYTHONPATH}" TORCHINDUCTOR_CACHE_DIR="$folder/cache"
cat > "$folder/try.py" <<'PY'
import torch
import zentorch
from torch._inductor.utils import run_and_get_code

print("torch", torch.__version__, "zentorch", zentorch.__version__)
x = torch.randn(8, 64)


def code_of_default_backend():
    torch.compiler.reset()
    model = torch.nn.Linear(64, 64)
    with torch.no_grad():
        _, codes = run_and_get_code(torch.compile(model), x)
    return "".join(codes)


before = code_of_default_backend()
with torch.no_grad():
    torch.compile(torch.nn.Linear(64, 32), backend="zentorch")(x)
after = code_of_default_backend()
left = torch._inductor.config.joint_custom_post_pass
print("the default backend's code calls zentorch: before", "torch.ops.zentorch" in before, "after", "torch.ops.zentorch" in after)
print("left in Inductor's configuration:", type(left).__name__)
raise SystemExit(not ("zentorch" not in before and "torch.ops.zentorch" in after and left is not None))
PY
python3 "$folder/try.py"
