"""What runs a rank's graph: native code, and the evaluator where a graph has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smelt.codegen.lower.result import EAGER, Layouts
from smelt.compiler.training.trainable import Native, Tensors
from smelt.compiler.unit import machine_code
from smelt.diag import Options, SmeltError
from smelt.ir import Graph, TensorType, Value
from smelt.ops.evaluate import evaluate


def native_of(graph: Graph, options: Options, layouts: Layouts = EAGER) -> Native:
    """A graph compiled; where it cannot be (results that share memory on some paths), run operator by operator."""
    try:
        return Native(graph, options, machine_code(options), layouts)
    except SmeltError as error:
        if error.code != "S0303":
            raise
        return ByOperator(graph)


class ByOperator(Native):
    """A graph that the evaluator runs. Its results have memory of their own, and the strides that types say."""

    def __init__(self, graph: Graph) -> None:
        self.graph = self.optimized = graph

    def __call__(self, inputs: Tensors) -> list[Any]:
        """The graph's outputs."""
        found: list[Any] = evaluate(self.graph, list(inputs))
        seen = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor)}
        made = []
        for value, output in zip(self.graph.outputs, found, strict=True):
            if isinstance(output, torch.Tensor):
                output = _own(output, value, seen)
                seen.add(output.untyped_storage().data_ptr())
            made.append(output)
        return made

    def is_fresh(self, number: int) -> bool:
        """As of `Native`."""
        return True

    @property
    def nbytes(self) -> int:
        """As of `Native`."""
        return 0

    @property
    def memory(self) -> tuple[int, int]:
        """As of `Native`: not planned."""
        return 0, 0

    @property
    def strides(self) -> Mapping[int, tuple[int, ...]]:
        """As of `Native`."""
        return {}


def _own(output: torch.Tensor, value: Any, seen: set[int]) -> torch.Tensor:
    type_ = value.type if isinstance(value, Value) else None
    steps = type_.steps if isinstance(type_, TensorType) and type_.is_static else output.stride()
    if output.untyped_storage().data_ptr() not in seen and output.stride() == steps:
        return output
    return torch.empty_strided(output.shape, steps, dtype=output.dtype).copy_(output)
