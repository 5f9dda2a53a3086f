"""In which order a rank runs the forward and backward of its stages' microbatches, and how long ranks wait.

    1F1B, 3 stages, 4 microbatches          F0 F1 F2 B0 F3 B1 B2 B3
                                               F0 F1 B0 F2 B1 F3 B2 B3
                                                  F0 B0 F1 B1 F2 B2 F3 B3

Orders come from one simulation of all ranks, which every rank does for itself and which comes out the same: so each
message has a sender and a receiver, and nobody waits for what is sent later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """Forward or backward of one stage for one microbatch."""

    stage: int
    microbatch: int
    is_backward: bool

    def __str__(self) -> str:
        return f"{'B' if self.is_backward else 'F'}{self.microbatch}" + (f".{self.stage}" if self.stage else "")


@dataclass(slots=True)
class Timeline:
    """orders: the actions of each rank. spans: of each, start and end. length: until all are done."""

    orders: list[list[Action]]
    spans: dict[Action, tuple[float, float]]
    length: float

    def idle(self, rank: int) -> float:
        """The part of the time that a rank waits."""
        busy = sum(self.spans[a][1] - self.spans[a][0] for a in self.orders[rank])
        return 1 - busy / self.length if self.length else 0.0

    @property
    def bubble(self) -> float:
        """The part of all ranks' time in which they wait."""
        return sum(map(self.idle, range(len(self.orders)))) / max(len(self.orders), 1)

    def picture(self, width: int = 72) -> str:
        """Ranks as lines: capital letters are forward, small ones backward; one letter a microbatch, points idle."""
        rows = []
        for rank, order in enumerate(self.orders):
            line = ["."] * width
            for action in order:
                start, end = (round(t / self.length * width) for t in self.spans[action])
                letter = chr(ord("A") + action.microbatch % 26)
                for i in range(start, max(end, start + 1)):
                    if i < width:
                        line[i] = letter.lower() if action.is_backward else letter
            rows.append(f"{rank:>3} {''.join(line)}  idle {self.idle(rank):.0%}")
        return "\n".join(rows)


def timeline(
    work: Sequence[float], ranks: int, microbatches: int, schedule: str, *, training: bool = True,
    backward: float = 2.0,
) -> Timeline:  # fmt: skip
    """The order for stages of such work, stage i on rank i % ranks. backward: its work, forward's being 1.

    "gpipe": all forwards, then all backwards. "1f1b" and "interleaved": backward as soon as it can be; a rank has no
    more microbatches on the way than stages follow its own.
    """
    stages = len(work)
    own = [[s for s in range(stages) if s % ranks == r] for r in range(ranks)]
    done: dict[Action, float] = {}
    spans: dict[Action, tuple[float, float]] = {}
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    free_at = [0.0] * ranks
    left = {
        Action(s, m, b)
        for s in range(stages)
        for m in range(microbatches)
        for b in ((False, True) if training else (False,))
    }
    while left:
        best: tuple[float, int, Action] | None = None
        for rank in range(ranks):
            action = _next(own[rank], left, done, stages, microbatches, schedule, training, free_at[rank])
            if action is None:
                continue
            start = max(free_at[rank], _ready(action, done, stages))
            if best is None or (start, rank) < best[:2]:
                best = start, rank, action
        assert best is not None, "a pipeline's actions wait for each other"
        start, rank, action = best
        end = start + work[action.stage] * (backward if action.is_backward else 1.0)
        done[action] = free_at[rank] = end
        spans[action] = (start, end)
        orders[rank].append(action)
        left.discard(action)
    return Timeline(orders, spans, max(done.values(), default=0.0))


def _needs(action: Action, stages: int) -> list[Action]:
    s, m = action.stage, action.microbatch
    if not action.is_backward:
        return [Action(s - 1, m, False)] if s else []
    return [Action(s, m, False), *([Action(s + 1, m, True)] if s + 1 < stages else [])]


def _ready(action: Action, done: dict[Action, float], stages: int) -> float:
    return max((done[a] for a in _needs(action, stages)), default=0.0)


def _next(
    own: Sequence[int], left: set[Action], done: dict[Action, float], stages: int, microbatches: int, schedule: str,
    training: bool, now: float,
) -> Action | None:  # fmt: skip
    """What a rank does next: what can begin first, backward before forward."""
    able = [a for a in left if a.stage in own and all(n in done for n in _needs(a, stages))]
    if schedule == "gpipe" or not training:
        if any(not a.is_backward and a.stage in own for a in left):
            able = [a for a in able if not a.is_backward]
    else:
        able = [a for a in able if a.is_backward or _may_begin(a, left, done, stages, microbatches)]
    return min(
        able, key=lambda a: (max(now, _ready(a, done, stages)), not a.is_backward, a.microbatch, -a.stage), default=None
    )


def _may_begin(action: Action, left: set[Action], done: dict[Action, float], stages: int, microbatches: int) -> bool:
    """Whether a stage has room for one more microbatch between its forward and backward: one a stage behind it."""
    on_the_way = (
        Action(action.stage, m, False) in done and Action(action.stage, m, True) in left for m in range(microbatches)
    )
    return sum(on_the_way) < stages - action.stage
