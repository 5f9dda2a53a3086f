"""The first comparison of what was compiled with eager mode, on the calls that come: decided within ten.

    c   e c e c e c e c        c: compiled, e: eager; the first compiled call may still pack weights, and is not counted

One that is far ahead wins after two pairs. Where four do not tell them apart, blocks of calls follow, so that either
finds its own data in the processor's caches. Of a program with gradients, a call's time has that of going back from its
results, so it is judged when the next call begins. Invariant: no call runs twice; which of both runs it changes no
answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt._torch.seen.backward_time import TimedBackward
from smelt.compiler.deciding.ledger import Ledger
from smelt.compiler.deciding.worth import LITTLE, MARGIN, usual
from smelt.compiler.object.compiled_inputs import tensors_in

PAIRS = 4  # calls of each kind before it is asked which is slower
FAR = 2.0  # how much faster wins after half of these
COLD_S = 0.5e-3  # what caches full of the other's code and data may cost an eager call
BLOCK = 4  # calls of one kind in a row where pairs do not tell; the first of them does not count
BLOCKS = 8


@dataclass(slots=True)
class _Sample:
    """One call that counts: seconds of the call itself, and of going back from its results."""

    seconds: float
    backward: TimedBackward = field(default_factory=TimedBackward)

    @property
    def total(self) -> float:
        return self.seconds + self.backward.seconds


class Trial:
    """One comparison. is_lost: eager mode is faster; is_over: that is known, or that it is not.

    has_gradients: whether autograd goes back from the results. lock: held by the call that is measured; others run
    compiled. is_measuring: it is the compiled program's turn.
    """

    __slots__ = ("_calls", "_ledger", "_spent", "has_gradients", "is_lost", "is_measuring", "is_over", "lock")

    def __init__(self, ledger: Ledger, *, has_gradients: bool = False) -> None:
        self._ledger, self._calls = ledger, 0
        self._spent: tuple[list[_Sample], list[_Sample]] = ([], [])
        self.has_gradients = has_gradients
        self.is_lost = self.is_over = self.is_measuring = False
        self.lock = threading.Lock()

    @property
    def is_eagers_turn(self) -> bool:
        """Whether the next call is to run in eager mode."""
        if self._calls <= 2 * PAIRS:
            return self._calls % 2 == 1
        return (self._calls - 2 * PAIRS - 1) // BLOCK % 2 == 0

    def run(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The answer, by the one whose turn it is. A call that raises, or builds something, is no measure."""
        number, is_eager = self._calls, self.is_eagers_turn
        self._calls += 1
        before, start = self._ledger.spent_s, self._ledger.clock()
        result = run(*args, **kwargs)
        seconds = self._ledger.clock() - start
        is_cold = number == 0 or (number > 2 * PAIRS and (number - 2 * PAIRS - 1) % BLOCK == 0)
        if not is_cold and self._ledger.spent_s == before:
            sample = _Sample(seconds)
            self._spent[is_eager].append(sample)
            if self.has_gradients:
                sample.backward.watch(tensors_in(result), tensors_in((args, kwargs)), self._ledger.clock)
        if not self.has_gradients:
            self._judge()
        return result

    def catch_up(self) -> None:
        """Judge by what has come of the last call since: the way back from its results."""
        if self.has_gradients and not any(sample.backward.is_awaited for kind in self._spent for sample in kind):
            self._judge()

    @property
    def times(self) -> tuple[float, float]:
        """What a call takes compiled, and in eager mode, in seconds."""
        compiled, eager = self._totals
        return usual(compiled), usual(eager)

    @property
    def _totals(self) -> tuple[list[float], list[float]]:
        compiled, eager = self._spent
        return [sample.total for sample in compiled], [sample.total for sample in eager]

    def _judge(self) -> None:
        (compiled, eager), calls = self._totals, self._calls
        fewest = min(len(compiled), len(eager))
        if calls <= 2 * PAIRS:
            self.is_over = 2 * fewest >= PAIRS and FAR * max(compiled) <= min(eager)
            return
        is_first, is_last = calls == 2 * PAIRS + 1, calls > 2 * PAIRS + BLOCK * BLOCKS
        is_ahead = False
        if fewest >= (2 if is_first or is_last else PAIRS):
            is_behind = min(compiled) > MARGIN * usual(eager)
            self.is_lost = is_behind or (is_last and usual(compiled) > LITTLE * usual(eager))
            is_far = FAR * usual(compiled) <= usual(eager)
            is_ahead = is_far or (is_first and usual(compiled) + COLD_S <= usual(eager))
        self.is_over = self.is_lost or is_ahead or is_last
        if is_first and not self.is_over:
            self._spent = ([], [])  # of blocks alone, where either's caches are warm


def first_trial(ledger: Ledger | None, *, has_gradients: bool = False) -> Trial | None:
    """The comparison that a new program begins with; None where times decide nothing."""
    return Trial(ledger, has_gradients=has_gradients) if ledger is not None and ledger.is_kept else None
