"""Generated Python of graphs with regions and Python's operators: runs as the evaluator, and reads like a program."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.codegen.python import python_source
from smelt.ir import Graph, parse
from smelt.ops.convert import strided_copy
from smelt.ops.evaluate import evaluate


def _programs() -> Any:
    path = Path(__file__).parent.parent / "passes" / "region_programs.py"
    spec = importlib.util.spec_from_file_location("tests_codegen_region_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


programs = _programs()


def forward_of(graph: Graph) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(python_source(graph), "generated.py", "exec"), namespace)
    return namespace["forward"]


def copies(items: list[Any]) -> list[Any]:
    return [strided_copy(i) if isinstance(i, torch.Tensor) else i for i in items]


def outcome(run: Any) -> tuple[Any, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            found: Any = list(run())
        except Exception as error:
            found = type(error)
    return found, printed.getvalue()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) and a.dtype == b.dtype
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(st.data())
def test_any_graph_runs_as_the_evaluator(data: st.DataObject) -> None:
    program = programs.write(lambda items: data.draw(st.sampled_from(list(items))))
    forward = forward_of(program.graph)
    mine, theirs = copies(program.inputs), copies(program.inputs)
    state, other = ({k: v.clone() for k, v in program.state.items()} for _ in range(2))
    found, printed = outcome(lambda: forward(state, *mine))
    expected, text = outcome(lambda: evaluate(program.graph, theirs, lambda kind, path: other[path]))
    assert printed == text
    assert same(found, expected), python_source(program.graph)
    assert same(mine, theirs) and same(list(state.values()), list(other.values()))


CALLS = [
    "py.pow(-2, 2)", "py.sub(-1, -2)", "py.neg(-1)", "py.not_(0)", "py.invert(3)", "py.in_(1, [1, 2])",
    'py.is_none(None)', "py.list(1, [2])", "py.tuple(1)", "py.tuple()", "py.tuple(1, 2)", 'py.dict("a", 1)',
    "py.append([1], 2)", "py.getitem([1, 2], -1)", "py.slice([1, 2, 3], 1)", "py.slice([1, 2, 3], None, -1)",
    "py.slice([1, 2, 3], None, None, -1)", 'py.join("a", "b")', 'py.format(3.14159, ".2f")',
    'py.format("x", ">3", "r")',
    "py.format(2)", 'py.call("math.sqrt", 2.0)', 'py.call("builtins.zip", [1], [2])', 'py.call("str.upper", "a")',
    'py.call("builtins.sorted", [2, 1], reverse=True)', "py.setitem([1, 2], 0, 3)", "py.delitem([1, 2], 0)",
    "py.insert([1], 0, 3)", "py.min(1, 2)", "py.max([1, 2])", "py.round(2.5)", "py.mod(-7, 3)", "py.complex(1, 2)",
    "py.and_(True, False)", "py.lt(1, 2)", "py.eq(nan, nan)", "py.mul([1], 2)", "py.bool([])", "py.str(-0.0)",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_each_operator(call: str) -> None:
    graph = parse(f"graph g() -> any {{\n  %a: any = {call}\n  return %a\n}}")
    assert same(list(forward_of(graph)({})), evaluate(graph, []))


def test_it_reads_like_a_program() -> None:
    graph = parse("""graph f(%x: f32[4], %n: int) -> f32[4], list[int] {
      %c: bool = py.gt(%n, 0)
      %y: f32[4] = if %c {
        py.print("up", %n, end="!")
        %a: f32[4] = aten.add.Tensor(%x, %n)
        yield %a
      } else {
        py.raise("builtins.ValueError", "down", cause="None")
        yield %x
      }
      %z: f32[4], %l: list[int] = for %i: int in (0, %n, 1) with (%h: f32[4] = %y, %k: list[int] = []) {
        %h2: f32[4] = aten.mul.Tensor(%h, 2)
        %k2: list[int] = py.append(%k, %i)
        yield %h2, %k2
      }
      return %z, %l
    }""")
    source = python_source(graph)
    lines = [line.split("  #")[0].rstrip() for line in source.splitlines()]
    start = lines.index("def forward(state, x, n):")
    assert lines[start:] == [
        "def forward(state, x, n):",
        "    c = n > 0",
        "    if c:",
        "        print('up', n, end='!')",
        "        a = aten.add.Tensor(x, n)",
        "        y = a",
        "    else:",
        "        raise ValueError('down') from None",
        "        y = x",
        "    h, k = y, []",
        "    for i in range(0, n, 1):",
        "        h2 = aten.mul.Tensor(h, 2)",
        "        k2 = [*k, i]",
        "        h, k = h2, k2",
        "    z, l = h, k",
        "    return (z, l,)",
    ]
    z, items = forward_of(graph)({}, torch.ones(4), 2)
    assert z.tolist() == [12.0] * 4 and items == [0, 1]
    with pytest.raises(ValueError, match="down"):
        forward_of(graph)({}, torch.ones(4), 0)


def test_errors_of_other_modules_and_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    graph = parse("""graph f() -> () {
      py.print("bad", stream="stderr")
      py.raise("json.decoder.JSONDecodeError", "m", "doc", 0)
      return
    }""")
    with pytest.raises(ValueError, match="m: line 1") as caught:
        forward_of(graph)({})
    assert type(caught.value).__name__ == "JSONDecodeError"
    assert capsys.readouterr().err == "bad\n"


def test_popped_values_and_names_of_builtins() -> None:
    graph = parse("""graph f(%list: list[int], %len: int) -> list[int], int, int {
      %rest: list[int], %print: int = py.pop(%list, 0)
      %n: int = py.len(%rest)
      return %rest, %print, %n
    }""")
    assert forward_of(graph)({}, [1, 2], 0) == ([2], 1, 1)
