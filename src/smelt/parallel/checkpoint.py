"""A model and its optimizer in a folder, written and read by all ranks together, for any mesh or one process.

The folder is one of `torch.distributed.checkpoint`: {"model": ..., "optim": ..., "extra": ...}, the optimizer's state
by the names of parameters, as `get_state_dict` with `flatten_optimizer_state_dict` makes it.

Invariants: the folder has one whole checkpoint at any time, the old one until all ranks have written; loading changes
nothing unless everything fits and is read.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from smelt._torch import checkpoints
from smelt.diag import SmeltError
from smelt.parallel.groups import Groups
from smelt.parallel.state import Lies, Nothing, layout_of, watch

AnyPath = str | os.PathLike[str]


def save_checkpoint(
    path: AnyPath, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Save a module, as `s.build(mesh=...)` makes it or any other, into a folder; all ranks call this together.

    optimizer: its state is saved, too. extra: whatever else is to be saved (a step's number, the state of a generator);
    rank 0's is written. What the folder had stays whole until the new checkpoint is complete.
    Raises: SmeltError (S0645, S0644) on all ranks where one cannot write or is lost.
    """
    state: dict[str, Any] = {"model": module.state_dict()}
    if optimizer is not None:
        state["optim"] = _state_of(module, optimizer)
    if extra:
        state["extra"] = dict(extra)
    try:
        with _together(module, "saving a checkpoint"):
            checkpoints.write(state, path)
    except checkpoints.CheckpointError as error:
        raise _failed(f"the checkpoint {os.fspath(path)} was not written", error) from error


def load_checkpoint(
    path: AnyPath, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Load what `save_checkpoint` saved, on any mesh or in one process; all ranks call this together. Returns `extra`.

    optimizer: of the same kind as the one that was saved. Raises: SmeltError (S0645, S0644) on all ranks where the
    checkpoint is broken or of another model; nothing has changed then.
    """
    names, places, problem = _index(path)
    _agree_on(path, [problem] if problem else [])
    model, problems = _model_wanted(module, names)
    state = dict(model)
    if optimizer is not None:
        watch(optimizer)
        wanted, more = _optimizer_wanted(module, optimizer, names)
        state |= wanted
        problems += more
    state |= {name: _empty(names[name]) for name in names if name.startswith("extra.")}
    _agree_on(path, problems)
    try:
        with _together(module, "loading a checkpoint"):
            checkpoints.read(state, path)
    except checkpoints.CheckpointError as error:
        raise _failed(f"the checkpoint {os.fspath(path)} cannot be read", error) from error
    module.load_state_dict({name.removeprefix("model."): state[name] for name in model}, strict=False)
    if optimizer is not None:
        optimizer.load_state_dict(_optimizer_state(module, optimizer, state, places))
    return _nested({tuple(places[name])[1:]: value for name, value in state.items() if name.startswith("extra.")})


# --- what a checkpoint has


def _index(path: AnyPath) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """What a checkpoint has, and where each value stood; or why it cannot be read."""
    try:
        return *checkpoints.index_of(path), ""
    except FileNotFoundError:
        return {}, {}, "there is none: the folder has no .metadata, which is written last"
    except Exception as error:
        return {}, {}, f"its .metadata cannot be read: {type(error).__name__}: {error}"


def _model_wanted(module: torch.nn.Module, names: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Where a module's tensors are read into, by name, and what does not fit."""
    wanted, problems = {}, []
    layout, own = layout_of(module), module.state_dict()
    for name, value in own.items():
        found = names.get(f"model.{name}")
        problem = _misfit(f"model.{name}", found, value)
        if problem:
            problems.append(problem)
        else:
            wanted[f"model.{name}"] = copy.deepcopy(value) if isinstance(value, torch.Tensor) else None
    known = own.keys() | (layout.names if layout is not None else set())
    problems += [
        f"it has {name}, and the model does not" for name in names
        if name.startswith("model.") and name.removeprefix("model.") not in known
    ]  # fmt: skip
    return wanted, problems


def _misfit(name: str, found: Any, value: Any) -> str:
    if found is None:
        return f"it has no {name}"
    size = getattr(found, "size", None)
    if isinstance(value, torch.Tensor) and (size is None or tuple(size) != tuple(value.shape)):
        return f"{name} is {'no tensor' if size is None else list(size)} in it, and {list(value.shape)} in the model"
    return ""


def _optimizer_wanted(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, names: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    layout = layout_of(module)
    wanted: dict[str, Any] = {}
    problems: list[str] = []
    if not any(name.startswith("optim.") for name in names):
        return wanted, ["it has no state of an optimizer"]
    for group, paths in _groups(module, optimizer):
        for path in filter(None, paths):
            lies = layout.tensors.get(path) if layout is not None else None
            for name in _under(f"optim.state.{path}.", names):
                wanted[name] = _place(names[name], lies, module.get_parameter(path).device, layout)
            given = f"optim.param_groups.{path}."
            has = {name.removeprefix(given) for name in _under(given, names)}
            needs = set(group) - {"params"}
            wanted |= {given + name: None for name in has}
            if not has:
                problems.append(f"it has no {given}{min(needs)}")
            elif has - needs and needs - has and not any("another optimizer" in one for one in problems):
                more, less = ", ".join(sorted(has - needs)), ", ".join(sorted(needs - has))
                problems.append(f"{given}* is that of another optimizer: it has {more}, and not {less}")
    return wanted, problems


def _place(found: Any, lies: Lies | None, device: torch.device, layout: Any) -> Any:
    """What a value is read into."""
    if lies is None or getattr(found, "size", None) is None or tuple(found.size) != lies.shape:
        return _empty(found)
    return layout.given(lies, torch.empty(lies.local, dtype=found.properties.dtype, device=device))


def _empty(found: Any) -> Any:
    size = getattr(found, "size", None)
    return None if size is None else torch.empty(tuple(size), dtype=found.properties.dtype)


def _under(prefix: str, names: Mapping[str, Any]) -> list[str]:
    return [name for name in names if name.startswith(prefix)]


# --- optimizers


def _groups(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[dict[str, Any], list[str | None]]]:
    """An optimizer's groups, with the names of their parameters; none for what stands for none.

    Raises: SmeltError (S0645).
    """
    names = {id(p): name for name, p in module.named_parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in names and not isinstance(p, Nothing) for p in group["params"]):
            raise SmeltError(
                "the optimizer has a parameter that the module does not have", code="S0645",
                why="a checkpoint knows parameters by the module's names",
                fix="make the optimizer from the module's parameters",
            )  # fmt: skip
        yield group, [names.get(id(p)) for p in group["params"]]


def _state_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state by the names of parameters."""
    watch(optimizer)
    state = optimizer.state_dict()
    made: dict[str, Any] = {}
    for group, (_, paths) in zip(state["param_groups"], _groups(module, optimizer), strict=True):
        for number, path in zip(group["params"], paths, strict=True):
            if path is None:
                continue
            made |= {f"state.{path}.{name}": value for name, value in state["state"].get(number, {}).items()}
            made |= {f"param_groups.{path}.{name}": value for name, value in group.items() if name != "params"}
    return made


def _optimizer_state(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], places: Mapping[str, Any]
) -> dict[str, Any]:
    """The same as `optimizer.load_state_dict` takes it."""
    entries: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    number = 0
    for group, paths in _groups(module, optimizer):
        own = dict(group)
        own["params"] = list(range(number, number + len(paths)))
        groups.append(own)
        for path in paths:
            if path is None:
                number += 1
                continue
            prefix, flat = f"optim.state.{path}.", {}
            for name in _under(prefix, state):
                inside = tuple(places.get(name, ()))[2:]  # what lies in a dictionary of the state
                first = name.removeprefix(prefix).removesuffix("".join(f".{key}" for key in inside))
                flat[(first, *inside)] = state[name]
            if flat:
                entries[number] = _nested(flat)
            given = f"optim.param_groups.{path}."
            own |= {name.removeprefix(given): state[name] for name in _under(given, state)}
            number += 1
    return {"state": entries, "param_groups": groups}


def _nested(flat: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Values by where they stood: names in dictionaries, numbers in lists."""
    made: dict[str, Any] = {}
    for path, value in flat.items():
        here: Any = made
        for key, following in pairwise(path):
            inner: Any = [] if isinstance(following, int) else {}
            here = _set(here, key, inner) if _get(here, key) is None else _get(here, key)
        _set(here, path[-1], value)
    return made


def _get(here: Any, key: Any) -> Any:
    return here.get(key) if isinstance(here, dict) else here[key] if key < len(here) else None


def _set(here: Any, key: Any, value: Any) -> Any:
    if isinstance(here, list):
        here += [None] * (key + 1 - len(here))
    here[key] = value
    return value


# --- all ranks together


def _together(module: torch.nn.Module, what: str) -> AbstractContextManager[None]:
    """Make of a lost rank an error that names it."""
    layout = layout_of(module)
    return nullcontext() if layout is None else Groups(layout.mesh).watching(what, "")


def _agree_on(path: AnyPath, problems: list[str]) -> None:
    """Raises: SmeltError (S0645) on all ranks where a checkpoint does not fit one."""
    told = [problems]
    if dist.is_available() and dist.is_initialized():
        told = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(told, problems)
    found = list(dict.fromkeys(problem for one in told for problem in one))
    if found:
        raise SmeltError(
            f"the checkpoint {os.fspath(path)} does not fit: {found[0]}", notes=tuple(found[1:6]), code="S0645",
            why=f"that and {len(found) - 1} more; nothing was loaded" if found[1:] else "nothing was loaded",
            fix="load it into the model and optimizer that it was saved from; their mesh may be another",
        )  # fmt: skip


def _failed(what: str, error: checkpoints.CheckpointError) -> SmeltError:
    rank, reason = error.failures[0]
    notes = tuple(f"rank {other}: {type(e).__name__}: {e}" for other, e in error.failures[1:6])
    return SmeltError(what, why=f"rank {rank}: {type(reason).__name__}: {reason}", notes=notes, code="S0645")
