"""Whole models as ONNX: small ones of the benchmark's kinds each day, the architectures of the zoo nightly."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.bench.models import MODELS, Positional, transformer
from smelt.bench.programs import LstmLoop
from smelt.runtime.ingot import structure
from tests.onnx.harness import Session, assert_alike, exported
from tests.zoo.build import SPREAD, build

DOCS = Path(__file__).parents[2] / "docs" / "onnx.md"
REFUSED = {
    "bigbird_pegasus": "draws random numbers",
    "fnet": "aten.fft_fftn.default",
    "layoutlm": "catches errors that depend on data",
}
"""Architectures that are not exported, and what is in the way."""

_BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
    "max_position_embeddings": 40,
}  # fmt: skip
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2], "layer_type": "basic"}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 40, "use_cache": False}
_MOBILE = {"depth_multiplier": 0.35, "image_size": 32, "num_labels": 10}


def _ids() -> torch.Tensor:
    return torch.randint(0, 99, (2, 9))


def _image() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def _made(config: str, model: str, options: dict[str, Any], keyword: str, results: int = 1) -> Any:
    return Positional(transformer(config, model, options)[0].eval(), keyword, results)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "bert": (lambda: _made("BertConfig", "BertModel", _BERT, "input_ids", 2), lambda: (_ids(),)),
    "gpt2": (lambda: _made("GPT2Config", "GPT2LMHeadModel", _GPT2, "input_ids"), lambda: (_ids(),)),
    "resnet18": (
        lambda: _made("ResNetConfig", "ResNetForImageClassification", _RESNET, "pixel_values"), lambda: (_image(),)
    ),
    "mobilenetv2": (
        lambda: _made("MobileNetV2Config", "MobileNetV2ForImageClassification", _MOBILE, "pixel_values"),
        lambda: (_image(),),
    ),
    "lstm": (lambda: LstmLoop(16, 24), lambda: (torch.randn(7, 1, 16), torch.randn(1, 24), torch.randn(1, 24))),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_models(kind: str, tmp_path: Path) -> None:
    if kind != "lstm":
        pytest.importorskip("transformers")
    torch.manual_seed(3)
    make, inputs = KINDS[kind]
    with torch.no_grad():
        model, given = make(), inputs()
        made = exported(smelt.trace(model, given), tmp_path)
        session = Session(made.path)
        for args in (given, inputs()):
            wanted = model(*args)
            wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
            assert_alike(session.run(dict(zip(made.inputs, args, strict=True))), wanted, tolerance=2e-5)


@pytest.mark.spread(12)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # of paths that a trace holds for
@pytest.mark.parametrize("name", SPREAD)
def test_architectures(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    try:
        sample = build(name)
    except Exception:
        pytest.skip("this transformers does not build it so")
    with torch.no_grad():
        program = smelt.trace(sample.model, (), dict(sample.inputs))
        if name in REFUSED:
            with pytest.raises(smelt.PackageError, match=re.escape(REFUSED[name])):
                exported(program, tmp_path)
            return
        made = exported(program, tmp_path)
        entry = smelt.load(tmp_path / "m.ingot", allow_native=False).entry("forward")
        method = entry.method
        given = structure.flatten(method.args, method.kwargs, (), dict(sample.inputs), len(method.places))
        outputs = entry._outputs(given, {})
        wanted = [each for each in outputs if isinstance(each, (torch.Tensor, int, float))]
        assert_alike(Session(made.path).run(dict(zip(made.inputs, given, strict=True))), wanted, tolerance=1e-4)


def test_the_page_says_which_architectures_there_are() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| architecture") :]
    yes, no = (re.findall(r"`([\w-]+)`", line) for line in table.splitlines()[2:4])
    assert sorted(yes) == sorted(set(SPREAD) - REFUSED.keys()) and len(yes) >= 50
    assert [name for name in no if name in SPREAD] == sorted(REFUSED)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet50", "mobilenetv2", "lstm", "vit"])
def test_models_of_the_benchmark(name: str, tmp_path: Path) -> None:
    (model,) = [each for each in MODELS if each.name == name]
    for needed in model.needs:
        pytest.importorskip(needed)
    target, args = model.build()
    with torch.no_grad():
        made = exported(smelt.trace(target, args), tmp_path)
        wanted = target(*args)
        wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
        found = Session(made.path).run(dict(zip(made.inputs, args, strict=True)))
        scale = max(float(each.abs().max()) for each in wanted if each.is_floating_point())
        assert_alike([each / scale for each in found], [each / scale for each in wanted], tolerance=1e-4)
