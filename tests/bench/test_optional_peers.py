"""zentorch and CTranslate2, which no extra of Smelt installs: absent, and as stand-ins that note what they are told."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from smelt.bench import measure, report
from smelt.bench.measure import Plan
from smelt.bench.models import Model, Positional, transformer
from smelt.bench.rows import Row
from smelt.bench.startup import measure_startup
from smelt.bench.suite import Suite, run
from smelt.bench.systems import CTRANSLATE2, ZENTORCH, Context, Ready, System, load_modules, missing, systems

ROOT = Path(__file__).parents[2]
BY_NAME = {s.name: s for s in systems()}
_TINY: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny_bert() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model, _ = transformer("BertConfig", "BertModel", {**_TINY, "intermediate_size": 16, "use_cache": False})
    return Positional(model, "input_ids", results=2), (torch.randint(0, 11, (2, 5)),)


def tiny_gpt2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    options = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "use_cache": False}
    return Positional(transformer("GPT2Config", "GPT2LMHeadModel", options)[0], "input_ids"), (torch.ones(1, 4).long(),)


def tiny_t5() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    options = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return Positional(transformer("T5Config", "T5EncoderModel", options)[0], "input_ids"), (torch.ones(1, 4).long(),)


def tiny_whisper() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= {
        "d_model": 8,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "max_source_positions": 6,
        "vocab_size": 60000,
    }
    model, config = transformer("WhisperConfig", "WhisperModel", sizes)
    return Positional(model.get_submodule("encoder"), "input_features"), (torch.randn(1, config.num_mel_bins, 12),)


def run_rows(made: Any, *names: str) -> dict[str, Row]:
    chosen = (BY_NAME["eager"], *(BY_NAME[name] for name in names))
    plan = Plan(repeats=3, sample_ms=0.05, budget_s=2.0)
    (rows,) = run(Suite((Model("tiny", "", made),), chosen, threads=1, plan=plan, one_thread=False))
    return {row.system: row for row in rows}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`stand_in(name, **attributes)`: a module of that name, at version 7, for the length of a test."""

    def put(name: str, **attributes: Any) -> ModuleType:
        module = ModuleType(name)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    found = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "7" if name in ("zentorch", "ctranslate2") else found(name)
    )
    return put


class Told:
    """What the stand-in of CTranslate2 was told, and the model that its converter was handed."""

    def __init__(self) -> None:
        self.model: Any = None
        self.runner: tuple[str, dict[str, Any]] = ("", {})
        self.conversions = 0
        self.words: list[str] = []
        self.encoder_alone: Any = None


@pytest.fixture
def ctranslate2(stand_in: Any) -> Told:
    """A stand-in that converts by keeping the model, takes a layer out of the original, and runs by calling it."""
    told = Told()

    class Converter:
        def __init__(self, folder: str) -> None:
            assert (Path(folder) / "config.json").is_file()

        def _load(self) -> Any:
            told.model, tokenizer = self.load_model(None, "", dtype=None), self.load_tokenizer(None, "")  # type: ignore[attr-defined]
            told.words = list(tokenizer.get_vocab())
            assert tokenizer.convert_ids_to_tokens(3) == "3" and tokenizer.unk_token in told.words
            assert told.model.config.position_embedding_type == "absolute"
            return SimpleNamespace(encoder="the encoder")

        def convert(self, folder: str, quantization: str) -> None:
            assert quantization == "float32"
            self._load()
            told.conversions += 1
            Path(folder).mkdir()

    class Runner:
        def __init__(self, folder: str, **options: Any) -> None:
            assert Path(folder).is_dir()
            told.runner = (type(self).__name__, options)

    class Encoder(Runner):
        def forward_batch(self, ids: Any, lengths: Any) -> Any:
            assert ids.dtype == lengths.dtype == np.int32 and list(lengths) == [ids.shape[1]] * ids.shape[0]
            stack = told.model.encoder if told.encoder_alone else told.model
            assert not told.encoder_alone or isinstance(stack.final_layer_norm, nn.Module)
            out = stack(input_ids=torch.tensor(ids))
            pooled = getattr(out, "pooler_output", None)
            return SimpleNamespace(
                last_hidden_state=out.last_hidden_state.numpy(),
                pooler_output=None if pooled is None else pooled.numpy(),
            )

    class Generator(Runner):
        def forward_batch(self, ids: Any, lengths: Any) -> Any:
            return told.model(input_ids=torch.tensor(ids)).logits.numpy()

    class Whisper(Runner):
        def encode(self, features: Any) -> Any:
            return told.model.model.encoder(torch.tensor(features)).last_hidden_state.numpy()

    def alone(encoder: str) -> Any:
        assert encoder == "the encoder"
        config = SimpleNamespace()
        told.encoder_alone = SimpleNamespace(
            config=config, register_vocabulary=lambda words: setattr(config, "words", words)
        )
        return told.encoder_alone

    stand_in("ctranslate2.converters", TransformersConverter=Converter)
    stand_in("ctranslate2.specs", TransformerEncoderModelSpec=alone)
    view = SimpleNamespace(from_array=lambda array: array)
    models = SimpleNamespace(Whisper=Whisper)
    stand_in("ctranslate2", StorageView=view, Encoder=Encoder, Generator=Generator, models=models)
    return told


def test_absent_peers_are_named_with_the_version_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    absent = ("zentorch", "ctranslate2", "openvino")
    monkeypatch.setattr(
        "smelt.diag.packages.importlib.util.find_spec", lambda name: None if name in absent else found(name)
    )
    rows = run_rows(tiny_bert, "zentorch", "ctranslate2")
    for requirement in (ZENTORCH, CTRANSLATE2):
        row = rows[requirement.partition("==")[0]]
        assert row.error == f"not installed: {requirement} (pip install {requirement})" and row.median_ms is None
        assert requirement in (ROOT / "docs" / "speed.md").read_text()
    assert rows["eager"].median_ms is not None
    both = missing(["openvino", "torch", ZENTORCH, CTRANSLATE2])
    assert both == (
        'not installed: openvino (pip install "smelt-compiler[bench]"), '
        f"{ZENTORCH}, {CTRANSLATE2} (pip install {ZENTORCH} {CTRANSLATE2})"
    )


def test_zentorch_compiles_frozen_and_leaves_inductor_as_it_was(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = importlib.import_module("torch._inductor.config")
    told: list[dict[str, Any]] = []

    def compiles(target: Any, **options: Any) -> Any:
        told.append({**options, "freezing": config.freezing, "grad": torch.is_grad_enabled()})
        config.joint_custom_post_pass = lambda graph: None
        packed = target(torch.ones(1, 4).long())
        next(target.parameters()).zero_()
        return lambda *args: packed

    stand_in("zentorch")
    monkeypatch.setattr(torch, "compile", compiles)
    rows = run_rows(tiny_gpt2, "zentorch")
    row = rows["zentorch"]
    assert (row.error, row.rms_ratio) == (None, 1.0)
    assert rows["eager"].max_abs_err == 0.0, "zentorch may pack weights in their own memory"
    (one,) = told
    assert one == {
        "backend": "zentorch", "dynamic": False, "fullgraph": False, "options": None, "freezing": True, "grad": False,
    }  # fmt: skip
    assert row.settings["options"] == {"freezing": True} and row.settings["zentorch_version"] == "7"
    assert config.joint_custom_post_pass is None and config.freezing is False


@pytest.mark.parametrize(
    ("make", "runner"),
    [(tiny_bert, "Encoder"), (tiny_gpt2, "Generator"), (tiny_t5, "Encoder"), (tiny_whisper, "Whisper")],
)
def test_ctranslate2_gives_the_results_of_the_module(make: Any, runner: str, ctranslate2: Told) -> None:
    row = run_rows(make, "ctranslate2")["ctranslate2"]
    assert (row.error, row.rms_ratio) == (None, 1.0)
    expected = {"device": "cpu", "compute_type": "float32", "inter_threads": 1, "intra_threads": 1}
    assert ctranslate2.runner == (runner, expected)
    assert row.settings["intra_threads"] == 1 and row.settings["ctranslate2_version"] == "7"
    assert ctranslate2.words == [str(i) for i in range(ctranslate2.model.config.vocab_size)]
    if make is tiny_t5:
        alone = ctranslate2.encoder_alone.config
        assert alone.words == ctranslate2.words and alone.layer_norm_epsilon == 1e-6


def test_a_conversion_is_kept_and_works_on_a_copy(ctranslate2: Told, tmp_path: Path) -> None:
    target, args = Model("tiny", "", tiny_bert).build()
    with torch.no_grad():
        want = target(*args)
        for kept in ("TransformersConverter", "cached file"):
            ready = BY_NAME["ctranslate2"].prepare(target, args, Context(2, "f32", tmp_path))
            assert ready.settings["converter"] == kept and ready.own_threads
            for got, wanted in zip(ready.outputs(ready.call(*ready.args)), want, strict=True):
                torch.testing.assert_close(got, wanted)
        assert ctranslate2.conversions == 1 and ctranslate2.runner[1]["intra_threads"] == 2
        del ctranslate2.model.encoder
        assert not hasattr(target.model.config, "position_embedding_type")
        torch.testing.assert_close(target(*args), want)


def test_ctranslate2_says_which_architectures_it_has(ctranslate2: Told) -> None:
    row = run_rows(lambda: (nn.Linear(4, 4), (torch.randn(2, 4),)), "ctranslate2")["ctranslate2"]
    assert "CTranslate2 has no such architecture: Linear (it has BertModel, " in (row.error or "")
    assert ctranslate2.conversions == 0


def test_modules_are_loaded_in_order_before_any_system_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def imports(name: str) -> None:
        order.append(name)
        if name == "broken":
            raise OSError("no such library")

    monkeypatch.setattr("smelt.bench.systems.importlib.import_module", imports)
    prepare = BY_NAME["eager"].prepare
    load_modules(
        [
            System("first", "", prepare, modules=("one", "broken", "never")),
            System("absent", "", prepare, packages=("no_such_package_at_all",), modules=("absent",)),
            System("last", "", prepare, modules=("two",)),
        ]
    )
    assert order == ["one", "broken", "two"]
    assert [s.name for s in systems()][-2:] == ["ctranslate2", "zentorch"]


def test_cpu_time_is_that_of_the_threads_which_compute() -> None:
    calls, own = Ready(int, ()), Ready(int, (), own_threads=True)
    assert measure._clock(calls, Plan(cpu_time=True)) is time.thread_time_ns
    assert measure._clock(own, Plan(cpu_time=True)) is time.process_time_ns
    assert measure._clock(own, Plan()) is time.perf_counter_ns


def test_the_best_peer_is_any_of_them() -> None:
    ratios = {"smelt": 3.0, "openvino": 1.0, "zentorch": 2.0, "ctranslate2": 1.5}
    rows = [Row("a", system, ratio_to_eager=ratio) for system, ratio in ratios.items()]
    assert report.to_best_peer(rows) == {"a": (1.5, "zentorch")}


def test_start_ups_know_the_wide_suite(tmp_path: Path) -> None:
    assert measure_startup("dlrm_b1", "eager", 1, "f32", tmp_path).cold_s > 0
