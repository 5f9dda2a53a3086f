"""Elements that are stored several times side by side: woven of vectors, not written one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.inspect.kernels import compiled_units, listing

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "twice": lambda x: F.interpolate(x * 2, scale_factor=2.0),
    "three times": lambda x: F.interpolate(x, scale_factor=3.0).relu(),
    "four times, beside others": lambda x: torch.cat((F.interpolate(x, scale_factor=4.0), x.repeat(1, 2, 4, 4)), 1),
    "in one dimension": lambda x: x.flatten(1).repeat_interleave(2, 1),
    "expanded": lambda x: (x.unsqueeze(-1).expand(*x.shape, 3) + 1).flatten(-2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_repeat_elements(name: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    if dtype is torch.int64 and "interpolate" in program.__code__.co_names:
        program = PROGRAMS["expanded"]
    compiled = smelt.compile(program, options={"measure": False})
    with torch.no_grad():
        for width in (1, 3, 16, 37):
            x = torch.randint(-9, 9, (2, 3, 4, width)).to(dtype)
            for _ in range(2):
                assert torch.equal(compiled(x), program(x))


def test_a_loop_of_two_is_two_stores() -> None:
    compiled = smelt.compile(PROGRAMS["twice"], options={"measure": False})
    with torch.no_grad():
        compiled(torch.rand(2, 3, 16, 16))
    text = listing(compiled_units(compiled)[0])
    assert text.count("] = w0") == 2 and "i3 < 2" not in text
