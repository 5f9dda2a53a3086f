"""What a rank has of a model's tensors, as checkpoints know it: `state_dict()` of a module that is divided.

Divided tensors are DTensors there, over the memory of the parameters, so that `torch.distributed.checkpoint` and
`get_state_dict` work as for any module. An optimizer's state lies as its parameters. `load_state_dict` takes the same,
tensors of another mesh, and whole ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import register_optimizer_step_pre_hook

from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ops.ranks.collectives import part_of
from smelt.ops.ranks.placements import Shard, evenly
from smelt.parallel.dividing.parted import Parted
from smelt.parallel.groups import Groups


@record
class Gather:
    """From a rank's part of a tensor to the whole. shards: how it lies, in the order in which it was divided."""

    mesh: DeviceMesh
    shards: tuple[tuple[str, Shard], ...]

    def __deepcopy__(self, memo: object) -> Gather:
        return self

    def __call__(self, local: torch.Tensor) -> torch.Tensor:
        groups = Groups(self.mesh)
        for axis, shard in reversed(self.shards):
            local = groups.all_gather(local, shard, axis)
        return local


@record
class Lies:
    """How a divided tensor lies. shape: the whole's. local: that of the rank's part. here: the rank's place by axis."""

    shape: tuple[int, ...]
    local: tuple[int, ...]
    shards: tuple[tuple[str, Shard], ...]
    here: Mapping[str, int]

    @staticmethod
    def of(shape: Sequence[int], shards: Mapping[str, Shard], here: Mapping[str, int]) -> Lies:
        """Of a whole tensor of this shape."""
        local = list(shape)
        for axis, shard in shards.items():
            local[shard.dim] = shard.local(here[axis])
        return Lies(tuple(shape), tuple(local), tuple(shards.items()), here)

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """What the rank has of it."""
        for axis, shard in self.shards:
            whole = part_of(whole, shard, self.here[axis])
        return whole.clone(memory_format=torch.contiguous_format)

    @property
    def dims(self) -> dict[str, int] | None:
        """By axis the dimension that is divided; None where DTensor would divide otherwise."""
        seen = [shard.dim for _, shard in self.shards]
        plain = all(s.blocks == 1 and s.sizes == evenly(s.total, len(s.sizes)) for _, s in self.shards)
        return {axis: s.dim for axis, s in self.shards} if plain and len(set(seen)) == len(seen) else None

    def boxes(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
        """The blocks of the whole that the rank has: start, start in its part, sizes."""
        runs = [[(0, size)] for size in self.shape]  # of each dimension, start and length of what it has
        for axis, shard in self.shards:
            runs[shard.dim] = _within(runs[shard.dim], shard.ranges(self.here[axis]))
        for chosen in product(*(_placed(one) for one in runs)):
            yield tuple(s for s, _, _ in chosen), tuple(at for _, at, _ in chosen), tuple(n for _, _, n in chosen)


def _within(runs: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Parts of what runs hold one behind the other, as runs of the whole."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        for run, at, length in _placed(runs):
            low, high = max(start, at), min(end, at + length)
            if low >= high:
                continue
            first = run + low - at
            if found and sum(found[-1]) == first:
                found[-1] = (found[-1][0], found[-1][1] + high - low)
            else:
                found.append((first, high - low))
    return found


def _placed(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Runs with where each starts in what holds them one behind the other."""
    at = 0
    for start, length in runs:
        yield start, at, length
        at += length


class Layout:
    """What a rank has of a module. tensors: of divided ones, by each of their names, how they lie. names: of all
    parameters and buffers of the model, those of other stages, too."""

    def __init__(self, groups: Groups, tensors: Mapping[str, Lies], names: frozenset[str], stages: str | None) -> None:
        self.mesh, self.tensors, self.names = groups.device_mesh, dict(tensors), names
        # Ranks of other stages do not have the tensor at all.
        axes = tuple(axis for axis in groups.mesh.names if axis != stages)
        self.shared = self.mesh if len(axes) == len(groups.mesh.names) else self.mesh[axes] if axes else None

    @staticmethod
    def of(module: torch.nn.Module, part: Parted, groups: Groups, stages: str | None) -> Layout:
        """Of a whole module that is about to be divided. stages: the pipeline's axis."""
        here, tensors, names = part.mesh.coordinates(part.rank), {}, set()
        for path, tensor in _tensors_of(module):
            names.add(path)
            shards = part.state_of(path)
            if shards:
                tensors[path] = Lies.of(tensor.shape, shards, here)
        return Layout(groups, tensors, frozenset(names), stages)

    def given(self, lies: Lies, local: torch.Tensor) -> torch.Tensor:
        """A rank's part as a tensor of torch.distributed, over the same memory."""
        torchs, dims = _dtensors(), lies.dims
        found: torch.Tensor
        if dims is not None:
            found = torchs.dtensor_of(local, self.shared, lies.shape, dims)
        else:
            blocks = [torchs.Block(*box) for box in lies.boxes()]
            found = torchs.blocks_of(local, self.shared, lies.shape, blocks, Gather(self.mesh, lies.shards))
        return found

    def taken(self, lies: Lies, value: Any) -> Any:
        """The rank's part of what somebody gives for a tensor: this itself, a DTensor or the whole tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        torchs = _dtensors()
        if torchs.has_whole(value):
            is_own = torchs.lies_so(value, self.shared, lies.dims, Gather(self.mesh, lies.shards))
            if is_own and tuple(value.shape) == lies.shape:
                return torchs.local_of(value)
            value = value.full_tensor()
        return lies.part(value) if tuple(value.shape) == lies.shape else value


def _dtensors() -> Any:
    """What knows DTensor, whose import takes half a second: a model that is never saved does without."""
    found = importlib.import_module("smelt._torch.dtensors")
    torch.serialization.add_safe_globals([Gather, Shard, found.Block, found.BlockTensor])
    return found


def _tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


# --- modules

_LAYOUTS: WeakKeyDictionary[torch.nn.Module, Layout] = WeakKeyDictionary()
_SEEN: WeakSet[torch.optim.Optimizer] = WeakSet()
"""Optimizers that were looked at: those of divided parameters have hooks."""
_watched: list[Any] = []


def layout_of(module: torch.nn.Module) -> Layout | None:
    """What a rank has of a module that `build(mesh=...)` made; None of any other."""
    return _LAYOUTS.get(module)


def lay_out(module: torch.nn.Module, layout: Layout) -> None:
    """Let a divided module's `state_dict` and `load_state_dict`, and those of its optimizers, say how it lies."""
    _LAYOUTS[module] = layout
    module.register_state_dict_post_hook(partial(_module_state, layout))
    module.register_load_state_dict_pre_hook(partial(_module_given, layout))
    if not _watched:
        # There is no hook for new optimizers: they are met at their first step, which `get_state_dict` takes, too.
        _watched.append(register_optimizer_step_pre_hook(_before_step))


def _module_state(
    layout: Layout, module: torch.nn.Module, state: MutableMapping[str, Any], prefix: str, _: Any
) -> None:
    for path, lies in layout.tensors.items():
        value = state.get(prefix + path)
        is_part = isinstance(value, torch.Tensor) and tuple(value.shape) == lies.local
        if is_part and not isinstance(value, torch.nn.Parameter):  # with keep_vars the parameters themselves are wanted
            state[prefix + path] = layout.given(lies, value)


def _module_given(
    layout: Layout, module: torch.nn.Module, state: MutableMapping[str, Any], prefix: str, *_: Any
) -> None:
    own = {path for path, _ in _tensors_of(module)}
    for path in layout.names - own:
        state.pop(prefix + path, None)  # another stage has it
    for path, lies in layout.tensors.items():
        if path in own and prefix + path in state:
            state[prefix + path] = layout.taken(lies, state[prefix + path])


# --- optimizers


class Nothing(torch.nn.Parameter):
    """Stands for the parameters of a rank that has none: an optimizer refuses an empty list."""


def stand_in(module: torch.nn.Module) -> None:
    """Let `parameters()` give something to an optimizer, of a module whose rank trains none: a stage of functions only.
    `named_parameters` and `state_dict` do not have it."""
    if any(p.requires_grad for p in module.parameters()):
        return
    nothing = Nothing(torch.empty(0))

    def parameters(recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        yield from type(module).parameters(module, recurse)
        yield nothing

    module.__dict__["parameters"] = parameters


def _owners(optimizer: torch.optim.Optimizer) -> dict[int, tuple[str, Layout, Lies]]:
    """Of an optimizer's divided parameters, by identity: name, the module's layout, and how it lies."""
    found = {}
    for module, layout in list(_LAYOUTS.items()):
        for path, parameter in module.named_parameters():
            if path in layout.tensors:
                found[id(parameter)] = (path, layout, layout.tensors[path])
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {key: entry for key, entry in found.items() if key in own}


def watch(optimizer: torch.optim.Optimizer) -> None:
    """Let the `state_dict` and `load_state_dict` of an optimizer of divided parameters say how its state lies."""
    if optimizer in _SEEN:
        return
    _SEEN.add(optimizer)
    owners = _owners(optimizer)
    if not owners:
        return
    optimizer.register_state_dict_post_hook(_optimizer_state)
    optimizer.register_load_state_dict_pre_hook(_optimizer_given)
    for parameter, entries in optimizer.state.items():
        if id(parameter) in owners:  # what was loaded before
            _, layout, lies = owners[id(parameter)]
            entries.update({name: layout.taken(lies, value) for name, value in entries.items()})


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    watch(optimizer)


def _optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    def given(path: str, layout: Layout, lies: Lies, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        if tuple(value.shape) == lies.local:
            return layout.given(lies, value)
        raise SmeltError(
            f"the optimizer's {name!r} of {path} cannot be made whole again",
            why=f"it is {list(value.shape)}, and the parameter has {list(lies.local)} on this rank", code="S0645",
            fix="use an optimizer whose state has the sizes of the parameters: its results would differ by mesh, too",
        )  # fmt: skip

    return _mapped(optimizer, state, given)


def _optimizer_given(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return _mapped(optimizer, state, lambda path, layout, lies, name, value: layout.taken(lies, value))


def _mapped(optimizer: torch.optim.Optimizer, state: dict[str, Any], f: Any) -> dict[str, Any]:
    """An optimizer's state with other values for divided parameters. Parameters have numbers or names, in order."""
    owners = _owners(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    made = dict(state["state"])
    for key, parameter in zip(keys, parameters, strict=False):
        owner = owners.get(id(parameter))
        if owner is not None and key in made:
            made[key] = {name: f(*owner, name, value) for name, value in made[key].items()}
    return {**state, "state": made}
