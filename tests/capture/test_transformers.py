"""Tiny transformers models, random weights: captured, replayed, equal bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt._torch.seen.dispatch import Level, levels
from smelt.capture import capture
from smelt.diag import Miss
from smelt.ops.evaluate import evaluate

from .replay import check

transformers = pytest.importorskip("transformers")


def ids(length: int = 6) -> torch.Tensor:
    return torch.randint(3, 90, (2, length))


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertModel(config), {"input_ids": ids()}


def bert_masked() -> Any:
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return transformers.BertModel(config), {"input_ids": ids(), "attention_mask": mask}


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids()}


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": ids()}


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
    )
    return transformers.ViTModel(config), {"pixel_values": torch.randn(1, 3, 16, 16)}


def resnet() -> Any:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return transformers.ResNetModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=99, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids(), "decoder_input_ids": ids(3)}


MODELS: dict[str, Callable[[], Any]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "vit": vit, "resnet": resnet, "t5": t5,
}  # fmt: skip


def program(name: str, train: bool) -> Callable[[], Any]:
    def make() -> Any:
        model, kwargs = MODELS[name]()
        return model.train(train), (), kwargs

    return make


@pytest.mark.spread(6)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_model_replays(name: str, train: bool) -> None:
    with torch.no_grad():
        check(program(name, train))


@pytest.mark.spread(6)
@pytest.mark.parametrize("level", levels()[1:])
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_model_replays_at_lower_levels(name: str, level: Level) -> None:
    with torch.no_grad():
        check(program(name, True), level)


def test_one_graph_in_every_grad_mode() -> None:
    graphs = []
    for context in (torch.no_grad(), torch.inference_mode(), contextlib.nullcontext()):
        with context:
            graphs.append(check(program("bert", False)).graph)
    assert graphs[0] == graphs[1] == graphs[2]
    ops = [node.op for node in graphs[0].walk()]
    assert ops.count("aten.linear.default") == 13 and ops.count("aten.scaled_dot_product_attention.default") == 2
    scopes = {node.scope for node in graphs[0].walk() if node.op == "aten.linear.default"}
    assert "encoder.layer.1.attention.self.query" in scopes


def test_a_mask_that_the_model_looks_at_is_an_error_or_a_check() -> None:
    torch.manual_seed(0)
    model, kwargs = bert_masked()
    model.eval()
    with torch.no_grad():
        assert capture(model, (), kwargs).error.code == "S0101"
        captured = capture(model, (), kwargs, specialize=True)
        assert captured.error is None
        assert [(c.what, c.value) for c in captured.conversions] == [("is_nonzero", False)]
        inputs = captured.signature.flatten((), kwargs)
        found = captured.signature.rebuild(evaluate(captured.graph, inputs, captured.state.lookup), (), kwargs)
        assert torch.equal(found.last_hidden_state, model(**kwargs).last_hidden_state)
        now = {**kwargs, "attention_mask": torch.ones_like(kwargs["attention_mask"])}
        with pytest.raises(Miss, match="expected False, found True"):
            evaluate(captured.graph, captured.signature.flatten((), now), captured.state.lookup)


def test_tied_weights_are_one_parameter() -> None:
    with torch.no_grad():
        captured = check(program("gpt2", False))
    paths = [node.args[0] for node in captured.graph.walk() if node.op == "param"]
    assert "transformer.wte.weight" in paths and "lm_head.weight" not in paths
    assert captured.state.entries["param", "transformer.wte.weight"].aliases == ("lm_head.weight",)
