"""`model.generate()` with the compiled model inside: tokens and cache as of eager, few builds, no pieces."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.bench.decode import cache_name

transformers = pytest.importorskip("transformers")

NEW_TOKENS = 24
MOST_BUILDS = 4


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, vocab_size=80, n_positions=96, bos_token_id=1, eos_token_id=2, pad_token_id=3
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=80,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 1.5},
    "beams": {"do_sample": False, "num_beams": 3},
    "static": {"do_sample": False, "cache_implementation": "static"},
}


def generate(model: Any, prompt: torch.Tensor, mode: str) -> torch.Tensor:
    torch.manual_seed(11)
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        **MODES[mode],
    )


def nightly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("make", "mode"),
    [
        nightly(gpt2, "greedy"),
        (llama, "greedy"),
        nightly(gpt2, "sampling"),
        nightly(llama, "beams"),
        (gpt2, "static"),
        nightly(llama, "sampling"),
        nightly(gpt2, "beams"),
        nightly(llama, "static"),
    ],
)
def test_generate_is_eagers(make: Callable[[], Any], mode: str) -> None:
    eager, compiled = make(), smelt.compile(make())
    prompts = [torch.randint(4, 80, (1, length), generator=torch.Generator().manual_seed(length)) for length in (5, 9)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", smelt.SmeltWarning)
        for prompt in (*prompts, *prompts):
            assert torch.equal(generate(eager, prompt, mode), generate(compiled, prompt, mode))
    stats = compiled.stats()
    assert stats.builds <= MOST_BUILDS + (mode == "static")
    assert not stats.fallbacks
    assert not smelt.explain(compiled).breaks
    assert sum(row.hits for row in stats.rows) > 2 * NEW_TOKENS


def layers(cache: Any) -> list[tuple[Any, ...]]:
    return [(layer.keys, layer.values, layer.is_initialized) for layer in cache.layers]


@pytest.mark.parametrize("make", [gpt2, nightly(llama)])
def test_the_cache_is_the_same_object_with_eagers_contents(make: Callable[[], Any]) -> None:
    eager, compiled = make(), smelt.compile(make())
    with torch.no_grad():
        for start in (4, 6, 4):
            caches = [transformers.DynamicCache(config=eager.config) for _ in range(2)]
            held = [list(cache.layers) for cache in caches]
            tokens = torch.arange(4, 4 + start).unsqueeze(0)
            for _ in range(6):
                expected, found = (
                    model(tokens, **{cache_name(eager): cache}, use_cache=True)
                    for model, cache in zip((eager, compiled), caches, strict=True)
                )
                assert found[cache_name(eager)] is caches[1]
                assert torch.allclose(expected.logits, found.logits, atol=1e-5)
                assert all(a is b for a, b in zip(caches[1].layers, held[1], strict=True))
                for (k, v, is_filled), (k2, v2, is_filled2) in zip(*map(layers, caches), strict=True):
                    assert k.shape == k2.shape and k.stride() == k2.stride()
                    assert torch.allclose(k, k2, atol=1e-5) and torch.allclose(v, v2, atol=1e-5)
                    assert is_filled is is_filled2 is True
                assert [vars(a).keys() for a in caches[0].layers] == [vars(a).keys() for a in caches[1].layers]
                tokens = expected.logits[:, -1:].argmax(-1)
    assert not compiled.stats().fallbacks


def test_a_cache_that_grows_layer_by_layer() -> None:
    """Layers that the run appends are made anew at each call."""
    eager, compiled = gpt2(), smelt.compile(gpt2())
    tokens = torch.arange(4, 9).unsqueeze(0)
    with torch.no_grad():
        caches = [transformers.DynamicCache() for _ in range(5)]
        for cache in caches:
            assert torch.allclose(
                compiled(tokens, **{cache_name(eager): cache}).logits, eager(tokens, use_cache=False).logits, atol=1e-5
            )
        assert len({id(layer) for cache in caches for layer in cache.layers}) == len(caches)
        assert {type(layer) for cache in caches for layer in cache.layers} == {type(caches[0].layers[0])}
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks


def test_a_call_that_fails_leaves_what_eager_leaves() -> None:
    eager, compiled = gpt2(), smelt.compile(gpt2())
    with torch.no_grad():
        for _ in range(3):
            caches = [transformers.DynamicCache(config=eager.config) for _ in range(2)]
            for model, cache in zip((eager, compiled), caches, strict=True):
                model(torch.arange(4, 9).unsqueeze(0), **{cache_name(eager): cache})
                with pytest.raises(IndexError):
                    model(torch.tensor([[5000]]), **{cache_name(eager): cache})
            assert caches[0].get_seq_length() == caches[1].get_seq_length() == 5
            expected, found = (
                model(torch.tensor([[7]]), **{cache_name(eager): cache}).logits
                for model, cache in zip((eager, compiled), caches, strict=True)
            )
            assert torch.allclose(expected, found, atol=1e-5)


def test_the_forward_alone_compiled() -> None:
    """What a compiled method keeps of its calls is no state of the model, to which it belongs."""
    eager, model = llama(), llama()
    model.forward = smelt.compile(model.forward)
    prompt = torch.arange(4, 9).unsqueeze(0)
    for _ in range(2):
        assert torch.equal(generate(eager, prompt, "greedy"), generate(model, prompt, "greedy"))
    stats = model.forward.stats()
    assert stats.builds <= MOST_BUILDS and not stats.fallbacks


@pytest.mark.parametrize("make", [gpt2, nightly(llama)])
def test_a_padded_prompt_keeps_its_cache(make: Callable[[], Any]) -> None:
    """The mask decides which way is taken, and the cache in the result is the caller's on all of them."""
    model = make()
    compiled = smelt.compile(model)
    prompt = torch.arange(5, 10).reshape(1, 5)
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0
    asked = {"attention_mask": mask, "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    for _ in range(2):
        found, expected = (m.generate(prompt, return_dict_in_generate=True, **asked) for m in (compiled, model))
        assert torch.equal(found.sequences, expected.sequences)
        keys = [out.past_key_values.layers[0].keys for out in (found, expected)]
        torch.testing.assert_close(*keys)
