"""`smelt export --onnx`: an entry point of an ingot as an ONNX model.

graph -- casts and layers spelled out --> each operator by its form --> inputs, outputs, state, sizes --> model.onnx

Invariant: a model that is written gives what the program gives, up to rounding, or its run fails; what ONNX cannot say
is refused by the operator's name and the line of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from smelt.diag import PackageError
from smelt.diag.records import record
from smelt.ir import Graph, Value
from smelt.ops.upgrades import read_graph
from smelt.package.names import input_names, output_names
from smelt.package.onnx.model import Model, Weight
from smelt.package.onnx.protobuf import OPSET, Protobuf
from smelt.package.onnx.writer import Refusal
from smelt.passes.base import Pass, PassContext
from smelt.passes.dce import dce
from smelt.passes.layers.expand_layers import expand_layers
from smelt.passes.layers.explicit_casts import explicit_casts
from smelt.passes.manager import run_passes
from smelt.runtime.ingot import structure as structures
from smelt.runtime.ingot.contents import Contents, open_file
from smelt.runtime.ingot.manifest import Method
from smelt.runtime.ingot.texts.json_text import dumps

_EXTERNAL_NBYTES = 1_900_000_000
"""From this size of all weights on they are in a file of their own: a protobuf holds less than 2 GB."""

_PASSES: tuple[Pass, ...] = (explicit_casts, expand_layers, dce)


@record
class ExportedModel:
    """What was written. state: (input, output) of each tensor that calls write to; data: the weights' own file."""

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...]
    data: Path | None
    opset: int = OPSET


def export_onnx(ingot: Path, path: Path, *, entry: str = "", external_data: bool | None = None) -> ExportedModel:
    """Write an entry point of an ingot as an ONNX model; it needs the package `onnx`.

    entry: "": "forward", or the only one. external_data: the weights in a file beside it, model.onnx.data (None: where
    they are too large for one file).
    Raises: PackageError (S0701) for a broken file; (S0705) for what ONNX cannot say, naming each operator and its line;
    OSError where the file cannot be written.
    """
    protobuf = Protobuf()
    contents = open_file(ingot, verify=True)
    methods = contents.manifest.methods
    name = entry or ("forward" if "forward" in methods else next(iter(methods)))
    if name not in methods or (not entry and "forward" not in methods and len(methods) > 1):
        raise _cannot(f"there is no entry point {name!r}", f"it has {', '.join(methods)}", "name one of them (--entry)")
    if methods[name].draws:
        raise _cannot(
            f"{name} cannot be exported to ONNX: it draws random numbers",
            "no runtime of ONNX draws those that torch draws",
            "pass the random numbers in, or put the module in evaluation mode (eval()) before it is traced",
        )
    ingot_method = _Entry(contents, methods[name])
    graph = ingot_method.graph()
    values = [i for i, output in enumerate(graph.outputs) if isinstance(output, Value)]
    model = Model(
        protobuf, graph, ingot_method.weight, input_names(methods[name]), output_names(methods[name], values),
        methods[name].free,
    )  # fmt: skip
    if model.refused:
        raise _refused(name, model.refused)
    if not model.outputs:
        raise _cannot(
            f"{name} cannot be exported to ONNX: it returns no tensor and no number, and writes to none",
            "a model of ONNX has outputs", "return what it computes",
        )  # fmt: skip
    return _written(protobuf, model, methods[name], path, external_data)


def _cannot(what: str, why: str, fix: str) -> PackageError:
    return PackageError(what, why=why, fix=fix, code="S0705")


@record
class _Entry:
    """An entry point and the tensors that it reads."""

    contents: Contents
    method: Method

    def graph(self) -> Graph:
        """The functional graph, in which nothing is under autocast and no layer is one operator."""
        state = self.method.state.items()
        constants = {path: self.tensor(number) for (kind, path), number in state if kind == "const"}
        manifest = self.contents.manifest
        graph = read_graph(self.contents.text(self.method.graph), constants, manifest.operators, manifest.torch)
        run_passes(graph, _PASSES, PassContext(lambda kind, path: self.tensor(self.method.state[kind, path])))
        return graph

    def tensor(self, number: int) -> torch.Tensor:
        """A tensor of the state."""
        return self.contents.state(self.contents.manifest.state[number])

    def weight(self, kind: str, path: str) -> Weight:
        """A tensor of the state, under the first of its names."""
        number, state = self.method.state[kind, path], self.contents.manifest.state
        wanted = state[number]
        first = next(each for each in state if (each.placed, each.panels) == (wanted.placed, wanted.panels))
        return Weight(first.path, self.tensor(number), wanted.placed, number in self.method.written)


def _written(
    protobuf: Protobuf, model: Model, method: Method, path: Path, external_data: bool | None
) -> ExportedModel:  # fmt: skip
    """Write the model, and have `onnx` check it."""
    onnx, message = protobuf.onnx, model.message(_properties(method), "an entry point of a saved program")
    nbytes = sum(len(tensor.raw_data) for tensor in message.graph.initializer)
    is_apart = external_data if external_data is not None else nbytes >= _EXTERNAL_NBYTES
    data = path.with_name(f"{path.name}.data") if is_apart else None
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs, outputs = (tuple(each.name for each in part) for part in (message.graph.input, message.graph.output))
    if data is not None:
        data.unlink(missing_ok=True)  # `onnx` adds to a file that is there
        onnx.save_model(message, str(path), save_as_external_data=True, location=data.name, size_threshold=1024)
    else:
        onnx.save_model(message, str(path))
    onnx.checker.check_model(str(path))
    return ExportedModel(
        path, inputs, outputs, tuple(model.state), data if data is not None and data.exists() else None
    )  # fmt: skip


def _properties(method: Method) -> Mapping[str, str]:
    """The structures of arguments and result, as the ingot's manifest has them."""
    parts: Mapping[str, Any] = {"args": method.args, "kwargs": method.kwargs, "result": method.result}
    return {f"smelt.{name}": dumps(structures.write(part)).decode() for name, part in parts.items()}


def _refused(name: str, refused: Sequence[Refusal]) -> PackageError:
    """Each operator once, with the first line that asks for it."""
    kinds: dict[tuple[str, str], Refusal] = {}
    for each in refused:
        kinds.setdefault((each.op, each.why), each)
    first, *others = kinds.values()
    return PackageError(
        f"{name} cannot be exported to ONNX: {first.op}",
        first.span,
        why=first.why,
        fix="write the line without the operator, export to C (--out), or run the ingot by smelt.load",
        code="S0705",
        notes=tuple(f"{each.op}{f' at {each.span}' if each.span else ''}: {each.why}" for each in others),
    )
