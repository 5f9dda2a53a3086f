"""Models of transformers from their source, nothing run; what is called equals eager, with gradients needed, too."""

import warnings

import pytest
import torch

import smelt
from smelt.ops.evaluate import evaluate

transformers = pytest.importorskip("transformers")

IDS = torch.randint(0, 90, (2, 7), generator=torch.manual_seed(0))
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}


def bert():
    return transformers.BertModel(transformers.BertConfig(vocab_size=100, **SMALL)), (IDS,)


def gpt2():
    config = transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(config), (IDS,)


def llama():
    config = transformers.LlamaConfig(vocab_size=100, num_key_value_heads=2, **SMALL)
    return transformers.LlamaForCausalLM(config), (IDS,)


def t5():
    config = transformers.T5Config(vocab_size=100, d_model=32, d_kv=8, num_layers=1, num_heads=4, d_ff=64)
    return transformers.T5ForConditionalGeneration(config), (IDS, None, IDS[:, :4])


def vit():
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **SMALL)), (
        torch.ones(2, 3, 32, 32),
    )


def mixtral():
    config = transformers.MixtralConfig(vocab_size=100, num_key_value_heads=2, num_local_experts=4, **SMALL)
    return transformers.MixtralForCausalLM(config), (IDS,)


def swin():
    config = transformers.SwinConfig(
        image_size=16, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=2
    )
    return transformers.SwinModel(config), (torch.ones(2, 3, 16, 16),)


def first(found):
    return found[0] if isinstance(found, tuple) else next(iter(found.values()))


@pytest.mark.spread(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [bert, gpt2, llama, t5, vit, mixtral, swin], ids=lambda make: make.__name__)
def test_from_source(make):
    torch.manual_seed(0)
    model, args = make()
    model.eval()
    with torch.no_grad():
        program = smelt.script(model, example_inputs=args)
        assert program._scripted.raises == ""
        outputs = evaluate(program.graph, program.inputs_for(*args), program.unit.lookup)
        expected = model(*args)
        by_graph = program.unit.signature.rebuild(outputs, args, {})
        for found in (by_graph, program(*args), program(*args)):
            assert type(found) is type(expected)
            torch.testing.assert_close(first(found), first(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [bert, llama], ids=lambda make: make.__name__)
def test_with_nothing_said_of_arguments(make):
    model, _ = make()
    model.eval()
    with torch.no_grad():
        program = smelt.script(model)
        assert program._scripted.parameters.names[0] == "input_ids"
        for ids in (IDS, IDS[:1, :3]):
            outputs = evaluate(program.graph, program.inputs_for(ids), program.unit.lookup)
            found = program.unit.signature.rebuild(outputs, (ids,), {})
            torch.testing.assert_close(first(found), first(model(ids)), rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
def test_an_encoder_with_gradients_needed():
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    program = smelt.script(encoder)
    x = torch.randn(2, 3, 8)
    grads = []
    for run in (encoder, program):
        encoder.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = run(x).square().sum()
        loss.backward()
        grads.append([p.grad.clone() for p in encoder.parameters()])
    for expected, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)
