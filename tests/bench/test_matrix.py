"""`smelt matrix`: cells of small programs in this process, rows of processes that fail, advice on made-up rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from smelt.bench.fresh import NoAnswerError, ask
from smelt.bench.matrix import run
from smelt.bench.matrix.advice import advice
from smelt.bench.matrix.cases import CASES
from smelt.bench.matrix.cell import Sizes, Times, compile_again, measure
from smelt.bench.matrix.configurations import CONFIGURATIONS, Configuration
from smelt.bench.matrix.program import Program, with_rows
from smelt.bench.matrix.report import table, text_of
from smelt.bench.matrix.rows import Clock, Matrix, Row, cell_of, read
from smelt.cli import app
from smelt.diag.console import console

BY_NAME = {configuration.name: configuration for configuration in CONFIGURATIONS}


def smelt(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


# --- one cell


def scaled(x: Tensor, factor: float, *, more: dict[str, Tensor]) -> list[Tensor]:
    return [torch.tanh(x * factor) + more["bias"], x.sum(1)]


PROGRAM = Program("scaled", scaled, (torch.randn(4, 7), 3.0), {"more": {"bias": torch.randn(7)}})


def cell(configuration: str, folder: Path, program: Program = PROGRAM, threads: tuple[int, ...] = (1,)):  # type: ignore[no-untyped-def]
    return measure(program, BY_NAME[configuration], folder, threads, 0.01)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["eager", "smelt", "jit-trace"])
def test_a_cell_of_nested_arguments_has_times_errors_and_other_sizes(name: str, tmp_path: Path) -> None:
    found = cell(name, tmp_path, threads=(1, 2) if name == "eager" else (1,))
    assert found.error <= 1e-6
    assert [t.threads for t in found.times] == ([1, 2] if name == "eager" else [1])
    assert all(t.wall_ms > 0 and t.eager_wall_ms > 0 and t.rounds >= 5 for t in found.times)
    assert found.compile_s > 0
    assert found.sizes is not None
    assert found.sizes.note == ""
    assert found.sizes.builds == (1 if name == "smelt" else None)  # the second build serves all sizes
    assert cell_of(json.loads(json.dumps(found.to_dict()))) == found


def test_a_second_process_finds_what_the_first_one_kept(tmp_path: Path) -> None:
    cell("jit-trace-frozen", tmp_path, Program("lerp", nn.Linear(4, 4).eval(), (torch.randn(2, 4),)))
    assert (tmp_path / "traced.pt").exists()
    found = compile_again(PROGRAM, BY_NAME["jit-trace"], tmp_path, 1)
    assert set(found) == {"warm_s", "warm_cpu_s"}


@pytest.mark.parametrize("name", ["eager", "smelt"])
def test_a_step_of_training_is_compared_on_its_loss_and_gradients(name: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    program = Program("net", model, (torch.randn(3, 6),), trains=True)
    found = cell(name, tmp_path, program)
    assert found.error <= 1e-5
    assert found.times[0].wall_ms > 0
    assert found.sizes is None  # other sizes would change what is trained


def test_results_that_differ_and_calls_that_fail_with_other_sizes_are_told(tmp_path: Path) -> None:
    def one_size(target, args, context):  # type: ignore[no-untyped-def]
        from smelt.bench.systems import Ready

        def call(x: Tensor) -> Tensor:
            if x.shape[0] != 4:
                raise RuntimeError("made for 4 rows")
            return target(x) + 1

        return Ready(call, args)

    program = Program("relu", torch.relu, (torch.randn(4, 3),))
    found = measure(program, Configuration("one", "", one_size), tmp_path, (1,), 0.01)
    assert found.error > 0.1
    assert found.sizes is not None
    assert "2 times the rows" in found.sizes.note and "made for 4 rows" in found.sizes.note


def test_every_use_case_runs(tmp_path: Path) -> None:
    assert len(CASES) == 6
    for case in CASES:
        if case.needs:
            continue  # large: `smelt matrix` itself builds them
        target, args = case.build()
        with torch.set_grad_enabled(case.trains):
            assert all(torch.isfinite(t).all() for t in torch.utils._pytree.tree_leaves(target(*args)))
            if not case.trains:
                target(*with_rows(args, 2))


# --- processes


def test_a_process_that_fails_or_takes_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match="process ended with code 0"):
        ask("this", {}, tmp_path, 20)
    with pytest.raises(NoAnswerError, match="No module named"):
        ask("there_is_none", {}, tmp_path, 20)
    with pytest.raises(NoAnswerError, match="no result after 0 s"):
        ask("smelt.cli.matrix_cell", {}, tmp_path, 0.05)


def test_each_configuration_that_gives_nothing_is_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(module: str, request: dict, cache_dir: Path, limit_s: float) -> dict:  # type: ignore[type-arg]
        asked.append((request["configuration"], request["again"]))
        if request["configuration"] == "jit-script":
            raise NoAnswerError("RuntimeError: no type")
        if request["again"]:
            raise NoAnswerError("no result after 3 s")
        return {
            "compile_s": 1.0, "compile_cpu_s": 1.0, "compile_mb": None, "run_mb": None, "error": 0.0,
            "times": [], "sizes": None, "settings": {},
        }  # fmt: skip

    monkeypatch.setattr(run, "ask", answer)
    chosen = [
        BY_NAME["jit-script"], BY_NAME["smelt"], BY_NAME["onnxruntime"],
        Configuration("absent", "", BY_NAME["smelt"].prepare, packages=("there_is_none",)),
    ]  # fmt: skip
    request = run.Request("m", "p", True, (1,), 0.1, 3.0)
    script, ours, onnx, absent = run.rows(request, chosen)
    assert script.problem == "RuntimeError: no type" and script.compile_s is None
    assert ours.compile_s == 1.0 and "second process" in ours.problem
    assert "inference only" in onnx.problem
    assert "there_is_none" in absent.problem
    assert asked == [("jit-script", False), ("smelt", False), ("smelt", True)]


@pytest.mark.nightly
def test_the_command_end_to_end(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("import torch\ndef net(): return torch.nn.Linear(8, 8).eval(), torch.randn(4, 8)\n")
    result = smelt(
        "matrix", f"{model}:net", "--only", "smelt", "--only", "compile", "--only", "onnxruntime-dynamic",
        "--only", "openvino", "--seconds", "0.05", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (kept,) = (tmp_path / "out").glob("*.json")
    whole = read(kept)
    assert [row.configuration for row in whole.rows] == ["eager", "smelt", "compile", "onnxruntime-dynamic", "openvino"]
    assert all(row.error is not None and row.error < 1e-4 and len(row.times) == 2 for row in whole.rows), whole
    assert whole.advice[0].startswith(("Take ", "Stay with "))
    assert kept.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert smelt("matrix", "--from", str(kept)).output.count("openvino") >= 1


# --- advice


def row(name: str, ms: float, compile_s: float, error: float = 1e-7, **more) -> Row:  # type: ignore[no-untyped-def]
    times = [Times(1, ms, ms, 10.0, 10.0, 9, 0.0), Times(2, ms / 2, ms, 5.0, 10.0, 9, 0.0)]
    fields = {"compile_s": compile_s, "compile_cpu_s": compile_s, "warm_s": compile_s / 10, "run_mb": 10.0}
    return Row(name, f"how({name})", error=error, times=times, **{**fields, "sizes": Sizes(0, 0.0), **more})


EAGER = row("eager", 10.0, 0.0, 0.0)
ONE = Clock(1)


def told(*rows: Row) -> str:
    return "\n".join(advice([EAGER, *rows], ONE))


def test_of_the_fastest_ones_the_one_that_compiles_soonest_is_advised() -> None:
    text = told(row("slow-to-compile", 4.0, 20.0), row("soon", 4.1, 1.0), row("little", 8.0, 0.1))
    first, second, third, fourth, *_ = text.splitlines()
    assert first == (
        "Take soon, that is how(soon): a call takes 4.1 ms on 1 thread, 2.44 times as fast as eager, and results "
        "differ from eager's by 1e-07."
    )
    assert "slow-to-compile is as fast within 5%" in second and "after 1.0 s" in second and "after 20.0 s" in second
    assert third.startswith("It pays from 170 calls of a process on, and from 17 where")
    assert fourth.startswith("A process that makes from 50 to 231 calls is served soonest by little")


def test_what_eager_beside_itself_shows_as_noise_decides_nothing() -> None:
    noisy = replace(EAGER, times=[Times(1, 12.0, 12.0, 10.0, 10.0, 9, 0.0)])
    text = "\n".join(advice([noisy, row("first", 4.0, 20.0), row("soon", 4.7, 1.0)], ONE))
    assert text.startswith("Take soon") and "first is as fast within 20%" in text
    assert "eager reaches" not in text


def test_where_nothing_is_faster_eager_stays() -> None:
    text = told(row("smelt", 9.8, 2.0))
    assert text.startswith("Stay with eager: a call takes 10 ms on 1 thread, and nothing is faster by 5%")
    assert "smelt, is 1.02 times as fast" in text


def test_wrong_inexact_and_failed_ones_are_not_advised_but_told() -> None:
    failed = Row("jit-script", "", problem="no type")
    bf16 = row("smelt-bf16", 2.0, 1.0, 3e-3, exact=False)
    text = told(row("smelt", 5.0, 1.0), row("wrong", 1.0, 1.0, 0.5), bf16, failed)
    assert text.startswith("Take smelt")
    assert "wrong gives other results than eager (error 5e-01)." in text
    assert "If an error of 3e-03 is good enough, smelt-bf16 is 2.50 times as fast again." in text
    assert "No times for jit-script: their rows say why." in text


def test_sizes_and_memory_are_part_of_it() -> None:
    often = row("compile", 4.0, 9.0, sizes=Sizes(2, 30.0), run_mb=900.0, compile_mb=2000.0)
    text = told(often, row("smelt", 5.0, 1.0, sizes=Sizes(1, 1.0)))
    assert "compiled 2 times more (30.0 s); smelt took 1.0 s for the same, and is 2.00 times as fast" in text
    assert "reach 900 MB above the program alone, compiling 2000 MB." in text
    assert "smelt reaches 10 MB" in text
    fixed = row("onnxruntime", 4.0, 1.0, sizes=Sizes(None, 0.0, note="made for one size"))
    assert "does not serve (made for one size)" in told(fixed)


def test_eager_without_times_is_said() -> None:
    assert advice([Row("eager", "", problem="no memory")], ONE) == [
        "Nothing can be said: eager has no times. no memory"
    ]


def test_the_file_reads_back_and_the_table_has_every_row(tmp_path: Path) -> None:
    rows = [EAGER, row("smelt", 5.0, 1.0, float("inf")), Row("jit-script", "", problem="no type [x]", times=[])]
    whole = Matrix("p", "s", replace(ONE, cpu=True), rows, {"cpu": "C"}, 1.0, ["Take it."])
    whole.write(tmp_path / "p.json")
    assert read(tmp_path / "p.json") == whole
    wide = console(width=200)
    with wide.capture() as shown:
        wide.print(table(whole))
    assert all(word in shown.get() for word in ("eager", "smelt", "no type [x]", "2.00", "200"))
    assert "other work ran meanwhile" in text_of(whole)
    assert "--cpu-time" in text_of(replace(whole, clock=ONE, load=3.0))
    assert "other work" not in text_of(replace(whole, clock=ONE))
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(ValueError, match="not what `smelt matrix` wrote"):
        read(tmp_path / "bad.json")


def test_the_command_says_no_before_it_measures(tmp_path: Path) -> None:
    for args, message in (
        (("matrix",), "name a program, or one of"),
        (("matrix", "tabular", "--only", "magic"), "there is no 'magic'"),
        (("matrix", "tabular", "--cpu-time", "--threads", "2"), "add --threads 1"),
        (("matrix", "--from", str(tmp_path / "none.json")), "cannot be read"),
        (("matrix", "nothing"), "is not a target"),
    ):
        result = smelt(*args)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.output.replace("│", " ").split())
