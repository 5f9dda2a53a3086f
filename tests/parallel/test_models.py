"""Whole architectures on several ranks against one: outputs, gradients and parameters over steps, dropout included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import transformers as hf

import smelt

_COMMON = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
}  # fmt: skip


def _ids() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {"input_ids": torch.randint(96, (4, 8)), "labels": torch.randint(96, (4, 8))}


def _gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=96, n_embd=32, n_layer=4, n_head=4, n_positions=32, use_cache=False)
    )


def _llama() -> torch.nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_COMMON, num_key_value_heads=2, use_cache=False))


def _bert() -> torch.nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(**_COMMON))


def _t5() -> torch.nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=96,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            use_cache=False,
            decoder_start_token_id=0,
        )
    )


def _vit() -> torch.nn.Module:
    config = {k: v for k, v in _COMMON.items() if k != "vocab_size"}
    return hf.ViTForImageClassification(hf.ViTConfig(**config, image_size=32, patch_size=8))


def _mixtral() -> torch.nn.Module:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(**_COMMON, num_key_value_heads=2, num_local_experts=4, use_cache=False)
    )


def _images() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([0, 1, 1, 0])}


_MODELS: Mapping[str, tuple[Callable[[], torch.nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "gpt2": (_gpt2, _ids), "llama": (_llama, _ids), "bert": (_bert, _ids), "t5": (_t5, _ids), "vit": (_vit, _images),
    "mixtral": (_mixtral, _ids),
}  # fmt: skip


def scheduled(name: str, mesh: str) -> smelt.Schedule:
    """The model on a mesh by the ready schedules."""
    make, inputs = _MODELS[name]
    torch.manual_seed(0)
    axes = {a: int(n) for a, n in (one.split("=") for one in mesh.split(","))}
    s = smelt.schedule(make().train(), inputs())
    if "tp" in axes:
        smelt.schedules.tensor_parallel(s, ranks=axes["tp"])
    if "dp" in axes:
        s.data_parallel("dp")
    if "pp" in axes:
        s.pipeline(axes["pp"], "pp", microbatches=2)
    return s


def _check(name: str, mesh: str) -> Any:
    proof = scheduled(name, mesh).verify(mesh=mesh)
    assert proof.steps == 3 and proof.error < 1e-5
    return proof


def test_gpt2_of_four_layers_sends_sixteen_large_sums() -> None:
    proof = _check("gpt2", "tp=2")
    # Two a layer forward and two backward; the embedding, the head, two of the loss, and the logits.
    assert proof.ranks[0].sent["tp"][0] // 3 == 16 + 5


def test_a_pipeline_of_tensor_parallel_stages() -> None:
    _check("llama", "tp=2,pp=2")


_MESHES = ("tp=2", "tp=4", "pp=2", "pp=4", "dp=2,tp=2", "dp=2,tp=2,pp=2")


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", _MESHES)
@pytest.mark.parametrize("name", list(_MODELS))
def test_models_on_meshes(name: str, mesh: str) -> None:
    _check(name, mesh)
