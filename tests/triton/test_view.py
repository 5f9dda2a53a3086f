"""What a person sees of a program's kernels for a GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

import smelt
from smelt.cli.app import app
from smelt.inspect.gpu import gpu_listing

PROGRAM = """
import torch

def make():
    def f(x, w):
        y = torch.softmax(torch.sort(x)[0] @ w, -1) * 2
        return torch.softmax(y.exp(), 0), torch.softmax(x, -1), torch.softmax(w, -1)
    return f, (torch.randn(16, 16), torch.randn(16, 16))
"""


def test_equal_kernels_once_and_what_has_none() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x, -1), torch.softmax(w, -1), torch.sort(x)[0]

    args = (torch.randn(16, 16), torch.randn(16, 16))
    text = gpu_listing(smelt.trace(f, args).graph_for(*args))
    assert text.startswith("# 2 launches, the first of ")
    assert text.count("@triton.jit\ndef smelt_rows_") == 1
    assert "#     r0 = max f32 over (j0 < 16)" in text
    assert text.rstrip().splitlines()[-2:] == [
        "# Nodes without a kernel, so the program does not run on a GPU:",
        "#   1 aten.sort.default: it has no kernel for a GPU",
    ]


def looping(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 1.0:
        x = x * 0.5
    if x.sum() > 0:
        x = torch.sort(x)[0]
    return x + 1.0


def test_kernels_in_branches_and_loops_are_shown() -> None:
    text = gpu_listing(smelt.script(looping).graph_for(torch.ones(16)))
    # The test is computed before the loop and behind each iteration, whose value is computed where the last one was.
    assert "# 2 launches, the first of %15 = aten.sum.default, %16 = aten.gt.Scalar" in text
    assert "#     %17[i0] = mul(%17[i0], 0.5)" in text
    assert "#   1 if: aten.sort.default in it: it has no kernel for a GPU" in text


def test_show(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    source = CliRunner().invoke(app, ["show", f"{file}:make", "--triton"])
    assert source.exit_code == 0 and "tl.program_id(0)" in source.output and "without a kernel" in source.output
    listing = CliRunner().invoke(app, ["show", f"{file}:make", "--ptx", "80"])
    assert listing.exit_code == 0 and ".target sm_80" in listing.output
    both = CliRunner().invoke(app, ["show", f"{file}:make", "--triton", "--code"])
    assert both.exit_code == 2 and "exclude" in both.output
