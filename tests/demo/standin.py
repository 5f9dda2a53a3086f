"""A compiler that compiles nothing, so that the demo's own parts are tested by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.cli import demo

Change = Callable[[torch.Tensor], torch.Tensor]


class Program:
    graph = "the captured graph"
    code = "the code"

    def graph_for(self, *args: Any, **kwargs: Any) -> str:
        return "the optimized graph"


class Report:
    def __str__(self) -> str:
        return "the report"

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
    monkeypatch.setattr(demo, "compiled_units", lambda compiled: [])
