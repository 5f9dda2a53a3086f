"""Two runs of one stretch are the same where their constants hold the same elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from smelt._torch.seen.dispatch import recording
from smelt.capture.recording.tensor_slots import Family, Slot
from smelt.capture.staging.flow.stops import CannotStage
from smelt.capture.staging.flow.unify import unify

ALL: dict[str, Any] = {
    "-1": lambda: torch.tensor(-1),
    "a billion": lambda: torch.tensor(10**9),
    "true": lambda: torch.tensor(True),
    "bf16": lambda: torch.tensor(-1.5, dtype=torch.bfloat16),
    "column": lambda: torch.arange(6.0).reshape(2, 3)[:, 1],
    "other column": lambda: torch.arange(6.0).reshape(2, 3)[:, 2],
    "nan": lambda: torch.tensor([float("nan")]),
    "conj": lambda: torch.tensor([1 + 2j]).conj(),
    "complex": lambda: torch.tensor([1 + 2j]),
    "none": lambda: torch.empty(0),
}


def test_constants_are_compared_unseen() -> None:
    slots = [Slot(torch.tensor(2.0), Family(True), "constant") for _ in range(2)]
    constants = {slot: torch.tensor(2.0) for slot in slots}
    seen: list[Any] = []

    def record(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(overload)
        return overload(*args, **kwargs)

    with recording(record, "entry"):
        unify(([], slots[0], None), ([], slots[1], None), {}, constants)
    assert not seen


@pytest.mark.parametrize("one, two", [*product(ALL, ALL)])
def test_constants(one: str, two: str) -> None:
    tensors = ALL[one](), ALL[two]()
    ours, theirs = (Slot(tensor, Family(True), "constant") for tensor in tensors)
    aliases: dict[Slot, Slot] = {}
    constants = dict(zip((ours, theirs), tensors, strict=True))
    if one == two:
        unify(([], ours, None), ([], theirs, None), aliases, constants)
        assert aliases == {theirs: ours}
    else:
        with pytest.raises(CannotStage):
            unify(([], ours, None), ([], theirs, None), aliases, constants)
        assert not aliases
