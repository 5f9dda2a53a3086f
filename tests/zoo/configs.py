"""Configurations of `transformers` made tiny by the names of their fields.

A field keeps its default unless a rule below knows its name; what is derived from others (a default of None) stays
derived. Widths become one number, so that fields which must agree still do. `special` has what this cannot know.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

# Rotary tables whose sections have a default that only the model knows.
SECTIONS = ("paddleocr_vl_text", "glm_ocr_text", "ernie4_5_vl_moe_text", "glm4v_moe_text", "glm_image_text")
WIDTH, HEADS, HEAD_DIM, FFN, VOCAB = 32, 4, 8, 64, 128
_FIRST_TOKEN = 100  # ids of special tokens beyond the shrunken vocabulary begin here, one for each name


def _at_most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit)


# The first rule whose pattern is found in a field's name; for integers that are no booleans.
_RULES: tuple[tuple[re.Pattern[str], Callable[[int], int]], ...] = tuple(
    (re.compile(pattern), rule if callable(rule) else _at_most(rule))
    for pattern, rule in (
        (r"chunk_size_feed_forward|temporal_patch_size|num_channels$|in_channels|in_chans|audio_channels", lambda v: v),
        (r"vocab_size|num_embeddings$|codebook_size|n_codes|entity_vocab", VOCAB),
        (r"type_vocab_size|num_codebooks|n_q$|num_quantizers|codebooks$", 2),
        (r"head_dim|d_kv$|d_head$|head_size|rope_head|rotary_dim|head_channels|attention_dim$|dim_head", HEAD_DIM),
        (r"(key_value|kv)_heads|num_kv|heads_kv|multi_query_group", 2),
        (r"(^|_)(heads|n_head|num_head|head_num|nheads|n_heads_per_group)$", HEADS),
        (r"intermediate_size|ffn_dim|d_ff$|mlp_dim|d_inner|n_inner|ffn_hidden|intermediate_dim|feedforward_dim", FFN),
        (r"num_experts$|routed_experts|local_experts|moe_num_experts|num_moe_experts|n_experts$", 4),
        (r"experts_per_tok|moe_k$|moe_topk|moe_top_k|top_k_experts|num_selected_experts", 2),
        (r"^n_group$|^topk_group$|first_k_dense|num_dense_layers", 1),
        (r"lora_rank|_rank$", 16),
        (r"mamba_n_groups|n_groups$|ngroups", lambda v: min(v, 1)),
        (r"(^|_)(layers|n_layer|blocks|depth|num_layer|layer_num|num_hidden_layers)$", 2),
        (r"max_position|n_positions|n_ctx|max_seq_len|context_length|max_source|max_target|max_length", 128),
        (r"sliding_window$|attention_window|local_attention|attention_chunk_size|window_length", 8),
        (r"window_size", 2),
        (r"num_queries|num_latents|query_tokens|num_query|n_latents|prompt_length", 8),
        (r"image_size|input_size|img_size", 64),
        (r"patch_size", 8),
        (r"state_size|d_state|ssm_state|^chunk_size|mamba_chunk_size", 8),
        (
            r"(^|_)(hidden_size|hidden_dim|d_model|n_embd|embed_dim|emb_dim|embedding_size|embedding_dim|dim|width"
            r"|dimension|proj_size|units|channels|hidden_channels|proj_dim|project_dim|output_channels)$"
            r"|hidden_size|_embed_dim$|_dim$",
            WIDTH,
        ),
    )
)  # fmt: skip
# The same for lists: what becomes of each item, given the item and the first one.
_LIST_RULES: tuple[tuple[re.Pattern[str], Callable[[Any, Any], Any]], ...] = (
    (re.compile(r"depths|num_layers|layers$|^depth$|block_repeats|encoder_layers"), lambda v, first: min(v, 1)),
    (re.compile(r"image_size"), lambda v, first: min(v, 64)),
    (re.compile(r"num_attention_heads|num_heads"), lambda v, first: min(v, 2)),
    (re.compile(r"conv_dim|_dims$"), lambda v, first: min(v, WIDTH)),
    (re.compile(r"hidden_sizes|embed_dim|dims$|encoder_in_channels|channels$"), lambda v, first: _scaled(v, first)),
)


def _scaled(value: Any, first: Any) -> Any:
    if not isinstance(value, int) or not isinstance(first, int) or first <= 16:
        return value
    return max(value * 16 // first, 8)


class Shrinker:
    """Makes one configuration and all within it; special tokens of one name have one id everywhere."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}

    def config(self, cls: type, special: dict[str, Any], base: Any = None) -> Any:
        """A tiny configuration of a class. special: values by field, a dictionary for a configuration within it.

        base: a configuration whose values count as defaults. Raises: whatever the class raises.
        """
        within = _within(cls)
        given = {name: value for name, value in special.items() if name not in within}
        if base is None:
            base = _default(cls, given)
        known = {field.name: _default_of(field) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        made: dict[str, Any] = {}
        for name, default in known.items():
            if name in within or default is None:
                continue
            value = _get(base, name, default)
            small = self.shrink(name, value)
            if small is not value:
                made[name] = small
        for name in within:
            inner = _get(base, name, None)
            if isinstance(special.get(name), dict) or inner is not None:
                chosen = dict(special.get(name) or {})
                inner_cls = type(inner) if not isinstance(inner, dict | None) else _class_of(chosen.pop("model_type"))
                made[name] = self.config(inner_cls, chosen, inner if isinstance(inner, inner_cls) else None)
        made.update(_agreeing(base, known, made))
        made.update(given)
        return cls(**made)

    def shrink(self, name: str, value: Any) -> Any:
        """The value of a field made small; the very same object where no rule knows it."""
        if re.search(r"token_ids?$|token_index$|_token_ids?_|token_type$|^[a-z]+_index$", name):
            return self._token(name, value)
        if isinstance(value, bool) or not value:
            return value
        if isinstance(value, int):
            for pattern, rule in _RULES:
                if pattern.search(name):
                    return rule(value) if value > 0 else value
        if isinstance(value, list | tuple) and all(type(item) is int for item in value):
            for pattern, change in _LIST_RULES:
                if pattern.search(name):
                    return type(value)(change(item, value[0]) for item in value)
        return value

    def _token(self, name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._token(f"{name}{i}", item) for i, item in enumerate(value))
        if not isinstance(value, int) or value < _FIRST_TOKEN:
            return value
        stem = re.sub(r"_(id|index)$", "", name)
        return self.tokens.setdefault(stem, _FIRST_TOKEN + len(self.tokens) % (VOCAB - _FIRST_TOKEN))


def _agreeing(base: Any, known: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Fields that depend on one another: kinds of layers and how many there are, heads, sections of a rotary table."""
    found: dict[str, Any] = {}
    kinds = _get(base, "layer_types", None)
    if "layer_types" in known and isinstance(kinds, list | tuple) and len(set(kinds)) > 1:
        distinct = list(dict.fromkeys(kinds))  # one layer of each kind
        found |= {"layer_types": distinct, "num_hidden_layers": len(distinct)}
    heads = _get(base, "num_attention_heads", None)
    if isinstance(heads, int) and known.get("num_key_value_heads") == heads and "num_attention_heads" in made:
        found["num_key_value_heads"] = made["num_attention_heads"]
    rope = _get(base, "rope_parameters", None)
    has_sections = "mrope_section" in (getattr(type(base), "ignore_keys_at_rope_validation", None) or ())
    if isinstance(rope, dict) and (has_sections or "mrope_section" in rope or base.model_type in SECTIONS):
        half = int(HEAD_DIM * rope.get("partial_rotary_factor", 1)) // 2
        found["rope_parameters"] = {**rope, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
    return found


def _get(config: Any, name: str, default: Any) -> Any:
    """A field; its default where the configuration keeps one value for each layer and refuses to name one."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def _default(cls: type, special: dict[str, Any]) -> Any:
    try:
        return cls()
    except Exception:
        return cls(**special)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _within(cls: type) -> tuple[str, ...]:
    return tuple(getattr(cls, "sub_configs", None) or ())


def _class_of(model_type: str) -> type:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: type = CONFIG_MAPPING[model_type]
    return found
