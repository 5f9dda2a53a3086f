"""Compile a model and use it as before: the same class, the same parameters, the same results.

Run: python examples/compile_mlp.py
"""

import torch
from torch import nn

import smelt


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


torch.manual_seed(0)
model = Mlp().eval()
compiled = smelt.compile(model)

with torch.no_grad():
    for rows in (1, 64, 64):  # the first call with a new shape compiles, the next ones only run
        x = torch.randn(rows, 256)
        difference = (compiled(x) - model(x)).abs().max().item()
        assert difference < 1e-4
        print(f"{rows:3} rows: largest difference from eager {difference:.1e}")

# It is the model still: its type, its weights, its state dict.
assert isinstance(compiled, Mlp)
assert compiled.up.weight is model.up.weight
assert compiled.state_dict().keys() == model.state_dict().keys()

# Weights changed in place are seen by the next call.
with torch.no_grad():
    model.down.weight.zero_()
    model.down.bias.zero_()
    torch.testing.assert_close(compiled(x), x)

print()
print(smelt.explain(compiled))
