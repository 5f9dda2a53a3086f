"""A step of all ranks by the clock: events of each rank, one after the other, and who waits for whom.

    rank 0  FFFFFF==FFFF==BBBBBBBB==BBBB==U        = collective, > sending, < a message on its way, . waiting
    rank 1  FFFFF.==FFF.==BBBBBBB.==BBB.==U

A collective begins when its last rank has come, and ends for all at once. A message is sent without waiting, and is
there after latency and transfer. Invariant: the same events give the same times; nothing here runs a program.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.parallel.proving.events import BACKWARD, Event, Exchange, Finish, Recv, Send
from smelt.parallel.proving.figures import Figures, hops_and_bytes
from smelt.parallel.proving.simulate import receivers

EXCHANGE, SEND, RECV, WAIT = "collective", "send", "recv", "wait"
_SIGNS = {EXCHANGE: "=", SEND: ">", RECV: "<", WAIT: ".", "update": "U"}
LEGEND = "F forward, B backward, U update, = collective, > send, < message in transit, . waiting"
LEGEND_PIPE = (
    "A B C ... forward of each microbatch, a b c ... backward, U update, = collective, > send, < message, . waiting"
)
Group = Callable[[int, str], Sequence[int]]
"""From a rank and an axis: the ranks that stand along it."""


@record
class Interval:
    """What a rank does from `start` to `end`, in seconds: a phase, a collective, sending, receiving, or waiting."""

    start: float
    end: float
    kind: str
    microbatch: int = 0


@dataclass(slots=True)
class Clock:
    """A step. intervals: of each rank, without gaps. length: until all have ended. links: bytes from rank to rank."""

    intervals: list[list[Interval]]
    length: float
    links: dict[tuple[int, int], int]
    is_pipe: bool = False

    def part(self, rank: int, *kinds: str) -> float:
        """The part of the step that a rank spends so."""
        spent = sum(one.end - one.start for one in self.intervals[rank] if one.kind in kinds)
        return spent / self.length if self.length else 0.0

    def idle(self, rank: int) -> float:
        """The part of the step in which a rank waits for others, its end included."""
        last = self.intervals[rank][-1].end if self.intervals[rank] else 0.0
        return self.part(rank, WAIT) + ((self.length - last) / self.length if self.length else 0.0)

    def talking(self, rank: int) -> float:
        """The part in which it exchanges, with nothing computed beside."""
        return self.part(rank, EXCHANGE, SEND, RECV)

    @property
    def bubble(self) -> float:
        """The part of all ranks' time in which they wait."""
        return sum(map(self.idle, range(len(self.intervals)))) / max(len(self.intervals), 1)

    def picture(self, width: int = 72, ranks: Sequence[int] | None = None) -> str:
        """Ranks as lines of letters, with the part of each in which it waits."""
        shown = range(len(self.intervals)) if ranks is None else ranks
        rows = [f"{text_of_seconds(self.length)} a step; {LEGEND_PIPE if self.is_pipe else LEGEND}"]
        rows += [f"{rank:>5}  {self._line(rank, width)}  {self._told(rank)}" for rank in shown]
        return "\n".join(rows)

    def _told(self, rank: int) -> str:
        return f"idle {self.idle(rank):.0%}, exchanges {self.talking(rank):.0%}"

    def _line(self, rank: int, width: int) -> str:
        """Each letter stands for what took most of its time."""
        shares = [defaultdict[str, float](float) for _ in range(width)]
        scale = width / self.length if self.length else 0.0
        for one in self.intervals[rank]:
            first, last = one.start * scale, one.end * scale
            for i in range(int(first), min(ceil(last), width)):
                shares[i][self._sign(one)] += min(last, i + 1) - max(first, i)
        return "".join(max(s, key=lambda k, s=s: s[k]) if s else "." for s in shares)  # type: ignore[misc]

    def _sign(self, one: Interval) -> str:
        if one.kind in _SIGNS:
            return _SIGNS[one.kind]
        if not self.is_pipe:
            return one.kind[0].upper()
        letter = chr(ord("A") + one.microbatch % 26)
        return letter.lower() if one.kind == BACKWARD else letter


def text_of_seconds(seconds: float) -> str:
    """A time for people."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def clocked(
    events: Sequence[Sequence[Event]], group: Group, extents: Mapping[str, int], figures: Figures, *,
    is_pipe: bool = False,
) -> Clock:  # fmt: skip
    """Run events of ranks by the clock.

    group: who exchanges with whom. extents: how many ranks an axis has in truth, where those that are simulated stand
    for more. Raises: InternalError where ranks wait for each other.
    """
    return _Run(events, group, extents, figures).run(is_pipe)


class _Run:
    def __init__(
        self, events: Sequence[Sequence[Event]], group: Group, extents: Mapping[str, int], figures: Figures
    ) -> None:  # fmt: skip
        self.left = [deque(one) for one in events]
        self.group, self.extents, self.figures = group, extents, figures
        self.now = [0.0] * len(events)
        self.made: list[list[Interval]] = [[] for _ in events]
        self.links: dict[tuple[int, int], int] = defaultdict(int)
        self.letters: dict[tuple[int, int, str], deque[float]] = defaultdict(deque)
        self.waiting: dict[tuple[str, tuple[int, ...]], set[int]] = defaultdict(set)
        self.begun: dict[tuple[str, tuple[int, ...], int], dict[int, float]] = defaultdict(dict)
        self.over: dict[tuple[int, str, int], float] = {}

    def run(self, is_pipe: bool) -> Clock:
        ready = deque(range(len(self.left)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        if any(self.left):
            raise InternalError("ranks wait for each other in a step that is simulated")
        return Clock(self.made, max(self.now, default=0.0), dict(self.links), is_pipe)

    def _advance(self, rank: int) -> list[int]:
        """Let a rank go on as far as it can; who can go on because of that."""
        freed: list[int] = []
        while self.left[rank]:
            event = self.left[rank][0]
            if isinstance(event, Exchange):
                if self.extents[event.axis] > 1 and not event.is_begun:
                    return freed + self._meet(rank, event)
                if self.extents[event.axis] > 1:
                    freed += self._begin(rank, event)
            elif isinstance(event, Finish):
                if self.extents[event.axis] > 1 and not self._finish(rank, event):
                    return freed
            elif isinstance(event, Recv):
                source = self.group(rank, event.axis)[event.source]
                box = self.letters[source, rank, event.key]
                if not box:
                    return freed
                self._receive(rank, event, box.popleft())
            elif isinstance(event, Send):
                target = self.group(rank, event.axis)[event.target]
                self._send(rank, target, event)
                freed.append(target)
            else:
                self._spend(rank, event.seconds, event.phase, event.microbatch)
            self.left[rank].popleft()
        return freed

    def _spend(self, rank: int, seconds: float, kind: str, microbatch: int = 0) -> None:
        if seconds > 0:
            start = self.now[rank]
            self.now[rank] = start + seconds
            self.made[rank].append(Interval(start, self.now[rank], kind, microbatch))

    def _send(self, rank: int, target: int, event: Send) -> None:
        link = self.figures.link(event.axis)
        self._spend(rank, link.latency_us * 1e-6, SEND)
        self.letters[rank, target, event.key].append(self.now[rank] + event.nbytes / link.gbps * 1e-9)
        self.links[rank, target] += event.nbytes

    def _receive(self, rank: int, event: Recv, arrival: float) -> None:
        transfer = event.nbytes / self.figures.link(event.axis).gbps * 1e-9
        self._spend(rank, arrival - transfer - self.now[rank], WAIT)
        self._spend(rank, arrival - self.now[rank], RECV)

    def _begin(self, rank: int, event: Exchange) -> list[int]:
        """Begin a collective and go on; it is under way when all have begun. Who may have waited for that."""
        members = tuple(self.group(rank, event.axis))
        came = self.begun[event.axis, members, event.number]
        came[rank] = self.now[rank]
        if len(came) < len(members):
            return []
        hops, nbytes = hops_and_bytes(event.kind, self.extents[event.axis], event.nbytes)
        end = max(came.values()) + self.figures.link(event.axis).seconds(hops, nbytes)
        for member in members:
            self.over[member, event.axis, event.number] = end
            self._sent(event.kind, members, member, nbytes)
        came.clear()
        return [member for member in members if member != rank]

    def _finish(self, rank: int, event: Finish) -> bool:
        """Wait for the end of what has begun; whether all others have begun it."""
        end = self.over.pop((rank, event.axis, event.number), None)
        if end is not None:
            self._spend(rank, end - self.now[rank], EXCHANGE)
        return end is not None

    def _sent(self, kind: str, members: tuple[int, ...], member: int, nbytes: float) -> None:
        if len(members) > 1:
            others = receivers(kind, members, member)
            for other in others:
                self.links[member, other] += int(nbytes / len(others))

    def _meet(self, rank: int, event: Exchange) -> list[int]:
        """Come to a collective; the last one to come starts it."""
        members = tuple(self.group(rank, event.axis))
        here = self.waiting[event.axis, members]
        here.add(rank)
        if len(here) < len(members):
            return []
        count = self.extents[event.axis]
        hops, nbytes = hops_and_bytes(event.kind, count, event.nbytes)
        start = max(self.now[m] for m in members)
        for member in members:
            self._spend(member, start - self.now[member], WAIT)
            self._spend(member, self.figures.link(event.axis).seconds(hops, nbytes), EXCHANGE)
            self.left[member].popleft()
            self._sent(event.kind, members, member, nbytes)
        here.clear()
        return list(members)
