"""Where the time of a call goes: parts that add up, by the same rules in eager mode and compiled, and in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import smelt
from smelt.cli import app
from smelt.inspect import split
from smelt.inspect.split import ENTRY, GUARDS, REST, Split, Where, where_time_goes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_SECONDS", 0.0)


def where(function, *args: Tensor) -> Where:  # type: ignore[no-untyped-def]
    compiled = smelt.compile(function, options={"adaptive": False})
    with torch.no_grad():
        compiled(*args)
        compiled(*args)
    return where_time_goes(function, compiled, args, {})


def test_the_parts_of_a_call_are_named_by_what_they_compute_and_add_up() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)).eval()
    found = where(lambda x: model(x).sum(-1), torch.randn(4, 16))
    for one in (found.eager, found.smelt):
        assert one is not None
        assert sum(one.parts.values()) == pytest.approx(one.total_us)
        assert all(us > 0 for us in one.parts.values())
        assert 0 <= one.held <= 1
    assert found.eager is not None and found.smelt is not None
    assert {"products, torch's operators", "norms, torch's operators", "reductions, torch's operators"} < set(
        found.eager.parts
    )
    assert "products, own kernels" in found.smelt.parts
    assert not any("torch's" in name for name in found.smelt.parts)
    assert REST not in found.smelt.parts and not {GUARDS, ENTRY} & set(found.eager.parts)
    assert not found.missing
    rows = found.rows()
    assert {row["part"] for row in rows} == {*found.eager.parts, *found.smelt.parts}
    assert sum(row["eager %"] or 0 for row in rows) == pytest.approx(100)


def test_what_is_not_one_graph_of_one_plan_says_so() -> None:
    def noisy(x: Tensor) -> Tensor:
        print("here")
        return x.sin()

    found = where(noisy, torch.randn(4))
    assert found.smelt is None and found.eager is None
    assert len(found.missing) == 2
    assert found.rows() == []
    assert found.sentences()[-2:] == list(found.missing)


def test_sentences_answer_whether_python_is_slow() -> None:
    eager = Split(100.0, {"products, torch's operators": 60.0, REST: 40.0}, 40.0)
    ours = Split(10.0, {"products, own kernels": 8.0, GUARDS: 0.5, ENTRY: 1.5}, 2.0)
    assert Where(eager, ours, (1.1, 1.9)).sentences() == [
        "is Python slow? of eager's 100.0 µs a call, 40.0 µs (40%) are no operator's but Python's, the dispatcher's "
        "and autograd's: worth removing",
        "compiled, 2.0 µs of 10.0 µs (20%) are guards, entry and nodes in Python",
        "other threads wait for the GIL during 40% of a call in eager mode, 20% compiled; two threads at once make 1.1 "
        "times the calls of one in eager mode, 1.9 times compiled",
    ]
    assert "not the bottleneck" in Where(Split(100.0, {REST: 5.0}, 5.0), None).sentences()[0]
    assert "(too short to release it)" in Where(eager, Split(10.0, {ENTRY: 1.0}, 10.0)).sentences()[-1]
    busy = Where(eager, ours, is_busy=True).sentences()
    assert busy[0].startswith("busy machine") and "two threads" not in busy[-1]


def test_two_threads_at_once_are_counted() -> None:
    assert split._calls_a_second(lambda: None, 2, 0.01) > 0


def test_the_command_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import torch\ndef net(): return torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)\n")
    result = CliRunner().invoke(app, ["explain", f"{file}:net", "--profile", "--no-time"])
    assert result.exit_code == 0, result.output
    assert "Where the time of a call goes" in result.output
    assert "Python, dispatch, bookkeeping" in result.output
    assert "is Python slow?" in result.output
    without = CliRunner().invoke(app, ["explain", f"{file}:net", "--no-time"])
    assert "Where the time" not in without.output
