"""Library code as it is: every function of modeling files converts, and a model runs the same on converted code."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

from smelt.capture.convert import PlainRuntime, convert, swapped

_MODELS = ("bert", "gpt2", "llama", "t5", "longformer", "mixtral", "vits", "fastspeech2_conformer", "led", "fsmt")
MODULES = (*(f"transformers.models.{n}.modeling_{n}" for n in _MODELS), "torch.nn.functional")


def functions(module: types.ModuleType) -> list[types.FunctionType]:
    """The functions written in a module's file: its own, methods, properties, what decorators wrap."""
    found: dict[int, types.FunctionType] = {}

    def add(value: Any) -> None:
        if isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                add(part)
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType) and value.__code__.co_filename == module.__file__:
            found[id(value.__code__)] = value
        if hasattr(value, "__wrapped__"):
            add(value.__wrapped__)

    for value in list(vars(module).values()):
        add(value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                add(member)
    return list(found.values())


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", MODULES)
def test_every_function_converts(name: str) -> None:
    found = functions(importlib.import_module(name))
    assert len(found) > 15
    for function in found:
        code = convert(function).code
        assert code.co_freevars == function.__code__.co_freevars


class _Counting(PlainRuntime):
    def __init__(self) -> None:
        self.calls = 0

    def call(self, at, fn, args, kwargs):
        self.calls += 1
        return super().call(at, fn, args, kwargs)


def test_a_model_runs_the_same() -> None:
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, attention_window=4,
        vocab_size=50, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LongformerModel(config).eval()
    ids = torch.randint(3, 50, (2, 10))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    mask[0, 0] = 2
    found = [f for name in (MODULES[4], MODULES[-1]) for f in functions(importlib.import_module(name))]
    runtime = _Counting()
    with torch.no_grad():
        plain = model(ids, attention_mask=mask)
        with swapped(found, runtime):
            converted = model(ids, attention_mask=mask)
    assert torch.equal(plain.last_hidden_state, converted.last_hidden_state)
    assert torch.equal(plain.pooler_output, converted.pooler_output)
    assert runtime.calls > 500
