"""`smelt run`, `show`, `bench` and `diff` of saved programs, as a user types them."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.cli import app
from smelt.runtime.ingot.manifest import FORMAT
from tests.ingots.corpus import FOLDER
from tests.ingots.programs import Mlp, structured


def call(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Mlp, torch.Tensor]:
    model, x = Mlp().eval(), torch.randn(3, 16)
    smelt.trace(model, (x,)).save(tmp_path / "m.ingot", extra_files={"note.txt": b"hello"})
    np.save(tmp_path / "x.npy", x.numpy())
    return tmp_path / "m.ingot", model, x


def test_run(saved: tuple[Path, Mlp, torch.Tensor]) -> None:
    path, model, x = saved
    folder = path.parent
    code, shown = call("run", path, "--input", f"0={folder / 'x.npy'}", "--output", folder / "out.npz")
    assert code == 0 and "out: float32[3, 5]" in shown
    with np.load(folder / "out.npz") as found:
        torch.testing.assert_close(torch.from_numpy(found["out"]), model(x).detach())


def test_run_names_what_is_missing(saved: tuple[Path, Mlp, torch.Tensor]) -> None:
    path, _, _ = saved
    for args, names in (
        ((), "--input 0=FILE.npy"),
        (("--input", "y=x.npy"), "no input 'y'"),
        (("--input", "0=nothing.npy"), "cannot be read"),
        (("--entry", "other"), "no entry point 'other'"),
    ):
        code, shown = call("run", path, *args)
        assert code == 2 and names in " ".join(shown.replace("│", "").split())
    with pytest.raises(smelt.SmeltError, match="there is no file"):
        call("run", "nowhere.ingot")


def test_run_with_nested_arguments_and_results(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    args = ({"a": x, "b": (x + 1, x - 1)},)
    smelt.trace(structured, args, {"scale": 2.0}).save(tmp_path / "m.ingot")
    for name, tensor in zip("abc", (x, x + 1, x - 1), strict=True):
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
    places = ("args[0]['a']", "args[0]['b'][0]", "args[0]['b'][1]")
    given = [f"--input={p}={tmp_path / n}.npy" for p, n in zip(places, "abc", strict=True)]
    code, _ = call("run", tmp_path / "m.ingot", *given, "--output", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as found:
        assert code == 0 and "out.0.total" in found and "out.1.same.0" in found


def test_show(saved: tuple[Path, Mlp, torch.Tensor]) -> None:
    path, _, _ = saved
    code, shown = call("show", path)
    assert code == 0
    for text in ("forward(0: float32[3, 16])", "avx2, avx512, neon", "up.weight", "extra/note.txt"):
        assert text in shown
    assert "graph " not in shown and "aten.gelu" in call("show", path, "--full")[1]


def test_bench(saved: tuple[Path, Mlp, torch.Tensor]) -> None:
    threads = torch.get_num_threads()
    code, shown = call("bench", saved[0], "--threads", threads)
    assert code == 0 and "first call" in shown and "load" in shown


def test_diff(saved: tuple[Path, Mlp, torch.Tensor]) -> None:
    path, model, x = saved
    other = path.with_name("other.ingot")
    assert call("diff", path, path) == (0, "the programs are equal\n")
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.up.bias[0] += 1
    smelt.trace(changed, (x,)).save(other, targets=[])
    code, shown = call("diff", path, other)
    assert code == 1 and "param up.bias: differs by up to 1.0" in shown and "extra/note.txt" in shown
    smelt.trace(torch.nn.Sequential(changed.up), (x,)).save(other, targets=[])
    code, shown = call("diff", path, other)
    assert code == 1 and "-  %" in shown and "- param down.weight" in shown


def test_free_sizes_and_training_steps_are_shown(tmp_path: Path) -> None:
    show = " ".join(call("show", FOLDER / str(FORMAT) / "free.ingot")[1].split())
    assert "forward(0: float32[rows, 3]) rows is free, from 1 on" in show
    code, timed = call("bench", FOLDER / str(FORMAT) / "free.ingot")
    assert code == 0 and "first call" in timed
    assert "is a training step" in call("show", FOLDER / str(FORMAT) / "step.ingot")[1]
    with pytest.raises(smelt.SmeltError, match="cannot be exported to C"):
        call("export", FOLDER / str(FORMAT) / "free.ingot", "--out", tmp_path)
