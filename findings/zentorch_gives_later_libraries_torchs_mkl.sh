#!/usr/bin/env bash
# zentorch 2.13.0.2 loads its library with RTLD_GLOBAL, which opens the symbols of all that it needs, PyTorch's libtorch_cpu with
# its MKL among them, to every library that the process loads later. CTranslate2 4.8.5, which has an MKL of another version,
# linked statically with its symbols visible, then computes with a mixture of the two: results are wrong in their
# first digit, without an error. Imported before zentorch, it is right.
# Needs torch 2.13 (CPU, x86-64) and transformers 5. ~1 minute.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder/packages" zentorch==2.13.0.2 ctranslate2==4.8.5 deprecated==1.3.1 wrapt==2.5.2
export PYTHONPATH="$folder/packages${PYTHONPATH:+:$PYTHONPATH}"
cat > "$folder/try.py" <<'PY'
import importlib
import sys

for name in sys.argv[2].split(","):
    importlib.import_module(name)

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import TransformersConverter
from transformers import DistilBertConfig, DistilBertModel

torch.manual_seed(0)
model = DistilBertModel(DistilBertConfig(n_layers=1, vocab_size=100)).eval()


class Words:
    unk_token = "0"

    def get_vocab(self):
        return {str(i): i for i in range(100)}


class FromMemory(TransformersConverter):
    def load_model(self, *args, **options):
        return model

    def load_tokenizer(self, *args, **options):
        return Words()


model.config.save_pretrained(sys.argv[1] + "/config")
FromMemory(sys.argv[1] + "/config").convert(sys.argv[1] + "/model", force=True)
encoder = ctranslate2.Encoder(sys.argv[1] + "/model", device="cpu", compute_type="float32", intra_threads=1)
ids = torch.randint(0, 100, (1, 16))
with torch.no_grad():
    want = model(ids).last_hidden_state.numpy()
got = np.array(encoder.forward_batch(ids.tolist()).last_hidden_state)
error = float(np.abs(got - want).max())
print(f"imported in the order {sys.argv[2]}: largest difference {error:.2g}, largest value {np.abs(want).max():.2g}")
raise SystemExit(not (error < 1e-4) == (sys.argv[3] == "right"))
PY
python3 "$folder/try.py" "$folder" ctranslate2,zentorch right
python3 "$folder/try.py" "$folder" zentorch,ctranslate2 wrong
