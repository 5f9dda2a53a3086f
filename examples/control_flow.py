"""A program with a loop and a branch that depend on data: one graph, native, and the same result on every path.

Run: python examples/control_flow.py
"""

import torch

import smelt


def root(a: torch.Tensor) -> torch.Tensor:
    """Newton's iteration, until it does not change any more."""
    x = a / 2 + 1
    while (x * x - a).abs().max() > 1e-4:
        x = (x + a / x) / 2
    if (x < 1).any():
        print("a root below one:", x.min().item())
        return x.clamp(min=1)
    return x


inputs = [torch.tensor(values) for values in ([4.0, 9.0], [0.25, 2.0], [100.0, 5.0])]

# One run is recorded; the graph has the loop, both sides of the branch, and what is printed on one of them.
program = smelt.trace(root, (inputs[0],))
print(program.graph)

compiled = smelt.compile(root)
for x in [*inputs, *inputs]:
    torch.testing.assert_close(program(x), root(x))
    torch.testing.assert_close(compiled(x), root(x))

(entry,) = smelt.explain(compiled).graphs
print(f"compiled once, for all paths: {entry['paths']}; {entry['nodes by how they run']}")
assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
