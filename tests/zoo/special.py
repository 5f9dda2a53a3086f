"""What single architectures need besides the rules by name: fields of their configuration, and inputs.

An input is its sizes (random numbers), a function of `Inputs`, another value as it is, or None to leave it out.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.inputs import BATCH, LENGTH, Inputs

_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1}
_HGNET = {
    "stem_channels": [3, 8, 16], "stage_in_channels": [16, 16, 16, 32], "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [16, 16, 32, 32], "stage_numb_of_layers": [1, 1, 1, 1], "stage_num_blocks": [1, 1, 1, 1],
    "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1],
}  # fmt: skip
_HIERA = {
    "hidden_size": 8, "blocks_per_stage": [1, 1, 1, 1], "embed_dim_per_stage": [8, 16, 16, 32],
    "num_attention_heads_per_stage": [1, 1, 2, 2], "window_size_per_stage": [4, 4, 4, 4],
    "global_attention_blocks": [2],
    "image_size": [128, 128], "window_positional_embedding_background_size": [4, 4],
}  # fmt: skip
_SAM2_VISION = {
    "backbone_config": _HIERA, "backbone_channel_list": [32, 16, 16, 8],
    "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]], "fpn_hidden_size": 32,
}  # fmt: skip
_ACOUSTIC = {
    "num_filters": 4, "hidden_size": 8, "upsampling_ratios": [2, 2], "downsampling_ratios": [2, 2], "depths": [1, 1, 1],
    "encoder_depths": [1, 1, 1], "ffn_expansion": 2,
}  # fmt: skip
_SERIES = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3], "num_time_features": 2, "label_length": 4,
}  # fmt: skip

CONFIG: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA2,
    "granitemoehybrid": _MAMBA2,
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "zamba": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "linear_attention", "hybrid"],
        "attn_layer_period": 2, "attn_layer_offset": 1, "attention_head_dim": 16, "n_mamba_heads": 2,
    },
    "zamba2": {
        "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"], "n_mamba_heads": 4,
    },
    "bit": {"num_groups": 4},
    "bridgetower": {
        "text_config": {"hidden_size": 64, "num_attention_heads": 4}, "vision_config": {"hidden_size": 64},
        "hidden_size": 64, "num_attention_heads": 4,
    },
    "bros": {"dim_bbox": 8, "hidden_size": 64, "num_attention_heads": 2},
    "cvt": {"embed_dim": [16, 16, 32], "num_heads": [1, 1, 2], "depth": [1, 1, 2]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "head_dim": 8},
    "dots1": {"n_routed_experts": 4},
    "esm": {"vocab_size": 64, "pad_token_id": 1, "mask_token_id": 32, "emb_layer_norm_before": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hgnet_v2": _HGNET,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "hunyuan_vl": {"text_config": {"head_dim": 8}},
    "hunyuan_vl_text": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "levit": {"image_size": 224, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "key_dim": [8, 8, 8]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 2},
    "mobilevit": {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32]},
    "pvt": {"image_size": 64},
    "perceiver": {
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "max_position_embeddings": 16,
    },
    "reformer": {
        "axial_pos_shape": [4, 4], "axial_pos_embds_dim": [16, 16], "max_position_embeddings": 16, "num_buckets": 4,
        "attn_layers": ["local", "lsh"], "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
    },
    "sam2_hiera_det_model": _HIERA,
    "sam2_vision_model": _SAM2_VISION,
    "autoformer": {**_SERIES, "moving_average": 3},
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "patchtst": {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3},
    "patchtsmixer": {"context_length": 32, "patch_length": 8, "patch_stride": 8, "num_input_channels": 3},
    "timesfm": {"patch_length": 8, "context_length": 64, "horizon_length": 8, "freq_size": 3},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "tvp": {"max_img_size": 64, "visual_prompter_size": 8},
    "vibevoice_acoustic_tokenizer": _ACOUSTIC,
    "vibevoice_acoustic_tokenizer_encoder": _ACOUSTIC,
    "vibevoice_acoustic_tokenizer_decoder": _ACOUSTIC,
    "vits": {
        "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "flow_size": 32,
        "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "spectrogram_bins": 16,
        "duration_predictor_filter_channels": 16, "posterior_encoder_num_wavenet_layers": 2,
        "prior_encoder_num_wavenet_layers": 2, "duration_predictor_num_flows": 2, "prior_encoder_num_flows": 2,
    },
    "qwen4_exp": {"text_config": {"sparse_block_size": 4}},
    "encoder-decoder": {},
    "mask2former": {"num_attention_heads": 4},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}},
    "exaone4_5_vision": {"window_size": 16, "patch_size": 4, "spatial_merge_size": 2},
    "qwen2_5_vl_vision": {"window_size": 16, "patch_size": 4, "spatial_merge_size": 2},
    "neomme": {"head_dim": 32},
    "dbrx": {
        "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "vocab_size": 99,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6}},
    "univnet": {"model_hidden_channels": 32, "model_in_channels": 64},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip


def _waveform(i: Inputs) -> torch.Tensor:
    return i.normal(BATCH, 1, 1600)


def _video(i: Inputs) -> torch.Tensor:
    frames = i.find("num_frames", "frames_per_clip", "num_image_with_embedding", default=4)
    images: torch.Tensor = i.image(BATCH * frames)
    return images.reshape(BATCH, frames, *images.shape[1:])


def _channels_first(i: Inputs) -> torch.Tensor:
    return i.normal(BATCH, i.find("num_mel_bins", "feature_size", default=128), 64)


def _series(i: Inputs) -> torch.Tensor:
    return i.normal(BATCH, 8 + 3)


_SERIES_INPUTS = {
    "past_values": _series,
    "past_time_features": lambda i: i.normal(BATCH, 8 + 3, 2),
    "past_observed_mask": lambda i: torch.ones(BATCH, 8 + 3),
    "future_values": lambda i: i.normal(BATCH, 4),
    "future_time_features": lambda i: i.normal(BATCH, 4, 2),
}

INPUTS: dict[str, dict[str, Any]] = {
    **{
        name: {"input_values": _waveform}
        for name in (
            "dac",
            "neucodec",
            "pe_audio_encoder",
            "xcodec",
            "xcodec2",
            "mimi",
            "mimi_encoder",
            "encodec",
            "pocket_tts_audio_tokenizer_encoder",
            "pocket_tts_audio_tokenizer",
            "vibevoice_acoustic_tokenizer",
            "vibevoice_acoustic_tokenizer_encoder",
        )
    },
    **{name: {"pixel_values": _video} for name in ("timesformer", "videomae", "vivit", "xclip")},
    **{
        name: {"input_features": _channels_first}
        for name in ("clvp", "glmasr_encoder", "voxtral_realtime", "voxtral_realtime_encoder", "audioflamingo3_encoder")
    },
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _SERIES_INPUTS),
    "pe_audio": {"input_values": _waveform},
    "audio-spectrogram-transformer": {"input_values": lambda i: i.normal(BATCH, i.find("max_length"), 128)},
    "bros": {"bbox": lambda i: i.boxes().float()},
    "udop": {"bbox": lambda i: i.boxes().float() / 64},
    "clap": {
        "input_features": lambda i: i.normal(BATCH, 1, 64, 64),
        "is_longer": lambda i: torch.zeros(BATCH, 1, dtype=torch.bool),
    },
    "lxmert": {
        "visual_feats": lambda i: i.normal(BATCH, 5, i.find("visual_feat_dim")),
        "visual_pos": lambda i: i.normal(BATCH, 5, i.find("visual_pos_dim")),
    },
    "decision_transformer": {
        "states": lambda i: i.normal(BATCH, 8, i.find("state_dim")),
        "actions": lambda i: i.normal(BATCH, 8, i.find("act_dim")),
        "rewards": lambda i: i.normal(BATCH, 8, 1),
        "returns_to_go": lambda i: i.normal(BATCH, 8, 1),
        "timesteps": lambda i: torch.arange(8).expand(BATCH, 8),
        "attention_mask": lambda i: torch.ones(BATCH, 8),
    },
    "seggpt": {
        "pixel_values": lambda i: i.image(BATCH),
        "prompt_pixel_values": lambda i: i.image(BATCH),
        "prompt_masks": lambda i: i.image(BATCH),
    },
    "blip_2_qformer": {"query_embeds": lambda i: i.normal(BATCH, 8, i.find("hidden_size")), "attention_mask": None},
    "speecht5": {
        "input_values": lambda i: i.tokens(),
        "decoder_input_values": lambda i: i.normal(BATCH, 8, i.find("num_mel_bins")),
    },
    "timesfm": {
        "past_values": lambda i: i.normal(BATCH, 64),
        "past_values_padding": lambda i: torch.zeros(BATCH, 64, dtype=torch.long),
        "freq": lambda i: torch.zeros(BATCH, 1, dtype=torch.long),
    },
    "timesfm2_5": {
        "past_values": lambda i: i.normal(BATCH, 64),
        "past_values_padding": lambda i: torch.zeros(BATCH, 64, dtype=torch.long),
    },
    "video_llama_3_vision": {"merge_sizes": lambda i: torch.ones(BATCH, dtype=torch.long)},
    "siglip2_vision_model": {
        "pixel_values": lambda i: i.normal(BATCH, 16, 3 * i.find("patch_size") ** 2),
        "pixel_attention_mask": lambda i: torch.ones(BATCH, 16, dtype=torch.long),
        "spatial_shapes": lambda i: torch.tensor([[4, 4]] * BATCH),
    },
    "siglip2": {
        "pixel_values": lambda i: i.normal(BATCH, 16, 3 * i.find("patch_size") ** 2),
        "pixel_attention_mask": lambda i: torch.ones(BATCH, 16, dtype=torch.long),
        "spatial_shapes": lambda i: torch.tensor([[4, 4]] * BATCH),
    },
    "muse_spark_vision": {"pixel_values": lambda i: i.normal(BATCH * 16, 384)},
    "muse_glimmer_vision": {"pixel_values": lambda i: i.normal(BATCH * 16, 384)},
    "kimi_k25_vision": {"pixel_values": lambda i: i.normal(BATCH * 16, 3, i.find("patch_size"), i.find("patch_size"))},
    "lightglue": {"pixel_values": lambda i: i.normal(1, 2, 3, 64, 64)},
    "efficientloftr": {"pixel_values": lambda i: i.normal(1, 2, 3, 64, 64)},
    "idefics": {
        "pixel_values": lambda i: i.normal(BATCH, 1, 3, i.find("image_size"), i.find("image_size")),
        "image_attention_mask": lambda i: torch.ones(BATCH, LENGTH, 1, dtype=torch.long),
    },
    "granite_speech5_ctc": {"input_features": lambda i: i.normal(BATCH, 64, 320)},
    "granite_speech5_encoder": {"input_features": lambda i: i.normal(BATCH, 64, 320)},
    "gemma3n_audio": {
        "audio_mel": lambda i: i.normal(BATCH, 64, 128),
        "audio_mel_mask": lambda i: torch.zeros(BATCH, 64, dtype=torch.bool),
    },
    "instructblip": {"qformer_input_ids": lambda i: i.tokens()},
    "qwen3_asr_encoder": {
        "input_features": lambda i: i.normal(BATCH, 128, 200),
        "input_features_mask": lambda i: torch.ones(BATCH, 200, dtype=torch.long),
    },
    "seamless_m4t": {"attention_mask": None, "input_features": None, "input_ids": lambda i: i.tokens()},
    "seamless_m4t_v2": {"attention_mask": None, "input_features": None, "input_ids": lambda i: i.tokens()},
    "univnet": {"input_features": lambda i: i.normal(BATCH, 16, 100)},
    "dia": {"decoder_input_ids": None},
}
