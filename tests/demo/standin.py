"""A compiler that compiles nothing, so that the demo's own parts are tested by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import smelt
from smelt.cli import program, run
from smelt.cli.demos import demo

Change = Callable[[torch.Tensor], torch.Tensor]


class Program:
    graph = smelt.parse("graph captured(%x: f32[2]) -> f32[2] {\n  return %x\n}")
    code = "the code"

    def graph_for(self, *args: Any, **kwargs: Any) -> smelt.Graph:
        return smelt.parse(str(self.graph).replace("captured", "optimized"))


class Report:
    verdict: Mapping[str, Any] = MappingProxyType({"what": "compiled by nobody"})

    def __str__(self) -> str:
        return "the report"

    def timed(self, race: Any, share: float | None = None) -> Report:
        return self

    def measured(self, measured: Any, ceilings: Any = None) -> Report:
        return self

    def to_text(self, **how: Any) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        return {"name": "program"}

    def to_html(self, path: Path) -> Path:
        path.write_text("<html>")
        return path


def install(monkeypatch: pytest.MonkeyPatch, change: Change = lambda result: result) -> None:
    """`smelt.compile` becomes the model itself with `change` applied to its result."""

    def compile_(function: Callable[..., Any], options: Any = None) -> Callable[..., Any]:
        return lambda *args, **kwargs: change(function(*args, **kwargs))

    monkeypatch.setattr(smelt, "compile", compile_, raising=False)
    monkeypatch.setattr(smelt, "trace", lambda *args, **kwargs: Program(), raising=False)
    monkeypatch.setattr(smelt, "explain", lambda compiled: Report(), raising=False)
    for module in (demo, run, program):
        monkeypatch.setattr(module, "compiled_units", lambda compiled: [])
