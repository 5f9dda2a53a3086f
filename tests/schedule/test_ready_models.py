"""Ready schedules on models of others, tiny and with random weights: found by pattern, verified, told."""

import pytest
import torch

import smelt
from smelt import schedules

transformers = pytest.importorskip("transformers")
_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
_EAGER = {"attn_implementation": "eager"}
_T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": 99, "use_cache": False}
_GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 99,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _ids():
    return (torch.randint(0, 90, (2, 10)),)


class _EncodeDecode(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, given, wanted):
        return self.model(input_ids=given, decoder_input_ids=wanted).logits


def _bert():
    config = transformers.BertConfig(**_HEADS, vocab_size=99, **_EAGER)
    return transformers.BertModel(config), _ids()


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2, use_cache=False, **_EAGER)), _ids()


def _llama():
    config = transformers.LlamaConfig(**_HEADS, num_key_value_heads=2, vocab_size=99, use_cache=False, **_EAGER)
    return transformers.LlamaForCausalLM(config), _ids()


def _t5():
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**_T5, **_EAGER))
    return _EncodeDecode(model), (*_ids(), torch.randint(0, 90, (2, 7)))


def _vit():
    config = transformers.ViTConfig(**_HEADS, image_size=16, patch_size=4, **_EAGER)
    return transformers.ViTModel(config), (torch.randn(2, 3, 16, 16),)


def _resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    return transformers.ResNetModel(config), (torch.randn(2, 3, 32, 32),)


_FOUND = {
    _bert: {"attention": 2, "merged linears": 6, "linear and activation": 3, "sum and norm": 5},
    _gpt2: {"attention": 2, "sum and norm": 4},
    _llama: {"attention": 2, "merged linears": 10, "linear and activation": 2},
    _t5: {"attention": 6, "merged linears": 16, "linear and activation": 4},
    _vit: {"attention": 2, "merged linears": 6, "linear and activation": 3, "sum and norm": 4},
    _resnet: {"attention": 0, "convolution, norm and activation": 5},
}


_DAILY = (_vit, _resnet)
"""Those that have most kinds of parts, and take the shortest."""


@pytest.mark.parametrize(
    "make",
    [make if make in _DAILY else pytest.param(make, marks=pytest.mark.nightly) for make in _FOUND],
    ids=lambda make: make.__name__[1:],
)
def test_inference(make):
    torch.manual_seed(0)
    model, inputs = make()
    ready = schedules.inference(model.eval(), inputs)
    assert ready.found == _FOUND[make]
    assert ready.applied.get("attention", 0) == ready.found["attention"]
    assert not any(text.startswith("attention") for text in ready.skipped)
    ready.schedule.verify()
    assert [step.primitive for step in smelt.apply(ready.schedule.to_json(), model, inputs).log] == [
        step.primitive for step in ready.schedule.log
    ]


@pytest.mark.spread(3)
@pytest.mark.parametrize("make", _FOUND, ids=lambda make: make.__name__[1:])
def test_low_memory(make):
    model, inputs = make()
    ready = schedules.low_memory(model, inputs)
    assert ready.found == {"repeated blocks": 4 if make is _t5 else 2} == ready.applied
    ready.schedule.verify()


@pytest.mark.parametrize(
    "make",
    [make if make is _vit else pytest.param(make, marks=pytest.mark.nightly) for make in _FOUND],
    ids=lambda make: make.__name__[1:],
)
def test_bf16(make):
    torch.manual_seed(0)
    model, inputs = make()
    ready = schedules.bf16(model.eval(), inputs)
    assert ready.found["products"] == ready.applied["products"] >= 10 and ready.found["f32 islands"] >= 7
    ready.schedule.verify(backward=False)


@pytest.mark.nightly
def test_all_three_together():
    torch.manual_seed(0)
    model, inputs = _bert()
    s = smelt.schedule(model.eval(), inputs)
    for take in (schedules.inference, schedules.low_memory, schedules.bf16):
        assert take(s).applied
    assert {step.primitive for step in s.log} == {"fuse_horizontal", "replace", "checkpoint", "precision"}
    s.verify(backward=False)


def _with_a_cache():
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2, **_EAGER)).eval()
    return schedules.inference(model, _ids())


def test_a_cache_is_told_and_never_an_error():
    ready = _with_a_cache()
    assert (
        ready.found["attention"]
        == 2
        == ready.applied.get("attention", 0) + sum(text.startswith("attention") for text in ready.skipped)
    )


@pytest.mark.nightly
def test_what_is_taken_beside_a_cache_is_verified():
    _with_a_cache().schedule.verify()
