"""What CTranslate2 can run of the benchmark's models, and how it gets there from a module in memory.

CTranslate2 has its own list of architectures, and gives one kind of result for each: encoders hidden states, decoders
logits. Its converter reads a pretrained model's folder and tokenizer. Here it gets a folder with the configuration
alone, a copy of the module, and a tokenizer whose words are the numbers of the vocabulary.
"""

from __future__ import annotations

import copy
import importlib
import operator
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smelt.bench.models import Positional, Target


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model class of `transformers` that CTranslate2 runs.

    runner, method: the class of `ctranslate2` that runs it, and its method.
    results: the fields of what the method returns; none where that is the only result.
    whole, part, inner: where the model is only a part, the class that the converter takes, the place in it that is
        filled, and the submodule of the model that fills it ("" for the model itself).
    """

    runner: str
    method: str
    results: tuple[str, ...] = ()
    whole: str = ""
    part: str = ""
    inner: str = ""


_HIDDEN = ("last_hidden_state",)

ARCHITECTURES: dict[str, Architecture] = {
    "BertModel": Architecture("Encoder", "forward_batch", (*_HIDDEN, "pooler_output")),
    "DistilBertModel": Architecture("Encoder", "forward_batch", _HIDDEN),
    "T5EncoderModel": Architecture(
        "Encoder", "forward_batch", _HIDDEN, "T5ForConditionalGeneration", "encoder", "encoder"
    ),
    "WhisperEncoder": Architecture("models.Whisper", "encode", (), "WhisperForConditionalGeneration", "model.encoder"),
    "GPT2LMHeadModel": Architecture("Generator", "forward_batch"),
    "LlamaForCausalLM": Architecture("Generator", "forward_batch"),
}
"""By the name of the model class."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A converted model: `call(*args)` runs it once, `outputs(call(*args))` gives its tensors.

    kept: the folder already held the converted model.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Callable[[Any], tuple[Tensor, ...]]
    kept: bool


class _Numbers:
    """A tokenizer whose words are the numbers from 0 to `size` - 1, as far as the converter asks it."""

    bos_token = eos_token = unk_token = pad_token = "0"

    def __init__(self, size: int) -> None:
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(self.size)}

    def convert_ids_to_tokens(self, number: int) -> str:
        return str(number)


def load(target: Target, args: tuple[Tensor, ...], folder: Path, threads: int) -> Loaded:
    """`target` in float32 on `threads` threads, converted into `folder` where that does not exist yet.

    Raises: NotImplementedError where CTranslate2 does not give the results of such a model.
    """
    model = target.model if isinstance(target, Positional) else target
    name = type(model).__name__
    if name not in ARCHITECTURES or not isinstance(model, nn.Module):
        raise NotImplementedError(f"CTranslate2 has no such architecture: {name} (it has {', '.join(ARCHITECTURES)})")
    architecture = ARCHITECTURES[name]
    kept = folder.exists()
    if not kept:
        _convert(model, architecture, folder)
    ctranslate2 = importlib.import_module("ctranslate2")
    make = operator.attrgetter(architecture.runner)(ctranslate2)
    runner = make(str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads)

    def outputs(result: Any) -> tuple[Tensor, ...]:
        found = [getattr(result, field) for field in architecture.results] or [result]
        return tuple(torch.tensor(_numpy(view)) for view in found)

    return Loaded(getattr(runner, architecture.method), _views(args), outputs, kept)


def _views(args: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The arguments as CTranslate2's views of memory: words as int32 with the length of each row, or features."""
    view = importlib.import_module("ctranslate2").StorageView.from_array
    (only,) = args
    if only.is_floating_point():
        return (view(only.numpy()),)
    rows, length = only.shape
    return view(only.int().numpy()), view(torch.full((rows,), length, dtype=torch.int32).numpy())


def _numpy(view: Any) -> Any:
    return importlib.import_module("numpy").array(view)


def _convert(model: nn.Module, architecture: Architecture, folder: Path) -> None:
    """Write `model` as CTranslate2 reads it; `folder` appears when it is complete.

    The converter takes layers out of the model that it reads, and asks for entries that newer configurations lack: it
    gets a copy.
    """
    converters = importlib.import_module("ctranslate2.converters")
    whole = _whole(copy.deepcopy(model), architecture)
    config: Any = whole.config
    if not hasattr(config, "position_embedding_type"):
        config.position_embedding_type = "absolute"

    class FromMemory(converters.TransformersConverter):  # type: ignore[name-defined]
        def load_model(self, *args: Any, **options: Any) -> nn.Module:
            return whole

        def load_tokenizer(self, *args: Any, **options: Any) -> _Numbers:
            return _Numbers(config.vocab_size)

        def _load(self) -> Any:
            spec = super()._load()
            return _encoder_alone(spec, config) if architecture.runner == "Encoder" and architecture.whole else spec

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        config.save_pretrained(scratch)
        made = Path(scratch) / "converted"
        FromMemory(scratch).convert(str(made), quantization="float32")
        made.rename(folder)


def _whole(model: nn.Module, architecture: Architecture) -> nn.Module:
    """The model that the converter takes, with `model`, or its inner module, in its place."""
    if not architecture.whole:
        return model
    whole: nn.Module = getattr(importlib.import_module("transformers"), architecture.whole)(model.config)
    owner, _, name = architecture.part.rpartition(".")
    setattr(whole.get_submodule(owner), name, model.get_submodule(architecture.inner))
    return whole


def _encoder_alone(spec: Any, config: Any) -> Any:
    """The encoder of a model that translates, as a model of its own, which CTranslate2 runs for its hidden states."""
    specs = importlib.import_module("ctranslate2.specs")
    alone = specs.TransformerEncoderModelSpec(spec.encoder)
    words = _Numbers(config.vocab_size)
    alone.register_vocabulary(list(words.get_vocab()))
    alone.config.unk_token = words.unk_token
    alone.config.layer_norm_epsilon = config.layer_norm_epsilon
    return alone
