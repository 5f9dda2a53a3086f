"""What tuning chose, kept on disk: by the program, the scheduling function with its knobs, and the machine.

Invariant: what is read is a hint. It names choices; the steps are taken anew, and verified anew, before they are used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import CodeType
from typing import Any

import torch

from smelt.diag import Options, ScheduleError, isa_limit
from smelt.diag.packages import VERSION
from smelt.diag.records import record
from smelt.ir import Graph
from smelt.runtime.machine.cache import CodeCache, code_cache
from smelt.runtime.machine.cpu import cpu_fingerprint
from smelt.scheduling.comparing.compare import items
from smelt.scheduling.comparing.compare_runs import Arguments
from smelt.scheduling.state import State
from smelt.scheduling.tuning.knobs import described, without_addresses

_FORMAT = 1


@record
class Kept:
    """What was chosen, by the choices' places in the order in which they stand, and what was measured."""

    indices: Mapping[str, int]
    seconds: float
    untouched: float
    gain: float


def key_of(
    state: State, calls: Sequence[Arguments], knobs: Sequence[str], functions: Sequence[Any], search: Any
) -> str:
    """Where a result is kept. knobs: those of a first run. functions: whose code matters. search: how it was made."""
    model = type(state.tree)
    steps = [without_addresses(str(step)) for step in state.steps]
    codes = [code_text(function) for function in functions]
    parts = [
        "tune", _FORMAT, VERSION, torch.__version__, cpu_fingerprint(), isa_limit(), torch.get_num_threads(),
        f"{model.__module__}.{model.__qualname__}", _program(state), steps,
        [_arguments(call) for call in calls], list(knobs), codes, repr(search),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read(key: str) -> Kept | None:
    """What is kept under a key, None for nothing."""
    data = _store().get(key)
    if data is None:
        return None
    found = json.loads(data)
    return Kept(**found)


def write(key: str, kept: Kept) -> None:
    """Keep a result."""
    _store().put(key, json.dumps(asdict(kept)).encode())


def code_text(function: Any) -> list[str]:
    """What a function's code says, in all that is nested in it; without its lines, its file and what it closes over."""
    code = getattr(function, "__code__", function)
    if not isinstance(code, CodeType):
        return [described(function)]
    texts = [code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars))]
    for constant in code.co_consts:
        # The order of a set of constants is another one in each process.
        plain = sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
        texts += code_text(constant) if isinstance(constant, CodeType) else [str(plain)]
    return texts


def _program(state: State) -> str:
    """The model's modules, tensors and graphs, without values of tensors."""
    rows = [f"{path} {type(module).__qualname__} {module.training}" for path, module in state.modules.items()]
    held = [*state.tree.named_parameters(), *state.tree.named_buffers()]
    rows += [f"{name} {_tensor(tensor)}" for name, tensor in held]
    try:
        rows += [f"{target.prefix} {_text(target.graph)}" for target in state.captured[0]]
    except ScheduleError as error:
        rows.append(f"not captured: {error.code}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _text(graph: Graph) -> str:
    graph = graph.clone()
    for node in graph.walk():
        node.span = None
    return str(graph)


def _arguments(call: Arguments) -> list[str]:
    return [
        f"{item.path} {_tensor(item.value) if isinstance(item.value, torch.Tensor) else described(item.value)}"
        for part in (call.args, dict(call.kwargs))
        for item in items(part, "")
    ]


def _tensor(value: torch.Tensor) -> str:
    strides = value.stride() if value.layout is torch.strided else value.layout
    return f"{tuple(value.shape)} {strides} {value.dtype} {value.device} {value.requires_grad}"


def _store() -> CodeCache:
    options = Options.make()
    return code_cache(options.cache_dir, options.cache_limit_mb)
