"""Each operator of the catalogue has each slot filled, or says why not."""

from __future__ import annotations

import pytest

from smelt.codegen.slots import filled
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.record import OpRecord, Slot


@pytest.mark.parametrize("slot", Slot)
def test_a_slot_is_filled_or_says_why_not(slot: Slot) -> None:
    silent = [r.name for r in CATALOGUE if not filled(r, slot) and not r.why_not.get(slot)]
    assert not silent, f"no {slot.value}, and no word why: give {silent} one, or say why in `why_not`"


def test_no_reason_outlives_what_it_excuses() -> None:
    outdated = [(r.name, slot.value) for r in CATALOGUE for slot in r.why_not if filled(r, slot)]
    assert not outdated


def test_most_operators_have_code_of_ours() -> None:
    kinds = [filled(record, Slot.KERNEL) for record in CATALOGUE]
    assert set(kinds) == {"", "loop nest", "product", "convolution", "lowering", "simpler operators"}
    assert kinds.count("") <= 33
    on_gpu = [filled(record, Slot.TRITON) for record in CATALOGUE]
    assert set(on_gpu) == {"", "loop nest", "product", "attention", "random numbers", "simpler operators"}
    assert on_gpu.count("") <= 35


def test_an_empty_slot_is_found() -> None:
    bare = OpRecord("own.nothing.default", "torch.nothing", list)
    assert not filled(bare, Slot.KERNEL) and not filled(bare, Slot.TRITON) and not bare.why_not
    assert filled(bare, Slot.VJP) == "torch's backward"
