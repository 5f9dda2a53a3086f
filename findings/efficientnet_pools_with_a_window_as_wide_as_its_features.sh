#!/usr/bin/env bash
# transformers 5.24.0: EfficientNet's last pooling is `AvgPool2d(hidden_dim, ceil_mode=True)`: a window of 1280 x 1280 (the number of
# features, not a size of the image) over an image of 7 x 7. Its result is the mean over the image, as the window is clipped, so a
# pooling that walks its window does 33,000 times the work.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5 transformers==5.24.0
cat > "$folder/try.py" <<'PYTHON'
import torch
import transformers

torch.manual_seed(0)
config = transformers.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280)
model = transformers.EfficientNetModel(config).eval()
with torch.no_grad():
    out = model(torch.randn(1, 3, 224, 224))
pooler, image = model.pooler, out.last_hidden_state
print("transformers", transformers.__version__, pooler, "over", tuple(image.shape), "gives", tuple(out.pooler_output.shape))
assert type(pooler) is torch.nn.AvgPool2d and pooler.kernel_size == 1280 and pooler.ceil_mode
assert image.shape == (1, 1280, 7, 7)
assert torch.allclose(out.pooler_output.flatten(), image.mean((2, 3)).flatten(), atol=1e-6)
PYTHON
"$folder/venv/bin/python" "$folder/try.py" 2>/dev/null
