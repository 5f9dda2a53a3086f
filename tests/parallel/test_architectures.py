"""Tiny `transformers` architectures split in two by the ready schedules: outputs, gradients, parameters and buffers of
two steps equal the undivided model's, dropout included."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import smelt
from tests.zoo.build import SPREAD, build

pytest.importorskip("transformers")

# Their training masks and leaves out layers by numbers of Python's own, which no graph has.
_RANDOM_IN_PYTHON = {"hubert", "wav2vec2", "wav2vec2-conformer"}
# A part of them has a backward in Python, which ranks refuse: they are compared without gradients.
_OWN_BACKWARDS = {"bloom", "yoso"}
# Norms of batches of two images over few pixels: rounding is larger there in float32, with any order of sums.
_IN_DOUBLE = {"mobilenet_v1", "resnet", "regnet", "wav2vec2-conformer"}
_DAILY = ("bart", "gpt_neo")


@pytest.fixture(autouse=True)
def quiet_and_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers
            yield
    finally:
        torch.set_num_threads(before)


def _scheduled(name: str) -> smelt.Schedule:
    sample = build(name)
    model, inputs = sample.model.train(), sample.inputs
    if name in _RANDOM_IN_PYTHON:
        model.config.apply_spec_augment, model.config.layerdrop = False, 0.0
    if name in _OWN_BACKWARDS:
        model.requires_grad_(False)
    if name in _IN_DOUBLE:
        model = model.double()
        inputs = {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in inputs.items()}
    model(**inputs)  # a first call may change the model: one chooses its attention by the length
    return smelt.schedule(model, inputs)


def check(name: str, mesh: str) -> None:
    s = _scheduled(name)
    if mesh == "tp=2":
        ready = smelt.schedules.tensor_parallel(s, ranks=2)
        assert not [text for text in ready.skipped if "stays whole" not in text]
    else:
        ready = smelt.schedules.pipeline(s, stages=2)
        assert ready.applied == {"stages": 2}, ready
    proof = s.verify(mesh=mesh, steps=2)
    assert proof.error < 1e-5 and proof.compared


_CASES = [(name, mesh) for name in SPREAD for mesh in ("tp=2", "pp=2")]


@pytest.mark.parametrize(("name", "mesh"), [case for case in _CASES if case[0] in _DAILY])
def test_some_architectures_in_two(name: str, mesh: str) -> None:
    check(name, mesh)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "mesh"), [case for case in _CASES if case[0] not in _DAILY])
def test_all_architectures_in_two(name: str, mesh: str) -> None:
    check(name, mesh)
