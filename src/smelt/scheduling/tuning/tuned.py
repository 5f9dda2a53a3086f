"""What tuning tried and chose, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from smelt.diag.records import record
from smelt.scheduling.tuning.knobs import described

Failure = Literal["refused", "wrong", "failed"]
_LONGEST = 80


@record
class Trial:
    """One candidate.

    knobs: the choices that it requested and got. seconds, untouched: of a call of it, and of the untouched model beside
    it; None where it was not measured. gain: how many times as fast as that, by the median of rounds in which both ran;
    0 where it was not measured. failure: "refused" where a step was not legal, "wrong" where results or gradients
    differ, "failed" for another error of the run; why: that error. steps: how many it took.
    """

    knobs: Mapping[str, Any]
    seconds: float | None = None
    untouched: float | None = None
    gain: float = 0.0
    failure: Failure | None = None
    why: str = ""
    steps: int = 0


@record
class Tuned:
    """A finished search; printed, it is a table of its trials.

    schedule: with the steps of the best. trials: in the order in which they were tried; of a result that was cached on
    disk only the best , with the times measured then. best: of trials. ended: why the search did; is_complete: whether
    nothing was left to try. is_kept: whether the result was read from disk. space: how many candidates there are at
    most, by the knobs that were seen.
    """

    schedule: Any
    trials: tuple[Trial, ...]
    best: Trial
    ended: str
    is_complete: bool = False
    is_kept: bool = False
    space: int = 1

    @property
    def knobs(self) -> Mapping[str, Any]:
        """What was chosen."""
        return self.best.knobs

    def __str__(self) -> str:
        return "\n".join([*_table(self.trials, self.best), self._summary()])

    def _summary(self) -> str:
        if self.is_kept:
            return "cached from an earlier search; verified again, not measured again"
        failures = [trial.failure for trial in self.trials]
        counts = [f"{failures.count(kind)} {kind}" for kind in ("refused", "wrong", "failed") if kind in failures]
        counts = [f"{failures.count(None)} measured", *counts]
        left = f" of at most {self.space}" if self.space > len(self.trials) and not self.is_complete else ""
        what = "candidate" if len(self.trials) == 1 else "candidates"
        return f"{len(self.trials)} {what}{left}: {', '.join(counts)}; {self.ended}"


def _table(trials: Sequence[Trial], best: Trial) -> list[str]:
    names = list(dict.fromkeys(name for trial in trials for name in trial.knobs))
    rows = [["", *names, "time", "untouched", "gain", ""]]
    for number, trial in enumerate(trials, 1):
        knobs = [described(trial.knobs[name]) if name in trial.knobs else "-" for name in names]
        if trial.seconds is None or trial.untouched is None:
            said = ["", "", "", f"{trial.failure}: {_short(trial.why)}"]
        else:
            said = [
                _time(trial.seconds),
                _time(trial.untouched),
                f"{trial.gain:.2f}x",
                "best" if trial is best else "",
            ]
        rows.append([str(number), *knobs, *said])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in rows]


def _short(why: str) -> str:
    return why if len(why) <= _LONGEST else why[: _LONGEST - 3] + "..."


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
