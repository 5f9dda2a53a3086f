"""Read what was captured: a typed graph with the line that each operation came from, as text and as Python.

Run: python examples/read_the_graph.py
"""

from collections import Counter

import torch
from torch import nn

import smelt


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        split = self.qkv(x).view(rows, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))


torch.manual_seed(0)
model, x = Attention().eval(), torch.randn(2, 10, 64)
with torch.no_grad():
    program = smelt.trace(model, (x,))

# Whole operations as the model called them, each with its result's type, its source line and its module.
print(program.graph)

# The text is all there is to a graph: it parses back to an equal one.
assert smelt.parse(str(program.graph)) == program.graph

# A graph is data to walk over.
print("operations:")
for op, count in Counter(node.op for node in program.graph.walk()).most_common():
    print(f"  {count:2} {op}")

# The same as Python that runs and imports only torch.
print()
print(program.code)

# And the graph that really runs for these inputs, after all passes.
with torch.no_grad():
    print(program.graph_for(x))
