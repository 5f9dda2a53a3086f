"""What Smelt says when something is refused, falls back or changes: texts that a user can act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.unit import Unit
from smelt.diag import InternalError, Options, SmeltError, SmeltWarning
from smelt.runtime.machine.cache import CodeCache

torch.set_num_threads(1)


@pytest.mark.parametrize(("asked", "shown"), [
    ({"options": {"strict": True, "train": False}}, "leave out options={'strict': True}"),
    ({"fullgraph": True, "options": {"train": False}}, "leave out fullgraph=True"),
])  # fmt: skip
def test_the_fix_of_a_refused_fallback_can_be_done(asked: dict[str, Any], shown: str) -> None:
    linear = smelt.compile(torch.nn.Linear(2, 2), **asked)
    with pytest.raises(SmeltError) as error:
        linear(torch.ones(1, 2))
    assert error.value.code == "S0302"
    assert error.value.fix == (
        f"call it under torch.no_grad() or torch.inference_mode(), or leave out options={{'train': False}}, or {shown}"
    )
    doubled = smelt.compile(torch.sin, **asked)
    with pytest.raises(SmeltError) as error:
        doubled(torch.ones(2).to_sparse())
    assert error.value.fix == f"remove the cause, or {shown}"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (5, "options cannot be 5"),
        (["strict"], "they are a mapping"),
        ({"cache_limit_mb": -1}, "0 or more"),
        ({"stop_after": -2}, "0 or more"),
        ({"skip": "cse"}, "it takes a list of names"),
        ({"enable": 3}, "it takes a list of names"),
        ({"skip": [3]}, "it takes a list of names"),
        ({"stop_after": True}, "a number of passes"),
    ],
)
def test_wrong_options_are_refused_by_code(given: Any, shown: str) -> None:
    with pytest.raises(SmeltError) as error:
        Options.make(given)
    assert error.value.code == "S0301" and shown in str(error.value)


def test_lists_of_names_and_limits_are_taken() -> None:
    made = Options.make({"skip": ["cse"], "enable": ("x",), "stop_after": 0, "cache_limit_mb": 0})
    assert (made.skip, made.enable, made.stop_after, made.cache_limit_mb) == (("cse",), ("x",), 0, 0)


def test_a_refusing_disk_is_said_at_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(SmeltWarning, match="not cached on disk") as caught:
        CodeCache(str(tmp_path / "file" / "cache")).get("ab" * 32)
    assert caught[0].filename == __file__


def test_a_call_whose_compilation_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(unit: Unit) -> None:
        raise InternalError("no machine code today")

    monkeypatch.setattr(Unit, "prepare", fail)
    compiled = smelt.compile(lambda x: x * 2)
    with pytest.warns(SmeltWarning, match="no machine code today"), torch.no_grad():
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert compiled.stats().fallbacks == {"no machine code today": 1}
    with torch.no_grad():
        compiled(torch.ones(2))
    assert compiled.stats().fallbacks == {"no machine code today": 2}


def test_a_changed_parameter_is_named_and_our_wrappers_are_not() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    compiled, x = smelt.compile(model), torch.randn(2, 3, 8, 8)
    smelt.trace(model, x)
    with torch.no_grad():
        compiled(x)
        texts = [str(guard) for guard in compiled.stats().rows[0].guards.listed]
        model[1].running_mean.add_(2)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    assert texts == compiled.stats().to_dict()["entries"][0]["guards"]
    assert not [text for text in texts if "smelt" in text or "__wrapped__" in text]
    assert list(compiled.stats().guard_failures) == ["the contents of Sequential[1].running_mean were changed"]


def test_explain_does_not_ask_for_a_call_that_was_made() -> None:
    never = smelt.compile(torch.sin)
    assert "nothing has been compiled yet" in str(smelt.explain(never))
    with pytest.warns(SmeltWarning, match="sparse") as told:
        never(torch.ones(2).to_sparse()), never(torch.ones(2).to_sparse())
    assert len(told) == 1
    assert "Graphs: no graph: see Fallbacks" in str(smelt.explain(never))
    split = smelt.compile(lambda x: x * 2 if x.data_ptr() else x)
    with pytest.warns(SmeltWarning):
        split(torch.ones(2))
    report = smelt.explain(split)
    assert "Graphs: no graph: see Breaks and Fallbacks" in str(report)
    assert report.breaks[0]["why"] == split.stats().rows[0].reason
    assert report.fallbacks == [{"reason": "entry 0 is not compiled: see Breaks", "times": 1}]


def test_a_report_fits_a_page() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x - 1

    compiled = smelt.compile(scaled)
    for size in (2, 3, 3):
        compiled(torch.ones(size))
    text = str(smelt.explain(compiled))
    assert max(map(len, text.splitlines())) <= 100
    assert "nodes captured" in text and "how they run" in text


def test_what_runs_in_python_is_told_once_for_all_sizes() -> None:
    compiled = smelt.compile(lambda x, y: torch.linalg.eigvalsh(x @ x.mT) + torch.linalg.qr(x)[1].diagonal() * y)
    for size in (3, 4, 5):
        compiled(x=torch.eye(size), y=torch.ones(1))
    report = smelt.explain(compiled)
    assert [row["reason"] for row in report.fallbacks if "qr" in row["reason"]] == [
        "aten.linalg_qr.default runs in Python"
    ]
    assert report.graphs[0]["called with"] == "x and y by keyword"


def test_a_trace_says_what_is_given_by_keyword() -> None:
    def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y

    x, y = torch.ones(2), torch.ones(2)
    program = smelt.trace(difference, (x,), {"y": y})
    assert "called with 1 argument by position, y by keyword" in repr(program)
    assert smelt.explain(program).graphs[0]["called with"] == "1 argument by position, y by keyword"
    with pytest.raises(SmeltError) as error:
        program(x, y)
    assert "with the captured structure, y by keyword" in error.value.fix
    plain = smelt.trace(difference, (x, y))
    assert "keyword" not in repr(plain) and "called with" not in smelt.explain(plain).graphs[0]


def test_what_cannot_be_lowered_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise SmeltError("%0 = aten.add cannot be lowered", why="its operand is known at run time only", code="S0303")

    monkeypatch.setattr(Unit, "_kept_or_lowered", refused)
    compiled = smelt.compile(lambda x: x + 1)
    with pytest.warns(SmeltWarning, match="cannot be lowered: its operand is known at run time only"):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        compiled(torch.ones(2))
