"""The wide suite: models of kinds that the benchmark's own do not have, each for one sample and for eight.

They are for measuring, not for tuning: what is made faster is a kind of program. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.models import Built, Model, Positional, transformer
from smelt.bench.programs import lerp
from smelt.bench.wide import wide_programs as programs

BATCHES = (1, 8)
_HF = ("transformers",)
Build = Callable[[int], Built]


class _Keywords(nn.Module):
    """A `transformers` model as `tensors -> tensor`: the first entry of its output for arguments of these names."""

    def __init__(self, model: nn.Module, keywords: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.keywords = model, keywords

    def forward(self, *args: Tensor) -> Any:
        return self.model(**dict(zip(self.keywords, args, strict=True))).to_tuple()[0]


def _text(config: str, model: str, length: int, options: Mapping[str, Any], batch: int) -> Built:
    made, found = transformer(config, model, options)
    return Positional(made, "input_ids"), (torch.randint(0, found.vocab_size, (batch, length)),)


def _image(config: str, model: str, options: Mapping[str, Any], size: int, batch: int) -> Built:
    made, _ = transformer(config, model, options)
    return Positional(made, "pixel_values"), (torch.randn(batch, 3, size, size),)


_WHISPER: Mapping[str, Any] = {
    "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "max_source_positions": 500,
}  # fmt: skip


def _whisper_encoder(batch: int) -> Built:
    model, config = transformer("WhisperConfig", "WhisperModel", _WHISPER)
    features = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    return Positional(model.get_submodule("encoder"), "input_features"), (features,)


def _whisper_decoder(batch: int) -> Built:
    model, config = transformer("WhisperConfig", "WhisperModel", {**_WHISPER, "use_cache": False})
    states = torch.randn(batch, config.max_source_positions, config.d_model)
    ids = torch.randint(0, config.vocab_size, (batch, 16))
    return _Keywords(model.get_submodule("decoder"), ("input_ids", "encoder_hidden_states")), (ids, states)


def _wav2vec2(batch: int) -> Built:
    model, _ = transformer("Wav2Vec2Config", "Wav2Vec2Model", {"num_hidden_layers": 4})
    return Positional(model, "input_values"), (torch.randn(batch, 16_000),)


def _graph(batch: int, nodes: int = 1000, edges: int = 5000) -> Built:
    return programs.GraphNet(), (torch.randn(batch * nodes, 64), torch.randint(0, batch * nodes, (2, batch * edges)))


def _dlrm(batch: int) -> Built:
    rows = 128 * batch
    return programs.Dlrm(), (torch.randn(rows, 13), torch.randint(0, 5000, (rows, 8, 4)))


def _recurrent(kind: type[nn.RNNBase], bidirectional: bool, layers: int, steps: int, batch: int) -> Built:
    return programs.Recurrent(kind, bidirectional, layers), (torch.randn(batch, steps, 128),)


def _own(make: Callable[[], nn.Module], *sizes: int) -> Build:
    return lambda batch: (make(), (torch.randn(batch, *sizes),))


def _lerp(batch: int) -> Built:
    n = 1_000_000 * batch
    return lerp, (torch.rand(n), torch.randn(n), torch.randn(n))


_SMALL: Mapping[str, Any] = {"num_hidden_layers": 4, "use_cache": False}
_DISTIL: Mapping[str, Any] = {}
_EFFICIENT: Mapping[str, Any] = {
    "image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "dropout_rate": 0.2,
}  # fmt: skip
_DECODER: Mapping[str, Any] = {
    **_SMALL, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 8000,
}  # fmt: skip

_KINDS: tuple[tuple[str, str, Build, tuple[str, ...]], ...] = (
    ("unet64", "U-Net with group norms, 64x64", _own(programs.UNet, 3, 64, 64), ()),
    ("unet32", "the same with attention of pixels, 32x32", _own(partial(programs.UNet, True), 3, 32, 32), ()),
    ("style", "style transfer with instance norms, 128x128", _own(programs.StyleNet, 3, 128, 128), ()),
    ("lstm_module", "nn.LSTM, 2 layers, both directions, 50 steps", partial(_recurrent, nn.LSTM, True, 2, 50), ()),
    ("lstm_long", "nn.LSTM, one layer, 500 steps", partial(_recurrent, nn.LSTM, False, 1, 500), ()),
    ("gru_module", "nn.GRU, 2 layers, both directions, 50 steps", partial(_recurrent, nn.GRU, True, 2, 50), ()),
    ("rnn_module", "nn.RNN, 2 layers, 50 steps", partial(_recurrent, nn.RNN, False, 2, 50), ()),
    ("deberta", "DeBERTa-v2, 4 layers of 768, 128 tokens", partial(_text, "DebertaV2Config", "DebertaV2Model", 128, {
        "num_hidden_layers": 4, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "vocab_size": 8000,
    }), _HF),
    ("t5_encoder", "T5-small encoder, 128 tokens", partial(_text, "T5Config", "T5EncoderModel", 128, {}), _HF),
    ("whisper_encoder", "Whisper tiny encoder, 10 s", _whisper_encoder, _HF),
    ("whisper_decoder", "Whisper tiny decoder, 16 tokens on 10 s", _whisper_decoder, _HF),
    ("wav2vec2", "Wav2Vec2, 4 layers, 1 s", _wav2vec2, _HF),
    ("tcn", "8 dilated convolutions over 1,000 steps", _own(programs.Tcn, 64, 1000), ()),
    ("graph_net", "message passing, 1,000 nodes, 5,000 edges", _graph, ()),
    ("dlrm", "8 bags of embeddings, 128 rows", _dlrm, ()),
    ("efficientnet", "EfficientNet-B0, 224x224", partial(
        _image, "EfficientNetConfig", "EfficientNetForImageClassification", _EFFICIENT, 224
    ), _HF),
    ("mobilenetv3", "MobileNetV3 small, 224x224", _own(programs.MobileNetV3, 3, 224, 224), ()),
    ("segformer", "SegFormer-B0, 128x128", partial(
        _image, "SegformerConfig", "SegformerForSemanticSegmentation", {}, 128
    ), _HF),
    ("swin", "Swin tiny, 224x224", partial(_image, "SwinConfig", "SwinForImageClassification", {}, 224), _HF),
    ("convnext", "ConvNeXt tiny, 224x224", partial(
        _image, "ConvNextConfig", "ConvNextForImageClassification", {}, 224
    ), _HF),
    ("distilbert16", "DistilBERT, 16 tokens", partial(_text, "DistilBertConfig", "DistilBertModel", 16, _DISTIL), _HF),
    ("distilbert64", "DistilBERT, 64 tokens", partial(_text, "DistilBertConfig", "DistilBertModel", 64, _DISTIL), _HF),
    ("bloom", "attention with linear biases (Bloom), 4 layers, 128 tokens", partial(
        _text, "BloomConfig", "BloomModel", 128, {"n_layer": 4, "hidden_size": 512, "n_head": 8, "vocab_size": 8000,
        "use_cache": False},
    ), _HF),
    ("mistral", "a sliding window of 64 of 256 tokens, 4 layers", partial(
        _text, "MistralConfig", "MistralModel", 256, {**_DECODER, "sliding_window": 64}
    ), _HF),
    ("gemma2", "capped scores (Gemma 2), 4 layers, 128 tokens", partial(
        _text, "Gemma2Config", "Gemma2Model", 128, {**_DECODER, "head_dim": 64, "sliding_window": 64}
    ), _HF),
    ("video", "three-dimensional convolutions, 8 x 56x56", _own(programs.Video, 3, 8, 56, 56), ()),
    ("generator", "transposed convolutions to 64x64", _own(programs.Generator, 100, 1, 1), ()),
    ("spectrogram", "mel bands of 1 s and a convolution", _own(programs.Spectrogram, 16_000), ()),
    ("experts", "2 of 8 experts, 64 tokens", _own(programs.Experts, 64, 256), ()),
    ("lerp", "w*x + (1-w)*y on 1,000,000 floats a sample", _lerp, ()),
)  # fmt: skip

WIDE_MODELS: tuple[Model, ...] = tuple(
    Model(f"{name}_b{batch}", f"{summary}, b{batch}", partial(build, batch), needs)
    for name, summary, build, needs in _KINDS
    for batch in BATCHES
)
