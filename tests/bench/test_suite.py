"""One model through the suite with systems that work, fail, lie, are missing or are slow."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.bench import report
from smelt.bench.competing import competing_process
from smelt.bench.measure import Plan
from smelt.bench.models import MODELS, Model
from smelt.bench.rows import Row, as_json, merge, read, write
from smelt.bench.startup import startup_pair
from smelt.bench.suite import Suite, Watch, run
from smelt.bench.systems import Context, Ready, System, systems
from smelt.bench.wide.wide_models import WIDE_MODELS

PLAN = Plan(repeats=3, sample_ms=0.05, budget_s=2.0)
EAGER = next(s for s in systems() if s.name == "eager")


def model(name: str) -> Any:
    return next(m for m in MODELS if m.name == name)


def run_rows(*extra: System, **options: Any) -> dict[str, Row]:
    settings: dict[str, Any] = {"threads": 1, "plan": PLAN, "one_thread": False, **options}
    (rows,) = run(Suite((model("lerp200"),), (EAGER, *extra), **settings))
    return {r.system: r for r in rows}


def test_a_failing_system_gets_a_row_and_the_others_go_on() -> None:
    def refuses(target: Any, args: Any, context: Context) -> Ready:
        raise RuntimeError("cannot do\n this")

    rows = run_rows(System("refuses", "", refuses))
    assert rows["refuses"].error == "RuntimeError: cannot do this"
    assert rows["refuses"].median_ms is None
    assert rows["eager"].median_ms is not None


def test_a_system_that_fails_while_timed_keeps_a_row() -> None:
    calls = 0

    def tires(target: Any, args: Any, context: Context) -> Ready:
        def call(*call_args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 5:
                raise ValueError("enough")
            return target(*call_args)

        return Ready(call, args)

    assert run_rows(System("tires", "", tires))["tires"].error == "ValueError: enough"


def test_a_missing_package_is_said() -> None:
    rows = run_rows(System("absent", "", EAGER.prepare, packages=("no_such_package_at_all",)))
    assert "no_such_package_at_all" in (rows["absent"].error or "")
    assert rows["absent"].median_ms is None


def test_wrong_shapes_are_an_error_and_wrong_numbers_are_shown() -> None:
    def halves(target: Any, args: Any, context: Context) -> Ready:
        return Ready(lambda *a: target(*a)[:100], args)

    def adds(target: Any, args: Any, context: Context) -> Ready:
        return Ready(lambda *a: target(*a) + 1, args)

    rows = run_rows(System("halves", "", halves), System("adds", "", adds))
    assert "shapes" in (rows["halves"].error or "")
    assert rows["halves"].median_ms is None
    assert rows["adds"].max_abs_err == pytest.approx(1.0, rel=1e-5)
    assert (rows["adds"].rms_ratio or 0) > 1e5


def test_a_slow_preparation_is_cut_off() -> None:
    def sleeps(target: Any, args: Any, context: Context) -> Ready:
        time.sleep(30)
        return Ready(target, args)

    rows = run_rows(System("sleeps", "", sleeps), prepare_budget_s=0.2)
    assert "not ready after" in (rows["sleeps"].error or "")


def test_one_thread_line_and_progress_steps() -> None:
    steps: list[str] = []
    suite = Suite((model("lstm"),), (EAGER,), threads=2, plan=PLAN)
    before = torch.get_num_threads()
    (rows,) = run(suite, Watch(steps.append))
    assert torch.get_num_threads() == before
    assert len(steps) <= suite.steps_per_model()
    by_system = {r.system: r for r in rows}
    assert set(by_system) == {"eager", "gemm-library", "fma-floor"}
    assert all(r.one_thread_ms is not None and r.one_thread_ms > 0 for r in rows)
    assert by_system["eager"].gflop == pytest.approx(32 * 2 * (64 + 128) * 512 / 1e9)
    assert by_system["gemm-library"].settings["calls"] == 64
    assert by_system["eager"].faults_per_call is not None
    assert by_system["eager"].load_average is not None


@pytest.mark.nightly
def test_start_ups_in_fresh_processes(tmp_path: Path) -> None:
    pair = startup_pair("lerp200", "jit", 1, "f32", tmp_path, 120.0)
    assert pair.error is None
    assert pair.cold is not None
    assert pair.warm is not None
    assert pair.cold.cold_s > 0
    assert pair.cold.peak_mb >= pair.cold.base_mb > 10
    assert (tmp_path / "traced.pt").exists()


def test_what_was_kept_is_read_and_not_written_again(tmp_path: Path) -> None:
    jit = next(s for s in systems() if s.name == "jit")
    target, args = model("lstm").build()
    first = jit.prepare(target, args, Context(1, "f32", tmp_path))
    assert first.keep is not None
    first.keep()
    second = jit.prepare(target, args, Context(1, "f32", tmp_path))
    assert second.keep is None
    for got, want in zip(second.outputs(second.call(*args)), target(*args), strict=True):
        torch.testing.assert_close(got, want)


def test_a_start_up_over_its_budget_is_ended(tmp_path: Path) -> None:
    pair = startup_pair("lerp200", "eager", 1, "f32", tmp_path, 0.05)
    assert pair.cold is None
    assert "no result after" in (pair.error or "")


def test_smelt_is_listed_by_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt, "compile", lambda target, options: target, raising=False)
    ours = next(s for s in systems() if s.name == "smelt")
    rows = run_rows(ours)
    assert rows["smelt"].median_ms is not None


def test_rows_survive_a_file_and_merge_by_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.json"
    old = [Row("a", "x", median_ms=1.0), Row("b", "x", median_ms=float("nan"))]
    write(old, path)
    back = read(path)
    assert [r.key for r in back] == [r.key for r in old]
    merged = merge(back, [Row("a", "x", median_ms=2.0), Row("a", "x", "bf16")])
    assert (merged[0].key, merged[0].median_ms) == (("a", "f32", "x", False), 2.0)
    assert len(merged) == 3
    assert '"nan"' in as_json(old)
    assert not list(path.parent.glob(".rows.json-*"))


def test_no_plot_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no row" in report.plot([Row("a", "x")], tmp_path / "p.png")
    monkeypatch.setattr(report, "missing", lambda packages: "not installed: matplotlib")
    assert "matplotlib" in report.plot([Row("a", "x", ratio_to_eager=2.0)], tmp_path / "p.png")
    assert not (tmp_path / "p.png").exists()


def test_rows_beside_a_competing_process_are_their_own() -> None:
    rows = run_rows(competing=True)
    assert all(r.competing for r in rows.values())
    assert rows["eager"].median_ms is not None
    assert "competing_core" in rows["eager"].settings
    assert rows["eager"].label == "lerp200 (busy)"
    alone = Row("lerp200", "eager")
    assert len(merge([alone], [rows["eager"]])) == 2


def test_the_competing_process_ends_with_the_block() -> None:
    def spins(pid: int) -> bool:
        return Path(f"/proc/{pid}").exists()

    before = _children()
    with pytest.raises(KeyError), competing_process() as core:
        assert core is None or core in os.sched_getaffinity(0)
        (pid,) = _children() - before
        assert spins(pid)
        raise KeyError
    assert not spins(pid)


def _children() -> set[int]:
    return {int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_mixed_rows_have_their_own_systems_and_errors() -> None:
    def prepares(target: Any, args: Any, context: Context) -> Ready:
        assert context.dtype == "mixed"
        return Ready(lambda *a: target(*(t.bfloat16() for t in a)).float(), args)

    own = System("own", "", prepares, dtypes=frozenset({"mixed"}))
    f32_only = System("f32-only", "", prepares)
    rows = run_rows(own, f32_only, dtypes=("mixed",))
    assert {"eager", "own"} <= rows.keys()
    assert "f32-only" not in rows
    assert rows["eager"].rms_ratio == 1.0
    assert (rows["own"].rms_ratio or 0) > 100
    assert {s.name for s in systems() if "mixed" in s.dtypes} == {"eager", "smelt", "autocast", "openvino"}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["gpt2_decode", "llama_decode"])
def test_one_token_grows_the_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A hundred million normal numbers take seconds, and which they are shows in nothing that is compared here.
    monkeypatch.setattr(torch.nn.init, "_no_grad_normal_", lambda tensor, *rest: tensor.data.fill_(0.01))
    target, (token, position, *past) = model(name).build()
    with torch.no_grad():
        logits, *grown = target(token, position, *past)
    assert logits.shape[:2] == (1, 1)
    assert len(grown) == len(past)
    for new, old in zip(grown, past, strict=True):
        assert new.shape[-2] == old.shape[-2] + 1 == 129
        assert torch.equal(new[:, :, :-1], old)


def test_a_program_that_mostly_reads_weights_gets_a_read_floor() -> None:
    tiny = Model("tiny", "", lambda: (torch.nn.Linear(64, 32), (torch.rand(1, 64),)))
    suite = Suite((tiny,), (EAGER,), threads=1, plan=PLAN, one_thread=False)
    (rows,) = run(suite)
    (floor,) = [r for r in rows if r.system == "read-floor"]
    assert floor.settings["bytes_read"] == 64 * 32 * 4
    assert floor.median_ms is not None


def test_ratios_to_the_best_peer_are_sorted_and_drawn(tmp_path: Path) -> None:
    rows = [
        Row(model, system, ratio_to_eager=ratio)
        for model, ratios in {"a": (2.0, 1.0, 1.5), "b": (1.0, 2.0, 0.5), "c": (None, 1.0, 1.0)}.items()
        for system, ratio in zip(("smelt", "openvino", "fma-floor"), ratios, strict=True)
    ]
    assert report.to_best_peer(rows) == {"b": (0.5, "openvino"), "a": (2.0, "openvino")}
    assert report.ranking(rows, tmp_path / "r.svg") == "" and (tmp_path / "r.svg").stat().st_size
    assert "no model" in report.ranking(rows[6:], tmp_path / "none.svg") and not (tmp_path / "none.svg").exists()


def test_turns_begin_with_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("smelt.bench.measure.time.sleep", rests.append)
    run_rows(plan=Plan(repeats=3, sample_ms=0.05, budget_s=2.0, blocks=False, rest_ms=20.0))
    assert len(rests) >= 3 and set(rests) == {0.02}


def test_the_wide_suite_has_each_kind_for_one_and_for_eight() -> None:
    names = [m.name for m in WIDE_MODELS]
    assert len(names) == len(set(names)) >= 48 and not {m.name for m in MODELS} & set(names)
    for name in ("rnn_module", "dlrm", "tcn"):
        target, args = next(m for m in WIDE_MODELS if m.name == f"{name}_b8").build()
        assert len(args[0]) % 8 == 0 and len(target(*args)) == len(args[0])
