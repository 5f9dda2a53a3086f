"""Random programs of the wide suite's kinds against eager: `python -m tests.codegen.test_random_kinds 0 1000`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch

import smelt
from tests.codegen.kinds import drawn

_DAILY, _NIGHTLY = 12, 400


def difference(seed: int) -> str | None:
    """What differs from eager; None where nothing does, or eager refuses the program itself."""
    program, args = drawn(seed)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = program(*args)
        except RuntimeError:
            return None
        compiled: Any = smelt.compile(program, options={"measure": False})
        for call in range(2):
            found = compiled(*args)
            if (found.shape, found.stride(), found.dtype) != (wanted.shape, wanted.stride(), wanted.dtype):
                return f"call {call}: {found.shape} {found.stride()} for {wanted.shape} {wanted.stride()}"
            try:
                torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5, equal_nan=True)
            except AssertionError as error:
                return f"call {call}: {error}"
    return None


@pytest.mark.spread(4)
@pytest.mark.parametrize("seed", range(_DAILY))
def test_as_in_eager(seed: int) -> None:
    assert difference(seed) is None


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(_DAILY, _NIGHTLY))
def test_as_in_eager_by_night(seed: int) -> None:
    assert difference(seed) is None


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            told = difference(number)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        if told is not None:
            print(number, told.replace("\n", " ")[:300], flush=True)
    print("done", flush=True)
