"""Trace a function, check it on more inputs, and see what cannot be traced and why.

Run: python examples/trace_and_check.py
"""

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


def clip_if_large(x: torch.Tensor) -> torch.Tensor:
    if x.abs().max() > 1:
        return x.clamp(-1, 1)
    return x


# Which way this goes depends on the values, and a trace would keep one way for ever: an error, not a wrong answer.
try:
    smelt.trace(clip_if_large, (torch.randn(8),))
except smelt.CaptureError as error:
    print()
    print(error)
else:
    raise AssertionError("a branch on data was traced")


# Written without a branch, it is one graph.
def clip(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs().max() > 1, x.clamp(-1, 1), x)


clipped = smelt.trace(clip, (torch.randn(8),))
for scale in (0.1, 10.0):
    x = torch.linspace(-scale, scale, 8)
    assert torch.equal(clipped(x), clip(x))
print()
print("without the branch: traced, and equal to eager on both sides of it")
