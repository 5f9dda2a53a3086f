"""Tiny `transformers` architectures in training mode, dropout included: eager's loss, gradients and random state.

What falls back to eager is right, too; the architectures in `_COMPILED` must not.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import smelt
from tests.zoo.build import SPREAD, build

pytest.importorskip("transformers")

Tensor = torch.Tensor
_CALLS = ((0, 0), (0, 0), (1, 0), (1, 1))  # data, mask
# Their own training refuses inputs that are this short, or has no number of its own for them.
_REFUSE = {"hubert", "wav2vec2", "wav2vec2-conformer", "dinov3_vit"}
# Some of their rectifiers get zero but for roundings, for these data: either side is right there, in eager as well.
_ON_KINKS = {"mobilenet_v1", "ctrl"}
_COMPILED = {"bert", "gpt2", "electra", "deit", "convnextv2", "deberta", "albert", "bart"}


def _ends(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.requires_grad:
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _ends(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _ends(one)


def _step(model: torch.nn.Module, run: Any, inputs: dict[str, Any], seed: int) -> tuple[float, list[Any], Tensor]:
    model.zero_grad()
    torch.manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64)
    for end in _ends(run(**inputs)):
        weights = (torch.arange(end.numel(), dtype=torch.float64) * 5 % 7 - 2.5).reshape(end.shape)
        loss = loss + (end.double() * weights).sum()
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()], torch.get_rng_state()


def _smooth(model: torch.nn.Module) -> None:
    """Put an activation without a kink in the place of each that has one."""
    for part in list(model.modules()):
        for name, child in part.named_children():
            if isinstance(child, (torch.nn.ReLU, torch.nn.ReLU6)):
                setattr(part, name, torch.nn.SiLU())


def check(name: str) -> None:
    sample = build(name)
    model = sample.model.train()
    if name in _ON_KINKS:
        _smooth(model)
    other = copy.deepcopy(model)
    compiled = smelt.compile(other, options={"train": True, "measure": False, "adaptive": False})
    for call, (data, mask) in enumerate(_CALLS):
        inputs = sample.other(data, mask)
        loss, grads, state = _step(model, model, inputs, call)
        own_loss, own_grads, own_state = _step(other, compiled, inputs, call)
        assert own_loss == pytest.approx(loss, rel=1e-4, abs=1e-4)
        assert torch.equal(state, own_state), "another random state"
        assert [g is None for g in own_grads] == [g is None for g in grads]
        largest = max((g.abs().max().item() for g in grads if g is not None and g.numel()), default=0.0)
        for (place, _), own, grad in zip(model.named_parameters(), own_grads, grads, strict=True):
            if grad is not None:
                # Some gradients are 0 but for roundings, of a key's bias for one: those of others are their measure.
                torch.testing.assert_close(
                    own, grad, rtol=2e-3, atol=1e-5 * largest, msg=lambda m, p=place: f"{p}: {m}"
                )
    if name in _COMPILED:
        stats = compiled.stats()
        assert stats.builds and not stats.fallbacks, stats


@pytest.fixture(autouse=True)
def quiet_and_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, and of what falls back
            yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["bert"])
def test_training(name: str) -> None:
    check(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in SPREAD if name not in _REFUSE])
def test_training_of_all(name: str) -> None:
    check(name)
