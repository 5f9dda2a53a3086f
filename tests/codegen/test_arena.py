"""Planned memory: tensors alive together never overlap, and sharing really happens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.codegen.lower.memory.arena import Lifetime, aligned, plan_offsets

lifetimes = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 5000),
    st.integers(0, 30),
    st.integers(0, 10),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(lifetimes, max_size=30))
def test_living_blocks_do_not_overlap(blocks: list[Lifetime]) -> None:
    offsets, total = plan_offsets(blocks)
    for i, (a, start) in enumerate(zip(blocks, offsets, strict=True)):
        assert start % 64 == 0 and start + a.nbytes <= total
        for b, other in zip(blocks[:i], offsets, strict=False):
            if a.first <= b.last and b.first <= a.last and a.nbytes and b.nbytes:
                assert start + a.nbytes <= other or other + b.nbytes <= start
    assert total <= sum(aligned(b.nbytes) for b in blocks)


def test_dead_memory_is_used_again() -> None:
    chain = [Lifetime(1000, i, i + 1) for i in range(10)]
    assert plan_offsets(chain)[1] == 2 * 1024
