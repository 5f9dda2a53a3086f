"""What ranks tell each other, as operators: `dist.*`. Their last argument is the name of the mesh's axis.

    %1: f32[8, 64] = dist.all_reduce(%0, "sum", "tp")
    %2: f32[8, 64] = dist.all_gather(%1, 0, [4, 4], 1, 0, "tp")     of dimension 0 each rank has 4; this is rank 0
    %3: f32[4, 64] = dist.shard(%2, 0, [4, 4], 1, 0, "tp")           what the rank has of it; nothing is sent

Gradients follow from placements: the gradient of a tensor that all ranks have is one that all have, of a part it is
that part, of a sum that of the sum. `dist.enter` is where ranks start to use a tensor that all have for different work:
each has only its share of the gradient then, so they are added up. `dist.all_gather` with `entered` is both at once.

Invariant: operators keep their order in a graph, since all ranks have to come to them in the same one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol, TypeAlias

import torch

from smelt._torch.collectives import is_collective
from smelt.diag import SmeltError
from smelt.ir import ANY, Arg, TensorType, Type, Value
from smelt.ops.ranks.placements import Shard
from smelt.ops.record import Emitter
from smelt.ops.shapes.pointwise import is_dense
from smelt.ops.shapes.views import Layout

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "dist.all_reduce", "dist.all_gather", "dist.reduce_scatter"
ALL_TO_ALL, ENTER, SHARD, BROADCAST = "dist.all_to_all", "dist.enter", "dist.shard", "dist.broadcast"
START, WAIT, AGREE = "dist.start_all_reduce", "dist.wait", "dist.agree"
SEND_ROWS, RETURN_ROWS = "dist.send_rows", "dist.return_rows"
OWN_NOISE = "dist.own_noise"
TAKE_ROWS, PUT_ROWS, OWN_ENDS = "dist.take_rows", "dist.put_rows", "dist.own_ends"
COLLECTIVES = frozenset((
    ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, START, SEND_ROWS, RETURN_ROWS, AGREE,
))  # fmt: skip
"""Those that send something."""


def exchanges(operator: str) -> bool:
    """Whether an operator, by its name in a graph, talks to other processes: one between ranks, or one of torch's."""
    return operator in COLLECTIVES or is_collective(operator)


class Communicator(Protocol):
    """How one rank talks to the others along the axes of a mesh. Tensors come back whole, with memory of their own."""

    def all_reduce(self, tensor: torch.Tensor, op: str, axis: str) -> torch.Tensor:
        """The sum, or maximum, over the ranks."""
        ...

    def start_all_reduce(self, tensor: torch.Tensor, op: str, number: int, axis: str) -> None:
        """Begin one; the tensor may change at once. number: by which `wait` names it."""
        ...

    def wait(self, number: int, axis: str) -> torch.Tensor:
        """What a sum that has begun gives."""
        ...

    def all_gather(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        """The whole of what each rank has a part of."""
        ...

    def reduce_scatter(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        """This rank's part of the sum over the ranks."""
        ...

    def all_to_all(self, tensor: torch.Tensor, had: Shard, wanted: Shard, axis: str) -> torch.Tensor:
        """This rank's part in another division."""
        ...

    def exchange_rows(
        self, rows: torch.Tensor, ends: torch.Tensor, sizes: tuple[int, ...], count: int, axis: str, *, back: bool
    ) -> torch.Tensor:
        """Rows to the ranks that have their experts, or back: `count` rows, those that did not come zero."""
        ...

    def broadcast(self, tensor: torch.Tensor, source: int, axis: str) -> torch.Tensor:
        """What one rank has."""
        ...

    def agree(self, said: str, along: Mapping[str, str]) -> None:
        """Compare what this rank is about to run with what all others are, and by axis with those of its groups.

        Raises: RanksError (S0643) where they differ."""
        ...

    def send(self, tensor: torch.Tensor, target: int, axis: str, key: str) -> None:
        """Send to a rank of the axis without waiting for it. key: what it is, the same on both sides."""
        ...

    def recv(self, like: torch.Tensor, source: int, axis: str, key: str) -> torch.Tensor:
        """What a rank of the axis sent. like: a tensor of its size."""
        ...


_here = threading.local()


@contextmanager
def communicating(with_: Communicator) -> Iterator[None]:
    """Let this thread's collectives run over a communicator for a while."""
    before = getattr(_here, "communicator", None)
    _here.communicator = with_
    try:
        yield
    finally:
        _here.communicator = before


def communicator(axis: str = "") -> Communicator:
    """This thread's; else that of this process for an axis. Raises: SmeltError (S0644) where there is none."""
    found: Communicator | None = getattr(_here, "communicator", None) or _of_process.get(axis)
    if found is None:
        raise SmeltError(
            "a collective has nobody to talk to", why="the graph is one rank's part of a program",
            fix="run it as the module that s.build(mesh=...) gives, or by s.verify(mesh=...)", code="S0644",
        )  # fmt: skip
    return found


_of_process: weakref.WeakValueDictionary[str, Communicator] = weakref.WeakValueDictionary()


def named_axes(with_: Communicator, axes: Sequence[str]) -> dict[str, str]:
    """Names by which collectives of this process find a communicator from any thread: its axes' own, with a number
    where another communicator has them already."""
    number = 1
    while True:
        names = {axis: axis if number == 1 else f"{axis}#{number}" for axis in axes}
        if all(_of_process.get(name, with_) is with_ for name in names.values()):
            break
        number += 1
    _of_process.update(dict.fromkeys(names.values(), with_))
    return names


def own_name(axis: str) -> str:
    """An axis as its mesh calls it, of a name of `named_axes`."""
    return axis.partition("#")[0]


# --- what they compute


def all_reduce(tensor: torch.Tensor, op: str, axis: str) -> torch.Tensor:
    return communicator(axis).all_reduce(tensor, op, own_name(axis))


def start_all_reduce(tensor: torch.Tensor, op: str, number: int, axis: str) -> torch.Tensor:
    communicator(axis).start_all_reduce(tensor, op, number, own_name(axis))
    return tensor.new_empty((0,))


def wait(begun: torch.Tensor, sizes: Sequence[int], number: int, axis: str) -> torch.Tensor:
    return communicator(axis).wait(number, own_name(axis))


def all_gather(
    tensor: torch.Tensor, dim: int, sizes: Sequence[int], blocks: int, rank: int, axis: str, *, entered: bool = False
) -> torch.Tensor:
    return communicator(axis).all_gather(tensor, Shard(dim, tuple(sizes), blocks), own_name(axis))


def reduce_scatter(
    tensor: torch.Tensor, dim: int, sizes: Sequence[int], blocks: int, rank: int, axis: str
) -> torch.Tensor:
    return communicator(axis).reduce_scatter(tensor, Shard(dim, tuple(sizes), blocks), own_name(axis))


def all_to_all(
    tensor: torch.Tensor, dim: int, sizes: Sequence[int], blocks: int, to: int, to_sizes: Sequence[int], to_blocks: int,
    rank: int, axis: str,
) -> torch.Tensor:  # fmt: skip
    had, wanted = Shard(dim, tuple(sizes), blocks), Shard(to, tuple(to_sizes), to_blocks)
    return communicator(axis).all_to_all(tensor, had, wanted, own_name(axis))


def shard(tensor: torch.Tensor, dim: int, sizes: Sequence[int], blocks: int, rank: int, axis: str) -> torch.Tensor:
    return part_of(tensor, Shard(dim, tuple(sizes), blocks), rank).clone(memory_format=torch.contiguous_format)


def part_of(tensor: torch.Tensor, shard: Shard, rank: int) -> torch.Tensor:
    """What a rank has of a whole tensor; a view where the dimension has one part."""
    pieces = [tensor.narrow(shard.dim, start, end - start) for start, end in shard.ranges(rank)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, shard.dim)


def whole_of(pieces: Sequence[torch.Tensor], shard: Shard) -> torch.Tensor:
    """The whole tensor of what all ranks have."""
    if shard.blocks == 1:
        return torch.cat(list(pieces), shard.dim)
    split = [piece.split(size, shard.dim) for piece, size in zip(pieces, shard.sizes, strict=True) if size]
    return torch.cat([one[k] for k in range(shard.blocks) for one in split], shard.dim)


def enter(tensor: torch.Tensor, axis: str) -> torch.Tensor:
    return tensor.clone()  # a dense one in its own memory layout


def own_noise(ones: torch.Tensor, p: float, rank: int, axis: str) -> torch.Tensor:
    """What dropout multiplies with, other numbers on each rank; all generators go on by one number, the same on all."""
    seed = int(torch.randint(1 << 62, ()).item())
    own = torch.Generator().manual_seed((seed + (rank + 1) * 0x9E3779B97F4A7C15) % (1 << 63))
    kept = torch.rand(ones.shape, generator=own) >= p
    return kept.to(ones.dtype).div_(1 - p) if p < 1 else torch.zeros(ones.shape, dtype=ones.dtype)


def agree(tensor: torch.Tensor, said: str, axis: str) -> torch.Tensor:
    """The tensor, once all ranks have come to here and say the same. said: further lines are about an axis each."""
    first, *lines = said.split("\n")
    communicator(axis).agree(first, dict(line.split(": ", 1) for line in lines))
    return tensor.clone()


def broadcast(tensor: torch.Tensor, source: int, axis: str) -> torch.Tensor:
    return communicator(axis).broadcast(tensor, source, own_name(axis))


# --- what types they give


def _like(args: Sequence[Arg], dim: int | None = None, size: int = 0) -> tuple[Type, ...]:
    first = args[0]
    type_ = first.type if isinstance(first, Value) else None
    if not isinstance(type_, TensorType) or type_.shape is None:
        return (ANY,)
    shape = list(type_.shape)
    if dim is not None:
        shape[dim] = size
    return (TensorType(type_.dtype, tuple(shape), None, type_.device),)


def same_type(args: Sequence[Arg]) -> tuple[Type, ...]:
    """The operand's, row-major."""
    return _like(args)


def type_of_start(args: Sequence[Arg]) -> tuple[Type, ...]:
    """A tensor of nothing: that it has begun."""
    first = args[0]
    assert isinstance(first, Value) and isinstance(first.type, TensorType)
    return (TensorType(first.type.dtype, (0,), None, first.type.device),)


def type_of_wait(args: Sequence[Arg]) -> tuple[Type, ...]:
    """What has begun, in the sizes that are said."""
    first, sizes = args[:2]
    assert isinstance(first, Value) and isinstance(first.type, TensorType) and isinstance(sizes, tuple)
    return (TensorType(first.type.dtype, tuple(n for n in sizes if isinstance(n, int)), None, first.type.device),)


def type_of_entered(args: Sequence[Arg]) -> tuple[Type, ...]:
    """The operand's, in its memory layout where each element has its own place, else row-major."""
    first = args[0]
    type_ = first.type if isinstance(first, Value) else None
    if isinstance(type_, TensorType) and type_.strides is not None and type_.is_static and is_dense(Layout.of(type_)):
        return (type_,)
    return _like(args)


def type_of_whole(args: Sequence[Arg]) -> tuple[Type, ...]:
    """That of the tensor of which the operand is a part."""
    shard = shard_of(args)
    return _like(args, shard.dim, shard.total)


def type_of_part(args: Sequence[Arg]) -> tuple[Type, ...]:
    """That of what the rank has of the operand."""
    shard, rank = shard_of(args), args[4]
    assert isinstance(rank, int)
    return _like(args, shard.dim, shard.local(rank))


def type_of_moved(args: Sequence[Arg]) -> tuple[Type, ...]:
    """Whole along one dimension, a part along another."""
    (whole,), rank = type_of_whole(args), args[7]
    assert isinstance(rank, int) and isinstance(whole, TensorType) and whole.shape is not None
    wanted = shard_of(args, 4)
    shape = list(whole.shape)
    shape[wanted.dim] = wanted.local(rank)
    return (TensorType(whole.dtype, tuple(shape), None, whole.device),)


def shard_of(args: Sequence[Arg], start: int = 1) -> Shard:
    """The division that three arguments say: dimension, sizes, blocks."""
    dim, sizes, blocks = args[start : start + 3]
    assert isinstance(dim, int) and isinstance(sizes, tuple) and isinstance(blocks, int)
    return Shard(dim, tuple(int(s) for s in sizes if isinstance(s, int)), blocks)


# --- their gradients: of the first operand, from that of the result


def gradient_of_sum(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
    return grad


def gradient_of_enter(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
    return b.call(ALL_REDUCE, grad, "sum", args[1])


def gradient_of_gather(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
    dim, sizes, blocks, rank, axis = args[1:]
    if kwargs.get("entered"):
        return b.call(REDUCE_SCATTER, grad, dim, sizes, blocks, rank, axis)
    return b.call(SHARD, grad, dim, sizes, blocks, rank, axis)


def gradient_of_part(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
    dim, sizes, blocks, rank, axis = args[1:]
    return b.call(ALL_GATHER, grad, dim, sizes, blocks, rank, axis)


def gradient_of_move(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
    had, wanted, (rank, axis) = args[1:4], args[4:7], args[7:9]
    return b.call(ALL_TO_ALL, grad, *wanted, *had, rank, axis)


Gradient: TypeAlias = Callable[[Emitter, Sequence[Arg], Mapping[str, Arg], Value], Value]

GRADIENTS: Mapping[str, Gradient] = MappingProxyType({
    ALL_REDUCE: gradient_of_sum, AGREE: gradient_of_sum, ENTER: gradient_of_enter, ALL_GATHER: gradient_of_gather,
    SHARD: gradient_of_part, REDUCE_SCATTER: gradient_of_part, ALL_TO_ALL: gradient_of_move,
})  # fmt: skip
