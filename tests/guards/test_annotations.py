"""Annotations that a program reads or changes, and others between its calls: as in eager mode on each Python.

From Python 3.14 on they are computed at the first read.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import smelt

_IMPORTS = "import dataclasses, functools, inspect, sys, torch, typing\n"
_FUNCTION, _CLASS, _MODULE = "def g(a: int): pass", "class g: a: int", "a: int = 3\ng = sys.modules[__name__]"
_NOTED = "g.__annotations__.get('k', 1)"
# By name: what stands before the program, what it does to find a number, what others do between calls.
_READS = {
    "item of a function": (_FUNCTION, f"k = {_NOTED}", ("g.__annotations__['k'] = 5", "g.__annotations__ = {'k': 6}")),
    "item of a class": (_CLASS, f"k = {_NOTED}", ("g.__annotations__['k'] = 5", "g.__annotations__ = {'k': 6}")),
    "item of a module": (_MODULE, f"k = {_NOTED}", ("g.__annotations__['k'] = 5", "g.__annotations__ = {'k': 6}")),
    "class without": ("class g: pass", f"k = {_NOTED}", ("g.__annotations__ = {'k': 5}",)),
    "method": ("class G:\n  def m(self): pass\no = G()", f"g = o.m; k = {_NOTED}", ("G.m.__annotations__['k'] = 5",)),
    "own": ("", "k = f.__annotations__.get('k', 1)", ("f.__annotations__['k'] = 5",)),
    "by name": (_FUNCTION, "k = len(getattr(g, '__annotations__'))", ("g.__annotations__ = {}",)),
    "signature": (_FUNCTION, "k = len(str(inspect.signature(g)))", ("g.__annotations__ = {'a': 'longer'}",)),
    "hints": (_CLASS, "k = len(typing.get_type_hints(g))", ("g.__annotations__ = {}",)),
    "global in one": (
        "K = 3\ndef g(a: K): pass",
        "k = g.__annotations__['a']",
        ("K = 4", "g.__annotations__['a'] = 9"),
    ),
}
_ONE_MORE = "k = g.__annotations__.get('n', 0) + 1; "
_WRITES = {
    "item of a function": (_FUNCTION, _ONE_MORE + "g.__annotations__['n'] = k", ("g.__annotations__['n'] = 10",)),
    "another of a function": (
        _FUNCTION,
        _ONE_MORE + "g.__annotations__ = {'n': k}",
        ("g.__annotations__ = {'n': 10}",),
    ),
    "none of a function": (
        _FUNCTION,
        "k = len(g.__annotations__); del g.__annotations__",
        ("g.__annotations__ = {1: 2}",),
    ),
    "item of a class": (_CLASS, _ONE_MORE + "g.__annotations__['n'] = k", ("g.__annotations__['n'] = 10",)),
    "another of a class": (_CLASS, _ONE_MORE + "g.__annotations__ = {'n': k}", ("g.__annotations__ = {'n': 10}",)),
    "item of a module": (_MODULE, _ONE_MORE + "g.__annotations__['n'] = k", ("g.__annotations__['n'] = 10",)),
    "of one made there": (
        "",
        "\n    def g(a: 3): pass\n    g.__annotations__['b'] = 4\n    k = sum(g.__annotations__.values())",
        (),
    ),
    "name of a class": (_CLASS, "k = len(g.__name__); g.__name__ += 'a'", ("g.__name__ = 'longer'",)),
    "bases of a class": (
        "class A: k = 1\nclass B: k = 2\nclass g(A): pass",
        "k = g.k; g.__bases__ = (B,)",
        ("g.__bases__ = (A,)",),
    ),
}
_FROM_314 = {
    "function that computes": (_FUNCTION, "k = len(g.__annotations__)", ("g.__annotate__ = lambda format: {}",)),
    "class that computes": (_CLASS, "k = len(g.__annotations__)", ("g.__annotate__ = lambda format: {}",)),
    "computed by hand": (_FUNCTION, "k = len(g.__annotate__(1))", ("g.__annotate__ = lambda format: {}",)),
    "set": (_FUNCTION, "k = len(g.__annotations__); g.__annotate__ = lambda format: {1: 2, 3: 4}", ()),
}


def _loaded(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", [_READS, _WRITES, _FROM_314], ids=["read", "written", "computed"])
def test_annotations(cases: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (case, (before, first, changes)) in enumerate(cases.items()):
        if cases is _FROM_314 and sys.version_info < (3, 14):
            continue
        path = tmp_path / f"annotated_{number}.py"
        path.write_text(f"{_IMPORTS}{before}\ndef f(x):\n    {first}\n    return x * k\n")
        eager, other = (_loaded(path, f"{path.stem}_{name}", monkeypatch) for name in ("eager", "smelt"))
        compiled, x = smelt.compile(other.f), torch.ones(())
        with torch.no_grad():
            for change in ("pass", *changes):
                exec(change, vars(eager))
                exec(change, vars(other))
                for _ in range(3):
                    assert float(compiled(x)) == float(eager.f(x)), (case, change)


def test_a_program_that_reads_a_signature_is_compiled_at_once() -> None:
    def named(a: torch.Tensor, b: int = 2) -> None: ...

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(inspect.signature(named).parameters)

    compiled = smelt.compile(program, fullgraph=True)
    with torch.no_grad():
        assert [float(compiled(torch.ones(()))) for _ in range(3)] == [2.0] * 3
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
