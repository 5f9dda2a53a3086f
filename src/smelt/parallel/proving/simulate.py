"""All ranks of a mesh in one process: each is a thread, of which one runs at a time.

A rank runs until it comes to a collective and waits there. When all that take part are there, what they ask for is
compared and computed, in the order of the ranks, and they go on. So the result does not depend on time; ranks that ask
for different things are told at once, with what each asked for; and where nobody can go on, it is said who waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from smelt.diag import RanksError, SmeltError
from smelt.ops.ranks.collectives import communicating, part_of, whole_of
from smelt.ops.ranks.expert_rows import by_expert, counts_of, splits
from smelt.ops.ranks.placements import Shard
from smelt.parallel.mesh import Mesh

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """What a rank waits for: a collective along an axis with its operand."""

    what: tuple[Any, ...]
    tensor: torch.Tensor
    group: tuple[int, ...]
    answer: torch.Tensor | None = None


@dataclass(slots=True)
class Sent:
    """How much a rank sent along an axis, as a ring sends it: `count` messages, `nbytes`."""

    count: int = 0
    nbytes: int = 0


class Stopped(BaseException):
    """Ends the threads of ranks after another one has failed."""


@dataclass(eq=False)
class World:
    """The ranks of a mesh, and what they sent: by rank and axis; links: bytes from rank to rank."""

    mesh: Mesh
    sent: dict[tuple[int, str], Sent] = field(default_factory=dict)
    links: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self, rank_program: Callable[[int], T]) -> list[T]:
        """What the program gives on each rank, in order.

        Raises: what a rank raises, with its number as a note; SmeltError (S0643) where ranks ask for different things.
        """
        return _Run(self, rank_program).results()

    def count(self, rank: int, axis: str, nbytes: float, to: Sequence[int]) -> None:
        """Note a message, to one rank or in equal shares to several."""
        one = self.sent.setdefault((rank, axis), Sent())
        one.count += 1
        one.nbytes += int(nbytes)
        for other in to:
            self.links[rank, other] = self.links.get((rank, other), 0) + int(nbytes / len(to))


class _Run:
    def __init__(self, world: World, program: Callable[[int], Any]) -> None:
        self.world, self.program = world, program
        count = world.mesh.size
        self.turns = [threading.Semaphore(0) for _ in range(count)]
        self.back = threading.Semaphore(0)
        self.requests: list[Request | None] = [None] * count
        self.done = [False] * count
        self.values: list[Any] = [None] * count
        self.failure: tuple[int, BaseException] | None = None
        self.stopping = False
        self.grad = torch.is_grad_enabled()
        # Every rank draws what a process of its own would, which has begun with this seed.
        self.numbers = [torch.get_rng_state()] * count
        self.letters: dict[tuple[int, int, str], deque[torch.Tensor]] = {}

    def results(self) -> list[Any]:
        threads = [threading.Thread(target=self._rank, args=(rank,), daemon=True) for rank in range(len(self.turns))]
        for thread in threads:
            thread.start()
        try:
            self._schedule()
        finally:
            self.stopping = True
            for rank, thread in enumerate(threads):
                self.turns[rank].release()
                thread.join()
        if self.failure is not None:
            rank, error = self.failure
            error.add_note(f"on rank {rank}, {self.world.mesh.where(rank)}")
            raise error
        return self.values

    def _schedule(self) -> None:
        ready = list(range(len(self.turns)))
        while ready and self.failure is None:
            for rank in ready:
                torch.set_rng_state(self.numbers[rank])
                self.turns[rank].release()
                self.back.acquire()
                self.numbers[rank] = torch.get_rng_state()
                if self.failure is not None:
                    return
            ready = self._answer()
        if not all(self.done) and self.failure is None:
            raise self._nobody_moves()

    def _rank(self, rank: int) -> None:
        self.turns[rank].acquire()
        try:
            if not self.stopping:
                torch.set_grad_enabled(self.grad)
                with communicating(_Here(self, rank)):
                    self.values[rank] = self.program(rank)
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or (rank, error)
        self.done[rank] = True
        self.back.release()

    def ask(self, rank: int, request: Request) -> torch.Tensor:
        """Wait for the others, from a rank's thread."""
        self.requests[rank] = request
        self.back.release()
        self.turns[rank].acquire()
        if self.stopping:
            raise Stopped
        answer = request.answer
        assert answer is not None
        return answer

    def _answer(self) -> list[int]:
        """Answer all that have everybody there; who can go on."""
        moved: list[int] = []
        for rank, request in enumerate(self.requests):
            if request is None or rank != request.group[0]:
                continue
            if request.what[0] == "recv":
                box = self.letters.get((request.what[1], rank, request.what[2]))
                if box:
                    request.answer, self.requests[rank] = box.popleft(), None
                    moved.append(rank)
                continue
            asked = [self.requests[other] for other in request.group]
            if any(other is None or other.group != request.group for other in asked):
                continue
            together = [other for other in asked if other is not None]
            if any(other.what != request.what for other in together):
                raise self._disagree(request.group, together)
            _compute(self.world, together)
            for other in request.group:
                self.requests[other] = None
                moved.append(other)
        return moved

    def _disagree(self, group: Sequence[int], asked: Sequence[Request]) -> SmeltError:
        notes = tuple(f"rank {rank} comes to {_told(one)}" for rank, one in zip(group, asked, strict=True))
        return RanksError(
            "ranks come to different collectives at one time", why=f"{notes[0]}; {_other(notes, asked)}",
            fix="all ranks have to run the same program on inputs of the same sizes", notes=notes, code="S0643",
        )  # fmt: skip

    def _nobody_moves(self) -> SmeltError:
        notes = tuple(
            f"rank {rank} has ended" if request is None else f"rank {rank} waits in {_told(request)}"
            for rank, request in enumerate(self.requests)
        )
        return RanksError(
            "ranks wait for others that do not come", why="; ".join(notes[:8]),
            fix="all ranks have to run the same program", notes=notes, code="S0643",
        )  # fmt: skip


def _told(request: Request) -> str:
    return f"{request.what[0]} of {list(request.tensor.shape)} {str(request.tensor.dtype).removeprefix('torch.')}"


def _other(notes: Sequence[str], asked: Sequence[Request]) -> str:
    return next(n for n, one in zip(notes, asked, strict=True) if one.what != asked[0].what)


class _Here:
    """The communicator of one rank."""

    def __init__(self, run: _Run, rank: int) -> None:
        self.run, self.rank, self.mesh = run, rank, run.world.mesh
        self._begun: dict[tuple[int, str], torch.Tensor] = {}

    def _ask(self, what: tuple[Any, ...], tensor: torch.Tensor, axis: str) -> torch.Tensor:
        return self.run.ask(self.rank, Request((*what, axis), tensor, self.mesh.group(self.rank, axis)))

    def all_reduce(self, tensor: torch.Tensor, op: str, axis: str) -> torch.Tensor:
        return self._ask(("all_reduce", op, tuple(tensor.shape), tensor.dtype), tensor, axis)

    def start_all_reduce(self, tensor: torch.Tensor, op: str, number: int, axis: str) -> None:
        self._begun[number, axis] = self.all_reduce(tensor, op, axis)

    def wait(self, number: int, axis: str) -> torch.Tensor:
        return self._begun.pop((number, axis))

    def all_gather(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        return self._ask(("all_gather", shard, tensor.dtype), tensor, axis)

    def reduce_scatter(self, tensor: torch.Tensor, shard: Shard, axis: str) -> torch.Tensor:
        return self._ask(("reduce_scatter", shard, tuple(tensor.shape), tensor.dtype), tensor, axis)

    def all_to_all(self, tensor: torch.Tensor, had: Shard, wanted: Shard, axis: str) -> torch.Tensor:
        return self._ask(("all_to_all", had, wanted, tensor.dtype), tensor, axis)

    def exchange_rows(
        self, rows: torch.Tensor, ends: torch.Tensor, sizes: tuple[int, ...], count: int, axis: str, *, back: bool
    ) -> torch.Tensor:
        kind, told = "return_rows" if back else "send_rows", tuple(map(tuple, ends.tolist()))
        got = self._ask((kind, told, sizes, tuple(rows.shape[1:]), rows.dtype), rows, axis)
        made = rows.new_zeros((count, *rows.shape[1:]))
        made[: len(got)] = got
        return made

    def broadcast(self, tensor: torch.Tensor, source: int, axis: str) -> torch.Tensor:
        return self._ask(("broadcast", source, tuple(tensor.shape), tensor.dtype), tensor, axis)

    def agree(self, said: str, along: Mapping[str, str]) -> None:
        """Ranks that request different things are told apart at once here."""

    def send(self, tensor: torch.Tensor, target: int, axis: str, key: str) -> None:
        other = self.mesh.group(self.rank, axis)[target]
        self.run.letters.setdefault((self.rank, other, key), deque()).append(tensor.clone())
        self.run.world.count(self.rank, axis, tensor.nbytes, [other])

    def recv(self, like: torch.Tensor, source: int, axis: str, key: str) -> torch.Tensor:
        other = self.mesh.group(self.rank, axis)[source]
        got = self.run.ask(self.rank, Request(("recv", other, key), like, (self.rank,)))
        if got.shape != like.shape or got.dtype != like.dtype:
            raise RanksError(
                f"rank {other} sent {list(got.shape)} {got.dtype} for {key}, not {list(like.shape)} {like.dtype}",
                why="all ranks have to run the same program", code="S0643",
            )  # fmt: skip
        return got


def _compute(world: World, asked: Sequence[Request]) -> None:
    first, tensors = asked[0], [one.tensor for one in asked]
    kind, axis, count = first.what[0], first.what[-1], len(asked)
    answers, sent = _KINDS[kind](first.what, tensors)
    for rank, one, answer in zip(first.group, asked, answers, strict=True):
        one.answer = answer
        if count > 1:
            world.count(rank, axis, sent * (count - 1) / count, receivers(kind, first.group, rank))


def receivers(kind: str, group: Sequence[int], rank: int) -> list[int]:
    """To whom a rank of a group sends in a collective: to the next one of a ring, or its part to each."""
    if kind in ("all_to_all", "send_rows", "return_rows"):
        return [other for other in group if other != rank]
    return [group[(group.index(rank) + 1) % len(group)]]


def _reduced(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    total = _total(what[1], tensors)
    return [total, *(total.clone() for _ in tensors[1:])], 2 * total.nbytes


def _total(op: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone(memory_format=torch.contiguous_format)
    for tensor in tensors[1:]:
        total = torch.maximum(total, tensor) if op == "max" else total.add_(tensor)
    return total


def _gathered(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    whole = whole_of(tensors, what[1]).contiguous()
    return [whole, *(whole.clone() for _ in tensors[1:])], whole.nbytes


def _scattered(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    total = _total("sum", tensors)
    return [part_of(total, what[1], rank).clone() for rank in range(len(tensors))], total.nbytes


def _moved(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    whole = whole_of(tensors, what[1])
    parts = [part_of(whole, what[2], rank).clone(memory_format=torch.contiguous_format) for rank in range(len(tensors))]
    return parts, whole.nbytes / len(tensors)


def _sent_rows(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """Of each rank's sorted rows those of each rank's experts, sorted by expert."""
    counts, sizes = counts_of(torch.tensor(what[1])), what[2]
    pieces = [list(t.split([*(row := splits(counts, sizes, r)[0]), len(t) - sum(row)])) for r, t in enumerate(tensors)]
    got = [torch.cat([one[rank] for one in pieces])[by_expert(counts, sizes, rank)] for rank in range(len(tensors))]
    return got, sum(one.nbytes for one in got) / len(got)


def _returned_rows(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    counts, sizes = counts_of(torch.tensor(what[1])), what[2]
    came: list[list[torch.Tensor]] = []
    for rank, tensor in enumerate(tensors):
        places, got = by_expert(counts, sizes, rank), splits(counts, sizes, rank)[1]
        rows = torch.empty_like(tensor[: len(places)])
        rows[places] = tensor[: len(places)]
        came.append(list(rows.split(got)))
    found = [torch.cat([one[rank] for one in came]) for rank in range(len(tensors))]
    return found, sum(one.nbytes for one in found) / len(found)


def _broadcast(what: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    source = tensors[what[1]]
    return [source.clone() for _ in tensors], source.nbytes


_KINDS: Mapping[str, Callable[[Sequence[Any], Sequence[torch.Tensor]], tuple[list[torch.Tensor], float]]] = {
    "all_reduce": _reduced, "all_gather": _gathered, "reduce_scatter": _scattered, "all_to_all": _moved,
    "broadcast": _broadcast, "send_rows": _sent_rows, "return_rows": _returned_rows,
}  # fmt: skip
