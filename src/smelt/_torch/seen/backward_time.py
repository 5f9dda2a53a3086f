"""How long it takes autograd to go back from some results to what a program was given.

Adapter for `Node.register_prehook`, which is public, and for `queue_callback` of torch's engine, which is not: where
torch has no such function, the way back is not timed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt._torch.seen.leaves import history

_queue: Callable[[Callable[[], None]], None] | None = getattr(
    getattr(torch.autograd.Variable, "_execution_engine", None), "queue_callback", None
)


class TimedBackward:
    """Seconds of the way back from results: from the first of them that gets a gradient to the last input that does, or
    to the end, where no input has a history.

    is_awaited: whether somebody may still go back from them for the first time.
    """

    __slots__ = ("_is_over", "_running", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_over = False
        self._running: weakref.ref[_Running] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the results have a history that nobody has gone back through."""
        return not self._is_over and self._running is not None and self._running() is not None

    def watch(
        self, results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor], clock: Callable[[], float]
    ) -> None:
        """Time what goes back from these results to these inputs."""
        if _queue is None:
            return
        ends = [node for node in map(history, results) if node is not None]
        if not ends:
            return
        running = _Running(self, clock)
        for node in ends:
            node.register_prehook(running.begin)
        for node in filter(None, map(history, inputs)):
            node.register_prehook(running.reached)
        self._running = weakref.ref(running)

    def add(self, seconds: float) -> None:
        """Autograd has gone back once."""
        self.seconds += seconds
        self._is_over = True


class _Running:
    """What the nodes of autograd hold: it lives as long as these do."""

    __slots__ = ("__weakref__", "_begun", "_clock", "_last", "_timed")

    def __init__(self, timed: TimedBackward, clock: Callable[[], float]) -> None:
        self._timed, self._clock = timed, clock
        self._begun = self._last = 0.0

    def begin(self, grads: Any) -> None:
        if self._begun or _queue is None:
            return
        _queue(self._end)
        self._begun = self._clock()

    def reached(self, grads: Any) -> None:
        if self._begun:
            self._last = self._clock()

    def _end(self) -> None:
        self._timed.add((self._last or self._clock()) - self._begun)
        self._begun = self._last = 0.0
