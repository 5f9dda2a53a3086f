"""Tiny transformers architectures from capture to plan: no Python node, no copy too many, the answers of eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from smelt.capture import capture
from smelt.compiler.unit import Unit
from smelt.diag import Options
from tests.codegen.harness import RULE, assert_bits, rms_ratio

_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGE = {"num_channels": 3, "num_labels": 5}


def _ids() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 99, (2, 7))}


def _image(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def _model(config: str, model: str, **options: Any) -> nn.Module:
    return getattr(transformers, model)(getattr(transformers, config)(**options))


Build = Callable[[], tuple[nn.Module, Mapping[str, Tensor]]]
# The six programs that must run without Python between entry and return.
NATIVE: dict[str, Build] = {
    "bert": lambda: (_model("BertConfig", "BertModel", intermediate_size=64, **_TEXT), _ids()),
    "gpt2": lambda: (
        _model("GPT2Config", "GPT2LMHeadModel", vocab_size=99, n_embd=32, n_layer=2, n_head=4, use_cache=False),
        _ids(),
    ),
    "llama": lambda: (
        _model(
            "LlamaConfig", "LlamaForCausalLM", intermediate_size=48, num_key_value_heads=2, use_cache=False, **_TEXT
        ),
        _ids(),
    ),
    "vit": lambda: (
        _model(
            "ViTConfig", "ViTForImageClassification", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, image_size=32, patch_size=8, **_IMAGE,
        ),
        _image(32),
    ),
    "resnet": lambda: (
        _model(
            "ResNetConfig", "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2],
            **_IMAGE,
        ),
        _image(32),
    ),
    "mobilenetv2": lambda: (
        _model("MobileNetV2Config", "MobileNetV2ForImageClassification", depth_multiplier=0.35, **_IMAGE),
        _image(64),
    ),
}  # fmt: skip
OTHERS: dict[str, Build] = {
    "t5 encoder": lambda: (
        _model("T5Config", "T5EncoderModel", vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        _ids(),
    ),
}


class Flat(nn.Module):
    """A model as keywords -> tuple of tensors, at most two of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        return tuple(t for t in self.model(**inputs).to_tuple() if isinstance(t, Tensor))[:2]


def build(make: Build) -> tuple[nn.Module, dict[str, Tensor]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model, inputs = make()
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.data.add_(torch.rand_like(tensor) * 0.1)
    return Flat(model).eval().requires_grad_(False), dict(inputs)


def double(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: t.double() if t.is_floating_point() else t for k, t in inputs.items()}


def unit_of(module: nn.Module, inputs: dict[str, Tensor], options: Options) -> Unit:
    with torch.no_grad():
        unit = Unit.of(capture(module, (), inputs, name="model"), options)
        unit.finish()
    return unit


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", [*NATIVE, *OTHERS])
def test_error_against_float64(name: str) -> None:
    module, inputs = build({**NATIVE, **OTHERS}[name])
    unit = unit_of(module, inputs, RULE)
    with torch.no_grad():
        eager = module(**inputs)
        found = [unit.run((), inputs) for _ in range(2)][1]
        reference = module.double()(**double(inputs))
    assert len(found) == len(eager)
    for ours, theirs, exact in zip(found, eager, reference, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert rms_ratio(ours, theirs, exact) <= 3.0


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", NATIVE)
def test_nothing_runs_in_python(name: str) -> None:
    unit = unit_of(*build(NATIVE[name]), RULE)
    assert unit.lowered is not None and unit.executable is not None
    assert unit.lowered.report.python_nodes == ()
    assert unit.executable.is_native and unit.executable.counts.python == 0


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_eager_library_is_eager_to_the_bit_without_packing(name: str) -> None:
    module, inputs = build(NATIVE[name])
    unit = unit_of(module, inputs, Options(numerics="eager-library", deterministic=True))
    assert unit.lowered is not None and unit.lowered.report.memory.packed_nbytes == 0
    with torch.no_grad():
        for ours, theirs in zip(unit.run((), inputs), module(**inputs), strict=True):
            assert_bits(ours, theirs)
