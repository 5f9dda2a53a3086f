"""Valid inputs for a tiny model, by the names of its forward's parameters and the sizes in its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

BATCH, LENGTH = 2, 16


class Inputs:
    """What a model's forward is given. data: which random numbers; mask: which positions are padding."""

    def __init__(self, model: Any, config: Any, data: int = 0, mask: int | None = 0) -> None:
        self.model, self.config, self.mask_kind = model, config, mask
        self.generator = torch.Generator().manual_seed(data + 1)
        self.parameters = inspect.signature(model.forward).parameters
        self.special = set(_special_tokens(config))

    # --- sizes

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that the configuration, or one within it, has."""
        for config in _configs(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not isinstance(value, dict):
                    return value
        return default

    def image(self, *lead: int) -> torch.Tensor:
        size = self.find("image_size", "img_size", default=64)
        height, width = (size, size) if isinstance(size, int) else (size[-2:] if len(size) > 1 else (size[0],) * 2)
        channels = self.find("num_channels", "in_channels", "in_chans", default=3)
        channels = channels if isinstance(channels, int) and channels < 16 else 3
        return self.normal(*lead, channels, height, width)

    # --- kinds of values

    def normal(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=self.generator)

    def tokens(self, length: int = LENGTH) -> torch.Tensor:
        high = min(int(self.find("vocab_size", default=99)), 99)
        usable = torch.tensor([i for i in range(3, high) if i not in self.special] or list(range(high)))
        return usable[torch.randint(0, len(usable), (BATCH, length), generator=self.generator)]

    def mask(self, length: int = LENGTH) -> torch.Tensor:
        found = torch.ones(BATCH, length, dtype=torch.long)
        row, padding = ((1, length // 4), (0, length // 2), (0, 0))[self.mask_kind or 0]
        found[row, length - padding :] = 0
        return found

    def boxes(self) -> torch.Tensor:
        corners = torch.randint(0, 30, (BATCH, LENGTH, 2), generator=self.generator)
        return torch.cat([corners, corners + torch.randint(1, 30, corners.shape, generator=self.generator)], -1)


Filler = Callable[[Inputs], Any]


def _audio_features(inputs: Inputs) -> torch.Tensor:
    bins = inputs.find("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", default=80)
    frames = inputs.find("max_source_positions")
    if frames is not None and inputs.find("num_mel_bins") is not None:  # Whisper's layout: halved by a convolution
        return inputs.normal(BATCH, bins, 2 * frames)
    return inputs.normal(BATCH, 64, inputs.find("feature_projection_input_dim", "input_dim", default=bins))


def _patches(inputs: Inputs) -> torch.Tensor:
    """Patches of two images of 4 x 4 patches, as a row of numbers each."""
    size = inputs.find("patch_size", default=8)
    channels = inputs.find("in_channels", "num_channels", "in_chans", default=3)
    return inputs.normal(BATCH * 16, channels * inputs.find("temporal_patch_size", default=1) * size * size)


# What each parameter is given. Those of `ALWAYS` are given whenever the forward has them.
FILLERS: dict[str, Filler] = {
    "input_ids": lambda i: i.tokens(),
    "attention_mask": lambda i: i.mask(),
    "decoder_input_ids": lambda i: i.tokens(8),
    "pixel_values": lambda i: _patches(i) if "grid_thw" in i.parameters else i.image(BATCH),
    "pixel_mask": lambda i: torch.ones(BATCH, *i.image(1).shape[-2:], dtype=torch.long),
    "pixel_values_videos": lambda i: i.image(BATCH, i.find("num_frames", "frames_per_clip", default=4)),
    "input_values": lambda i: i.normal(BATCH, 1600),
    "input_features": _audio_features,
    "hidden_states": _patches,
    "grid_thw": lambda i: torch.tensor([[1, 4, 4]] * BATCH),
    "image_grid_thw": lambda i: torch.tensor([[1, 4, 4]] * BATCH),
    "input_features_mask": lambda i: torch.ones(BATCH, _audio_features(i).shape[-1], dtype=torch.long),
    "past_values": lambda i: i.normal(
        BATCH, i.find("context_length", default=32), i.find("num_input_channels", default=1)
    ),
    "bbox": lambda i: i.boxes(),
    "visual_feats": lambda i: i.normal(BATCH, 5, i.find("visual_feat_dim", default=32)),
    "visual_pos": lambda i: i.normal(BATCH, 5, 4),
    "visual_embeds": lambda i: i.normal(BATCH, 5, i.find("visual_embedding_dim", default=32)),
}
ALWAYS = ("decoder_input_ids", "bbox")


def make(
    model: Any, config: Any, data: int = 0, mask: int | None = 0, special: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments for the model's forward. special: sizes, or functions of `Inputs`, by parameter; None leaves
    one out. Raises: TypeError where the forward needs something that no filler knows."""
    inputs = Inputs(model, config, data, mask)
    chosen: dict[str, Any] = {}
    for name in _wanted(model, inputs, special or {}):
        filler = (special or {}).get(name, FILLERS.get(name))
        if filler is None:
            raise TypeError(f"no input known for {name!r} of {type(model).__name__}.forward{_names(inputs)}")
        value = filler(inputs) if callable(filler) else _of_sizes(inputs, filler)
        if value is not None:
            chosen[name] = value
    return chosen


def _wanted(model: Any, inputs: Inputs, special: dict[str, Any]) -> Iterator[str]:
    plain = {
        name: parameter
        for name, parameter in inputs.parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) and main in plain else "input_ids"
    text = "input_ids" in plain
    dual = text and not any("token" in name for name in _fields(inputs.config) if "image" in name or "audio" in name)
    for name, parameter in plain.items():
        if name in special:
            is_wanted = special[name] is not None
        elif parameter.default is parameter.empty or name == main:
            is_wanted = True
        elif name == "attention_mask":
            is_wanted = text and inputs.mask_kind is not None
        elif name == "input_ids":
            is_wanted = not _alone(main)
        else:  # beside a text may stand an image or a sound; elsewhere tokens of the text stand for them
            is_wanted = name in ALWAYS or (dual and name in ("pixel_values", "input_features"))
        if is_wanted:
            yield name
    yield from (name for name, value in special.items() if name not in plain and value is not None)


def _alone(main: str) -> bool:
    return main in ("pixel_values", "input_values", "input_features")


def _of_sizes(inputs: Inputs, sizes: Any) -> Any:
    if isinstance(sizes, tuple) and all(isinstance(size, int) for size in sizes):
        return inputs.normal(*sizes)
    return sizes


def _names(inputs: Inputs) -> str:
    return "(" + ", ".join(inputs.parameters) + ")"


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(type(config), "sub_configs", None) or ():
        inner = getattr(config, name, None)
        if inner is not None and not isinstance(inner, dict):
            yield from _configs(inner)


def _fields(config: Any) -> Iterator[str]:
    for each in _configs(config):
        yield from vars(each)


def _special_tokens(config: Any) -> Iterator[int]:
    for each in _configs(config):
        for name, value in vars(each).items():
            if "token" in name and ("id" in name or "index" in name):
                yield from ([value] if isinstance(value, int) else value if isinstance(value, list | tuple) else [])
