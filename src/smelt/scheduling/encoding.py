"""Values of steps as plain data, and back: numbers, types, functions, graphs, modules with their tensors.

Invariant: reading runs no code but imports and what is named; a module is made of its class and its contents, not by
its constructor. A function that can be imported is named, another is its graph's text.
"""

from __future__ import annotations

import base64
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smelt.compiler import script
from smelt.diag import ScheduleError, SmeltError
from smelt.ir import STATE_OPS, Graph, parse
from smelt.ir.dtypes import BY_LABEL
from smelt.ops.convert import dtype_from_torch, dtype_to_torch
from smelt.ops.evaluate import evaluate
from smelt.scheduling.modules.functions import Applied, name_of

PathOf = Callable[[torch.nn.Module], "str | None"]
ModuleAt = Callable[[str], torch.nn.Module]
_KINDS: Any = type(inspect.Parameter.POSITIONAL_ONLY)


class GraphFunction:
    """A graph as a function of tensors and numbers, with the parameters that it was written with."""

    def __init__(self, graph: Graph, parameters: list[inspect.Parameter], is_tuple: bool) -> None:
        self.graph, self.is_tuple = graph, is_tuple
        self.__name__ = self.__qualname__ = graph.name
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = self.__signature__.bind(*args, **kwargs)
        call.apply_defaults()
        outputs = evaluate(self.graph, [call.arguments[value.name] for value in self.graph.inputs])
        return tuple(outputs) if self.is_tuple else outputs[0]


@dataclass(frozen=True)
class Encoder:
    """Writes values. path_of: where a module of the model stands, None for one that is not of the model."""

    path_of: PathOf

    def encode(self, value: Any) -> Any:
        """The value as JSON has it. Raises: ScheduleError (S0611) for one that cannot be written."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if value == value and abs(value) != float("inf") else {"float": repr(value)}
        if isinstance(value, tuple | list | torch.Size):
            return {"list" if isinstance(value, list) else "tuple": [self.encode(item) for item in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self.encode(item) for key, item in value.items()}}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_from_torch(value).label}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if isinstance(value, Graph):
            return {
                "graph": str(_without_lines(value)),
                "constants": {k: self._tensor(v) for k, v in value.constants.items()},
            }
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, GraphFunction):
            return self._graph_function(value.graph, list(value.__signature__.parameters.values()), value.is_tuple)
        name = import_name(value)
        if name is not None:
            return {"type" if isinstance(value, type) else "function": name}
        if inspect.isfunction(value) or inspect.ismethod(value):
            return self._function(value)
        raise _unwritten(repr(value), f"a {type(value).__qualname__} cannot be written as text")

    def _function(self, function: Callable[..., Any]) -> Any:
        try:
            graph = script(function).graph
        except SmeltError as error:
            raise _unwritten(
                name_of(function), f"it cannot be imported by its name, nor captured as a graph: {error.what}"
            ) from error
        if any(node.op in (*STATE_OPS, "py.raise") for node in graph.walk()):
            raise _unwritten(name_of(function), "it cannot be imported by its name, and it uses tensors from outside")
        parameters = list(inspect.signature(function).parameters.values())
        return self._graph_function(graph, parameters, len(graph.outputs) != 1)

    def _graph_function(self, graph: Graph, parameters: list[inspect.Parameter], is_tuple: bool) -> Any:
        shown = [
            {
                "name": p.name,
                "kind": p.kind.name,
                **({} if p.default is p.empty else {"default": self.encode(p.default)}),
            }
            for p in parameters
        ]
        return {"written": self.encode(graph), "parameters": shown, "several": is_tuple}

    def _module(self, module: torch.nn.Module) -> Any:
        path = self.path_of(module)
        if path is not None:
            return {"module_at": path}
        name = import_name(type(module))
        if name is None:
            raise _unwritten(type(module).__name__, "its class cannot be imported by its name")
        if isinstance(module, Applied):
            return {"applied": self.encode(module.function)}
        own: dict[str, Any] = {}
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules") or (key.startswith("_") and not value):
                continue
            if key in _PLAIN_MODULE and value == _PLAIN_MODULE[key]:
                continue
            try:
                own[key] = self.encode(value)
            except ScheduleError as error:
                raise _unwritten(f"{type(module).__name__}.{key}", error.why) from error
        return {
            "module": name,
            "attributes": own,
            "parameters": {
                key: None if p is None else {**self._tensor(p), "requires_grad": p.requires_grad}
                for key, p in module._parameters.items()
            },
            "buffers": {key: None if b is None else self._tensor(b) for key, b in module._buffers.items()},
            "transient": sorted(module._non_persistent_buffers_set),
            "modules": {key: None if m is None else self.encode(m) for key, m in module._modules.items()},
        }  # fmt: skip

    @staticmethod
    def _tensor(tensor: torch.Tensor) -> dict[str, Any]:
        plain = tensor.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        return {
            "dtype": dtype_from_torch(plain.dtype).label,
            "shape": list(plain.shape),
            "data": base64.b64encode(data).decode(),
        }


@dataclass(frozen=True)
class Decoder:
    """Reads values. module_at: the model's module at a path."""

    module_at: ModuleAt

    def decode(self, data: Any) -> Any:
        """The value. Raises: ScheduleError (S0611) for data that mean nothing here."""
        if not isinstance(data, dict):
            return data
        match data:
            case {"float": text}:
                return float(text)
            case {"tuple": items}:
                return tuple(self.decode(item) for item in items)
            case {"list": items}:
                return [self.decode(item) for item in items]
            case {"dict": items}:
                return {key: self.decode(item) for key, item in items.items()}
            case {"tensor": tensor}:
                return _tensor_of(tensor)
            case {"device": name}:
                return torch.device(name)
            case {"memory_format": name}:
                return getattr(torch, name)
            case {"graph": text, "constants": constants}:
                return parse(text, {name: _tensor_of(item) for name, item in constants.items()})
            case {"written": graph, "parameters": parameters, "several": is_tuple}:
                return GraphFunction(self.decode(graph), [self._parameter(item) for item in parameters], is_tuple)
            case {"type": name} | {"function": name}:
                return imported(name)
            case {"module_at": path}:
                return self.module_at(path)
            case {"applied": function}:
                return Applied(self.decode(function))
            case {"module": name}:
                return self._module(name, data)
            case {"dtype": name}:
                return dtype_to_torch(BY_LABEL[name])
        raise ScheduleError(f"{data!r} is no value of a schedule", code="S0611")

    def _parameter(self, data: Mapping[str, Any]) -> inspect.Parameter:
        default = self.decode(data["default"]) if "default" in data else inspect.Parameter.empty
        return inspect.Parameter(data["name"], _KINDS[data["kind"]], default=default)

    def _module(self, name: str, data: Mapping[str, Any]) -> torch.nn.Module:
        cls = imported(name)
        if not isinstance(cls, type) or not issubclass(cls, torch.nn.Module):
            raise ScheduleError(f"{name} is no class of modules", code="S0611")
        module: torch.nn.Module = object.__new__(cls)
        torch.nn.Module.__init__(module)
        for key, value in data["attributes"].items():
            module.__dict__[key] = self.decode(value)
        for key, value in data["parameters"].items():
            made = None if value is None else torch.nn.Parameter(_tensor_of(value), value["requires_grad"])
            module._parameters[key] = made
        for key, value in data["buffers"].items():
            module._buffers[key] = None if value is None else _tensor_of(value)
        module._non_persistent_buffers_set = set(data["transient"])
        for key, value in data["modules"].items():
            module._modules[key] = None if value is None else self.decode(value)
        return module


_PLAIN_MODULE = torch.nn.Module().__dict__


def import_name(thing: Any) -> str | None:
    """`module:name` by which a function or class is found again, None where it is not."""
    name = getattr(thing, "__qualname__", None)
    if not isinstance(name, str):
        return None
    own, short = f"{getattr(thing, '__module__', None)}:{name}", name.rpartition(".")[2]
    # Functions of torch's own extension do not know where they are found.
    for found in (own, f"torch:{short}", f"torch.nn.functional:{short}"):
        module, _, path = found.partition(":")
        if "<" in path or module in ("None", "__main__"):
            continue
        try:
            if imported(found) is thing:
                return found
        except ScheduleError:
            continue
    return None


def imported(name: str) -> Any:
    """What a name of `import_name` names. Raises: ScheduleError (S0611) where there is no such thing."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ScheduleError(
            f"{name} cannot be imported", why=str(error), fix="make it importable, or write the schedule anew",
            code="S0611",
        ) from error  # fmt: skip
    return found


def _tensor_of(data: Mapping[str, Any]) -> torch.Tensor:
    raw = bytearray(base64.b64decode(data["data"]))
    dtype = dtype_to_torch(BY_LABEL[data["dtype"]])
    if not raw:
        return torch.empty(data["shape"], dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(data["shape"]).clone()


def _without_lines(graph: Graph) -> Graph:
    """The graph without the lines that it came from, which mean nothing elsewhere."""
    graph = graph.clone()
    for node in graph.walk():
        node.span = None
    return graph


def _unwritten(what: str, why: str) -> ScheduleError:
    return ScheduleError(
        f"the schedule cannot be written as text: {what}", why=why,
        fix="give a function or class that can be imported; the schedule itself works unchanged", code="S0611",
    )  # fmt: skip
