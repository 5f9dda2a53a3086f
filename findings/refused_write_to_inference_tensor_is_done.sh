#!/usr/bin/env bash
# torch 2.13.0: an in-place operator on an inference tensor outside inference mode raises ("Inplace update to inference
# tensor outside InferenceMode is not allowed") after it has written: who catches the error goes on with changed data.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print("torch", torch.__version__)
with torch.inference_mode():
    t = torch.zeros(3)
for number, write in enumerate((lambda: t.add_(1), lambda: t.mul_(5), lambda: t.clamp_(max=2)), 1):
    try:
        write()
    except RuntimeError as error:
        print("raised:", str(error).split(".")[0], "| the tensor is now", t.tolist())
    else:
        raise SystemExit("no error any more")
assert t.tolist() == [2.0, 2.0, 2.0], t
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
