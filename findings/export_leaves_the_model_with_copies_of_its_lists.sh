#!/usr/bin/env bash
# torch 2.13.0 (CPU): `torch.export.export(model, args)` changes the live model. Each list and each dict that is an attribute of a
# module is a copy afterwards (sets are left), of the same members. So a list of settings that the model shares with its owner, or
# with another module, is shared no longer: the owner changes it, the model goes on with the old numbers, in eager mode, and nothing
# says so. With `nn.LSTM` and `nn.GRU` it comes with a warning that the layer's weights "were assigned during export".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import warnings

import torch
from torch import nn

print('torch', torch.__version__)


class Model(nn.Module):
    def __init__(self, scales, table, members):
        super().__init__()
        self.scales, self.table, self.members = scales, table, members

    def forward(self, x):
        return x * self.scales[0] + self.table['shift']


def run(is_exported):
    scales, table, members = [2.0], {'shift': 1.0}, {1, 2}
    model, x = Model(scales, table, members), torch.ones(2)
    assert model(x).tolist() == [3.0, 3.0]
    if is_exported:
        torch.export.export(model, (x,))
    scales[0], table['shift'] = 10.0, 5.0
    return model(x).tolist(), model.scales is scales, model.table is table, model.members is members


plain, exported = run(False), run(True)
print('the owner sets 10 x + 5: not exported', plain)
print('the owner sets 10 x + 5: exported before', exported)
layer = nn.LSTM(4, 5).eval()
before = {name: value for name, value in vars(layer).items() if type(value) is list}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    torch.export.export(layer, (torch.randn(3, 2, 4),))
other = sorted(name for name, value in before.items() if vars(layer)[name] is not value)
warned = any('assigned during export' in str(one.message) for one in caught)
print('LSTM: other lists', other, 'warned', warned)
assert plain == ([15.0, 15.0], True, True, True)
assert exported == ([3.0, 3.0], False, False, True)
assert other == ['_all_weights', '_flat_weight_refs', '_flat_weights', '_flat_weights_names'] and warned
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
