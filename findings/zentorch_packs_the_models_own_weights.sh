#!/usr/bin/env bash
# zentorch 2.13.0.2 with torch 2.13: with frozen weights (`TORCHINDUCTOR_FREEZING=1`, as its documentation advises),
# `torch.compile(model, backend="zentorch")` packs the weight of an `addmm` in its own memory, which is the model's parameter.
# The compiled model is right; the model itself, in eager mode, and its state_dict are not any more. Compile a deep copy.
# Needs torch 2.13 (CPU, x86-64) and a C++ compiler. ~1 minute.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/packages" zentorch==2.13.0.2 deprecated==1.3.1 wrapt==2.5.2
export PYTHONPATH="$folder/packages${PYTHONPATH:+:$PYTHONPATH}" TORCHINDUCTOR_CACHE_DIR="$folder/cache" TORCHINDUCTOR_FREEZING=1
cat > "$folder/try.py" <<'PY'
import torch
import zentorch


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(64, 192)), torch.nn.Parameter(torch.randn(192))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


print("torch", torch.__version__, "zentorch", zentorch.__version__)
torch.manual_seed(0)
torch.set_num_threads(1)
model, x = Product().eval(), torch.randn(128, 64)
with torch.no_grad():
    want, weight = model(x), model.weight.clone()
    got = torch.compile(model, backend="zentorch")(x)
    again = model(x)
right, kept = torch.allclose(got, want, atol=1e-4), torch.equal(model.weight, weight)
print("compiled: right", right, "| eager afterwards: off by", float((again - want).abs().max()), "| weight as it was", kept)
raise SystemExit(not (right and not kept))
PY
python3 "$folder/try.py"
