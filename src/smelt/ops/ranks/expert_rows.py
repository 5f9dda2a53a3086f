"""Rows that go to the rank that has their expert, and back: `dist.*` operators of experts that are divided among ranks.

    %a: i32[2, 4] = dist.all_gather(ends, ..)                   of each rank's sorted rows: where each expert's end
    %r: f32[64, 8] = dist.send_rows(%x, %a, [2, 2], 64, 0, "ep")     rows for this rank's two experts, sorted by expert
    %e: i32[2] = dist.own_ends(%a, [2, 2], 0)                    where each of them ends
    %y: f32[32, 8] = dist.return_rows(%z, %a, [2, 2], 32, 0, "ep")   back to where they came from, in their order there

`dist.take_rows` and `dist.put_rows` are the same where each rank has all rows: nothing is sent, and what other ranks'
experts have is zero. How many rows a rank gets is known when it runs only: there is room for all, and what is left is
zero. `send_rows` and `return_rows` are each other's gradients, as are the other two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from smelt.ir import Arg, DType, TensorType, Type, Value
from smelt.ops.ranks import collectives
from smelt.ops.ranks.collectives import PUT_ROWS, RETURN_ROWS, SEND_ROWS, TAKE_ROWS, Gradient, communicator, own_name
from smelt.ops.ranks.placements import offsets
from smelt.ops.record import Emitter


def own_ends(ends: torch.Tensor, sizes: Sequence[int], rank: int) -> torch.Tensor:
    total = ends.sum(0, dtype=torch.int32)
    first = offsets(sizes)[rank]
    own = total[first : first + sizes[rank]]
    return own - total[first - 1] if first else own.clone()


def send_rows(
    rows: torch.Tensor, ends: torch.Tensor, sizes: Sequence[int], count: int, rank: int, axis: str
) -> torch.Tensor:
    return communicator(axis).exchange_rows(rows, ends, tuple(sizes), count, own_name(axis), back=False)


def return_rows(
    rows: torch.Tensor, ends: torch.Tensor, sizes: Sequence[int], count: int, rank: int, axis: str
) -> torch.Tensor:
    return communicator(axis).exchange_rows(rows, ends, tuple(sizes), count, own_name(axis), back=True)


def take_rows(rows: torch.Tensor, ends: torch.Tensor, sizes: Sequence[int], rank: int) -> torch.Tensor:
    start, end = _own_range(ends, sizes, rank)
    made = torch.zeros(rows.shape, dtype=rows.dtype)
    made[: end - start] = rows[start:end]
    return made


def put_rows(rows: torch.Tensor, ends: torch.Tensor, sizes: Sequence[int], rank: int) -> torch.Tensor:
    start, end = _own_range(ends, sizes, rank)
    made = torch.zeros(rows.shape, dtype=rows.dtype)
    made[start:end] = rows[: end - start]
    return made


def _own_range(ends: torch.Tensor, sizes: Sequence[int], rank: int) -> tuple[int, int]:
    total, first = [0, *ends.sum(0).tolist()], offsets(sizes)[rank]
    return int(total[first]), int(total[first + sizes[rank]])


# --- who sends what


def counts_of(ends: torch.Tensor) -> list[list[int]]:
    """How many rows each rank has of each expert."""
    found: list[list[int]] = ends.diff(dim=1, prepend=ends.new_zeros((ends.shape[0], 1))).tolist()
    return found


def splits(counts: Sequence[Sequence[int]], sizes: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """How many rows a rank sends to each rank, and gets of each."""
    starts = offsets(sizes)
    sent = [sum(counts[rank][first : first + n]) for first, n in zip(starts, sizes, strict=True)]
    got = [sum(row[starts[rank] : starts[rank] + sizes[rank]]) for row in counts]
    return sent, got


def by_expert(counts: Sequence[Sequence[int]], sizes: Sequence[int], rank: int) -> torch.Tensor:
    """The places among what a rank gets, rank by rank, of rows sorted by expert."""
    first, count = offsets(sizes)[rank], sizes[rank]
    own = [row[first : first + count] for row in counts]
    begins, at = [], 0
    for row in own:
        here = []
        for n in row:
            here.append(at)
            at += n
        begins.append(here)
    pieces = [torch.arange(begins[r][e], begins[r][e] + own[r][e]) for e in range(count) for r in range(len(own))]
    return torch.cat(pieces) if pieces else torch.arange(0)


# --- types and gradients


def type_of_exchanged(args: Sequence[Arg]) -> tuple[Type, ...]:
    """As many rows as there is room for."""
    rows, count = args[0], args[3]
    assert isinstance(rows, Value) and isinstance(rows.type, TensorType) and isinstance(count, int)
    return (TensorType(rows.type.dtype, (count, *rows.type.sizes[1:]), None, rows.type.device),)


def type_of_own_ends(args: Sequence[Arg]) -> tuple[Type, ...]:
    """One number an expert of the rank's."""
    ends, sizes, rank = args
    assert isinstance(ends, Value) and isinstance(ends.type, TensorType)
    assert isinstance(sizes, tuple) and isinstance(rank, int)
    count = sizes[rank]
    assert isinstance(count, int)
    return (TensorType(DType.I32, (count,), None, ends.type.device),)


def _of_exchange(other: str) -> Gradient:
    def gradient(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
        rows, ends, sizes, _, rank, axis = args
        assert isinstance(rows, Value) and isinstance(rows.type, TensorType)
        return b.call(other, grad, ends, sizes, rows.type.sizes[0], rank, axis)

    return gradient


def _of_local(other: str) -> Gradient:
    def gradient(b: Emitter, args: Sequence[Arg], kwargs: Mapping[str, Arg], grad: Value) -> Value:
        return b.call(other, grad, *args[1:])

    return gradient


GRADIENTS: Mapping[str, Gradient] = MappingProxyType({
    **collectives.GRADIENTS,
    SEND_ROWS: _of_exchange(RETURN_ROWS), RETURN_ROWS: _of_exchange(SEND_ROWS), TAKE_ROWS: _of_local(PUT_ROWS),
    PUT_ROWS: _of_local(TAKE_ROWS),
})  # fmt: skip
"""Of all operators between ranks: by the first operand, from that by the result."""
