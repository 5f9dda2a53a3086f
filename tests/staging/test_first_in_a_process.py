"""The first program of a process: what torch does but once (it reads files, imports modules) is none of its effects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import smelt_forks

PROGRAM = """
import torch, smelt

model = torch.nn.Linear(3, 3)

def program(x):
    y = model(x)
    y = y * 2 if y.sum() > 0 else y - 1
    for row in x:
        if row.sum() > 0:
            y = y + row
    return y

compiled = smelt.compile(program)
with torch.no_grad():
    for n in range(4):
        torch.manual_seed(n)
        x = MADE
        torch.testing.assert_close(compiled(x), program(x))
print(compiled.stats().builds)
"""


# Torch loads a package for the first data-free view.
@pytest.mark.spread(2)
@pytest.mark.parametrize("made", ["torch.randn(2, 3)", "torch.randn(4, 3)[1:3]"])
def test_it_is_one_graph(made: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("MADE", made))
    assert smelt_forks().run(f"import runpy\nrunpy.run_path({str(file)!r}, run_name='__main__')").split() == ["1"]
