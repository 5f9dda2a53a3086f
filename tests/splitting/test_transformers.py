"""Tiny models of `transformers` with an effect deep inside: as partitions, equal to eager, generators included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from smelt.compiler.object.compiled import dispatcher_of
from tests.splitting.twins import Twin, compare
from tests.zoo.build import build

pytest.importorskip("transformers")


def check(name: str, calls: int, changes: tuple[int, ...] = (0, 1, 2)) -> Any:
    """Compare over inputs with other numbers."""
    sample = build(name)
    sample.model.double().requires_grad_(False)  # so that rounding does not add up over layers
    inputs = [sample.other(data, None) for data in changes]

    def make() -> Twin:
        model = copy.deepcopy(sample.model)

        def state() -> dict[str, Any]:
            kept = {
                f"{path}.{name}": value
                for path, module in model.named_modules()
                for name, value in vars(module).items()
                if isinstance(value, torch.Tensor)
            }
            return {**dict(model.named_buffers()), **kept}

        return Twin(lambda **kwargs: dict(model(**kwargs)), state)

    def call(number: int) -> tuple[Any, ...]:
        return (copy.deepcopy(inputs[number % len(inputs)]),)

    def spread() -> Twin:
        twin = make()
        return Twin(lambda kwargs: twin.call(**kwargs), twin.state)

    return compare(spread, call, calls)


def test_recurrent_gemma_writes_its_state_at_each_call() -> None:
    """The state is set before it is read: put there at each call, it takes no pieces."""
    compiled = check("recurrent_gemma", 5)
    assert dispatcher_of(compiled).splits is None and not compiled.stats().fallbacks
