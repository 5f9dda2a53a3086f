"""What eager leaves open is excused; a bug that hides among it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.differential.compare import Outcome, difference, observe
from tests.differential.judge import beyond
from tests.differential.programs import Program, make_inputs, make_subject

_CALLS = ((0, None), (1, None))
# Its products with the terms added from the other end: another correct answer.
_SQUARE, _TURNED = "x0 @ x0.mT", "x0.flip(-1) @ x0.flip(-1).mT"
_WEIGHT = "T(64, (17, 2), torch.float32)"
_NEAR_ROWS, _TURNED_ROWS = f"x0 @ {_WEIGHT}", f"x0.flip(-1) @ {_WEIGHT}.flip(0)"


def _program(line: str, result: str, layout: str = "plain") -> Program:
    return Program((f"T(0, (8, 17), torch.float32, {layout!r}, 'tame')",), (line,), result, is_exact=False)


# name: the program, and the same with its sums in another order, and with a bug.
SEEDED = {
    "bits of a product": (
        _program(f"v = {_SQUARE}", "v.view(torch.int32)"), f"v = {_TURNED}", "(v * 1.00003).view(torch.int32)",
    ),
    "bytes of a product": (
        _program(f"v = {_SQUARE}", "v.view(torch.uint8)"), f"v = {_TURNED}", "v.view(torch.uint8).roll(1, -1)",
    ),
    "norm of rows that hardly differ": (
        _program(f"v = {_NEAR_ROWS}", "F.batch_norm(v, None, None, training=True)", "expanded"), f"v = {_TURNED_ROWS}",
        "F.batch_norm(v, None, None, training=True, eps=1e-11)",
    ),
    "sine of large sums": (
        _program(f"v = ({_SQUARE}) * 1e3", "v.sin()"), f"v = ({_TURNED}) * 1e3", "v.sin().roll(1, -1)",
    ),
}  # fmt: skip


def _outcomes(program: Program) -> list[Outcome]:
    subject = make_subject(program)
    with torch.no_grad():
        return [observe(subject.fn, make_inputs(program, seed, layout), subject.state) for seed, layout in _CALLS]


@pytest.mark.parametrize("name", SEEDED)
def test_roundings_are_excused_and_bugs_among_them_are_not(name: str) -> None:
    program, other_line, wrong_result = SEEDED[name]
    expected, other = _outcomes(program)[-1], _outcomes(replace(program, lines=(other_line,)))[-1]
    wrong = _outcomes(replace(program, result=wrong_result))[-1]
    with torch.no_grad():
        # Nothing would be shown by what lies within the roundings of a dtype anyway.
        assert difference(expected, other, is_exact=False, least=program.rounding) is not None
        assert beyond(program, _CALLS, expected, other) is None
        assert beyond(program, _CALLS, expected, wrong) is not None
        assert beyond(replace(program, is_exact=True), _CALLS, expected, other) is not None
