"""In which order a rank runs the forward and backward of its stages' microbatches, and how long ranks wait.

    1F1B, 3 stages, 4 microbatches          F0 F1 F2 B0 F3 B1 B2 B3
                                               F0 F1 B0 F2 B1 F3 B2 B3
                                                  F0 B0 F1 B1 F2 B2 F3 B3

Orders come from one simulation of all ranks, which every rank does for itself and which comes out the same: so each
message has a sender and a receiver, and nobody waits for what is sent later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.diag.records import record


@record
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
    spans: dict[Action, tuple[float, float]] = {}
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    free_at = [0.0] * ranks
    run = _Progress(stages, microbatches, schedule, training)
    chosen: list[tuple[float, Action] | None] = [None] * ranks
    stale = set(range(ranks))
    for _ in range(stages * microbatches * (2 if training else 1)):
        for rank in stale:
            action = run.next_of(own[rank], free_at[rank])
            chosen[rank] = None if action is None else (max(free_at[rank], run.ready(action)), action)
        start, rank, action = min((one[0], rank, one[1]) for rank, one in enumerate(chosen) if one is not None)
        end = start + work[action.stage] * (backward if action.is_backward else 1.0)
        free_at[rank] = end
        run.finish(action, end)
        spans[action] = (start, end)
        orders[rank].append(action)
        # Whoever has a stage beside this one may have something else to do now.
        stale = {s % ranks for s in (action.stage - 1, action.stage, action.stage + 1)}
    return Timeline(orders, spans, max(free_at, default=0.0))


class _Progress:
    """How far each stage is. A stage's microbatches go forward in their order, and backward in their order."""

    def __init__(self, stages: int, microbatches: int, schedule: str, training: bool) -> None:
        self.stages, self.microbatches, self.schedule, self.training = stages, microbatches, schedule, training
        self.done: dict[Action, float] = {}
        self.count = {(s, b): 0 for s in range(stages) for b in (False, True)}

    def finish(self, action: Action, end: float) -> None:
        self.done[action] = end
        self.count[action.stage, action.is_backward] += 1

    def ready(self, action: Action) -> float:
        return max((self.done[a] for a in _needs(action, self.stages)), default=0.0)

    def next_of(self, own: Sequence[int], now: float) -> Action | None:
        """What a rank does next: what can begin first, backward before forward."""
        able = [a for s in own for a in self._able(s)]
        if self.training and self.schedule == "gpipe" and any(self.count[s, False] < self.microbatches for s in own):
            able = [a for a in able if not a.is_backward]
        return min(
            able, key=lambda a: (max(now, self.ready(a)), not a.is_backward, a.microbatch, -a.stage), default=None
        )  # fmt: skip

    def _able(self, stage: int) -> Iterator[Action]:
        for is_backward in (False, True) if self.training else (False,):
            m = self.count[stage, is_backward]
            action = Action(stage, m, is_backward)
            if m >= self.microbatches or any(n not in self.done for n in _needs(action, self.stages)):
                continue
            if is_backward or self.schedule == "gpipe" or not self.training or self._may_begin(stage):
                yield action

    def _may_begin(self, stage: int) -> bool:
        """Whether a stage has room for one more microbatch between its forward and backward: one a stage behind it."""
        return self.count[stage, False] - self.count[stage, True] < self.stages - stage


def _needs(action: Action, stages: int) -> list[Action]:
    s, m = action.stage, action.microbatch
    if not action.is_backward:
        return [Action(s - 1, m, False)] if s else []
    return [Action(s, m, False), *([Action(s + 1, m, True)] if s + 1 < stages else [])]
