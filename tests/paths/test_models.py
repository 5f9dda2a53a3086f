"""Models of transformers that look at their attention mask: whole, as eager, for several masks, from recorded paths."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import tensors_of
from smelt.compiler.programs.numeric_comparison import disagreement

pytest.importorskip("transformers")

from tests.zoo.build import build

MODELS = ("bert", "gpt2", "llama", "mixtral", "fsmt")
SLOW = ("fastspeech2_conformer",)


def masks(mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """No padding, some on the right, some on the left, all masked, and one row masked."""
    length = mask.shape[1]
    made = {name: torch.ones_like(mask) for name in ("whole", "right", "left", "row")} | {
        "none": torch.zeros_like(mask)
    }
    made["right"][-1, length // 2 :] = 0
    made["left"][0, : length // 3] = 0
    made["row"][0] = 0
    return made


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", [*MODELS, *(pytest.param(name, marks=pytest.mark.nightly) for name in SLOW)])
def test_several_masks_each_twice(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, while it builds the model
        made = build(name)
        inputs = dict(made.inputs)
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        compiled = smelt.compile(made.model, options={"measure": False})
        with torch.no_grad():
            kinds = masks(inputs["attention_mask"])
            for _ in range(2):
                for kind, mask in kinds.items():
                    check(compiled, made.model, {**inputs, "attention_mask": mask}, f"{name}, {kind}")
    stats = compiled.stats()
    assert not stats.fallbacks, stats.fallbacks
    assert stats.calls == 2 * len(kinds)
    served = sum(row.hits for row in stats.rows)
    assert served + stats.builds == stats.calls
    assert served >= len(kinds)


def check(compiled: Any, model: Any, inputs: dict[str, Any], what: str) -> None:
    results: list[Any] = []
    for program in (model, compiled):
        torch.manual_seed(3)
        try:
            results.append([*tensors_of(program(**inputs)), torch.get_rng_state()])
        except (RuntimeError, ValueError, IndexError) as error:
            results.append(f"{type(error).__name__}: {error}")
    expected, found = results
    if isinstance(expected, str):
        assert found == expected, what
    else:
        assert disagreement(expected, found) is None, f"{what}: {disagreement(expected, found)}"
