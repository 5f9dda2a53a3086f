"""Small transformers: one capture with symbols serves other batches and lengths, bit by bit and stride by stride."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

from smelt.capture import capture
from tests.symbolic.capture_harness import everything, holds, run, symbolic

Make = Callable[[int, int], tuple[Any, ...]]
_SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(2, 100, (b, s))


def bert() -> tuple[Any, Make]:
    return hf.BertModel(hf.BertConfig(vocab_size=100, **_SMALL)), lambda b, s: (
        ids(b, s), (torch.arange(s) < s - torch.arange(b)[:, None] % 2).long(),
    )  # fmt: skip


def gpt2() -> tuple[Any, Make]:
    config = hf.GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=100, bos_token_id=0, eos_token_id=1)
    return hf.GPT2LMHeadModel(config), lambda b, s: (ids(b, s),)


def llama() -> tuple[Any, Make]:
    config = hf.LlamaConfig(vocab_size=100, num_key_value_heads=2, **_SMALL)
    return hf.LlamaForCausalLM(config), lambda b, s: (ids(b, s),)


def t5() -> tuple[Any, Make]:
    config = hf.T5Config(num_layers=2, d_model=32, d_kv=8, d_ff=64, num_heads=4, vocab_size=100)
    return hf.T5Model(config), lambda b, s: (ids(b, s), None, ids(b, s + 1))


def vit() -> tuple[Any, Make]:
    return hf.ViTModel(hf.ViTConfig(image_size=32, patch_size=8, **_SMALL)), lambda b, s: (torch.randn(b, 3, 32, 32),)


def resnet() -> tuple[Any, Make]:
    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    return hf.ResNetModel(config), lambda b, s: (torch.randn(b, 3, 8 * s, 8 * s),)


MODELS = {found.__name__: found for found in (bert, gpt2, llama, t5, vit, resnet)}


@pytest.fixture(scope="module", params=MODELS)
def model(request: Any) -> tuple[str, Any, Make]:
    torch.manual_seed(0)
    made, make = MODELS[request.param]()
    if hasattr(made.config, "use_cache"):
        made.config.use_cache = False
    return request.param, made.eval(), make


def tensors(result: Any) -> list[torch.Tensor]:
    return [value for value in result.to_tuple() if isinstance(value, torch.Tensor)]


@pytest.mark.spread(6)
def test_other_batches_and_lengths(model: tuple[str, Any, Make]) -> None:
    name, module, make = model
    with torch.no_grad():
        found = symbolic(module, make(3, 7))
        for b, s in ((3, 7), (5, 4), (2, 12), (4, 3)):
            args = make(b, s)
            assert holds(found, args), (name, b, s, [*map(str, found.sizes.guards)])  # type: ignore[union-attr]
            want, got = tensors(module(*args)), tensors(run(found, args))
            for a, c in zip(want, got, strict=True):
                assert a.stride() == c.stride() and torch.equal(a, c), (name, b, s)


@pytest.mark.spread(6)
def test_the_batch_is_free(model: tuple[str, Any, Make]) -> None:
    _, module, make = model
    args = make(3, 7)
    with torch.no_grad():
        found = capture(module, args, specialize=True, dynamic=everything(args))
    assert found.sizes is not None and "B" not in found.sizes.fixed and "B" not in found.sizes.equal
    assert found.graph is not None and any("[B, " in str(value.type) for value in found.graph.outputs)


def test_bert_is_bound_by_its_table_of_positions_alone() -> None:
    torch.manual_seed(0)
    module, make = bert()
    with torch.no_grad():
        found = symbolic(module.eval(), make(3, 7))
    assert {str(guard) for guard in found.sizes.guards} == {"S <= 512", "S == S2"}  # type: ignore[union-attr]
