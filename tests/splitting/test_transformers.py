"""Tiny models of `transformers` with an effect deep inside: in pieces, equal to eager, generators included."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.splitting.twins import Twin, breaks, compare, compiled_pieces
from tests.zoo.build import build

pytest.importorskip("transformers")


def check(name: str, calls: int, changes: tuple[int, ...] = (0, 1, 2)) -> Any:
    """Compare over inputs with other numbers."""
    sample = build(name)
    sample.model.double().requires_grad_(False)  # so that rounding does not add up over layers
    inputs = [sample.other(data, None) for data in changes]

    def make() -> Twin:
        model = copy.deepcopy(sample.model)
        return Twin(lambda **kwargs: dict(model(**kwargs)), lambda: dict(model.named_buffers()))

    def call(number: int) -> tuple[Any, ...]:
        return (copy.deepcopy(inputs[number % len(inputs)]),)

    def spread() -> Twin:
        twin = make()
        return Twin(lambda kwargs: twin.call(**kwargs), twin.state)

    return compare(spread, call, calls)


def test_recurrent_gemma_writes_its_state_at_each_call() -> None:
    compiled = check("recurrent_gemma", 7)
    assert compiled_pieces(compiled) >= 8
    assert "recurrent_states" in breaks(compiled)


def test_vits_draws_numbers_of_numpy() -> None:
    compiled = check("vits", 5, changes=(0,))
    assert compiled_pieces(compiled) >= 3
    assert "np.random" in breaks(compiled)
