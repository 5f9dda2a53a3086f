"""Collectives over torch.distributed: one process a rank, a process group an axis of the mesh.

gloo has no collective for uneven shares, and its reduce-scatter is slower than its all-reduce of as many bytes
(measured on torch 2.13), so shares travel as rows of equal length.

Ranks that do different things would get wrong sums from gloo, or wait until its time-out. So they compare notes: once
when they are built, and with each call (`agree`). A rank that dies or stays away ends the others' collective with an
error, at the latest at the group's time-out; all that are left write down where they are, and say who has not.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from smelt._torch.collectives import all_gather_single, default_store
from smelt.diag import RanksError, SmeltError
from smelt.ops.ranks.collectives import part_of, whole_of
from smelt.ops.ranks.expert_rows import by_expert, counts_of, splits
from smelt.ops.ranks.placements import Shard
from smelt.parallel.mesh import Mesh


def mesh_of(mesh: DeviceMesh) -> Mesh:
    """A DeviceMesh's axes. Raises: SmeltError (S0642) where they have no names."""
    names = mesh.mesh_dim_names
    if not names:
        raise SmeltError(
            "the mesh's axes have no names", why="steps name the axis that they are about", code="S0642",
            fix='init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))',
        )  # fmt: skip
    return Mesh(tuple(zip(names, mesh.shape, strict=True)))


class Groups:
    """The communicator of one process."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.device_mesh, self.mesh = mesh, mesh_of(mesh)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise SmeltError(
                "this process is no rank of the mesh", why=f"it is rank {dist.get_rank()} of {dist.get_world_size()}",
                fix="build the mesh over all processes", code="S0642",
            )  # fmt: skip
        self.here = dict(zip(self.mesh.names, coordinate, strict=True))
        self.rank = self.mesh.rank_at(self.here)
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._begun: dict[tuple[int, str], tuple[Any, torch.Tensor]] = {}
        self._done = 0  # collectives so far, of this rank
        self.groups = {axis: mesh.get_group(axis) for axis in self.mesh.names}

    def all_reduce(self, tensor: torch.Tensor, op: str, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        made = tensor.clone(memory_format=torch.contiguous_format)
        with self.watching("all_reduce", axis):
            dist.all_reduce(made, getattr(dist.ReduceOp, op.upper()), self.groups[axis])
        return made

    def start_all_reduce(self, tensor: torch.Tensor, op: str, number: int, axis: str) -> None:
        """As of `Communicator`."""
        made = tensor.clone(memory_format=torch.contiguous_format)
        with self.watching("all_reduce", axis):
            work = dist.all_reduce(made, getattr(dist.ReduceOp, op.upper()), self.groups[axis], async_op=True)
        self._begun[number, axis] = work, made

    def wait(self, number: int, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        work, made = self._begun.pop((number, axis))
        with self.watching("all_reduce", axis):
            work.wait()
        return made

    def all_gather(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        rows = _rows(tensor, shard, max(shard.sizes) * shard.blocks)
        made = rows.new_empty((len(shard.sizes) * rows.shape[0], *rows.shape[1:]))
        with self.watching("all_gather", axis):
            all_gather_single(made, rows, self.groups[axis])
        return _joined(made.chunk(len(shard.sizes)), shard)

    def reduce_scatter(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        whole = self.all_reduce(tensor, "sum", axis)
        return part_of(whole, shard, self.here[axis]).clone(memory_format=torch.contiguous_format)

    def all_to_all(self, tensor: torch.Tensor, had: Shard, wanted: Shard, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        count, here = len(had.sizes), self.here[axis]
        given = [part_of(tensor, wanted, rank).contiguous() for rank in range(count)]
        shape = list(given[here].shape)
        got = []
        for rank in range(count):
            shape[had.dim] = had.local(rank)
            got.append(tensor.new_empty(shape))
        flat_in = torch.cat([one.reshape(-1) for one in given])
        flat_out = flat_in.new_empty(sum(one.numel() for one in got))
        counts = [one.numel() for one in got], [one.numel() for one in given]
        with self.watching("all_to_all", axis):
            dist.all_to_all_single(flat_out, flat_in, *counts, self.groups[axis])
        pieces = [p.view(one.shape) for p, one in zip(flat_out.split([o.numel() for o in got]), got, strict=True)]
        return whole_of(pieces, had).contiguous()

    def exchange_rows(
        self, rows: torch.Tensor, ends: torch.Tensor, sizes: tuple[int, ...], count: int, axis: str, *, back: bool
    ) -> torch.Tensor:
        """As of `Communicator`."""
        counts, here = counts_of(ends), self.here[axis]
        sent, got = splits(counts, sizes, here)
        places = by_expert(counts, sizes, here)
        if back:
            own = torch.empty_like(rows[: len(places)])
            own[places] = rows[: len(places)]
            sent, got = got, sent
        else:
            own = rows[: sum(sent)].contiguous()
        came = rows.new_empty((sum(got), *rows.shape[1:]))
        with self.watching("return_rows" if back else "send_rows", axis):
            dist.all_to_all_single(came, own, got, sent, self.groups[axis])
        made = rows.new_zeros((count, *rows.shape[1:]))
        made[: len(came)] = came if back else came[places]
        return made

    def broadcast(self, tensor: torch.Tensor, source: int, axis: str) -> torch.Tensor:
        """As of `Communicator`."""
        made = tensor.clone(memory_format=torch.contiguous_format)
        with self.watching("broadcast", axis):
            dist.broadcast(made, group=self.groups[axis], group_src=source)
        return made

    def send(self, tensor: torch.Tensor, target: int, axis: str, key: str) -> None:
        """As of `Communicator`."""
        own = tensor.contiguous()
        handle = dist.isend(own, group=self.groups[axis], group_dst=target, tag=_tag(key))
        self._sent = [(one, kept) for one, kept in self._sent if not one.is_completed()]
        self._sent.append((handle, own))  # its memory has to last until it has gone

    def recv(self, like: torch.Tensor, source: int, axis: str, key: str) -> torch.Tensor:
        """As of `Communicator`."""
        with self.watching(f"recv of {key}", axis):
            dist.recv(like, group=self.groups[axis], group_src=source, tag=_tag(key))
        return like

    def agree(self, said: str, along: Mapping[str, str] = MappingProxyType({})) -> None:
        """Compare notes with all ranks, and by axis with those of this rank's groups.

        Raises: RanksError (S0643) on all where one differs.
        """
        own = [zlib.crc32(text.encode()) for text in (said, *(along.get(name, "") for name in self.mesh.names))]
        every = torch.empty(dist.get_world_size() * len(own), dtype=torch.int64)
        with self.watching("comparing notes", ""):
            all_gather_single(every, torch.tensor(own))
        rows = every.view(-1, len(own)).tolist()
        if all(row == rows[0] for row in rows) or self._agree_along(rows):
            return
        told: list[Any] = [None] * len(rows)
        dist.all_gather_object(told, (said, dict(along)))
        raise disagreement([text for text, _ in told], [axes for _, axes in told])

    def _agree_along(self, rows: Sequence[Sequence[int]]) -> bool:
        """Whether all ranks say the same, and along each axis those of each group. rows: by process."""
        ranks = self.device_mesh.mesh.flatten().tolist()
        at = [self.mesh.coordinates(number) for number in range(len(ranks))]
        found: dict[tuple[Any, ...], int] = {}
        return all(row[0] == rows[0][0] for row in rows) and all(
            found.setdefault((axis, *(n for other, n in here.items() if other != axis)), rows[rank][1 + i])
            == rows[rank][1 + i]
            for i, axis in enumerate(self.mesh.names) for rank, here in zip(ranks, at, strict=True)
        )  # fmt: skip

    @contextmanager
    def watching(self, what: str, axis: str) -> Iterator[None]:
        """Make of an error in a collective one that says which rank is missing. Raises: SmeltError (S0644)."""
        self._done += 1
        try:
            yield
        except RuntimeError as error:
            raise self._lost(what, axis, error) from error

    def _lost(self, what: str, axis: str, error: RuntimeError) -> SmeltError:
        own, everyone = dist.get_rank(), range(dist.get_world_size())
        place = f"collective {self._done}, {what}" + (f" along {axis!r}" if axis else "")
        here = _notes(own, f"is at {place}", everyone)
        missing = [rank for rank in everyone if rank not in here]
        names = ", ".join(f"rank {rank} ({self._where(rank)})" for rank in missing) or "a rank"
        notes = tuple(f"rank {rank} {text}" for rank, text in sorted(here.items()))
        return RanksError(
            f"{names} did not come to {place}", why=str(error).splitlines()[0][:300], notes=notes, code="S0644",
            fix="look at the output of that rank: it has ended, waits elsewhere, or takes longer than the time-out",
        )  # fmt: skip

    def _where(self, rank: int) -> str:
        return self.mesh.where(rank) if rank < self.mesh.size else "outside the mesh"


def disagreement(told: Sequence[str], along: Sequence[Mapping[str, str]] = ()) -> SmeltError:
    """Of ranks that would do different things. along: what each said of axes, where that may be it."""
    if all(said == told[0] for said in told):
        by_axis = ([f"{axis}: {text}" for axis, text in axes.items()] for axes in along)
        told = [", ".join([said, *texts]) for said, texts in zip(told, by_axis, strict=True)]
    other = next((rank for rank, said in enumerate(told) if said != told[0]), 0)
    first, second = told[0].splitlines(), told[other].splitlines()
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    line = [lines[at] if at < len(lines) else "nothing more" for lines in (first, second)]
    if any("captured" in one for one in line):
        return RanksError(
            f"rank {other} runs a compiled step otherwise than rank 0", code="S0643",
            why=f"rank 0 has {line[0]}; rank {other} has {line[1]}: what the step reads differs between them",
            fix="move what only some ranks do out of the step; smelt.explain(step) says why a rank compiled it anew",
        )  # fmt: skip
    return RanksError(
        f"rank {other} would do something else than rank 0", why=f"rank 0 has {line[0]}; rank {other} has {line[1]}",
        fix="run the same program on all ranks, with inputs of the same sizes, and the same modes", code="S0643",
    )  # fmt: skip


_WAIT_S = 3.0


def _notes(own: int, text: str, everyone: Iterable[int]) -> dict[int, str]:
    """What ranks that are still there say, this one among them; others get a few seconds to come."""
    found, store = {own: text}, default_store()
    if store is None:
        return found
    try:
        store.set(f"smelt/lost/{own}", text)
        deadline = monotonic() + _WAIT_S
        left = [rank for rank in everyone if rank != own]
        while left and monotonic() < deadline:
            came = [rank for rank in left if store.check([f"smelt/lost/{rank}"])]
            found |= {rank: store.get(f"smelt/lost/{rank}").decode() for rank in came}
            left = [rank for rank in left if rank not in came]
            sleep(0.05)
    except RuntimeError:
        pass  # the process that kept the notes is the one that has gone
    return found


def _tag(key: str) -> int:
    """A number for what is sent, the same in every process."""
    return zlib.crc32(key.encode()) & 0x3FFFFFFF


def _rows(tensor: torch.Tensor, shard: Shard, count: int) -> torch.Tensor:
    """A part as `count` rows along its dimension."""
    rows = tensor.movedim(shard.dim, 0).contiguous()
    if rows.shape[0] < count:
        rows = torch.cat([rows, rows.new_zeros((count - rows.shape[0], *rows.shape[1:]))])
    return rows


def _joined(pieces: tuple[torch.Tensor, ...], shard: Shard) -> torch.Tensor:
    """The whole of what all ranks sent as rows."""
    own = [piece[: shard.local(rank)] for rank, piece in enumerate(pieces)]
    whole = whole_of(own, Shard(0, shard.sizes, shard.blocks))
    return whole.movedim(0, shard.dim).contiguous()
