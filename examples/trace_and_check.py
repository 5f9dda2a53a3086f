"""Trace a function, check it on more inputs, and see what a trace cannot hold and why.

Run: python examples/trace_and_check.py
"""

import warnings

import torch

import smelt


def normalise(points: dict[str, torch.Tensor], eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments and results may be nested: tuples, lists, dictionaries, dataclasses."""
    both = torch.cat([points["left"], points["right"]])
    mean, spread = both.mean(0), both.std(0)
    return (both - mean) / (spread + eps), mean


def inputs(seed: int) -> tuple[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return ({side: torch.randn(5, 3, generator=generator) for side in ("left", "right")},)


# The trace runs the function once, and once more to check itself; `check_inputs` are further calls to compare.
program = smelt.trace(normalise, inputs(0), check_inputs=[inputs(1), inputs(2)])
normal, mean = program(*inputs(3))
torch.testing.assert_close((normal, mean), normalise(*inputs(3)))
print(f"traced: {len(list(program.graph.walk()))} nodes, and equal to eager on other inputs")


def clipped_or_nothing(x: torch.Tensor) -> torch.Tensor | None:
    if x.abs().max() > 1:
        return x.clamp(-1, 1)
    return None


# No graph returns a tensor or None, so the trace holds for the path of the recorded run, says so, and raises on the
# other one. (A branch with tensors on both sides is part of the graph: see control_flow.py.)
with warnings.catch_warnings(record=True) as shown:
    warnings.simplefilter("always")
    program = smelt.trace(clipped_or_nothing, (torch.linspace(-2, 2, 8),))
print()
print(shown[0].message)
try:
    program(torch.zeros(8))
except smelt.CaptureError as error:
    print()
    print(error)
else:
    raise AssertionError("the trace returned a result on a path that it does not hold")
